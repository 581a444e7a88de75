"""Bad nights, class 18: kill -9 of the server, of the keeper, at any moment. The next start finds everything and
nothing leaks: no process, no cgroup, no mount."""

import os
import random
import signal
import time

import pytest

import postern as lib
from postern import Census, bash, script, task, until


def main_keeper(home):
    """The one that is not a sandbox's own first process: its parent is no keeper."""
    return next(iter(lib.main_keepers(home)), None)


def start_many(postern, tmp, mark, count):
    """`count` rollouts whose agents sleep in a tool call."""
    model = script(tmp / "m.toml", bash(f"sleep {mark}"), "Done.")
    process = postern.start("run", "--json", "--agent", "mini", "--task", task(tmp / "t.json", verify=["true"]), "--model",
                            model, "-n", count, "--parallel", count, "--sandbox.starting-max", "16")
    until(lambda: process.poll() is not None or len(lib.marked(mark, "sleep")) == count, 120, f"{count} agents at work")
    assert process.poll() is None, process.communicate()
    return process


def next_start(postern, tmp):
    """Another run on the same home: it finds what was left, and works."""
    return postern.run("--agent", "mini", "--task", task(tmp / "next.json", name="next", verify=["true"]), "--model",
                       script(tmp / "next.toml", "Done."))


def results_of(postern):
    return {p.name: (lib.json.loads((p / "result.json").read_text()) if (p / "result.json").exists() else None)
            for p in postern.rollouts()}


def test_kill_9_of_the_server_with_50_rollouts(postern, tmp):
    mark = f"43210.{os.getpid()}"
    census = Census(postern.home)
    process = start_many(postern, tmp, mark, 50)
    process.kill()
    process.communicate(timeout=60)
    assert len(lib.marked(mark, "sleep")) == 50, "the keeper still holds every one of them"
    done, results = next_start(postern, tmp)
    assert done.code == 0 and len(results) == 1 and results[0]["fate"] == "ok", done
    # Every one of them is known, with a fate that no trainer mistakes for a reward.
    left = {k: v for k, v in results_of(postern).items() if k != results[0]["rollout_id"]}
    assert len(left) == 50
    for name, result in left.items():
        assert result and result["fate"] == "infra_failed" and not result.get("reward"), (name, result)
    census.settled(mark)


def test_kill_9_of_the_keeper(postern, tmp):
    """The kernel takes the sandboxes, the rollouts end as infrastructure failures, the next start sweeps."""
    mark = f"43212.{os.getpid()}"
    census = Census(postern.home)
    process = start_many(postern, tmp, mark, 10)
    keeper = main_keeper(postern.home)
    assert keeper, "no keeper of this home was found"
    os.kill(keeper, signal.SIGKILL)
    out, error = process.communicate(timeout=120)
    assert process.returncode != 0, error
    results = lib.json_lines(out)
    assert len(results) == 10 and all(r["fate"] == "infra_failed" and not r.get("reward") for r in results), out[-2000:]
    until(lambda: not lib.processes(mark), 20, "processes to go")
    done, results = next_start(postern, tmp)
    assert done.code == 0 and results[0]["fate"] == "ok", done
    census.settled(mark)


def test_kill_9_of_one_does_not_hurt_another_on_the_same_home(postern, tmp):
    """Two runs share a keeper. One is killed, a third starts and clears what the first left: the second does not notice."""
    mark, other = f"43216.{os.getpid()}", f"43217.{os.getpid()}"
    census = Census(postern.home)
    first = start_many(postern, tmp, mark, 3)
    (tmp / "second").mkdir()
    gate = script(tmp / "second" / "m.toml", bash(f"sleep {other}"), "Done.")
    second = postern.start("run", "--json", "--agent", "mini", "--task",
                           task(tmp / "second" / "t.json", verify=["true"]), "--model", gate, "-n", "3", "--parallel", "3")
    until(lambda: len(lib.marked(other, "sleep")) == 3, 60, "the second run's agents at work")
    first.kill()
    first.communicate(timeout=60)
    done, results = next_start(postern, tmp)
    assert done.code == 0 and results[0]["fate"] == "ok", done
    until(lambda: not lib.processes(mark), 20, "what the first left to go")
    sleeping = lib.marked(other, "sleep")
    assert len(sleeping) == 3, "the second run's agents are still there"
    for pid in sleeping:
        os.kill(pid, signal.SIGTERM)
    out, error = second.communicate(timeout=120)
    assert [r["fate"] for r in lib.json_lines(out)] == ["ok"] * 3, (out, error)
    census.settled(mark)
    census.settled(other)


def test_kill_9_of_both(postern, tmp):
    mark = f"43213.{os.getpid()}"
    census = Census(postern.home)
    process = start_many(postern, tmp, mark, 8)
    keeper = main_keeper(postern.home)
    process.kill()
    if keeper:
        os.kill(keeper, signal.SIGKILL)
    process.communicate(timeout=60)
    done, results = next_start(postern, tmp)
    assert done.code == 0 and results[0]["fate"] == "ok", done
    census.settled(mark)


def test_kill_9_at_random_moments_leaves_nothing(postern):
    """Creation, first command, destruction: wherever it hits, the machine is clean afterwards."""
    mark = f"43214.{os.getpid()}"
    census = Census(postern.home)
    dice = random.Random(4)
    for _ in range(25):
        process = postern.start("exec", *postern.flags, "--", "sh", "-c", f"sleep 0.05; exec -a {mark} true")
        time.sleep(dice.random() * 0.15)
        process.kill()
        process.communicate(timeout=60)
    assert postern.exec("true").code == 0
    census.settled(mark)


def test_kill_9_of_a_private_keeper_ends_the_command(postern):
    mark = f"43215.{os.getpid()}"
    census = Census(postern.home)
    process = postern.start("exec", *postern.flags, "--", "sleep", mark)
    until(lambda: lib.marked(mark, "sleep"), what="the command to run")
    keeper = [p for p in lib.children(process.pid)
              if os.readlink(f"/proc/{p}/exe").split(" ")[0].endswith("postern-keeper")] or [main_keeper(postern.home)]
    os.kill(keeper[0], signal.SIGKILL)
    _, error = process.communicate(timeout=60)
    assert process.returncode not in (0, 1), error
    assert len(error.splitlines()) == 1, error
    assert postern.exec("true").code == 0
    census.settled(mark)
