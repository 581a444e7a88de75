"""Bad nights: kill -9 of `postern serve` at any moment. The next one goes on with every rollout: agents run on, calls are in the
record once, rewards are what they would have been, nothing is left."""

import json
import os
import random
import re
import shutil
import signal
import threading
import time

import pytest

import postern as lib
from postern import Census, bash, must, script, task, until
from test_crash import main_keeper
from test_service_callbacks import Receiver
from trainer import Control


class Service:
    """`postern serve` with a home that outlives it."""

    def __init__(self, postern, *flags, env=None):
        self.postern, self.flags, self.env, self.process = postern, flags, env, None
        self.start()

    def start(self):
        with open(self.postern.home / "serve.log", "ab") as log:
            self.process = self.postern.start("serve", *(() if "--port" in self.flags else ("--port", "0")), *self.postern.flags,
                                              *self.flags, env=self.env, stderr=log)
        line = self.process.stdout.readline().decode()
        match = re.search(r"http://[\d.]+:(\d+)", line)
        assert match, (line, (self.postern.home / "serve.log").read_text()[-2000:])
        self.control = Control(int(match[1]), (self.postern.home / "token").read_text().strip())

    def kill(self):
        self.process.kill()
        self.process.communicate(timeout=60)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=60)
        return self.process.returncode

    def restart(self):
        self.kill()
        self.start()

    def submit(self, **fields):
        status, body = self.control.ask("POST", "/v1/rollouts", fields)
        assert status == 201, body
        return body["id"]

    def stage(self, id_):
        return self.control.ask("GET", f"/v1/rollouts/{id_}")[1].get("stage")

    def result(self, id_, seconds=120):
        path = self.postern.home / "rollouts" / id_ / "result.json"
        until(path.exists, seconds, f"the result of {id_}")
        return json.loads(path.read_text())

    def log(self):
        return (self.postern.home / "serve.log").read_text(errors="replace")[-4000:]

    def wait(self, id_, condition, seconds, what):
        """Like until(), but over when the rollout is, with the server's own words."""
        over = self.folder(id_) / "result.json"
        try:
            until(lambda: condition() or over.exists() or self.process.poll() is not None, seconds, what)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.stage(id_)}\n{self.log()}\n{self.traces(id_)}") from None
        assert condition(), (what, over.exists() and over.read_text()[:2000], self.log())

    def traces(self, id_):
        """What a rollout left so far, for who has to find out why it does not go on."""
        seen = [(c["number"], c["state"], c.get("side"), c.get("deliveries")) for c in self.calls(id_)]
        files = [self.folder(id_) / name for name in ("agent.log", "events.jsonl")]
        tails = [f"{path.name}: {path.read_text(errors='replace')[-1500:]}" for path in files if path.exists()]
        return "\n".join([f"calls: {seen}", *tails])

    def row(self, id_):
        """As the index has it, when it says that it is over."""
        return until(lambda: (lambda row: row if row.get("fate") or row.get("class") else None)(
            self.control.ask("GET", f"/v1/rollouts/{id_}")[1]), 60, f"the row of {id_}")

    def folder(self, id_):
        return self.postern.home / "rollouts" / id_

    def events(self, id_, kind):
        return [e for e in lib.json_lines((self.folder(id_) / "events.jsonl").read_bytes()) if e["kind"] == kind]

    def calls(self, id_):
        path = self.folder(id_) / "calls.jsonl"
        return lib.json_lines(path.read_bytes()) if path.exists() else []

    def over(self):
        """Nothing is under way any more, and nothing is kept of what was."""
        until(lambda: not list((self.postern.home / "live").iterdir()), 30, "<home>/live to be empty")
        assert self.stop() == 0


@pytest.fixture
def service(postern):
    made = []

    def make(*flags, **options):
        made.append(Service(postern, *flags, **options))
        return made[-1]

    yield make
    for one in made:
        if one.process.poll() is None:
            one.kill()


def check(service, id_, turns=3, reward=1, tries=1):
    result = service.result(id_)
    assert result["fate"] == "ok" and result["reward"] == reward, result
    assert result["turns"] == turns and result["calls"] == turns, result
    assert result["tries"] == tries, result
    calls = service.calls(id_)
    assert sorted(c["number"] for c in calls) == list(range(1, turns + 1)), calls
    assert all(c["state"] == "answered" for c in calls)
    assert len(service.events(id_, "result")) == 1
    row = service.row(id_)
    assert (row.get("fate") or row.get("class")) == "ok"
    return result


def test_agents_run_on(service, tmp):
    """Killed again and again while agents work: three turns each, the same three, and what they did is what is judged."""
    mark = f"43250.{os.getpid()}"
    service = service()
    census = Census(service.postern.home)
    model = script(tmp / "m.toml", bash(f"echo one >> out; sleep 1.{mark[-3:]}"), bash("sleep 1; echo two >> out"), "Done.")
    work = {"name": "t", "instruction": "work", "verify": ["test \"$(cat out | tr '\\n' ' ')\" = 'one two '"]}
    ids = [service.submit(agent="mini", task=work, model=model, index=i) for i in range(8)]
    dice = random.Random(5)
    for _ in range(6):
        time.sleep(0.1 + dice.random() * 0.5)
        service.restart()
    for id_ in ids:
        result = check(service, id_)
        assert result["final_text"] == "Done." and result["agent_exit_code"] == 0
        # Its output, and what was read from it, are there once.
        log = lib.json_lines((service.folder(id_) / "agent.log").read_bytes())
        told = [e for e in lib.json_lines((service.folder(id_) / "events.jsonl").read_bytes())
                if e["kind"] in ("assistant", "tool_call", "tool_result", "done", "other", "error", "reasoning")]
        assert len(told) == len(log), (told, log)
    service.over()
    census.settled(mark)


def new_sleep(mark, before, what):
    """A marked sleep that is not one of those; they may still be on their way out."""
    return until(lambda: [pid for pid in lib.marked(mark, "sleep") if pid not in before], 60, what)


def wake(pids):
    for pid in pids:
        os.kill(pid, signal.SIGTERM)


def test_killed_in_setup_it_starts_over(service, tmp):
    mark = f"43251.{os.getpid()}"
    service = service()
    census = Census(service.postern.home)
    work = {"name": "t", "instruction": "work", "setup": [f"sleep {mark}; echo done >> setup"],
            "verify": ["test \"$(cat setup)\" = done"]}
    id_ = service.submit(agent="mini", task=work, model=script(tmp / "m.toml", "Done."))
    first = until(lambda: lib.marked(mark, "sleep"), 30, "setup")
    service.restart()
    wake(new_sleep(mark, first, "setup once more"))
    check(service, id_, turns=1, tries=2)
    service.over()
    census.settled(mark)


@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "same"])
def test_killed_while_verifying_it_is_judged_again_and_counted_once(service, tmp, fresh):
    mark = f"43252.{os.getpid()}"
    service = service()
    census = Census(service.postern.home)
    work = {"name": "t", "instruction": "work", "verify": ["test -e made", f"sleep {mark} || true"],
            "verifier": {"fresh": fresh}}
    id_ = service.submit(agent="mini", task=work, model=script(tmp / "m.toml", bash("touch made"), "Done."))
    seen = []
    for _ in range(2):
        seen += new_sleep(mark, seen, "the verifier")
        service.restart()
        until(lambda: service.stage(id_) == "verifying", 30, "it is gone on with")
    wake(new_sleep(mark, seen, "the verifier once more"))
    result = check(service, id_, turns=2)
    assert len(result["verify"]) == 2, result["verify"]
    service.over()
    census.settled(mark)


def test_killed_while_queued(service, tmp):
    service = service("--rollout.parallel-max", "1")
    model = script(tmp / "m.toml", bash("sleep 0.5; touch made"), "Done.")
    work = {"name": "t", "instruction": "work", "verify": ["test -e made"]}
    ids = [service.submit(agent="mini", task=work, model=model, index=i) for i in range(4)]
    until(lambda: service.stage(ids[0]) not in ("queued", "provisioning", "installing", "preparing", "setup"), 30, "the first to run")
    service.restart()
    for id_ in ids:
        check(service, id_, turns=2)
    assert [service.result(id_)["index"] for id_ in ids] == [0, 1, 2, 3]
    service.over()


def test_killed_with_the_keeper_each_comes_back_once_as_a_failure(service, tmp):
    mark = f"43253.{os.getpid()}"
    service = service()
    census = Census(service.postern.home)
    work = {"name": "t", "instruction": "work", "verify": ["true"]}
    ids = [service.submit(agent="mini", task=work, model=script(tmp / "m.toml", bash(f"sleep {mark}"), "Done."), index=i)
           for i in range(4)]
    until(lambda: len(lib.marked(mark, "sleep")) == 4, 60, "agents at work")
    keeper = main_keeper(service.postern.home)
    service.kill()
    os.kill(keeper, signal.SIGKILL)
    for _ in range(2):  # the second start has nothing left to do
        service.start()
        for id_ in ids:
            result = service.result(id_)
            assert result["fate"] == "infra_failed" and result["reward"] is None, result
            assert "the server that ran it died" in result["error"], result
            assert len(service.events(id_, "result")) == 1
        service.kill()
    service.start()
    service.over()
    census.settled(mark)


def test_without_a_server_sandboxes_are_kept_for_a_while_only(service, tmp):
    mark = f"43254.{os.getpid()}"
    service = service(env={"POSTERN_KEEPER_IDLE_MS": "1500"})
    census = Census(service.postern.home)
    id_ = service.submit(agent="mini", task={"name": "t", "instruction": "work", "verify": ["true"]},
                         model=script(tmp / "m.toml", bash(f"sleep {mark}"), "Done."))
    until(lambda: lib.marked(mark, "sleep"), 60, "the agent at work")
    service.kill()
    until(lambda: not lib.processes(mark), 30, "the sandbox to be given up")
    service.start()
    result = service.result(id_)
    assert result["fate"] == "infra_failed" and "no sandbox" in result["error"], result
    service.over()
    census.settled(mark)


def test_a_run_in_the_same_home_leaves_them_alone(service, tmp):
    mark = f"43255.{os.getpid()}"
    service = service()
    id_ = service.submit(agent="mini", task={"name": "t", "instruction": "work", "verify": ["test -e made"]},
                         model=script(tmp / "m.toml", bash(f"sleep {mark} & sleep 4; kill $!; touch made"), "Done."))
    until(lambda: lib.marked(mark, "sleep"), 60, "the agent at work")
    service.kill()
    done, results = service.postern.run("--agent", "mini", "--task", task(tmp / "o.json", verify=["true"]), "--model",
                                        script(tmp / "o.toml", "Done."))
    assert done.code == 0 and results[0]["fate"] == "ok", done
    assert not (service.folder(id_) / "result.json").exists()
    service.start()
    check(service, id_, turns=2)
    service.over()


def test_what_cannot_be_gone_on_with_says_why(service, tmp):
    """The task's file is gone: nobody can say any more what was asked for."""
    service = service("--rollout.parallel-max", "1")
    model = script(tmp / "m.toml", bash("sleep 1"), "Done.")
    path = task(tmp / "t.json", verify=["true"])
    ids = [service.submit(agent="mini", task=path, model=model, index=i) for i in range(2)]
    service.kill()
    os.unlink(path)
    service.start()
    for id_ in ids:
        result = service.result(id_)
        assert result["fate"] == "infra_failed" and "cannot be gone on with" in result["error"] and "t.json" in result["error"]
    service.over()


def test_a_group_whose_server_dies_in_its_submission_never_was(service, tmp):
    """Nobody was told of it: nothing of it runs, and its key and its name are free."""
    service = service("--rollout.parallel-max", "1")
    model = script(tmp / "m.toml", "Done.")
    body = {"agent": "mini", "task": {"name": "t", "instruction": "work", "verify": ["true"]}, "model": model,
            "key": "k", "group": "the-group", "n": 4000}
    live = service.postern.home / "live"
    asked = threading.Thread(target=lambda: pytest.raises(OSError, service.control.ask, "POST", "/v1/groups", body))
    asked.start()
    until(lambda: live.exists() and len(os.listdir(live)) > 20, 60, "the submission to be under way")
    service.kill()
    asked.join(60)
    left = len(os.listdir(live))
    assert 20 < left < 4000, left
    half = live / "r-0.json.0.new"  # what a crash leaves of a file it was writing
    half.write_text("{")
    for path in live.glob("*.new"):
        os.utime(path, (time.time() - 120,) * 2)
    service.start()
    assert not os.listdir(live)
    assert service.control.ask("GET", "/v1/rollouts?group=the-group")[1]["rollouts"] == []
    assert service.control.ask("GET", "/v1/groups/the-group")[0] == 404
    assert "nobody was told" in service.log()
    status, answer = service.control.ask("POST", "/v1/groups", body | {"n": 2})
    assert status == 201 and len(answer["rollouts"]) == 2, answer
    for id_ in answer["rollouts"]:
        check(service, id_, turns=1)
    service.over()


def test_more_dead_rollouts_than_fit_on_a_page_all_come_back(service, tmp):
    """What the next server cannot go on with is marked, however many there are."""
    service = service("--rollout.parallel-max", "1")
    body = {"agent": "mini", "task": {"name": "t", "instruction": "work"}, "model": script(tmp / "m.toml", bash("sleep 600")), "n": 1100}
    group = service.control.ask("POST", "/v1/groups", body)[1]["id"]
    service.kill()
    for path in (service.postern.home / "live").iterdir():
        path.unlink()
    service.start()
    assert "1100 unfinished rollouts of a server that died: marked as over" in service.log()
    until(lambda: service.control.ask("GET", f"/v1/groups/{group}")[1]["state"] == "over", 60, "all to be over")
    view = service.control.ask("GET", f"/v1/groups/{group}")[1]
    assert view["fates"] == {"infra_failed": 1100}, view
    service.over()


def test_rows_of_a_group_without_the_groups_own_never_were(service, tmp):
    """The journal ended between them."""
    service = service("--rollout.parallel-max", "1")
    slow, model = script(tmp / "s.toml", bash("sleep 600"), "Done."), script(tmp / "m.toml", "Done.")
    work = {"name": "t", "instruction": "work", "verify": ["true"]}
    first = service.submit(agent="mini", task=work, model=slow)
    half, whole, single = (service.submit(agent="mini", task=work, model=model, group=name) for name in ("half", "whole", "one"))
    members = service.control.ask("POST", "/v1/groups", {"agent": "mini", "task": work, "model": model, "n": 2})[1]["rollouts"]
    status, answer = service.control.ask("POST", "/v1/rollouts", [{"agent": "mini", "task": work, "model": model}] * 3)
    listed = [row["id"] for row in answer["rollouts"]]
    service.kill()
    live = service.postern.home / "live"
    for id_, more in ((half, {"grouped": True}), (listed[1], {"with": half})):
        path = live / f"{id_}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | more))
    service.start()
    for id_ in (half, listed[1]):
        assert not (live / f"{id_}.json").exists()
        until(lambda: service.control.ask("GET", f"/v1/rollouts/{id_}")[0] == 404, 30, "its row to be gone")
        assert not service.folder(id_).exists()
    assert service.control.ask("DELETE", f"/v1/rollouts/{first}")[0] == 202
    for id_ in (whole, single, *members, listed[0], listed[2]):
        check(service, id_, turns=1)
    service.over()


def test_a_cancellation_that_was_taken_outlives_its_server(service, tmp):
    """Whatever the rollouts were doing, and however soon after the answer the server dies."""
    mark = f"43260.{os.getpid()}"
    service = service("--rollout.parallel-max", "6")
    census = Census(service.postern.home)
    model = script(tmp / "m.toml", bash(f"sleep {mark}"), "Done.")
    work = {"name": "t", "instruction": "work", "setup": [f"sleep {mark}"], "verify": ["true"]}
    body = {"agent": "mini", "model": model, "group": "g", "n": 8, "share_setup": False, "task": work}
    ids = service.control.ask("POST", "/v1/groups", body)[1]["rollouts"]
    running = service.submit(agent="mini", model=model, task={"name": "t", "instruction": "x", "verify": ["true"]}, priority=9)
    until(lambda: len(lib.marked(mark, "sleep")) == 6, 60, "six at work")
    assert service.control.ask("POST", "/v1/groups/g/cancel") == (202, {"status": "cancelling", "rollouts": 8})
    service.kill()
    service.start()
    for id_ in ids:
        result = service.result(id_)
        assert (result["fate"], result["reason"], result["reward"]) == ("cancelled", "user", None), result
        assert "its group was cancelled" in result["cause"] and service.row(id_)["reason"] == "user", result
    until(lambda: service.stage(running) == "running", 60, "the other one to run")
    assert service.control.ask("POST", f"/v1/rollouts/{running}/cancel")[0] == 202
    service.kill()
    service.start()
    assert (service.result(running)["fate"], service.result(running)["reason"]) == ("cancelled", "user")
    service.over()
    census.settled(mark)


def test_what_cannot_be_read_any_more_is_booked_with_its_key_and_told(service, tmp):
    receiver = Receiver()
    service = service("--rollout.parallel-max", "1")
    model = script(tmp / "m.toml", bash("sleep 600"), "Done.")
    work = {"name": "t", "instruction": "work", "verify": ["true"]}
    first = service.submit(agent="mini", task=work, model=model)
    fields = {"agent": "mini", "task": work, "model": model, "run": "batch-7", "key": "k", "index": 3,
              "callback": {"url": receiver.url}}
    id_ = service.submit(**fields)
    service.kill()
    (service.postern.home / "live" / f"{id_}.json").write_text("")
    service.start()
    row = service.row(id_)
    result = service.result(id_)
    assert result["fate"] == "infra_failed" and result["reward"] is None, result
    assert (result["run"], result["index"], result["task"], row["agent"]) == ("batch-7", 3, "t", "mini"), (result, row)
    until(lambda: receiver.got, 60, "the delivery")
    assert json.loads(receiver.got[-1][1])["fate"] == "infra_failed"
    assert service.control.ask("POST", "/v1/rollouts", fields) == (200, {"id": id_})
    assert service.control.ask("DELETE", f"/v1/rollouts/{first}")[0] == 202
    service.over()
    receiver.close()


def test_the_version_it_began_at_outlives_its_server(service, tmp):
    """Else what was sampled from old weights would pass for new."""
    service = service()
    assert service.control.ask("POST", "/v1/policy", {"version": 3})[0] == 200
    model = script(tmp / "m.toml", bash("while ! test -e go; do sleep 0.1; done"), "Done.")
    id_ = service.submit(agent="mini", task={"name": "t", "instruction": "work", "verify": ["true"]}, model=model)
    until(lambda: service.stage(id_) == "running", 60, "the agent")
    assert service.control.ask("POST", "/v1/policy", {"version": 7})[0] == 200
    service.restart()
    until(lambda: service.stage(id_) == "running", 60, "the agent again")
    assert service.control.ask("GET", f"/v1/rollouts/{id_}")[1]["policy_version"] == 3
    assert service.control.ask("POST", "/v1/policy", {"max_staleness": 3})[0] == 200
    result = service.result(id_)
    assert (result["fate"], result["reason"], result["policy_version"]) == ("cancelled", "stale", 3), result
    service.over()


def test_a_held_call_waits_again_at_the_gate(service, tmp):
    """The trainer of before has a lease that is gone; the agent's request is the same call, for whoever takes it now."""
    service = service("--gateway.retry-grace", "60s")
    id_ = service.submit(agent="mini", mode="gate", task={"name": "t", "instruction": "work", "verify": ["true"]})
    held = service.control.take(max=1)[0]
    service.restart()
    again = service.control.take(max=1)[0]
    assert again["call_id"] == held["call_id"] and again["turn"] == held["turn"]
    assert service.control.answer(held, {"content": "Late."})[0] in (404, 409)
    assert service.control.answer(again, {"content": "Done."})[0] == 200
    result = check(service, id_, turns=1)
    assert result["final_text"] == "Done."
    assert service.calls(id_)[0]["attempts"] == 2
    service.over()


def test_a_real_agent_runs_on(service, tmp, sandbox_works):
    """Claude Code, unmodified, with the server killed twice under it."""
    from test_agents import CACHE, calls
    from test_agents import script as agent_script
    bundles = CACHE / "bundles"
    if not bundles.is_dir() or not any(p.name.startswith("claude-code") for p in bundles.iterdir()):
        if not shutil.which("npm"):
            must("there is no npm to install agents with")
        CACHE.mkdir(parents=True, exist_ok=True)
        done = lib.Postern(CACHE)("agents", "install", "claude-code", seconds=900)
        if done.code:
            must(f"claude-code cannot be installed here: {done.error.strip()}")
    mark = f"43256.{os.getpid()}"
    home = lib.short_dir("pt-")
    (home / "bundles").symlink_to(bundles)
    own = Service(lib.Postern(home, sandbox_works))
    census = Census(home)
    try:
        model = agent_script(tmp / "m.toml", calls(("Bash", {"command": f"echo one >> out; sleep 2; : {mark}"})),
                             calls(("Bash", {"command": "sleep 2; echo two >> out"})), "All is done.")
        id_ = own.submit(agent="claude-code", model=model, task={
            "name": "t", "instruction": "Work.", "verify": ["test \"$(cat out | tr '\\n' ' ')\" = 'one two '"]})
        # On a busy machine two seconds may pass between two looks: what comes after it counts as well.
        own.wait(id_, lambda: lib.processes(mark) or len(own.calls(id_)) >= 2, 180, "its first command")
        own.restart()
        own.wait(id_, lambda: len(own.calls(id_)) >= 2, 180, "its second call")
        own.restart()
        result = own.result(id_, 180)
        assert result["fate"] == "ok" and result["reward"] == 1, result
        assert result["final_text"] == "All is done."
        answered = [c for c in own.calls(id_) if c["state"] == "answered"]
        assert len({c["number"] for c in answered}) == len(answered) == result["calls"]
        assert len([c for c in answered if not c["side"]]) == result["turns"] == 3
        own.over()
        census.settled(mark)
    finally:
        if own.process.poll() is None:
            own.kill()
        shutil.rmtree(home, ignore_errors=True)


def test_sigterm_can_leave_them_to_the_next_server(service, tmp):
    mark = f"43257.{os.getpid()}"
    service = service("--listen.leave", "--listen.drain", "200ms", "--rollout.parallel-max", "2")
    census = Census(service.postern.home)
    model = script(tmp / "m.toml", bash(f"sleep {mark} & sleep 3; kill $!; touch made"), "Done.")
    work = {"name": "t", "instruction": "work", "verify": ["test -e made"]}
    ids = [service.submit(agent="mini", task=work, model=model, index=i) for i in range(3)]
    until(lambda: len(lib.marked(mark, "sleep")) == 2, 60, "agents at work")
    assert service.stop() == 0
    assert len(lib.marked(mark, "sleep")) == 2, "they run on"
    service.start()
    for id_ in ids:
        check(service, id_, turns=2)
    service.over()
    census.settled(mark)


def steps(tmp, *names, more=""):
    """A task of several steps: each wants a file of its name."""
    folder = tmp / "steps"
    (folder / "environment").mkdir(parents=True)
    lines = ['[task]', 'name = "steps"', more]
    for name in names:
        lines += ["[[steps]]", f'name = "{name}"']
        (folder / "steps" / name / "tests").mkdir(parents=True)
        (folder / "steps" / name / "instruction.md").write_text(f"Make {name}.\n")
        (folder / "steps" / name / "tests" / "test.sh").write_text(
            f"mkdir -p /logs/verifier; test -e /app/{name} && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n")
    (folder / "task.toml").write_text("\n".join(lines) + "\n")
    return folder


def test_more_steps_in_one_sandbox_than_commands_are_kept(service, tmp):
    """And a server that dies in a late one: its agent is known by the number it had."""
    mark = f"43259.{os.getpid()}"
    names = [f"s{i:02}" for i in range(20)]
    folder = steps(tmp, *names, more="[verifier]\nfresh = false")
    model = tmp / "m.toml"
    model.write_text("".join(f"""[[rule]]
when = {{ instruction_has = "Make {name}." }}
[[rule.turns]]
[[rule.turns.call]]
name = "bash"
arguments = {{ command = "{f'sleep {mark} & sleep 2; kill $!; ' if name == 's18' else ''}touch {name}" }}
[[rule.turns]]
say = "Done."
""" for name in names))
    service = service()
    census = Census(service.postern.home)
    id_ = service.submit(agent="mini", task=str(folder), model=f"script:{model}")
    service.wait(id_, lambda: lib.marked(mark, "sleep"), 120, "a late step")
    service.restart()
    result = service.result(id_)
    assert result["fate"] == "ok" and result["reward"] == 1, result
    assert [(s["name"], s["class"], s["reward"]) for s in result["steps"]] == [(name, "ok", 1) for name in names], result["steps"]
    assert result["calls"] == 40 and len(service.calls(id_)) == 40 and not result["fresh_verify"], result
    service.over()
    census.settled(mark)


def test_a_task_of_several_steps_goes_on_in_its_step(service, tmp):
    """Killed in the second step: the first one's reward stays, the second one's agent runs on."""
    mark = f"43258.{os.getpid()}"
    folder = steps(tmp, "one", "two")
    model = tmp / "m.toml"
    model.write_text("""[[rule]]
when = { instruction_has = "Make one" }
[[rule.turns]]
[[rule.turns.call]]
name = "bash"
arguments = { command = "touch one" }
[[rule.turns]]
say = "Done."
[[rule]]
[[rule.turns]]
[[rule.turns.call]]
name = "bash"
arguments = { command = "sleep %s & sleep 3; kill $!; touch two" }
[[rule.turns]]
say = "Done too."
""" % mark)
    service = service()
    census = Census(service.postern.home)
    id_ = service.submit(agent="mini", task=str(folder), model=f"script:{model}")
    service.wait(id_, lambda: lib.marked(mark, "sleep"), 60, "the second step")
    service.restart()
    result = service.result(id_)
    assert result["fate"] == "ok" and result["reward"] == 1, result
    assert [(s["name"], s["class"], s["reward"]) for s in result["steps"]] == [("one", "ok", 1), ("two", "ok", 1)], result["steps"]
    assert result["calls"] == 4 and len(service.calls(id_)) == 4
    service.over()
    census.settled(mark)
