"""The contract of `postern exec`: stdio passes through, the exit code is the command's own, nothing is left behind."""

import hashlib
import os
import pathlib
import signal
import subprocess
import time

import pytest

import postern as lib
from postern import EXIT_NO_PROGRAM, EXIT_OOM, EXIT_TIMEOUT, until


def test_a_command_runs_and_its_output_comes_out(postern):
    done = postern.sh("echo out; echo err >&2")
    assert (done.code, done.out, done.err) == (0, b"out\n", b"err\n"), done


@pytest.mark.parametrize("code", [0, 1, 42, 126, 255])
def test_the_exit_code_is_the_commands_own(postern, code):
    done = postern.sh(f"exit {code}")
    assert done.code == code, done
    assert done.err == b"", done


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_a_signal_is_told_as_128_and_the_signal(postern, number):
    done = postern.sh(f"kill -{int(number)} $$")
    assert done.code == 128 + number, done


def test_a_missing_program_is_127_and_says_which(postern):
    done = postern.exec("/no/such/program")
    assert done.code == EXIT_NO_PROGRAM, done
    assert "/no/such/program" in lib.one_sentence(done)


def test_a_program_is_looked_for_in_path(postern):
    assert postern.exec("true").code == 0
    done = postern.exec("no-such-program-anywhere")
    assert done.code == EXIT_NO_PROGRAM and "no-such-program-anywhere" in done.error, done


def test_a_file_that_is_no_program_is_126(postern):
    done = postern.exec("/etc/hostname")
    assert done.code == 126, done


def test_a_timeout_is_124_and_says_so(postern):
    done = postern.exec("sleep", "600", flags=["--timeout", "1s"])
    assert done.code == EXIT_TIMEOUT, done
    lib.one_sentence(done, "time")


def test_a_command_that_exits_124_is_told_apart_from_a_timeout(postern):
    done = postern.sh("exit 124", flags=["--timeout", "30s"])
    assert done.code == 124 and done.err == b"", done


def test_out_of_memory_is_137_and_says_so(postern):
    if postern.flags:
        lib.must("no memory limits on this machine")
    done = postern.probe("eat", "400", flags=["--memory", "64M"])
    assert done.code == EXIT_OOM, done
    lib.one_sentence(done, "memory")


def test_a_kill_from_inside_is_told_apart_from_out_of_memory(postern):
    done = postern.sh("kill -9 $$")
    assert done.code == 137, done
    assert "memory" not in done.error, done


def test_a_hundred_megabytes_pass_through_unchanged(postern, tmp):
    source = tmp / "big"
    with open("/dev/urandom", "rb") as random:
        block = random.read(1 << 20)
    digest = hashlib.sha256()
    with open(source, "wb") as out:
        for i in range(100):
            piece = block[i:] + bytes([i])
            out.write(piece)
            digest.update(piece)
    back = tmp / "back"
    with open(source, "rb") as stdin, open(back, "wb") as stdout:
        process = postern.start("exec", *postern.flags, "--", "cat", stdin=stdin, stdout=stdout)
        _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert hashlib.sha256(back.read_bytes()).hexdigest() == digest.hexdigest()


def test_end_of_input_reaches_the_command(postern):
    done = postern.exec("wc", "-c", stdin=b"x" * 12345)
    assert done.out.strip() == b"12345", done


def test_a_command_that_ignores_its_input_is_not_waited_for(postern):
    """`yes | postern exec true` must end although the input never does."""
    yes = subprocess.Popen(["yes"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        process = postern.start("exec", *postern.flags, "--", "true", stdin=yes.stdout)
        yes.stdout.close()
        process.communicate(timeout=60)
        assert process.returncode == 0
    finally:
        yes.kill()
        yes.wait()


def test_a_reader_that_goes_away_ends_the_command(postern):
    process = postern.start("exec", *postern.flags, "--", "yes")
    assert process.stdout.read(10)
    process.stdout.close()
    assert process.wait(timeout=60) != 0
    process.stderr.close()
    process.stdin.close()


def test_arguments_arrive_as_they_are(postern):
    odd = ["", " ", "a b", "new\nline", "-n", "--", "$HOME", "'", '"', "\\", "ü", "\x01"]
    done = postern.exec("/bin/sh", "-c", 'for a; do printf "%s\\0" "$a"; done', "sh", *odd)
    assert done.out.decode().split("\0")[:-1] == odd, done


def test_arguments_that_are_no_utf8_arrive_as_they_are(postern):
    done = postern.exec("printf", "%s", os.fsdecode(b"\xff\xfe"))
    assert done.out == b"\xff\xfe", done


def test_the_working_directory_and_the_environment_can_be_chosen(postern):
    done = postern.sh('pwd; echo "$GREETING"', flags=["--cwd", "/tmp", "--env", "GREETING=hello there"])
    assert done.lines() == ["/tmp", "hello there"], done


def test_nothing_written_stays_for_the_next_one(postern):
    assert postern.sh("echo x > /tmp/here; echo x > /var/tmp/there; cat /tmp/here").code == 0
    done = postern.sh("ls /tmp /var/tmp")
    assert b"here" not in done.out, done


def test_the_ordinary_user_can_work(postern):
    """A home, a place for files, common tools: what a coding agent needs."""
    done = postern.sh('set -e; test "$(id -u)" != 0; cd "$HOME"; echo x > f; mkdir -p a/b; ln -s f l; '
                      "python3 -c 'import json,ssl,subprocess; print(subprocess.check_output([\"cat\",\"f\"]))'; "
                      "git init -q r; cd r; git -c user.name=a -c user.email=b commit -q --allow-empty -m x; "
                      "echo 'int main(){return 0;}' > m.c; cc m.c -o m; ./m; echo fine")
    assert done.code == 0 and done.lines()[-1] == "fine", done


def test_a_terminal_is_a_terminal(postern):
    terminal = lib.Terminal([lib.PROGRAM, "exec", *postern.flags, "--pty", "--", "/bin/sh", "-c",
                             "test -t 0 && test -t 1 && test -t 2 && stty size && echo all-tty; read line; "
                             "echo got-$line; exit 7"], env=postern.environment())
    terminal.size(40, 120)
    terminal.read_until(b"all-tty")
    terminal.type(b"hello\n")
    terminal.read_until(b"got-hello")
    assert terminal.wait() == 7
    terminal.close()


def test_a_shell_to_look_around(postern):
    terminal = lib.Terminal([lib.PROGRAM, "shell", *postern.flags], env=postern.environment({"TERM": "xterm"}))
    terminal.type(b"echo look-$((40+2)); exit 5\n")
    terminal.read_until(b"look-42")
    assert terminal.wait() == 5
    terminal.close()
    done = postern("shell", stdin=b"echo x\n")
    assert done.code == lib.EXIT_INPUT, done
    lib.one_sentence(done, "terminal")


@pytest.mark.parametrize("root", [False, True], ids=["user", "root"])
@pytest.mark.parametrize("blow", ["kill -9 $PPID", "kill -STOP $PPID", "kill -9 1", "kill -STOP 1", "kill -9 -1",
                                  "kill -STOP -1"])
def test_blows_against_what_watches_the_command_do_not_help_it(postern, root, blow):
    """Whatever it hits, the command ends and nothing of it is left."""
    mark = f"89898.{os.getpid()}"
    done = postern.sh(f"sleep {mark} & {blow}; sleep {mark}", flags=[*(postern.root_flags() if root else []), "--timeout", "1s"])
    assert done.code != 0, done
    until(lambda: not lib.processes(mark), what="the command to go")


def test_processes_left_behind_are_gone_when_the_command_ends(postern):
    mark = f"98765.{os.getpid()}1"
    done = postern.sh(f"(setsid sleep {mark} &) ; sleep {mark} & exit 3")
    assert done.code == 3, done
    until(lambda: not lib.processes(mark), what="the left-overs to go")


def test_daemons_are_gone_after_a_timeout(postern):
    """Double fork, new session, stopped, SIGTERM ignored, subreaper: all gone when 124 is reported."""
    mark = f"daemon-{os.getpid()}-{time.monotonic_ns()}"
    done = postern.probe("daemonise", mark, "600", flags=["--timeout", "5s"])
    assert done.code == EXIT_TIMEOUT, done
    assert b"ready" in done.out, done
    assert lib.processes(mark) == []


def test_daemons_would_stay_without_the_sandbox():
    """The counter-proof of the two above: `timeout` alone leaves them running."""
    mark = f"daemon-{os.getpid()}-{time.monotonic_ns()}"
    subprocess.run(["timeout", "-k", "1", "3", lib.PROBE, "daemonise", mark, "600"], stdin=subprocess.DEVNULL,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
    left = lib.processes(mark)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert len(left) >= 3


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_postern_ends_the_sandbox(postern, number, code):
    mark = f"87654.{os.getpid()}{int(number)}"
    process = postern.start("exec", *postern.flags, "--", "sleep", mark)
    until(lambda: lib.marked(mark, "sleep"), what="the command to run")
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == code
    until(lambda: not lib.processes(mark), what="the command to go")


def test_kill_9_of_postern_leaves_no_process(postern):
    mark = f"76543.{os.getpid()}"
    process = postern.start("exec", *postern.flags, "--", "sleep", mark)
    until(lambda: lib.marked(mark, "sleep"), what="the command to run")
    process.kill()
    process.communicate(timeout=60)
    until(lambda: not lib.processes(mark), what="the command to go")


def test_many_at_once(postern):
    processes = [postern.start("exec", *postern.flags, "--", "sh", "-c", f"echo {i}; exit {i}") for i in range(12)]
    for i, process in enumerate(processes):
        out, error = process.communicate(timeout=120)
        assert (process.returncode, out) == (i, f"{i}\n".encode()), error


def test_nothing_is_left_on_the_machine(postern):
    census, folders = lib.Census(postern.home), lib.run_dirs()
    for _ in range(3):
        assert postern.exec("true").code == 0
    postern.exec("sleep", "60", flags=["--timeout", "200ms"])
    census.settled("no process has this in its command line")
    left = [p for p in pathlib.Path(postern.home).rglob("*") if "sb-" in p.name]
    assert left == []
    # Others may make folders of their own meanwhile: those with a living keeper's socket or lock in it do not count.
    until(lambda: not [f for f in lib.run_dirs() - folders if not os.listdir(f)], what="run folders to go")
