"""The service over its real server: submissions, keys, pages, waiting, groups, admission, the policy."""

import json
import threading

import pytest

import postern as lib
from postern import bash, script, until
from service import Service
from trainer import Trainer

TASK = {"name": "easy", "instruction": "Do nothing.", "verify": ["true"]}


@pytest.fixture
def model(tmp):
    return script(tmp / "model.toml", "Done.")


@pytest.fixture
def service(postern):
    service = Service(postern, "--listen.drain", "200ms")
    yield service
    if service.process.poll() is None:
        service.kill()


def order(model, **more):
    return {"agent": "mini", "task": TASK, "model": model, **more}


def gated(**more):
    """A rollout that waits at the gate until somebody answers or it is cancelled."""
    return {"agent": "mini", "task": TASK, "mode": "gate", **more}


def nothing_behind(service, before):
    assert service.get("/v1/rollouts")["rollouts"] == before
    folders = {folder.name for folder in service.postern.rollouts()}
    assert folders == {row["id"] for row in before}, folders
    groups = service.home / "groups"
    assert not groups.is_dir() or not list(groups.iterdir())


# ---------------------------------------------------------------- bad submissions
def test_bad_submissions_name_the_field_and_leave_nothing_behind(service, model, tmp):
    (tmp / "broken.toml").write_text("instruction = ")
    good = service.post("/v1/rollouts", order(model, key="taken"))["id"]
    service.over(good)
    before = until(lambda: (lambda rows: rows if rows[0]["fate"] else None)(service.get("/v1/rollouts")["rollouts"]))
    cases = [
        (dict(agent="no-such-agent"), 400, "agent"),
        (dict(agent="/no/such/agent.toml"), 400, "agent"),
        (dict(task="/no/such/task"), 400, "task"),
        (dict(task=str(tmp / "broken.toml")), 400, "task"),
        (dict(task={"name": "t"}), 400, "task"),
        (dict(task={"name": "t", "instruction": "x", "no_such_key": 1}), 400, "task.no_such_key"),
        (dict(task={"name": "t", "instruction": "x", "setup": [{"run": 7}]}), 400, "task.setup.0.run"),
        (dict(task=["t"]), 400, "task"),
        # As text it would pass for a file of the operator's, which may read the host's variables.
        (dict(task=json.dumps({**TASK, "env": {"STOLEN": "${HOME}"}})), 400, "task"),
        (dict(model="ftp://nowhere#m"), 400, "model"),
        (dict(model="script:/no/such/script.toml"), 400, "model"),
        (dict(model=None), 400, "model"),
        (dict(mode="sideways"), 400, "mode"),
        (dict(turns_max=0), 400, "turns_max"),
        (dict(wall_ms_max=10 ** 12), 400, "wall_ms_max"),
        (dict(memory_bytes_max=1), 400, "memory_bytes_max"),
        (dict(pids_max="many"), 400, "pids_max"),
        (dict(priority=1000), 400, "priority"),
        (dict(key=""), 400, "key"),
        (dict(tools=[{"name": "reset"}]), 400, "tools"),
        (dict(backend="no-such-backend"), 400, "backend"),
        (dict(colour="red"), 400, "colour"),
        (dict(key="taken", turns_max=3), 409, "key"),
    ]
    for change, status, field in cases:
        service.refused("/v1/rollouts", {**order(model), **change}, status, field)
    # In a list the place is named, too, and none of the list is taken.
    service.refused("/v1/rollouts", [order(model), order(model, agent="no-such-agent")], 400, "1.agent")
    service.refused("/v1/rollouts", [order(model), order(model, turns_max=0)], 400, "1.turns_max")
    service.refused("/v1/groups", order(model), 400, "n")
    service.refused("/v1/groups", order(model, n=0), 400, "n")
    service.refused("/v1/groups", order(model, n=2, index=1), 400, "index")
    service.refused("/v1/groups", order(model, n=2, share_setup="yes"), 400, "share_setup")
    service.refused("/v1/groups", order(model, n=2, group="../../outside"), 400, "group")
    for body in ("{", "[]", "7", '{"agent":'):
        connection = service.control.connection()
        connection.request("POST", "/v1/rollouts", body, service.control.headers)
        assert connection.getresponse().status == 400, body
        connection.close()
    nothing_behind(service, before)
    assert service.stop()[0] == 0


def test_what_a_backend_cannot_do_is_refused_before_any_work(postern, model):
    service = Service(postern)
    try:
        # ssh is a backend without snapshots: nothing of it is tried.
        service.refused("/v1/groups", order(model, n=2, share_setup=True, backend="ssh:nowhere"), 422, "share_setup")
        service.refused("/v1/rollouts", order(model, backend="ssh:nowhere", memory_bytes_max=1 << 30), 422, "memory_bytes_max")
        nothing_behind(service, [])
    finally:
        assert service.stop()[0] == 0


# ---------------------------------------------------------------- keys
def test_the_same_key_and_body_give_the_same_rollout_also_after_a_restart(postern, service, model):
    first = service.post("/v1/rollouts", order(model, key="k-1"))
    assert service.post("/v1/rollouts", order(model, key="k-1"), 200) == first
    # The order of members and white space do not matter.
    shuffled = dict(reversed(list(order(model, key="k-1").items())))
    assert service.post("/v1/rollouts", shuffled, 200) == first
    error = service.refused("/v1/rollouts", order(model, key="k-1", turns_max=2), 409, "key")
    assert first["id"] in error["message"]
    listed = service.post("/v1/rollouts", [order(model, key="k-1"), order(model, key="k-2"), order(model)])["rollouts"]
    assert listed[0] == first and len({row["id"] for row in listed}) == 3
    group = service.post("/v1/groups", order(model, n=3, key="g-key"))
    assert service.post("/v1/groups", order(model, n=3, key="g-key"), 200) == group
    service.refused("/v1/groups", order(model, n=4, key="g-key"), 409, "key")
    service.refused("/v1/rollouts", order(model, key="g-key"), 409, "key")
    for row in listed:
        service.over(row["id"])
    service.group_over(group["id"])
    service.kill()
    again = Service(postern)
    try:
        assert again.post("/v1/rollouts", order(model, key="k-1"), 200) == first
        assert again.post("/v1/groups", order(model, n=3, key="g-key"), 200) == group
        again.refused("/v1/rollouts", order(model, key="k-1", turns_max=2), 409, "key")
        assert len(again.pages()) == 6
    finally:
        assert again.stop()[0] == 0


def test_a_key_is_worth_one_rollout_however_many_ask_at_once(service, model):
    answers = []

    def ask():
        answers.append(service.ask("POST", "/v1/rollouts", order(model, key="one")))

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {body["id"] for _, body in answers} and len({body["id"] for _, body in answers}) == 1, answers
    assert sorted(status for status, _ in answers) == [200] * 15 + [201]
    assert len(service.get("/v1/rollouts")["rollouts"]) == 1


# ---------------------------------------------------------------- lists and waiting
def test_what_was_just_submitted_is_in_the_list_and_pages_do_not_shift(service, model):
    ids = []
    for _ in range(7):
        ids.append(service.post("/v1/rollouts", order(model, run="a"))["id"])
        assert service.get("/v1/rollouts?limit=1")["rollouts"][0]["id"] == ids[-1]
    other = [row["id"] for row in service.post("/v1/rollouts", [order(model, run="b", group="g")] * 5)["rollouts"]]
    assert ids == sorted(ids) and other == sorted(other) and other[0] > ids[-1]
    # A page that follows is not changed by what came since.
    page = service.get("/v1/rollouts?limit=4")
    late = service.post("/v1/rollouts", order(model))["id"]
    rest = service.get(f"/v1/rollouts?limit=100&before={page['next']}")["rollouts"]
    seen = [row["id"] for row in page["rollouts"] + rest]
    assert seen == sorted(ids + other, reverse=True)
    # Forward: whoever follows `last` misses nothing.
    forward, after = [], ""
    while True:
        page = service.get(f"/v1/rollouts?order=oldest&limit=3{after}")
        forward += [row["id"] for row in page["rollouts"]]
        after = f"&after={page['last']}"
        if not page["next"]:
            break
    assert forward == ids + other + [late]
    assert {row["id"] for row in service.pages("&run=b")} == set(other)
    assert {row["id"] for row in service.pages("&group=g")} == set(other)
    assert {row["id"] for row in service.pages("&task=easy")} == {*ids, *other, late}
    assert service.pages("&agent=other") == []
    for rollout in ids + other + [late]:
        assert service.over(rollout)["fate"] == "ok"
    assert len(service.pages("&fate=ok")) == 13 and service.pages("&fate=limit") == []
    for path, field in (("limit=0", "limit"), ("limit=x", "limit"), ("order=up", "order"), ("after=a&order=newest", "order")):
        status, body = service.ask("GET", f"/v1/rollouts?{path}")
        assert status == 400 and body["error"]["field"] == field, body


def test_a_long_poll_waits_for_the_end_and_for_no_longer_than_it_says(service):
    rollout = service.post("/v1/rollouts", gated())["id"]
    body = service.get(f"/v1/rollouts/{rollout}?wait_ms=300")
    assert not body["fate"] and body["stage"] != "done", body
    waited = []
    waiter = threading.Thread(target=lambda: waited.append(service.get(f"/v1/rollouts/{rollout}?wait_ms=60000")))
    waiter.start()
    trainer = Trainer(service.control, lambda call: {"content": "Done."})
    waiter.join(60)
    trainer.stop()
    assert waited and waited[0]["fate"] == "ok", waited
    assert service.get(f"/v1/rollouts/{rollout}?wait_ms=60000")["fate"] == "ok"
    assert service.ask("GET", "/v1/rollouts/r-nothing?wait_ms=1000")[0] == 404
    assert service.ask("GET", f"/v1/rollouts/{rollout}?wait_ms=-1")[1]["error"]["field"] == "wait_ms"


def test_who_waits_when_the_server_stops_is_answered(service):
    rollout = service.post("/v1/rollouts", gated())["id"]
    waited = []
    waiter = threading.Thread(target=lambda: waited.append(service.ask("GET", f"/v1/rollouts/{rollout}?wait_ms=60000")))
    waiter.start()
    until(lambda: service.get("/v1/gate")["held"] == 1, 60, "the call at the gate")
    assert service.stop()[0] == 0
    waiter.join(30)
    assert waited and waited[0][0] == 200, waited


def test_the_calls_of_a_rollout(service, model):
    rollout = service.post("/v1/rollouts", order(model))["id"]
    assert service.over(rollout)["fate"] == "ok"
    calls = service.get(f"/v1/rollouts/{rollout}/calls")["calls"]
    assert len(calls) == 1 and calls[0]["state"] == "answered" and calls[0]["number"] == 1, calls
    call = service.get(f"/v1/calls/{calls[0]['id']}")
    assert call["rollout_id"] == rollout or call["id"] == calls[0]["id"], call
    assert service.ask("GET", "/v1/rollouts/r-nothing/calls")[0] == 404
    assert service.ask("GET", "/v1/calls/c-nothing")[0] == 404


# ---------------------------------------------------------------- groups
SETUP = {"name": "with-setup", "instruction": "Do nothing.", "setup": ["date +%s%N >> /app/made", "echo ready > /app/state"],
         "verify": ["grep -q ready /app/state"], "artifacts": ["/app/made"]}


def kept(service, rollout):
    files = list((service.home / "rollouts" / rollout / "artifacts").iterdir())
    return files[0].read_text()


def test_a_group_is_prepared_once_and_forked(service, model):
    group = service.post("/v1/groups", {**order(model), "task": SETUP, "n": 4, "run": "grpo"})
    assert len(set(group["rollouts"])) == 4
    over = service.group_over(group["id"])
    assert over["fates"] == {"ok": 4} and over["reward"] == {"count": 4, "mean": 1, "min": 1, "max": 1}, over
    assert over["shared_preparation"] is True and over["n"] == 4 and over["run"] == "grpo"
    assert [row["index"] for row in over["rollouts"]] == [0, 1, 2, 3]
    made = {kept(service, rollout) for rollout in group["rollouts"]}
    assert len(made) == 1 and len(made.pop().splitlines()) == 1, "setup ran once, in one sandbox"
    for rollout in group["rollouts"]:
        result = service.get(f"/v1/rollouts/{rollout}")
        assert result["shared_preparation"] is True and result["group_id"] == group["id"]
        assert [command["exit_code"] for command in result["setup_results"]] == [0, 0], result
    # Each for itself: four times.
    alone = service.post("/v1/groups", {**order(model), "task": SETUP, "n": 2, "share_setup": False})
    assert service.group_over(alone["id"])["fates"] == {"ok": 2}
    assert len({kept(service, rollout) for rollout in alone["rollouts"]}) == 2
    listed = service.get("/v1/groups")["groups"]
    assert [row["id"] for row in listed] == [alone["id"], group["id"]]
    page = service.get("/v1/groups?limit=1")
    assert service.get(f"/v1/groups?before={page['next']}")["groups"][0]["id"] == group["id"]
    assert [row["id"] for row in service.get("/v1/groups?run=grpo")["groups"]] == [group["id"]]


def test_members_of_a_group_do_not_see_each_other(service, tmp):
    model = script(tmp / "w.toml", bash("cat /app/state; echo mine >> /app/state; sleep 0.2; cat /app/state"), "Done.")
    task = {**SETUP, "verify": ["test $(wc -l < /app/state) = 2"]}
    group = service.post("/v1/groups", {**order(model), "task": task, "n": 3, "share_setup": True})
    assert service.group_over(group["id"])["reward"]["mean"] == 1


def test_a_group_whose_setup_fails_fails_by_name(service, model):
    task = {**SETUP, "setup": ["echo broken >&2; exit 3"]}
    group = service.post("/v1/groups", {**order(model), "task": task, "n": 3})
    over = service.group_over(group["id"])
    assert over["fates"] == {"setup_failed": 3} and over["reward"] is None, over
    for rollout in group["rollouts"]:
        result = service.get(f"/v1/rollouts/{rollout}")
        assert result["reward"] is None and "shared preparation" in result["cause"], result
        assert result["reason"] == "preparation"
    result = json.loads((service.home / "groups" / group["id"] / "result.json").read_text())
    assert result["class"] == "setup_failed"


def test_a_group_is_cancelled_as_a_whole_at_any_stage(service, model):
    slow = {**SETUP, "setup": ["sleep 600"]}
    preparing = service.post("/v1/groups", {**gated(), "task": slow, "n": 3})
    until(lambda: service.get(f"/v1/groups/{preparing['id']}").get("preparation") == "preparing", 30, "the preparation")
    running = service.post("/v1/groups", gated(n=3))
    until(lambda: service.get("/v1/gate")["held"] == 3, 60, "three calls at the gate")
    for group in (preparing, running):
        status, body = service.ask("POST", f"/v1/groups/{group['id']}/cancel")
        assert status == 202 and body["rollouts"] == 3, body
    for group in (preparing, running):
        over = service.group_over(group["id"])
        assert over["fates"] == {"cancelled": 3} and over["reward"] is None, over
        assert {row["reason"] for row in over["rollouts"]} == {"user"}
        assert service.ask("POST", f"/v1/groups/{group['id']}/cancel")[0] == 409, "what is over stays"
        member = group["rollouts"][0]
        assert service.ask("POST", f"/v1/rollouts/{member}/cancel")[0] == 409
        assert service.get(f"/v1/rollouts/{member}")["fate"] == "cancelled"
        assert service.ask("DELETE", f"/v1/groups/{group['id']}") == (200, {"status": "deleted", "rollouts": 3})
    assert service.ask("DELETE", "/v1/groups/g-nothing")[0] == 404
    assert service.ask("GET", "/v1/groups/g-nothing")[0] == 404
    assert service.stop()[0] == 0


def test_rollouts_with_one_group_name_are_a_group(service, model):
    ids = [service.post("/v1/rollouts", order(model, group="mine", index=i))["id"] for i in range(2)]
    over = service.group_over("mine")
    assert [row["id"] for row in over["rollouts"]] == ids and over["fates"] == {"ok": 2}
    service.refused("/v1/groups", order(model, n=2, group="mine"), 409, "group")
    named = service.post("/v1/groups", order(model, n=2, group="step-7"))
    assert named["id"] == "step-7" and service.group_over("step-7")["counts"]["over"] == 2


# ---------------------------------------------------------------- admission
def test_priorities_first_and_runs_take_turns(postern, tmp):
    service = Service(postern, "--parallel", "1", "--listen.drain", "0")
    try:
        model = script(tmp / "m.toml", "Done.")
        blocker = service.post("/v1/rollouts", gated(run="blocker"))["id"]
        until(lambda: service.get("/v1/gate")["held"] == 1, 60, "the only slot to be taken")
        low = [service.post("/v1/rollouts", order(model, run="large"))["id"] for _ in range(3)]
        other = service.post("/v1/rollouts", order(model, run="small"))["id"]
        high = service.post("/v1/rollouts", order(model, run="large", priority=10))["id"]
        last = service.post("/v1/rollouts", order(model, run="large", priority=-1))["id"]
        assert service.get(f"/v1/rollouts/{low[0]}")["stage"] == "queued"
        assert service.ask("DELETE", f"/v1/rollouts/{blocker}")[0] == 202
        for rollout in low + [other, high, last]:
            assert service.over(rollout)["fate"] == "ok"
        rows = {row["id"]: row["started_ms"] for row in service.get("/v1/rollouts")["rollouts"]}
        order_of = sorted(rows, key=lambda rollout: rows[rollout])
        assert order_of == [blocker, high, low[0], other, low[1], low[2], last], order_of
    finally:
        assert service.stop()[0] == 0


def test_who_waits_too_long_is_cancelled_by_name(postern, tmp):
    service = Service(postern, "--parallel", "1", "--listen.drain", "0")
    try:
        service.post("/v1/rollouts", gated())
        until(lambda: service.get("/v1/gate")["held"] == 1, 60, "the only slot to be taken")
        late = service.post("/v1/rollouts", gated(queue_ms_max=200))["id"]
        patient = service.post("/v1/rollouts", gated())["id"]
        result = service.over(late)
        assert result["fate"] == "cancelled" and result["reason"] == "queue_timeout" and result["reward"] is None
        assert service.get(f"/v1/rollouts/{patient}")["stage"] == "queued"
    finally:
        assert service.stop()[0] == 0


def test_nothing_starts_while_too_many_calls_are_under_way(postern, tmp):
    service = Service(postern, "--rollout.calls-in-flight-max", "2", "--listen.drain", "0")
    try:
        first = [service.post("/v1/rollouts", gated())["id"] for _ in range(2)]
        until(lambda: service.get("/v1/gate")["held"] == 2, 60, "two calls at the gate")
        third = service.post("/v1/rollouts", gated())["id"]
        assert not service.get(f"/v1/rollouts/{third}?wait_ms=500")["started_ms"]
        call = service.control.take(max=1)[0]
        assert service.control.answer(call, {"content": "Done."})[0] == 200
        until(lambda: service.get(f"/v1/rollouts/{third}")["started_ms"], 60, "the third to start")
        assert service.over(call["rollout_id"])["fate"] == "ok" and call["rollout_id"] in first
    finally:
        assert service.stop()[0] == 0


def test_starts_per_second(postern, tmp):
    service = Service(postern, "--rollout.starts-per-second-max", "2", "--listen.drain", "0")
    try:
        model = script(tmp / "m.toml", "Done.")
        ids = [row["id"] for row in service.post("/v1/rollouts", [order(model)] * 5)["rollouts"]]
        for rollout in ids:
            service.over(rollout)
        started = sorted(row["started_ms"] for row in service.get("/v1/rollouts")["rollouts"])
        # Two at once, then one every half second: however late they are, five are never within less.
        assert started[4] - started[0] >= 1490, started
    finally:
        assert service.stop()[0] == 0


# ---------------------------------------------------------------- the policy
def test_versions_are_stamped_and_old_rollouts_are_cancelled_by_name(service):
    service.post("/v1/policy", {"version": 5, "max_staleness": 1}, 200)
    old = service.post("/v1/rollouts", gated())["id"]
    until(lambda: service.get("/v1/gate")["held"] == 1, 60, "its call at the gate")
    service.post("/v1/policy", {"version": 6}, 200)
    young = service.post("/v1/rollouts", gated())["id"]
    meant = service.post("/v1/rollouts", gated(policy_version=5))["id"]
    until(lambda: service.get("/v1/gate")["held"] == 3, 60, "three calls at the gate")
    assert service.get(f"/v1/rollouts/{old}")["policy_version"] == 5
    answer = service.post("/v1/policy", {"version": 7}, 200)
    assert answer["version"] == 7 and answer["max_staleness"] == 1
    for rollout in (old, meant):
        result = service.over(rollout)
        assert result["fate"] == "cancelled" and result["reason"] == "stale" and result["reward"] is None, result
        assert result["policy_version"] == 5 and "version 7" in result["cause"], result
    # What would be stale is not started at all.
    late = service.post("/v1/rollouts", gated(policy_version=3))["id"]
    result = service.over(late)
    assert result["reason"] == "stale" and not result.get("sandbox") and not result["tries"], result
    assert service.get("/v1/policy")["stale"] == 3
    trainer = Trainer(service.control, lambda call: {"content": "Done."})
    result = service.over(young)
    trainer.stop()
    assert result["fate"] == "ok" and result["policy_version"] == 6
    assert [call["policy_version"] for call in trainer.calls] == [7], "stamped when it was dispatched"


def test_versions_may_be_as_large_as_they_are_allowed_to_be(service):
    """Clocks make versions, too: what is counted with them does not turn over, and they are kept to the last digit."""
    service.post("/v1/policy", {"version": 0, "max_staleness": 2, "batch": 64}, 200)
    trainer = Trainer(service.control, lambda call: {"content": "Done."})
    for version in (1763204580123456789, 2**63 - 1):
        service.post("/v1/policy", {"version": version}, 200)
        rollout = service.post("/v1/rollouts", gated())["id"]
        assert service.over(rollout)["policy_version"] == version
        rows = [row for row in service.get("/v1/rollouts")["rollouts"] if row["id"] == rollout]
        assert rows[0]["policy_version"] == version
    trainer.stop()


def test_no_more_start_than_can_be_used_before_they_are_stale(service):
    service.post("/v1/policy", {"version": 0, "max_staleness": 0, "batch": 2}, 200)
    ids = [row["id"] for row in service.post("/v1/rollouts", [gated()] * 5)["rollouts"]]
    until(lambda: service.get("/v1/gate")["held"] == 2, 60, "two calls at the gate")
    assert [bool(service.get(f"/v1/rollouts/{rollout}")["started_ms"]) for rollout in ids] == [True, True, False, False, False]
    # One that ends with nothing to learn from leaves its place to another.
    service.ask("DELETE", f"/v1/rollouts/{ids[0]}")
    until(lambda: service.get(f"/v1/rollouts/{ids[2]}")["started_ms"], 60, "the third to start")
    assert not service.get(f"/v1/rollouts/{ids[3]}?wait_ms=300")["started_ms"]
    trainer = Trainer(service.control, lambda call: {"content": "Done."})
    for rollout in ids[1:3]:
        assert service.over(rollout)["fate"] == "ok"
    service.post("/v1/policy", {"version": 1}, 200)
    for rollout in ids[3:]:
        result = service.over(rollout)
        assert result["fate"] == "ok" and result["policy_version"] == 1
    trainer.stop()


def test_a_pause_holds_calls_and_the_policy_outlives_the_server(postern, service):
    service.post("/v1/policy", {"version": 9, "max_staleness": 4, "pause": True}, 200)
    rollout = service.post("/v1/rollouts", gated())["id"]
    until(lambda: service.get("/v1/gate")["held"] == 1, 60, "its call at the gate")
    assert service.control.take(wait_ms=200) == []
    service.post("/v1/policy", {"version": 10, "resume": True}, 200)
    call = service.control.take()[0]
    assert call["policy_version"] == 10
    service.control.answer(call, {"content": "Done."})
    assert service.over(rollout)["fate"] == "ok"
    status, body = service.ask("POST", "/v1/policy", {"pause": True, "resume": True})
    assert status == 400 and body["error"]["field"] == "pause"
    assert service.ask("POST", "/v1/policy", {"max_staleness": -2})[1]["error"]["field"] == "max_staleness"
    service.kill()
    again = Service(postern)
    try:
        policy = again.get("/v1/policy")
        assert (policy["version"], policy["max_staleness"], policy["paused"]) == (10, 4, False)
    finally:
        assert again.stop()[0] == 0


# ---------------------------------------------------------------- draining
def test_sigterm_lets_rollouts_finish_and_takes_no_more(postern, tmp):
    service = Service(postern, "--parallel", "1", "--listen.drain", "60s")
    running = service.post("/v1/rollouts", gated())["id"]
    queued = service.post("/v1/rollouts", gated())["id"]
    until(lambda: service.get("/v1/gate")["held"] == 1, 60, "its call at the gate")
    waited = {}

    def wait(rollout):
        waited[rollout] = service.get(f"/v1/rollouts/{rollout}?wait_ms=60000")

    waiters = [threading.Thread(target=wait, args=(rollout,)) for rollout in (running, queued)]
    for waiter in waiters:
        waiter.start()
    service.tell()
    until(lambda: service.ask("POST", "/v1/rollouts", gated())[0] == 503, 20, "submissions to be refused")
    connection = service.control.connection()
    connection.request("POST", "/v1/rollouts", json.dumps(gated()), service.control.headers)
    refusal = connection.getresponse()
    assert refusal.status == 503 and int(refusal.getheader("retry-after")) >= 1
    connection.close()
    assert service.get("/v1/gate")["held"] == 1, "the trainer can go on"
    service.control.answer(service.control.take()[0], {"content": "Done."})
    _, error = service.process.communicate(timeout=60)
    assert service.process.returncode == 0, error
    for waiter in waiters:
        waiter.join(30)
    assert waited[running]["fate"] == "ok", waited
    assert waited[queued]["fate"] == "cancelled" and waited[queued]["reason"] == "server", waited


def test_the_time_to_drain_has_an_end(postern):
    service = Service(postern, "--listen.drain", "300ms")
    rollout = service.post("/v1/rollouts", gated())["id"]
    until(lambda: service.get("/v1/gate")["held"] == 1, 60, "its call at the gate")
    group = service.post("/v1/groups", {**gated(), "task": {**SETUP, "setup": ["sleep 600"]}, "n": 2})
    until(lambda: service.get(f"/v1/groups/{group['id']}").get("preparation") == "preparing", 30, "the preparation")
    assert service.stop()[0] == 0
    result = json.loads((service.home / "rollouts" / rollout / "result.json").read_text())
    assert result["class"] == "cancelled" and result["reward"] is None
    for rollout in group["rollouts"]:
        result = json.loads((service.home / "rollouts" / rollout / "result.json").read_text())
        assert result["class"] == "cancelled" and result["reason"] == "server"
