"""Events of a rollout, of a group and of all, as they happen: order, ids, going on after a break, slow readers."""

import socket

import pytest

from postern import bash, script, until
from service import Service
from trainer import Trainer

TASK = {"name": "easy", "instruction": "Do nothing.", "verify": ["true"]}


@pytest.fixture
def service(postern):
    service = Service(postern, "--listen.keepalive", "100ms")
    yield service
    if service.process.poll() is None:
        service.kill()


@pytest.fixture
def model(tmp):
    return script(tmp / "model.toml", bash("echo hello"), "Done.")


def order(model, **more):
    return {"agent": "mini", "task": TASK, "model": model, **more}


def gated(**more):
    return {"agent": "mini", "task": TASK, "mode": "gate", **more}


def check_life(events, rollout):
    """The story of one rollout that ended well."""
    stages = [data["text"] for _, kind, data in events if kind == "stage" and data["text"] != "queued"]
    assert stages == ["provisioning", "installing", "preparing", "setup", "running", "settling", "verifying",
                      "collecting", "done"], stages
    kinds = [kind for _, kind, _ in events]
    assert kinds.count("call_begun") == kinds.count("call_done") == 2, kinds
    assert kinds.index("call_begun") < kinds.index("call_done")
    assert "tool_call" in kinds and "assistant" in kinds, kinds
    assert kinds[-1] == "final" and kinds.count("final") == 1, kinds
    assert events[-1][2]["fate"] == "ok" and events[-1][2]["reward"] == 1
    assert all(data["rollout"] == rollout and data["kind"] == kind and data["at_ms"] for _, kind, data in events)
    done = [data for _, kind, data in events if kind == "call_done"]
    assert all(data["status"] == 200 and data["state"] == "answered" and data["id"].startswith("c-") for data in done)


def test_a_rollouts_events_come_in_order_and_end(service, model):
    rollout = service.post("/v1/rollouts", order(model))["id"]
    events = service.events(f"/v1/rollouts/{rollout}/events").end()
    check_life(events, rollout)
    # Whoever comes later gets the same; whoever comes back gets the rest, from any place.
    again = service.events(f"/v1/rollouts/{rollout}/events").end()
    assert again == events
    assert events[-1][2]["at_ms"] == next(row for row in service.pages() if row["id"] == rollout)["done_ms"]
    for place in (0, 3, len(events) - 2):
        rest = service.events(f"/v1/rollouts/{rollout}/events", last_event_id=events[place][0]).end()
        assert [e[0] for e in rest] == [e[0] for e in events[place + 1:]]
        assert service.events(f"/v1/rollouts/{rollout}/events", after=events[place][0]).end() == rest or rest
    # After the end there is nothing: an event source is told not to come back.
    assert events[-1][0] == "end"
    assert service.events(f"/v1/rollouts/{rollout}/events", last_event_id="end").status == 204


def test_a_rollouts_events_outlive_the_server(postern, service, model):
    rollout = service.post("/v1/rollouts", order(model))["id"]
    events = service.events(f"/v1/rollouts/{rollout}/events").end()
    assert service.stop()[0] == 0
    again = Service(postern)
    try:
        check_life(again.events(f"/v1/rollouts/{rollout}/events").end(), rollout)
        rest = again.events(f"/v1/rollouts/{rollout}/events", last_event_id=events[4][0]).end()
        assert [e[0] for e in rest] == [e[0] for e in events[5:]]
    finally:
        assert again.stop()[0] == 0


def test_events_come_while_it_happens_with_signs_of_life(service):
    rollout = service.post("/v1/rollouts", gated())["id"]
    stream = service.events(f"/v1/rollouts/{rollout}/events")
    stream.wait(lambda all: any(kind == "call_begun" for _, kind, _ in all), what="the call at the gate")
    until(lambda: stream.comments > 3, 30, "comments on a quiet stream")
    assert "final" not in stream.kinds() and not stream.ended
    trainer = Trainer(service.control, lambda call: {"content": "Done."})
    assert stream.end()[-1][1] == "final"
    trainer.stop()


def test_a_group_and_all(service, model):
    everything = service.events("/v1/events")
    group = service.post("/v1/groups", order(model, n=3, share_setup=False))
    own = service.events(f"/v1/groups/{group['id']}/events").end()
    other = service.post("/v1/rollouts", order(model))["id"]
    assert own[-1][1] == "group_final" and own[-1][2]["counts"]["over"] == 3
    for rollout in group["rollouts"]:
        check_life([e for e in own[:-1] if e[2]["rollout"] == rollout], rollout)
        assert [e[2]["text"] for e in own if e[2].get("rollout") == rollout and e[1] == "stage"][0] == "queued"
    assert {e[2].get("group") for e in own[:-1]} == {group["id"]}
    everything.wait(lambda all: sum(kind == "final" for _, kind, _ in all) == 4, what="four ends")
    check_life([e for e in everything.all if e[2]["rollout"] == other], other)
    ids = [e[0] for e in everything.all]
    assert len(set(ids)) == len(ids)
    # Going on in the middle: nothing twice, nothing missing.
    middle = len(ids) // 2
    rest = service.events("/v1/events", last_event_id=ids[middle])
    rest.wait(lambda all: len(all) >= len(ids) - middle - 1, what="the rest")
    assert [e[0] for e in rest.all[:len(ids) - middle - 1]] == ids[middle + 1:]
    later = service.events(f"/v1/groups/{group['id']}/events").end()
    assert [e[0] for e in later] == [e[0] for e in own]
    for path in ("/v1/events", f"/v1/groups/{group['id']}/events"):
        assert service.events(path, after="nonsense").status == 400
    assert service.events(f"/v1/rollouts/{other}/events", after="7").status == 400
    assert service.events("/v1/rollouts/r-nothing/events").status == 404
    assert service.events("/v1/groups/g-nothing/events").status == 404
    connection = service.control.connection()
    connection.request("HEAD", "/v1/events", headers=service.control.headers)
    assert connection.getresponse().status == 200
    connection.close()
    connection = service.control.connection()
    connection.request("GET", "/metrics", headers=service.control.headers)
    assert b"postern_event_streams 2" in connection.getresponse().read()
    connection.close()
    assert service.get("/v1/config")["listen.keepalive"]["value"] == 100
    rest.close()
    everything.close()


def test_what_the_backlog_dropped_is_said(postern, tmp, model):
    service = Service(postern, "--listen.event-backlog", "64K")
    try:
        first = service.events("/v1/events", after="0")
        # Enough events for several backlogs.
        loud = script(tmp / "loud.toml", *[bash(f"echo {i}; seq 1 400") for i in range(30)], "Done.")
        rollout = service.post("/v1/rollouts", order(loud))["id"]
        first.wait(lambda all: any(kind == "call_done" for _, kind, _ in all), what="a first event")
        place = first.all[0][0]
        assert service.over(rollout)["fate"] == "ok"
        late = service.events("/v1/events", last_event_id=place)
        late.wait(lambda all: any(kind == "final" for _, kind, _ in all), what="the end")
        assert late.all[0][1] == "dropped" and late.all[0][2]["count"] > 0, late.all[0]
        other = service.events("/v1/events", last_event_id="00000000.7")
        other.wait(lambda all: len(all) > 1, what="what is kept")
        assert other.all[0][1] == "dropped" and "server" in other.all[0][2]["why"]
        # The rollout's own stream still has all of it.
        own = service.events(f"/v1/rollouts/{rollout}/events").end()
        assert sum(kind == "call_done" for _, kind, _ in own) == 31
        for stream in (first, late, other):
            stream.close()
    finally:
        assert service.stop()[0] == 0


def test_a_reader_that_does_not_read_costs_no_memory(postern, tmp):
    service = Service(postern, "--listen.event-backlog", "1M", "--listen.drain", "0",
                      env={"ASAN_OPTIONS": "quarantine_size_mb=1"})
    try:
        peers = []
        for _ in range(8):
            peer = socket.create_connection(("127.0.0.1", service.port), timeout=60)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.sendall(f"GET /v1/events?after=0 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {service.control.token}\r\n\r\n"
                         .encode())
            peers.append(peer)
        loud = script(tmp / "loud.toml", *[bash(f"echo {i}; seq 1 2000") for i in range(40)], "Done.")
        before = memory(service)
        for _ in range(2):
            assert service.over(service.post("/v1/rollouts", order(loud))["id"])["fate"] == "ok"
        # Eight readers that take nothing: far below what eight copies of everything would be.
        assert memory(service) - before < 64 << 20
        assert service.get("/v1/version")
        for peer in peers:
            peer.close()
    finally:
        assert service.stop()[0] == 0


def memory(service):
    with open(f"/proc/{service.process.pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096
