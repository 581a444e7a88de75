"""What is kept and what goes: deleting, `postern gc`, retention in a server, and the journal that stays whole."""

import json
import sqlite3

import pytest

from postern import script, until
from service import Service

TASK = {"name": "easy", "instruction": "Do nothing.", "verify": ["true"]}


@pytest.fixture
def model(tmp):
    return script(tmp / "model.toml", "Done.")


def order(model, **more):
    return {"agent": "mini", "task": TASK, "model": model, **more}


def gated(**more):
    return {"agent": "mini", "task": TASK, "mode": "gate", **more}


def finished(service, model, count, **more):
    ids = [row["id"] for row in service.post("/v1/rollouts", [order(model, **more)] * count)["rollouts"]]
    for rollout in ids:
        assert service.over(rollout)["fate"] == "ok"
    return ids


def listed(service):
    return [row["id"] for row in service.pages(limit=100)]


def folders(service):
    return sorted(folder.name for folder in service.postern.rollouts())


def segments(home):
    return sorted(path.name for path in (home / "journal").iterdir())


def test_deleting_what_is_over(postern, model):
    service = Service(postern, "--listen.drain", "0")
    ids = finished(service, model, 3, key=None)
    keyed = service.post("/v1/rollouts", order(model, key="k"))["id"]
    service.over(keyed)
    live = service.post("/v1/rollouts", gated())["id"]
    until(lambda: service.get("/v1/gate")["held"] == 1, 60, "its call at the gate")
    call = service.get(f"/v1/rollouts/{ids[0]}/calls")["calls"][0]["id"]
    for rollout in (ids[0], keyed):
        assert service.ask("DELETE", f"/v1/rollouts/{rollout}") == (200, {"status": "deleted"})
        assert service.ask("GET", f"/v1/rollouts/{rollout}")[0] == 404
        assert service.ask("DELETE", f"/v1/rollouts/{rollout}")[0] == 404
    assert service.ask("GET", f"/v1/calls/{call}")[0] == 404
    assert set(listed(service)) == {*ids[1:], live} and folders(service) == sorted([*ids[1:], live])
    # The key is free again.
    again = service.post("/v1/rollouts", order(model, key="k", turns_max=3))["id"]
    service.over(again)
    group = service.post("/v1/groups", order(model, n=2))
    service.group_over(group["id"])
    assert service.ask("DELETE", f"/v1/groups/{group['id']}") == (200, {"status": "deleted", "rollouts": 2})
    assert service.ask("GET", f"/v1/groups/{group['id']}")[0] == 404
    assert service.get("/v1/groups")["groups"] == []
    assert service.ask("DELETE", f"/v1/rollouts/{live}")[0] == 202, "one that is not over is cancelled, not deleted"
    assert service.over(live)["fate"] == "cancelled"
    rest = {*ids[1:], live, again}
    assert set(listed(service)) == rest
    service.kill()
    # An index made anew from the journal brings nothing back.
    (postern.home / "index.sqlite").unlink()
    for name in ("index.sqlite-wal", "index.sqlite-shm"):
        (postern.home / name).unlink(missing_ok=True)
    service = Service(postern)
    try:
        assert set(listed(service)) == rest and service.get("/v1/groups")["groups"] == []
    finally:
        assert service.stop()[0] == 0


def test_gc_keeps_what_it_is_told_to_and_drops_what_nothing_needs(postern, model):
    # Three servers: three segments.
    kept = []
    for _ in range(3):
        service = Service(postern)
        service.post("/v1/policy", {"version": 7}, 200)
        kept += finished(service, model, 4)
        assert service.stop()[0] == 0
    before = segments(postern.home)
    assert len(before) >= 3

    def gc(*flags):
        done = postern("gc", "--json", *flags)
        assert done.code == 0, done
        return json.loads(done.text)

    assert gc()["rollouts"] == 0, "nothing goes unless it is said"
    looked = gc("--keep", "5", "--dry-run")
    assert looked["rollouts"] == 7 and looked["bytes"] > 0 and len(folders(service)) == 12
    assert gc("--keep", "5")["rollouts"] == 7
    assert len(folders(service)) == 5 and set(kept[8:]) < set(folders(service)) < set(kept[4:]), "the oldest went"
    assert not list((postern.home / "trash").glob("*"))
    gc()
    after = segments(postern.home)
    assert before[0] not in after, "the first server's segment has nothing that is left"
    assert gc("--older-than", "30d")["rollouts"] == 0
    assert gc("--bytes", "1k")["rollouts"] >= 4
    service = Service(postern)
    try:
        left = listed(service)
        assert left == sorted(folders(service), reverse=True) and set(left) < set(kept[4:])
        for rollout in left:
            assert service.get(f"/v1/rollouts/{rollout}")["fate"] == "ok"
            call = service.get(f"/v1/rollouts/{rollout}/calls")["calls"][0]["id"]
            assert service.get(f"/v1/calls/{call}")["state"] == "answered"
        # Beside a running server, with rollouts under way.
        live = service.post("/v1/rollouts", gated())["id"]
        until(lambda: service.get("/v1/gate")["held"] == 1, 60, "its call at the gate")
        assert gc("--older-than", "1ms")["rollouts"] == len(left)
        assert listed(service) == [live] and service.get(f"/v1/rollouts/{live}")["stage"] == "running"
        service.control.answer(service.control.take()[0], {"content": "Done."})
        assert service.over(live)["fate"] == "ok"
        assert service.get("/v1/policy")["version"] == 7, "what was said of the weights is still known"
    finally:
        assert service.stop()[0] == 0
    for path in list(postern.home.glob("index.sqlite*")):
        path.unlink()
    service = Service(postern)
    try:
        assert listed(service) == [live] and service.get("/v1/policy")["version"] == 7
    finally:
        assert service.stop()[0] == 0
    for wrong in (["--older-than", "soon"], ["--keep", "0"], ["extra"]):
        assert postern("gc", *wrong).code == 2


def test_a_server_keeps_to_its_rules(postern, model):
    service = Service(postern, "--retention.count", "3", "--retention.every", "100ms", "--listen.drain", "0")
    try:
        live = service.post("/v1/rollouts", gated())["id"]
        until(lambda: service.get("/v1/gate")["held"] == 1, 60, "its call at the gate")
        ids = [row["id"] for row in service.post("/v1/rollouts", [order(model)] * 8)["rollouts"]]
        until(lambda: len(listed(service)) == 4 and len(folders(service)) == 4, 60, "the rest to go")
        assert set(listed(service)) - {live} <= set(ids) and len(service.pages("&fate=ok")) == 3 and live in listed(service)
        assert service.get(f"/v1/rollouts/{live}")["stage"] == "running"
        gone = (set(ids) - set(listed(service))).pop()
        until(lambda: service.ask("GET", f"/v1/rollouts/{gone}")[0] == 404, 20, "it to be forgotten")
    finally:
        assert service.stop()[0] == 0


def test_lists_and_starts_go_along_an_index(postern, model):
    """However many rollouts are kept, no question looks at all of them."""
    service = Service(postern)
    finished(service, model, 1)
    assert service.stop()[0] == 0
    index = sqlite3.connect(f"file:{postern.home}/index.sqlite?mode=ro", uri=True)
    questions = [
        ("SELECT id FROM rollouts WHERE id < 'r' ORDER BY id DESC LIMIT 100", "PRIMARY KEY"),
        ("SELECT id FROM rollouts WHERE run = 'a' AND id < 'r' ORDER BY id DESC LIMIT 100", "rollouts_run"),
        ("SELECT id FROM rollouts WHERE grp = 'a' ORDER BY id ASC LIMIT 100", "rollouts_group"),
        ("SELECT id FROM rollouts WHERE task = 'a' ORDER BY id DESC LIMIT 100", "rollouts_task"),
        ("SELECT id FROM rollouts WHERE agent = 'a' ORDER BY id DESC LIMIT 100", "rollouts_agent"),
        ("SELECT id FROM rollouts WHERE fate = 'ok' ORDER BY id DESC LIMIT 100", "rollouts_fate"),
        ("SELECT id FROM rollouts WHERE stage = 'queued' AND fate IS NULL ORDER BY id DESC LIMIT 100", "rollouts_open"),
        ("SELECT id FROM rollouts WHERE callback_state = 'pending' ORDER BY id ASC LIMIT 100", "rollouts_callback"),
        ("SELECT id FROM rollouts WHERE key = 'a'", "rollouts_key"),
        ("SELECT id, dir, bytes, done_ms FROM rollouts WHERE fate IS NOT NULL AND ifnull(callback_state, '') <> 'pending'"
         " ORDER BY done_ms, id LIMIT 100", "rollouts_done"),
        ("SELECT count(*) FROM calls WHERE state = 'open'", "calls_open"),
        ("SELECT id FROM calls WHERE rollout_id = 'r' ORDER BY number, id", "calls_rollout"),
    ]
    for question, wanted in questions:
        plan = " ".join(row[3] for row in index.execute("EXPLAIN QUERY PLAN " + question))
        assert wanted in plan and "TEMP B-TREE" not in plan.replace("LAST TERM OF ORDER BY", ""), (question, plan)
    index.close()
