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
    service = Service(postern)
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
