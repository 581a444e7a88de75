"""Exhaustion, class 19: whatever a sandbox eats, the machine and the neighbours do not notice. And class 17, bombs."""

import os
import time

import pytest

import postern as lib
from postern import ESCAPED, EXIT_OOM, EXIT_TIMEOUT, REFUSED, must, until


def needs_limits(postern):
    if postern.flags:
        must("no cgroup limits on this machine")


class Neighbour:
    """A sandbox in which a counter goes on; `steps` says how far it came."""

    def __init__(self, postern):
        self.process = postern.start("exec", *postern.flags, "--", "/bin/sh", "-c",
                                     "while read line; do echo $line; done")
        self.steps = 0
        self.ask()

    def ask(self):
        self.steps += 1
        self.process.stdin.write(f"{self.steps}\n".encode())
        self.process.stdin.flush()
        assert self.process.stdout.readline() == f"{self.steps}\n".encode()

    def close(self):
        self.process.communicate(timeout=60)
        assert self.process.returncode == 0


@pytest.fixture
def neighbour(postern):
    other = Neighbour(postern)
    yield other
    other.ask()
    other.close()


def test_memory_ends_at_the_limit_and_only_there(postern, neighbour):
    needs_limits(postern)
    done = postern.probe("eat", "2000", flags=["--memory", "128M"])
    assert done.code == EXIT_OOM, done
    assert "memory" in done.error.lower()
    neighbour.ask()
    assert postern.probe("eat", "200", flags=["--memory", "512M"]).code == ESCAPED  # below the limit there is memory


def test_a_child_that_runs_out_of_memory_is_seen(postern):
    """The shell survives or not; either way the end says memory or the shell's own code for a killed child."""
    needs_limits(postern)
    script = "cat > /tmp/probe; chmod +x /tmp/probe; /tmp/probe eat 2000; echo code $?"
    done = postern.exec("/bin/sh", "-c", script, stdin=lib.PROBE.read_bytes(), flags=["--memory", "128M"])
    assert done.code == EXIT_OOM or b"code 137" in done.out, done


@pytest.mark.parametrize("place", ["/tmp/f", "/dev/shm/f", "/var/tmp/f"])
def test_files_in_memory_end_at_a_limit(postern, neighbour, place):
    needs_limits(postern)
    available = lib.command(["awk", "/MemAvailable/ {print $2}", "/proc/meminfo"])
    done = postern.probe("fill", place, "8000", flags=["--memory", "128M"])
    assert done.code in (REFUSED, EXIT_OOM), done
    neighbour.ask()
    until(lambda: int(lib.command(["awk", "/MemAvailable/ {print $2}", "/proc/meminfo"]).out)
          > int(available.out) - 600_000, what="the memory to come back")


def test_files_without_content_end_at_a_limit(postern, neighbour):
    needs_limits(postern)
    done = postern.probe("inodes", "/tmp", "20000000", flags=["--memory", "64M"])
    assert done.code in (REFUSED, EXIT_OOM), done
    neighbour.ask()


def test_processes_end_at_the_limit(postern, neighbour):
    needs_limits(postern)
    done = postern.probe("fork-many", "2000", flags=["--pids", "64"])
    assert done.code == REFUSED and "Resource temporarily unavailable" in done.text, done
    neighbour.ask()


def test_a_fork_bomb_is_gone_after_its_timeout(postern, neighbour):
    needs_limits(postern)
    mark = f"bomb{os.getpid()}"
    script = f"cat > /tmp/{mark}; chmod +x /tmp/{mark}; exec /tmp/{mark} fork-bomb"
    done = postern.exec("/bin/sh", "-c", script, stdin=lib.PROBE.read_bytes(),
                        flags=["--pids", "100", "--timeout", "2s"], seconds=60)
    assert done.code == EXIT_TIMEOUT, done
    assert lib.processes(mark) == []
    neighbour.ask()


def test_descriptors_end_at_a_limit(postern):
    done = postern.probe("open-many", "3000000")
    assert done.code == REFUSED, done


def test_ten_gigabytes_of_output_leave_memory_flat(postern, neighbour):
    """The output goes nowhere as fast as it can; the peak memory of everything of ours stays small."""
    with open("/dev/null", "wb") as nowhere:
        process = postern.start("exec", *postern.flags, "--", "/bin/sh", "-c",
                                "cat > /tmp/probe; chmod +x /tmp/probe; exec /tmp/probe flood 10240", stdout=nowhere)
        process.stdin.write(lib.PROBE.read_bytes())
        process.stdin.close()
        peak = 0
        while process.poll() is None:
            try:
                ours = {process.pid, *lib.children(process.pid), *lib.keepers(postern.home)}
                peak = max([peak, *(lib.status_of(pid, "VmHWM") for pid in ours)])
            except OSError:
                pass
            neighbour.ask()  # the neighbour goes on all the while
            time.sleep(0.2)
    assert process.returncode == 0, process.stderr.read()
    process.stderr.close()
    assert 0 < peak < 64 * 1024, f"{peak} kB at the peak"
    assert neighbour.steps > 3


def test_a_slow_reader_stops_the_writer_and_not_the_neighbour(postern, neighbour):
    """Nobody reads: the command blocks, memory stays flat, the neighbour goes on."""
    process = postern.start("exec", *postern.flags, "--", "yes")
    assert process.stdout.read(1)
    sizes = []
    for _ in range(10):
        neighbour.ask()
        sizes.append(lib.status_of(process.pid, "VmRSS"))
        time.sleep(0.05)
    assert max(sizes) < 64 * 1024, sizes
    process.terminate()
    process.communicate(timeout=60)


def test_many_neighbours_are_not_disturbed_by_a_busy_one(postern, neighbour):
    busy = postern.start("exec", *postern.flags, "--timeout", "60s", "--", "sh", "-c",
                         "while :; do :; done & while :; do :; done")
    try:
        for _ in range(20):
            neighbour.ask()
    finally:
        busy.terminate()
        busy.communicate(timeout=60)


def test_cpu_can_be_limited(postern):
    """With a tenth of a core, one second of work takes much longer than one second of processor time."""
    needs_limits(postern)
    done = postern.sh("python3 - <<'END'\n"
                      "import time\n"
                      "wall, cpu = time.monotonic(), time.process_time()\n"
                      "while time.monotonic() - wall < 2: pass\n"
                      "print((time.process_time() - cpu) / (time.monotonic() - wall))\n"
                      "END", flags=["--cpu", "100"])
    assert done.code == 0 and float(done.out) < 0.5, done
