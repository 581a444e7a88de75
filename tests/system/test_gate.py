"""Mode gate from end to end: `postern serve`, real sandboxes, the mini agent, and a trainer that answers its calls
over HTTP and over one WebSocket."""

import http.client
import json
import random
import re
import signal
import threading

import pytest

from postern import json_lines, until
from trainer import Control, Failure, Trainer, WebSocket

TASK = {"name": "make-a-file", "instruction": "Write yes into /app/answer.", "verify": ["grep -q yes /app/answer"]}
TOKENS = {"token_ids": [7, 8], "completion_logprobs": [-1.5, -0.5], "prompt_token_ids": [1, 2, 3]}


class Server:
    def __init__(self, postern, *flags):
        self.home = postern.home
        self.process = postern.start("serve", "--port", "0", "--listen.drain", "200ms", *postern.flags, *flags)
        line = self.process.stdout.readline().decode()
        match = re.search(r"http://[\d.]+:(\d+)", line)
        if not match:
            self.process.kill()
            pytest.fail(f"no address in {line!r}: {self.process.communicate()[1]!r}")
        self.control = Control(int(match[1]), (self.home / "token").read_text().strip())

    def submit(self, **order):
        status, body = self.control.ask("POST", "/v1/rollouts", {"agent": "mini", "task": TASK, "mode": "gate", **order})
        assert status == 201, body
        return body["id"]

    def view(self, rollout):
        return self.control.ask("GET", f"/v1/rollouts/{rollout}")[1]

    def result(self, rollout):
        until(lambda: self.view(rollout).get("fate"), 60, f"the end of {rollout}")
        return self.view(rollout)

    def records(self, rollout):
        return json_lines((self.home / "rollouts" / rollout / "calls.jsonl").read_bytes())

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        _, error = self.process.communicate(timeout=60)
        return self.process.returncode, error.decode()


@pytest.fixture
def server(postern):
    server = Server(postern)
    yield server
    if server.process.poll() is None:
        server.process.kill()
        server.process.communicate()


def turns(call):
    """How often the model has answered in this conversation."""
    return sum(message["role"] == "assistant" for message in call["messages"])


def bash_call(command):
    return {"id": "b1", "type": "function", "function": {"name": "bash", "arguments": json.dumps({"command": command})}}


def solve(call):
    """The policy: one command, then a last word."""
    if turns(call) == 0:
        return {"content": "", "tool_calls": [bash_call("echo yes > /app/answer")], **TOKENS}
    return {"content": "done", **TOKENS}


def solve_streaming(call):
    def chunks():
        if turns(call) == 0:
            yield {"delta": {"tool_calls": [{"index": 0, **bash_call("echo yes > /app/answer")}]}}
            yield {"finish_reason": "tool_calls", **TOKENS}
        else:
            yield {"delta": {"content": "do"}}
            yield {"delta": {"content": "ne"}}
            yield {"finish_reason": "stop", **TOKENS}
    return chunks()


def check(server, rollout):
    result = server.result(rollout)
    assert result["fate"] == "ok" and result["reward"] == 1, result
    assert result["mode"] == "gate" and result["turns"] == 2
    for record in server.records(rollout):
        assert record["state"] == "answered" and record["mode"] == "gate"
        assert record["answer"]["token_ids"] == [7, 8] and record["answer"]["prompt_token_ids"] == [1, 2, 3]
        assert record["answer"]["logprobs"] == [-1.5, -0.5]


@pytest.mark.parametrize("policy", [solve, solve_streaming])
def test_a_trainer_drives_rollouts_over_http(server, policy):
    trainer = Trainer(server.control, policy)
    rollouts = [server.submit(group="g-1", index=i) for i in range(4)]
    for rollout in rollouts:
        check(server, rollout)
    trainer.stop()
    assert {call["rollout_id"] for call in trainer.calls} == set(rollouts)
    assert {call["group_id"] for call in trainer.calls} == {"g-1"}
    assert len(trainer.calls) == 8 and all(status == 200 for status, _ in trainer.results)
    counts = server.control.ask("GET", "/v1/gate")[1]
    assert counts["held"] == counts["leased"] == 0 and counts["answered"] == 8
    code, error = server.stop()
    assert code == 0, error


def test_a_trainer_drives_rollouts_over_one_socket(server):
    socket = WebSocket(server.control)
    rollouts = [server.submit() for _ in range(3)]
    socket.send({"id": "t", "op": "take", "max": 8, "wait_ms": 20000})
    answered = 0
    while answered < 6:
        said = socket.receive()
        assert said and "error" not in said, said
        if "calls" not in said:
            answered += said["status"] == "answered"
            continue
        for call in said["calls"]:
            if call["turn"] == 1:
                socket.send({"id": call["call_id"], "op": "answer", "call_id": call["call_id"], "lease": call["lease"],
                             "answer": solve(call)})
                continue
            for chunk in solve_streaming(call):
                socket.send({"op": "chunk", "call_id": call["call_id"], "chunk": chunk})
            socket.send({"id": call["call_id"], "op": "end", "call_id": call["call_id"]})
        socket.send({"id": "t", "op": "take", "max": 8, "wait_ms": 20000})
    for rollout in rollouts:
        check(server, rollout)
    socket.close()


def test_a_trainer_that_dies_loses_nothing(server):
    """It takes calls and vanishes: over HTTP the lease runs out, over a socket they are back at once."""
    rollout = server.submit()
    call, = server.control.take(lease_ms=1)
    socket = WebSocket(server.control)
    socket.send({"id": 1, "op": "take", "wait_ms": 20000, "lease_ms": 3600000})
    again = socket.receive()["calls"][0]
    assert again["call_id"] == call["call_id"] and again["delivery"] == 2
    socket.drop()
    trainer = Trainer(server.control, solve)
    check(server, rollout)
    trainer.stop()
    assert trainer.calls[0]["delivery"] == 3


def test_an_answer_from_a_lost_lease_changes_nothing(server):
    rollout = server.submit()
    first, = server.control.take(lease_ms=1)
    second, = server.control.take()
    assert second["call_id"] == first["call_id"] and second["lease"] != first["lease"]
    status, body = server.control.answer(first, {"content": "too late"})
    assert status == 409, body
    assert server.control.answer(second, solve(second))[0] == 200
    assert server.control.answer(second, solve(second))[0] == 404
    trainer = Trainer(server.control, solve)
    check(server, rollout)
    trainer.stop()


def test_pausing_holds_calls_while_weights_change(server):
    control = server.control
    status, policy = control.ask("POST", "/v1/policy", {"version": 3, "pause": True})
    assert status == 200 and policy["version"] == 3 and policy["paused"], policy
    rollout = server.submit()
    until(lambda: control.ask("GET", "/v1/gate")[1]["held"] == 1, what="a held call")
    assert control.take(wait_ms=1) == []
    assert control.ask("POST", "/v1/policy", {"version": 4, "resume": True})[0] == 200
    trainer = Trainer(control, solve)
    check(server, rollout)
    trainer.stop()
    assert [record["policy_version"] for record in server.records(rollout)] == [4, 4]


def test_an_error_of_the_trainer_is_the_agents(server):
    def policy(_):
        raise Failure(status=400, type="too_long", message="the context is full")

    trainer = Trainer(server.control, policy)
    rollout = server.submit()
    result = server.result(rollout)
    trainer.stop()
    assert result["fate"] != "ok" and result["turns"] == 0
    record = server.records(rollout)[0]
    assert record["http_status"] == 400 and "the context is full" in record["error"]


def test_cancelling_withdraws_the_call(server):
    rollout = server.submit()
    call, = server.control.take()
    assert server.control.ask("DELETE", f"/v1/rollouts/{rollout}")[0] == 202
    assert server.result(rollout)["fate"] == "cancelled"
    assert server.control.answer(call, solve(call))[0] == 404
    assert server.control.ask("GET", "/v1/gate")[1]["held"] == 0


def test_stopping_the_server_ends_takes_and_held_calls(server):
    server.submit()
    until(lambda: server.control.ask("GET", "/v1/gate")[1]["held"] == 1, what="a held call")
    got = []
    waiting = threading.Thread(target=lambda: got.append(server.control.take(rollout="r-none", wait_ms=60000)))
    waiting.start()
    until(lambda: server.control.ask("GET", "/v1/gate")[1]["waiting"] == 1, what="a waiting take")
    socket = WebSocket(server.control)
    code, error = server.stop()
    waiting.join(30)
    assert code == 0, error
    assert got == [[]]
    assert socket.receive() is None


def test_what_is_wrong_is_named(server):
    for body, word in [({"task": TASK}, "agent"), ({"agent": "mini"}, "task"), ({"agent": "mini", "task": TASK, "mode": "x"}, "mode"),
                       ({"agent": "mini", "task": TASK}, "model"), ({"agent": "no-such", "task": TASK, "mode": "gate"}, "no-such"),
                       ({"agent": "mini", "task": "/no/such/task", "mode": "gate"}, "/no/such/task"),
                       ({"agent": "mini", "task": TASK, "mode": "proxy", "model": "gate:x"}, "gate"),
                       ({"agent": "mini", "task": TASK, "colour": 1}, "colour")]:
        status, answer = server.control.ask("POST", "/v1/rollouts", body)
        assert status in (400, 404), (body, answer)
        assert word in answer["error"]["message"], (body, answer)


def test_agents_see_nothing_of_the_gate(server):
    """The inlet answers model and tool routes only; what the control listener has is not there, whatever the method."""
    paths = ["/v1/gate", "/v1/gate/take", "/v1/gate/ws", "/v1/gate/calls/c-1/answer", "/v1/policy", "/v1/rollouts", "/v1/rollouts/r-1",
             "/v1/rollouts/r-1/samples", "/v1/groups", "/v1/events", "/v1/sandboxes", "/v1/openapi.json", "/metrics", "/health",
             "/reset", "/step", "/state", "/ws", "/web"]
    script = ("import http.client\n"
              f"for path in {paths!r}:\n"
              "    for method in ('GET', 'POST', 'PUT', 'DELETE'):\n"
              "        inlet = http.client.HTTPConnection('127.0.0.1', 13131, timeout=30)\n"
              "        inlet.request(method, path, b'{}' if method in ('POST', 'PUT') else None)\n"
              "        print(method, path, inlet.getresponse().status)\n")

    def policy(call):
        if turns(call) == 0:
            return {"content": "", "tool_calls": [bash_call(f"python3 - <<'EOF'\n{script}EOF\necho yes > /app/answer")], **TOKENS}
        return {"content": "done", **TOKENS}

    trainer = Trainer(server.control, policy)
    rollout = server.submit()
    check(server, rollout)
    trainer.stop()
    shown = trainer.calls[-1]["messages"][-1]["content"]
    for path in paths:
        for method in ("GET", "POST", "PUT", "DELETE"):
            assert f"{method} {path} 404" in shown, shown


def test_tools_of_a_rollout_run_at_the_trainer(server):
    """The agent calls a tool over its inlet; the trainer runs it. Names that steer an environment cannot be had."""
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
    ask = ("python3 -c 'import urllib.request as u; print(u.urlopen(u.Request(\"http://127.0.0.1:13131/v1/tools/look_up\", "
           "b\"{\\\"word\\\": \\\"yes\\\"}\")).read().decode())' > /app/answer")

    def policy(call):
        if call["kind"] == "tool":
            assert call["name"] == "look_up" and call["arguments"] == {"word": "yes"}
            return {"result": {"meaning": "yes indeed"}}
        if turns(call) == 0:
            return {"content": "", "tool_calls": [bash_call(ask)], **TOKENS}
        return {"content": "done", **TOKENS}

    trainer = Trainer(server.control, policy)
    rollout = server.submit(tools=[tool])
    check(server, rollout)
    trainer.stop()
    assert [call["kind"] for call in trainer.calls] == ["model", "tool", "model"]
    for name in ("reset", "step", "state", "close", "no blanks"):
        status, body = server.control.ask("POST", "/v1/rollouts", {"agent": "mini", "task": TASK, "mode": "gate",
                                                                    "tools": [{"name": name}]})
        assert status == 400 and name in body["error"]["message"], body


def test_trainers_that_come_and_go_lose_no_rollout(server):
    """Bad trainers beside a good one: leases that run out, streams that break, sockets that drop, nonsense. Every rollout
    still ends well, and what its record says was answered is what the agent saw: no turn is lost or there twice."""
    random.seed(7)
    stop = threading.Event()

    def bad():
        while not stop.is_set():
            way = random.choice(["lease", "stream", "socket", "nonsense"])
            try:
                if way == "socket":
                    socket = WebSocket(server.control)
                    socket.send({"id": 1, "op": "take", "wait_ms": 100})
                    for call in socket.receive()["calls"]:
                        socket.send({"op": "chunk", "call_id": call["call_id"], "chunk": {"content": "half "}})
                    socket.drop()
                    continue
                for call in server.control.take(wait_ms=100, lease_ms=50):
                    if way == "nonsense":
                        assert server.control.answer(call, {"content": 3})[0] in (400, 404, 409)
                    elif way == "stream":
                        server.control.stream(call, iter([{"content": "half "}, "nonsense"]))
            except (OSError, http.client.HTTPException):
                pass  # cut off, which is the point

    thread = threading.Thread(target=bad)
    thread.start()
    trainers = [Trainer(server.control, solve), Trainer(server.control, solve_streaming)]
    try:
        rollouts = [server.submit(group=f"g-{i % 3}") for i in range(12)]
        results = [server.result(rollout) for rollout in rollouts]
    finally:
        stop.set()
        thread.join(30)
    for trainer in trainers:
        trainer.stop()
    assert [result["fate"] for result in results] == ["ok"] * 12, [r.get("error") for r in results]
    assert all(result["reward"] == 1 for result in results)
    broken = 0
    for rollout, result in zip(rollouts, results):
        records = server.records(rollout)
        assert [r["state"] for r in records].count("answered") == result["turns"] == 2
        broken += [r["state"] for r in records].count("broken")
    counts = server.control.ask("GET", "/v1/gate")[1]
    assert counts["held"] == counts["leased"] == counts["streaming"] == 0, counts
    print(f"\n{counts['redelivered']} redelivered, {broken} broken, {counts['late']} late")
