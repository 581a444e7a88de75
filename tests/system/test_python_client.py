"""The Python client (python/) from end to end: real servers started by `local()`, real sandboxes, the mini agent, and
answers through both clients and through gate workers."""

import asyncio
import contextlib
import http.server
import importlib.util
import json
import os
import socket
import sys
import threading
import time

import pytest

import postern as lib
from postern import json_lines, until

SOURCE = lib.REPOSITORY / "python" / "src" / "postern"


def load():
    """The package under another name: `postern` is the library of these tests."""
    spec = importlib.util.spec_from_file_location("postern_client", SOURCE / "__init__.py",
                                                  submodule_search_locations=[str(SOURCE)])
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


pc = load()
TASK = {"name": "make-a-file", "instruction": "Write yes into /app/answer.", "verify": ["grep -q yes /app/answer"]}
SOLUTION = {"id": "b1", "type": "function",
            "function": {"name": "bash", "arguments": json.dumps({"command": "echo yes > /app/answer"})}}
TOKENS = {"token_ids": [7, 8], "completion_logprobs": [-1.5, -0.5], "prompt_token_ids": [1, 2, 3]}


def solve(call):
    if call["turn"] == 1:
        return {"content": "", "tool_calls": [SOLUTION], **TOKENS}
    return {"content": "done", **TOKENS}


async def solve_later(call):
    await asyncio.sleep(0)
    return solve(call)


def solve_in_pieces(call):
    if call["turn"] == 1:
        yield {"delta": {"tool_calls": [{"index": 0, **SOLUTION}]}}
        yield {"finish_reason": "tool_calls", **TOKENS}
    else:
        yield "do"
        yield "ne"


async def solve_in_pieces_later(call):
    for piece in solve_in_pieces(call):
        await asyncio.sleep(0)
        yield piece


@contextlib.contextmanager
def serving(flags, **options):
    home = lib.short_dir("pt-")
    try:
        with pc.local(lib.PROGRAM, home, flags=flags, **options) as client:
            yield client
    finally:
        lib.shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def shared(sandbox_works):
    with serving(sandbox_works) as client:
        yield client


@pytest.fixture
def client(shared):
    """The server of this file, with nothing left at its gate."""
    yield shared
    shared.resume()

    def quiet():
        """A rollout comes into the list a moment after it was taken in; its calls are at the gate at once."""
        for row in shared.all_rollouts():
            if not row["fate"]:
                shared.cancel(row["id"])
                shared.wait(row["id"], 30)
        return shared.gate()["held"] == 0

    until(quiet, what="an empty gate")


def submit(client, **order):
    return client.submit("mini", TASK, mode="gate", **order)


def solved(result):
    assert result["fate"] == "ok" and result["reward"] == 1 and result["turns"] == 2, result


def records(client, rollout):
    return json_lines((client.server.home / "rollouts" / rollout / "calls.jsonl").read_bytes())


def beside(client):
    return pc.AsyncClient(client.server.url, token_file=client.server.home / "token")


# ---------------------------------------------------------------- the clients
def test_a_rollout_by_hand(client):
    assert client.health() == {"status": "ok"} and client.version()
    rollout = submit(client, group="by-hand")
    call, = client.take(group="by-hand")
    assert call["rollout_id"] == rollout and call["turn"] == 1 and "raw" not in call
    client.extend(call, 30000)
    client.release(call)
    call, = client.take(rollout=rollout)
    assert call["delivery"] == 2
    assert client.answer(call, solve(call))["status"] == "answered"
    call, = client.take(rollout=rollout)
    assert client.stream(call, ["do", "ne"])["status"] == "answered"
    solved(client.wait(rollout, 60))
    assert "done" in json.dumps(records(client, rollout)[1]["answer"])
    assert rollout in [row["id"] for row in client.all_rollouts(limit=1)]
    assert "postern_gate_calls_total" in client.metrics()


def test_a_rollout_by_hand_with_asyncio(client):
    async def main():
        async with beside(client) as aclient:
            assert await aclient.health() == {"status": "ok"} and await aclient.version() == client.version()
            rollout = await aclient.submit("mini", TASK, mode="gate")
            call, = await aclient.take(rollout=rollout)
            await aclient.extend(call)
            await aclient.stream(call, solve_in_pieces(call))
            call, = await aclient.take(rollout=rollout)
            await aclient.answer(call, "done")
            solved(await aclient.wait(rollout, 60))
            assert rollout in [row["id"] async for row in aclient.all_rollouts()]
            assert (await aclient.gate())["held"] == 0 and "postern_" in await aclient.metrics()
            assert (await aclient.set_policy(version=5))["version"] == (await aclient.policy())["version"] == 5

    asyncio.run(main())


def test_connections_are_kept_and_those_the_server_closed_are_not_used(client):
    with pc.Client(client.server.url, client.token) as own:
        own.health()
        first, = own._idle
        own.health()
        assert own._idle == [first]
        first.sock.shutdown(2)
        own.retries = 0
        assert own.health() == {"status": "ok"} and own._idle != [first]


def test_pausing_and_versions(client):
    policy = client.set_policy(version=7, pause=True)
    assert policy["version"] == 7 and policy["paused"] is True
    rollout = submit(client)
    until(lambda: client.gate()["held"] == 1, what="a held call")
    assert client.take(wait_ms=1) == []
    policy = client.resume(version=8)
    assert policy == client.policy() and policy["version"] == 8 and policy["paused"] is False
    with pc.GateWorker(client, solve):
        solved(client.wait(rollout, 60))
    assert [record["policy_version"] for record in records(client, rollout)] == [8, 8]


def test_what_is_wrong_is_typed(client):
    with pytest.raises(pc.InvalidRequest) as refused:
        client.submit("mini", TASK, mode="gate", colour=1)
    assert refused.value.status == 400 and refused.value.field == "colour" and "colour" in refused.value.reason
    with pytest.raises(pc.InvalidRequest) as refused:
        client.rollouts(limit=0)
    assert refused.value.field == "limit"
    for order, field in [({"agent": "no-such"}, "agent"), ({"task": "/no/such"}, "task"), ({"mode": "no-such"}, "mode"),
                         ({"mode": "black_box"}, "model"), ({"tools": [{"name": "reset"}]}, "tools"), ({"index": -1}, "index")]:
        with pytest.raises(pc.PosternError) as refused:
            client.submit(**{"agent": "mini", "task": TASK, "mode": "gate", **order})
        assert refused.value.status in (400, 404) and refused.value.field == field, refused.value
    with pytest.raises(pc.NotFound):
        client.rollout("r-none")
    submit(client)
    call, = client.take()
    with pytest.raises(pc.Conflict):
        client.answer({**call, "lease": "0" * 16}, "not mine")
    with pytest.raises(pc.TimedOut):
        client.wait(call["rollout_id"], timeout=0)


def test_a_group(client):
    made = client.create_group(3, "mini", TASK, group="a-group", mode="gate", run="groups")
    assert made["id"] == "a-group" and len(made["rollouts"]) == 3
    assert client.group("a-group")["counts"]["over"] == 0 and "a-group" in [g["id"] for g in client.groups(run="groups")["groups"]]
    with pc.GateWorker(client, solve, group="a-group"):
        results = client.wait_group("a-group", 60)
    assert [result["id"] for result in results] == made["rollouts"] and [result["index"] for result in results] == [0, 1, 2]
    for result in results:
        solved(result)
    over = client.group("a-group", wait_ms=20000)
    assert over["state"] == "over" and over["fates"] == {"ok": 3} and over["reward"]["mean"] == 1
    rows = client.group_samples("a-group")
    assert {row.rollout_id for row in rows} == set(made["rollouts"]) and {row.group_id for row in rows} == {"a-group"}
    with pytest.raises(pc.Conflict):
        client.cancel_group("a-group")


def test_a_group_that_is_refused_leaves_nothing(client):
    with pytest.raises(pc.InvalidRequest) as refused:
        client.submit_group(4, "mini", TASK, group="refused", mode="no-such")
    assert refused.value.field == "mode"
    with pytest.raises(pc.InvalidRequest) as refused:
        client.submit_many([{"agent": "mini", "task": TASK, "mode": "gate", "run": "refused"},
                            {"agent": "mini", "task": TASK, "mode": "no-such", "run": "refused"}])
    assert refused.value.field == "1.mode"
    assert not client.rollouts(run="refused")["rollouts"] and not client.rollouts(group="refused")["rollouts"]


def test_a_group_is_cancelled(client):
    ids = client.submit_group(2, "mini", TASK, group="cancelled", mode="gate")
    client.cancel_group("cancelled")
    assert {result["fate"] for result in client.wait_all(ids, 60)} == {"cancelled"}


def test_a_submission_that_arrives_twice_is_one(client):
    order = {"mode": "gate", "run": "keys", "key": "step-1/0"}
    first = client.submit("mini", TASK, **order)
    assert client.submit("mini", TASK, **order) == first
    with pytest.raises(pc.Conflict):
        client.submit("mini", {**TASK, "name": "another"}, **order)
    assert [row["id"] for row in client.rollouts(run="keys")["rollouts"]] == [first]


class Cutter:
    """Stands between client and server. Cuts the connection when the answer comes (or has come so far), as often as told."""

    def __init__(self, port, cuts, after=0):
        self.port, self.cuts, self.after, self.listener = port, cuts, after, socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.port))
                threading.Thread(target=self.carry, args=(near, far, False), daemon=True).start()
                threading.Thread(target=self.carry, args=(far, near, True), daemon=True).start()

    def carry(self, source, to, cutting):
        left = self.after
        with contextlib.suppress(OSError):
            while True:
                data = source.recv(65536)
                if cutting and data and self.cuts and len(data) > left:
                    self.cuts -= 1
                    to.sendall(data[:left])
                    break
                if not data:
                    break
                left -= len(data)
                to.sendall(data)
        for end in (source, to):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def test_a_submission_whose_answer_is_lost_is_sent_again_and_taken_once(client):
    cutter = Cutter(client.address.port, cuts=2)
    with pc.Client(cutter.url, client.token) as own:
        rollout = own.submit("mini", TASK, mode="gate", run="cut")

    async def main():
        cutter.cuts = 2
        async with pc.AsyncClient(cutter.url, client.token) as aclient:
            return await aclient.submit_group(2, "mini", TASK, mode="gate", run="cut")

    group = asyncio.run(main())
    cutter.listener.close()
    assert cutter.cuts == 0
    assert sorted(row["id"] for row in client.rollouts(run="cut")["rollouts"]) == sorted([rollout, *group])


def told(events):
    """Without times: that of "final" is when it was said."""
    return [(event.kind, event.id, {name: value for name, value in event.data.items() if name != "at_ms"}) for event in events]


def test_events_of_a_rollout(client):
    with pc.GateWorker(client, solve):
        rollout = submit(client, group="watched")
        events = list(client.events(rollout=rollout, timeout=60))
    stages = [event.data["text"] for event in events if event.kind == "stage"]
    assert stages[-2:] == ["collecting", "done"] and "running" in stages
    assert [event.kind for event in events].count("call_done") == 2
    assert events[-1].kind == "final" and events[-1].data["reward"] == 1 and all(event.id for event in events)
    assert list(client.events(rollout=rollout, after=events[-1].id)) == []
    assert told(client.events(rollout=rollout, after=events[2].id)) == told(events[3:])
    with pytest.raises(pc.NotFound):
        list(client.events(rollout="r-none"))
    with pytest.raises(ValueError):
        list(client.events(rollout=rollout, group="watched"))


def test_events_go_on_where_the_connection_broke(client):
    with pc.GateWorker(client, solve):
        rollout = submit(client)
        client.wait(rollout, 60)
    whole = told(client.events(rollout=rollout, timeout=60))
    cutter = Cutter(client.address.port, cuts=4, after=700)
    with pc.Client(cutter.url, client.token) as own:
        assert told(own.events(rollout=rollout, timeout=60)) == whole
    assert cutter.cuts == 0

    async def main():
        cutter.cuts = 4
        async with pc.AsyncClient(cutter.url, client.token) as aclient:
            return [event async for event in aclient.events(rollout=rollout, timeout=60)]

    assert told(asyncio.run(main())) == whole and cutter.cuts == 0
    cutter.listener.close()


def test_events_of_a_group_and_of_all(client):
    seen = []

    def watch():
        for event in client.events(timeout=60):
            seen.append(event)
            if event.kind == "final" and len([e for e in seen if e.kind == "final"]) == 2:
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    with pc.GateWorker(client, solve):
        ids = client.submit_group(2, "mini", TASK, group="watched-2", mode="gate")

        async def main():
            async with beside(client) as aclient:
                return [event async for event in aclient.events(group="watched-2", timeout=60)]

        events = asyncio.run(main())
    watcher.join(60)
    assert events[-1].kind == "group_final" and events[-1].data["fates"] == {"ok": 2}
    for each in (events, seen):
        assert sorted(event.data["rollout"] for event in each if event.kind == "final") == sorted(ids)


def test_silence_of_events_ends_when_told(client):
    rollout = submit(client)
    client.take(rollout=rollout)
    with pytest.raises(pc.TimedOut):
        for _ in client.events(rollout=rollout, timeout=0.5):
            pass

    async def main():
        async with beside(client) as aclient:
            with pytest.raises(pc.TimedOut):
                async for _ in aclient.events(rollout=rollout, timeout=0.5):
                    pass

    asyncio.run(main())


def test_waiting_is_told_at_once(client):
    """A wait is a question that the server answers when the rollout is over: few are asked."""
    rollout = submit(client)
    asked = []

    class Counting(pc.Client):
        def rollout(self, id, wait_ms=0):
            asked.append(wait_ms)
            return super().rollout(id, wait_ms)

    with Counting(client.server.url, client.token) as own, pc.GateWorker(client, solve):
        solved(own.wait(rollout, 60))
    assert len(asked) == 1 and asked[0] > 20000


def test_calls_and_samples(client):
    with pc.GateWorker(client, solve):
        rollout = submit(client)
        client.wait(rollout, 60)
    calls = client.calls(rollout)
    assert [call["number"] for call in calls] == [1, 2]
    assert client.call(calls[0]["id"])["answer"]["token_ids"] == [7, 8]
    rows = client.samples(rollout)
    assert sum(sum(row.mask) for row in rows) == 4 and {row.rollout_id for row in rows} == {rollout}

    async def main():
        async with beside(client) as aclient:
            assert [call["id"] for call in await aclient.calls(rollout)] == [call["id"] for call in calls]
            assert len(await aclient.samples(rollout)) == len(rows)

    asyncio.run(main())


def test_a_wrong_token_is_an_auth_error(client):
    with pc.Client(client.server.url, token="x" * 32) as wrong:
        assert wrong.health() == {"status": "ok"}
        with pytest.raises(pc.AuthError) as refused:
            wrong.rollouts()
        assert refused.value.status == 401 and "x" * 32 not in str(refused.value)
        worker = pc.GateWorker(wrong, solve).start()
        worker._thread.join(30)
        with pytest.raises(pc.AuthError):
            worker.stop()

    async def main():
        async with pc.AsyncClient(client.server.url, token="x" * 32) as aclient:
            with pytest.raises(pc.AuthError):
                await aclient.take()

    asyncio.run(main())


def test_a_server_that_is_gone_is_a_connection_error(sandbox_works):
    with serving(sandbox_works) as own:
        own.health()
        own.server.process.kill()
        own.server.process.wait()
        for request in (own.health, lambda: own.submit("mini", TASK), lambda: asyncio.run(beside(own).health())):
            with pytest.raises(ConnectionError) as gone:
                request()
            assert isinstance(gone.value, pc.Unreachable) and own.server.url in str(gone.value)
            assert "refused" in str(gone.value).lower() or "connect" in str(gone.value).lower(), gone.value


def test_a_server_that_cannot_start_says_why(home):
    with pytest.raises(pc.PosternError, match="no-such-flag"):
        with pc.local(lib.PROGRAM, home, flags=["--no-such-flag"]):
            pass
    with pytest.raises(pc.PosternError, match="cannot be started"):
        with pc.local(home / "nothing"):
            pass


# ---------------------------------------------------------------- workers
@pytest.mark.parametrize("policy", [solve, solve_later, solve_in_pieces, solve_in_pieces_later])
def test_a_worker_answers(client, policy):
    group = f"g-{policy.__name__}"
    with pc.GateWorker(client, policy, concurrency=3, group=group) as worker:
        ids = client.submit_group(3, "mini", TASK, group=group, mode="gate")
        for result in client.wait_all(ids, 60):
            solved(result)
    assert worker.taken == worker.answered == 6 and not worker.errors
    for id in ids:
        assert records(client, id)[0]["answer"]["token_ids"] == [7, 8]


def test_a_worker_in_the_callers_loop(client):
    async def main():
        async with beside(client) as aclient:
            async with pc.GateWorker(aclient, solve_in_pieces_later) as worker:
                ids = await aclient.submit_group(2, "mini", TASK, group="g-2", mode="gate")
                for result in await aclient.wait_all(ids, 60):
                    solved(result)
            assert worker.answered == 4

    asyncio.run(main())


def test_pieces_are_sent_as_they_are_made(client):
    seen = []

    def policy(call):
        yield {"delta": {"content": "be"}}
        seen.append(until(lambda: client.gate()["streaming"] == 1, what="an open stream"))
        yield {"delta": {"content": "gun"}}

    with pc.GateWorker(client, policy) as worker:
        assert client.wait(submit(client), 60)["turns"] == 1
    assert seen == [True] and worker.answered == 1


def test_a_lease_is_extended_while_the_policy_thinks(client):
    before = client.gate()["redelivered"]

    def policy(call):
        if call["turn"] == 1:
            time.sleep(4.4)  # more than two leases
        return solve(call)

    with pc.GateWorker(client, policy, lease_ms=2000) as worker:
        solved(client.wait(submit(client), 60))
    assert worker.answered == 2 and worker.lost == 0 and client.gate()["redelivered"] == before


def test_a_policy_that_raises_fails_the_call(client):
    """The agent gets a typed error. After a 500 mini asks again."""
    asked = []

    def policy(call):
        asked.append(call)
        if len(asked) == 1:
            raise ValueError("the weights are at /secret/place")
        return solve(call)

    with pc.GateWorker(client, policy) as worker:
        rollout = submit(client)
        solved(client.wait(rollout, 60))
    assert worker.failed == 1 and isinstance(worker.errors[0], ValueError)
    first = records(client, rollout)[0]
    assert first["http_status"] == 500 and "the policy failed: ValueError" in first["error"]
    assert "secret" not in json.dumps(asked[1]["messages"]) + json.dumps(first)


def test_a_policy_that_raises_in_the_middle_breaks_the_stream(client):
    """Never a clean end of half an answer: the agent's connection is reset, and mini asks again."""
    asked = []

    def policy(call):
        asked.append(call)
        if len(asked) == 1:
            yield "half of"
            raise OSError("the engine is gone")
        yield from solve_in_pieces(call)

    with pc.GateWorker(client, policy) as worker:
        solved(client.wait(submit(client), 60))
    assert worker.failed == 1 and str(worker.errors[0]) == "the engine is gone"
    assert "half of" not in json.dumps(asked[-1]["messages"])


def test_a_policy_chooses_the_error(client):
    def policy(_):
        raise pc.CallFailed("the context is full", status=400, type="too_long")

    with pc.GateWorker(client, policy) as worker:
        rollout = submit(client)
        assert client.wait(rollout, 60)["fate"] != "ok"
    first = records(client, rollout)[0]
    assert worker.failed == 1 and first["http_status"] == 400 and "the context is full" in first["error"]


def test_an_answer_the_server_refuses_fails_the_call(client):
    asked = []

    def policy(call):
        asked.append(call)
        return {"content": 5} if len(asked) == 1 else solve(call)

    with pc.GateWorker(client, policy) as worker:
        solved(client.wait(submit(client), 60))
    assert worker.failed == 1 and isinstance(worker.errors[0], pc.InvalidRequest)


class Dropper(Cutter):
    """Cuts the connection when an answer to a call is sent: the server never sees it."""

    def carry(self, source, to, cutting):
        with contextlib.suppress(OSError):
            while True:
                data = source.recv(65536)
                if not data or (not cutting and self.cuts and b"/answer" in data):
                    self.cuts -= bool(data)
                    break
                to.sendall(data)
        for end in (source, to):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("cuts", [2, 4])
def test_an_answer_that_is_lost_on_its_way_is_no_failure_of_the_policy(client, cuts):
    """It is sent again; after four times in vain the call goes back to the queue. The agent sees nothing of it."""
    dropper = Dropper(client.address.port, cuts)
    with pc.Client(dropper.url, client.token) as own, pc.GateWorker(own, solve) as worker:
        rollout = submit(client)
        solved(client.wait(rollout, 60))
    dropper.listener.close()
    assert dropper.cuts == 0 and worker.failed == (cuts == 4)
    assert {each["http_status"] for each in records(client, rollout)} == {200}


@pytest.mark.parametrize("streaming", [False, True])
def test_work_for_an_agent_that_left_is_given_up(client, streaming):
    begun, ended = threading.Event(), threading.Event()

    async def hang():
        begun.set()
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    async def whole(_):
        await hang()

    async def pieces(_):
        yield "be"
        await hang()

    with pc.GateWorker(client, pieces if streaming else whole, lease_ms=3000) as worker:
        rollout = submit(client)
        assert begun.wait(60)
        client.cancel(rollout)
        assert ended.wait(60)
    assert worker.lost == 1 and worker.failed == 0
    assert client.wait(rollout, 60)["fate"] == "cancelled"


def test_stopping_gives_calls_back(client):
    begun = threading.Event()

    async def policy(_):
        begun.set()
        await asyncio.sleep(600)

    rollout = submit(client)
    with pc.GateWorker(client, policy, grace_s=0):
        assert begun.wait(60)
    call, = client.take(rollout=rollout, wait_ms=20000)  # at once: the lease was a minute
    assert call["delivery"] == 2
    client.fail(call, "no more", status=400)


def test_32_calls_held_at_once(client):
    together = threading.Barrier(32)

    def policy(_):
        together.wait(60)
        return "done"

    with pc.GateWorker(client, policy, concurrency=32, group="many") as worker:
        ids = client.submit_group(32, "mini", TASK, group="many", mode="gate")
        results = client.wait_all(ids, 90)
    assert {(r["fate"], r["reward"], r["turns"]) for r in results} == {("ok", 0, 1)}
    assert worker.answered == 32 and not worker.errors


def test_tools_run_at_the_trainer(client):
    ask = ("python3 -c 'import urllib.request as u; ask = lambda name: u.urlopen(u.Request(\"http://127.0.0.1:13131/v1/tools/\" "
           "+ name, b\"{\\\"word\\\": \\\"a\\\"}\")).read().decode(); ask(\"note\"); print(ask(\"look_up\"))' > /app/answer")

    def policy(call):
        if call["turn"] > 1:
            return "done"
        return {"tool_calls": [{**SOLUTION, "function": {"name": "bash", "arguments": json.dumps({"command": ask})}}]}

    noted = []  # most functions return nothing
    with pc.GateWorker(client, policy, tools={"look_up": lambda given: {"meaning": "yes", **given}, "note": noted.append}) as worker:
        solved(client.wait(submit(client, tools=[{"name": "look_up"}, {"name": "note"}]), 60))
    assert noted == [{"word": "a"}] and not worker.errors


class Engine(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append((self.path, self.headers["authorization"], asked))
        turn = 1 + sum(message["role"] == "assistant" for message in asked["messages"])
        message = {"role": "assistant", "content": "done"} if turn > 1 else {"role": "assistant", "tool_calls": [SOLUTION]}
        body = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_an_engine_answers(client):
    engine = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    engine.asked = []
    threading.Thread(target=engine.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{engine.server_port}/v1"
    try:
        with pc.GateWorker(client, url, engine_key="a-key", engine_options={"logprobs": True}) as worker:
            solved(client.wait(submit(client), 60))
    finally:
        engine.shutdown()
        engine.server_close()
    assert worker.answered == 2 and len(engine.asked) == 2
    path, key, asked = engine.asked[0]
    assert path == "/v1/chat/completions" and key == "Bearer a-key" and asked["logprobs"] is True and asked["tools"]


def test_an_engine_object_answers_and_asks_for_tokens(client):
    engine = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    engine.asked = []
    threading.Thread(target=engine.serve_forever, daemon=True).start()
    try:
        own = pc.Engine(f"http://127.0.0.1:{engine.server_port}", kind="vllm", model="m-1", options={"temperature": 0.5})
        with pc.GateWorker(client, own):
            solved(client.wait(submit(client), 60))
    finally:
        engine.shutdown()
        engine.server_close()
    path, _, asked = engine.asked[0]
    assert path == "/v1/chat/completions" and asked["return_token_ids"] is True and asked["logprobs"] is True
    assert asked["model"] == "m-1" and asked["temperature"] == 0.5 and asked["messages"]
    with pytest.raises(ValueError, match="no-such"):
        pc.Engine("http://127.0.0.1:1", kind="no-such")


def test_every_engines_spelling_of_tokens():
    message = {"role": "assistant", "content": "hi"}
    ours = {"token_ids": [5, 6], "completion_logprobs": [-0.5, -1.0], "prompt_token_ids": [1, 2]}
    content = [{"token": "h", "logprob": -0.5}, {"token": "i", "logprob": -1.0}]
    named = [{"token": "token_id:5", "logprob": -0.5}, {"token": "token_id:6", "logprob": -1.0}]
    pairs = {"output_token_logprobs": [[-0.5, 5, "h"], [-1.0, 6, "i"]], "input_token_logprobs": [[None, 1, "a"], [-3.0, 2, "b"]]}
    for completion in ({"prompt_token_ids": [1, 2], "choices": [{"token_ids": [5, 6], "logprobs": {"content": content}}]},
                       {"prompt_token_ids": [1, 2], "choices": [{"logprobs": {"content": named}}]},
                       {"choices": [{"meta_info": pairs}]},
                       {"choices": [{"prompt_token_ids": [1, 2], "meta_info": pairs}]}):
        completion["choices"][0].update(message=message, finish_reason="stop")
        answer = pc.engine.convert(completion)
        assert {name: answer[name] for name in ours} == ours and answer["message"] == message, completion
    assert pc.engine.convert({"choices": [{"message": message}]}) == {"message": message}
    with pytest.raises(pc.CallFailed):
        pc.engine.convert({"error": "no"})


def test_advantages():
    assert pc.advantages([0.0, 1.0, 0.0, 1.0]) == pytest.approx([-1, 1, -1, 1], abs=1e-5)
    assert pc.advantages([0.5, 0.5]) == [0, 0] and pc.advantages([]) == [] and pc.advantages([None]) == [None]
    # What infrastructure broke is not in the mean.
    assert pc.advantages([0.0, None, 1.0]) == pytest.approx([-1, None, 1], abs=1e-5)
    assert pc.advantages([1, 4], scale=False) == [-1.5, 1.5]
    with pytest.raises(ValueError):
        pc.advantages([float("nan"), 1.0])


def test_a_worker_waits_for_a_server_that_comes_back(sandbox_works, tmp):
    """The same socket, another server: the worker that knew the first one serves the second."""
    folder = lib.short_dir("pt-")
    flags = [*sandbox_works, "--unix", str(folder / "s")]
    try:
        with pc.local(lib.PROGRAM, folder, flags=flags) as first:
            worker = pc.GateWorker(pc.Client(f"unix:{folder / 's'}", first.token), solve).start()
            solved(first.wait(submit(first), 60))
        with pc.local(lib.PROGRAM, folder, flags=flags) as second:
            solved(second.wait(submit(second), 60))
            worker.stop()
        assert worker.answered == 4
    finally:
        lib.shutil.rmtree(folder, ignore_errors=True)


# ---------------------------------------------------------------- the package
def test_the_example_collects_rewards(sandbox_works):
    done = lib.command([sys.executable, lib.REPOSITORY / "python/examples/collect.py"], seconds=120,
                       env={**os.environ, "PYTHONPATH": str(SOURCE.parent), "POSTERN": lib.PROGRAM,
                            "SERVE_FLAGS": " ".join(sandbox_works)})
    assert done.code == 0, done
    assert done.text.count("reward 1 ") == 2 and done.text.count("reward 0 ") == 2 and "mean reward 0.50" in done.text, done


def test_the_package_builds_without_network(tmp):
    build = f"import backend; print(backend.build_wheel({str(tmp)!r})); print(backend.build_sdist({str(tmp)!r}))"
    done = lib.command([sys.executable, "-B", "-c", build], cwd=lib.REPOSITORY / "python")
    assert done.code == 0, done
    wheel = tmp / done.lines()[0]
    names = lib.command([sys.executable, "-m", "zipfile", "-l", wheel]).text
    assert "postern/py.typed" in names and "postern/worker.py" in names and "dist-info/RECORD" in names
    done = lib.command([sys.executable, "-B", "-c", "import postern; print(postern.__file__, postern.Client)"], cwd=tmp,
                       env={"PYTHONPATH": str(wheel)})
    assert done.code == 0 and str(wheel) in done.text, done


def test_it_installs_into_a_fresh_environment(tmp):
    """`pip install ./python` as people do it, without network and without anything installed before."""
    made = lib.command([sys.executable, "-m", "venv", tmp / "venv"], seconds=180)
    if made.code:
        lib.must(f"no virtual environment: {made.error[-300:]}")
    python = tmp / "venv" / "bin" / "python"
    done = lib.command([python, "-m", "pip", "install", "-q", "--no-index", lib.REPOSITORY / "python"], seconds=180, stdin=b"",
                       env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    assert done.code == 0, done
    look = "import postern, pathlib; print(postern.__version__, (pathlib.Path(postern.__file__).parent / 'py.typed').exists())"
    done = lib.command([python, "-I", "-c", look])
    assert done.code == 0 and done.text.split()[1] == "True", done
