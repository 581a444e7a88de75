"""Agents driven over the Agent Client Protocol: turns, files, terminals, permissions, a user who says more."""

import json

import pytest

import postern as lib
from postern import task
from test_agents import INSTRUCTION, SYSTEM, agents_postern, calls, installed  # noqa: F401
from test_agents import records, run, script, tail_of, texts_in
from test_gate import Server
from trainer import Trainer


ACP_AGENT = r'''
import json, os, subprocess, sys, urllib.request
def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def update(**fields):
    send(method="session/update", params={"sessionId": "s1", "update": fields})
def ask(method, **params):
    send(id="q", method=method, params=params)
    return json.loads(sys.stdin.readline())
def read():
    return json.loads(sys.stdin.readline())
request = read()
assert request["method"] == "initialize" and request["params"]["protocolVersion"] == 1
send(id=request["id"], result={"protocolVersion": 1})
request = read()
assert request["method"] == "session/new" and request["params"]["cwd"] == "/app"
print("a line that is no JSON", flush=True)
send(id=request["id"], result={"sessionId": "s1"})
request = read()
assert request["method"] == "session/prompt" and request["params"]["sessionId"] == "s1"
text = request["params"]["prompt"][0]["text"]
refused = ask("fs/read_text_file", path="/etc/passwd")
assert refused["id"] == "q" and refused["error"]["code"] == -32601
options = [{"optionId": "no", "kind": "reject_once"}, {"optionId": "yes", "kind": "allow_once"}]
assert ask("session/request_permission", sessionId="s1", options=options)["result"]["outcome"] == {
    "outcome": "selected", "optionId": "yes"}
assert ask("session/request_permission", sessionId="s1", options=options[:1])["result"]["outcome"] == {"outcome": "cancelled"}
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
answer = json.load(urllib.request.urlopen(urllib.request.Request(url, body, {"content-type": "application/json"})))
update(sessionUpdate="agent_thought_chunk", content={"type": "text", "text": "hm"})
update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": "I "})
update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": "try."})
update(sessionUpdate="tool_call", toolCallId="t1", title="sh", rawInput={"a": 1})
open("/app/answer", "w").write(answer["choices"][0]["message"]["content"])
update(sessionUpdate="tool_call_update", toolCallId="t1", status="in_progress")
update(sessionUpdate="tool_call_update", toolCallId="t1", status="completed", rawOutput="fine")
update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": "Finished."})
if os.environ.get("REASON") == "error":
    send(id=request["id"], error={"code": 1, "message": "it broke"})
else:
    send(id=request["id"], result={"stopReason": os.environ["REASON"]})
while True:
    sys.stdin.readline()
'''
ACP_SPEC = '''
name = "acp-newcomer"
[[files]]
from = "./agent.py"
to = "/opt/postern/bin/agent.py"
[run]
argv = ["/usr/bin/python3", "/opt/postern/bin/agent.py"]
instruction = "acp"
[run.env]
OPENAI_BASE_URL = "{base_url}"
REASON = "%s"
[output]
format = "acp"
'''


@pytest.mark.parametrize("reason, fate", [("end_turn", "ok"), ("max_turn_requests", "limit"), ("refusal", "agent_failed"),
                                          ("error", "agent_failed")])
def test_an_agent_is_driven_through_acp(postern, tmp, reason, fate):
    (tmp / "agent.py").write_text(ACP_AGENT)
    (tmp / "acp.toml").write_text(ACP_SPEC % reason)
    (tmp / "m.toml").write_text('[[rule]]\nsay = "yes"\n')
    task_ = task(tmp / "t.json", instruction=INSTRUCTION, verify=["grep -q yes /app/answer"])
    done, results = postern.run("--agent", str(tmp / "acp.toml"), "--task", task_, "--model", f"script:{tmp / 'm.toml'}",
                                *postern.flags)
    assert results[0]["fate"] == fate and results[0]["reward"] == 1, (done, results, tail_of(postern, results[0]))
    assert results[0]["final_text"] == "Finished." or fate == "limit"
    recorded, events = records(postern, results[0])
    assert recorded[0]["request"]["messages"][0]["content"] == INSTRUCTION
    told = [(e["kind"], e.get("text")) for e in events if e["kind"] in ("assistant", "reasoning", "tool_call", "tool_result", "error")]
    assert told[:5] == [("reasoning", "hm"), ("assistant", "I try."), ("tool_call", '{"a": 1}'), ("tool_result", "fine"),
                        ("assistant", "Finished.")]
    assert told[5:] == ([] if fate in ("ok", "limit") else [("error", "it broke" if reason == "error" else reason)])


ACP_CLIENT = r"""
import json, os, sys, threading, time
def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def read():
    return json.loads(sys.stdin.readline())
def ask(method, **params):
    send(id=7, method=method, params={"sessionId": "s", **params})
    return read()
request = read()
assert request["params"]["clientCapabilities"] == {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True}
send(id=request["id"], result={"protocolVersion": 1})
send(id=read()["id"], result={"sessionId": "s"})
request = read()
path = "/app/a 'b' $(x)\n\u00e9"
assert ask("fs/write_text_file", path=path, content="one\ntwo\nthree\n")["result"] is None
assert open(path).read() == "one\ntwo\nthree\n"
assert ask("fs/read_text_file", path=path)["result"]["content"] == "one\ntwo\nthree\n"
assert ask("fs/read_text_file", path=path, line=2, limit=1)["result"]["content"] == "two\n"
assert "No such file" in ask("fs/read_text_file", path="/nothing")["error"]["message"]
assert ask("fs/read_text_file", path="relative")["error"]["code"] == -32602
assert ask("fs/write_text_file", path="/usr/bin/x", content="")["error"], "as its own user"
terminal = ask("terminal/create", command="sh", args=["-c", "echo $X; pwd; exit 3"], env=[{"name": "X", "value": "a b"}], cwd="/tmp")
terminal = terminal["result"]["terminalId"]
assert ask("terminal/wait_for_exit", terminalId=terminal)["result"] == {"exitCode": 3, "signal": None}
out = ask("terminal/output", terminalId=terminal)["result"]
assert out["output"] == "a b\n/tmp\n" and not out["truncated"] and out["exitStatus"]["exitCode"] == 3, out
assert ask("terminal/release", terminalId=terminal)["result"] == {}
assert ask("terminal/output", terminalId=terminal)["error"]["code"] == -32602
sleeper = ask("terminal/create", command="sleep", args=["1000"])["result"]["terminalId"]
assert ask("terminal/kill", terminalId=sleeper)["result"] == {}
assert ask("terminal/wait_for_exit", terminalId=sleeper)["result"]["exitCode"] is None
loud = ask("terminal/create", command="sh", args=["-c", "seq 100000"], outputByteLimit=100)["result"]["terminalId"]
ask("terminal/wait_for_exit", terminalId=loud)
out = ask("terminal/output", terminalId=loud)["result"]
assert out["truncated"] and out["output"].endswith("100000\n") and len(out["output"]) <= 100, out
for _ in range(14):
    assert "result" in ask("terminal/create", command="true")
assert "too many" in ask("terminal/create", command="true")["error"]["message"]
assert ask("terminal/create", command="")["error"]["code"] == -32602
os.mkfifo("/app/slow")
for number in range(100, 120):
    send(id=number, method="fs/read_text_file", params={"sessionId": "s", "path": "/app/slow"})
refused = [read() for _ in range(4)]
assert [r["id"] for r in refused] == [116, 117, 118, 119] and all("too many files" in r["error"]["message"] for r in refused), refused
def release():
    while True:
        try:
            os.close(os.open("/app/slow", os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            pass
        time.sleep(0.01)
threading.Thread(target=release, daemon=True).start()
answers = [read() for _ in range(16)]
assert sorted(a["id"] for a in answers) == list(range(100, 116)) and all("result" in a for a in answers), answers
open("/app/large", "w").write("x" * (9 << 20))
assert "error" in ask("fs/read_text_file", path="/app/large")
assert ask("fs/read_text_file", path=path, limit=1)["result"]["content"] == "one\n"
assert ask("session/other")["error"]["code"] == -32601
send(method="session/update", params={"sessionId": "s", "update": {"sessionUpdate": "plan", "entries": []}})
send(method="session/update", params={"sessionId": "s", "update": {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "Fine."}}})
send(id=request["id"], result={"stopReason": "end_turn"})
"""


def test_files_and_terminals_of_an_acp_client_are_those_of_the_sandbox(postern, tmp):
    (tmp / "agent.py").write_text(ACP_CLIENT)
    (tmp / "acp.toml").write_text(ACP_SPEC % "x" + "[acp]\nfiles = true\nterminals = true\n")
    done, results = postern.run("--agent", str(tmp / "acp.toml"), "--task", task(tmp / "t.json"), "--model",
                                script(tmp / "m.toml", "x"), *postern.flags)
    assert results[0]["fate"] == "ok" and results[0]["final_text"] == "Fine.", (done, results, tail_of(postern, results[0]))
    _, events = records(postern, results[0])
    assert "plan" in [event.get("type") for event in events]


ACP_DEAF = r"""
import json, sys
wish = json.dumps({"id": "x" * 1000000, "method": "session/request_permission", "params": {}}) + "\n"
while True:
    sys.stdout.write(wish)
"""


def test_an_acp_agent_that_asks_and_never_reads_is_ended(postern, tmp):
    (tmp / "agent.py").write_text(ACP_DEAF)
    (tmp / "acp.toml").write_text(ACP_SPEC % "x")
    done, results = postern.run("--agent", str(tmp / "acp.toml"), "--task", task(tmp / "t.json"), "--model",
                                script(tmp / "m.toml", "x"), "--timeout", "60s", *postern.flags)
    assert results[0]["fate"] == "agent_failed" and "does not read" in str(results[0]["error"]), (done, results)


def test_a_user_who_says_more_drives_an_agent_through_acp(agents_postern, installed, tmp):
    """The instruction, the task's later turns, then the trainer as the user; each with edits of its own tools."""
    postern, agent = agents_postern, installed("opencode")
    server = Server(postern)
    users = []

    def policy(call):
        if call["kind"] == "user":
            users.append(call["arguments"]["transcript"])
            said = {"role": "user", "content": [{"type": "text", "text": "Write $(three)."}]}
            return {"messages": [said] if len(users) == 1 else []}
        last = [m for m in call["messages"] if m["role"] in ("user", "tool")][-1]
        answer = {"token_ids": [1], "completion_logprobs": [-0.5]}
        if last["role"] == "tool":
            return {"content": f"Done {sum(m['role'] == 'tool' for m in call['messages'])}.", **answer}
        text = " ".join(texts_in(last["content"]))
        word = next(w for w in ("three", "two", "one") if w in text)
        tool, arguments = agent.shell(f"echo {word} >> /app/answer")
        function = {"name": tool, "arguments": json.dumps(arguments)}
        return {"content": "", "tool_calls": [{"id": f"call_{word}", "type": "function", "function": function}], **answer}

    trainer = Trainer(server.control, policy)
    try:
        rollout = server.submit(agent="opencode", model="gate:the-model", tools=[{"type": "user"}], task={
            "name": "t", "instruction": "Write one.", "system": SYSTEM, "turns": ["Write 'two'."],
            "verify": ["test \"$(tr '\\n' ' ' < /app/answer)\" = 'one two three '"]})
        result = server.result(rollout)
        assert result["fate"] == "ok" and result["reward"] == 1, (result, users)
        assert result["turns"] == 6 and result["final_text"] == "Done 3."
        assert [m["content"] for m in users[0]] == ["Write one.", "Done 2."], users
        assert [m["content"] for m in users[1]] == ["Write one.", "Done 2.", "Write $(three).", "Done 3."]
        recorded = server.records(rollout)
        assert any(SYSTEM in text for text in texts_in(recorded[0]["request"])), "the system prompt arrived as it is"
        events = lib.json_lines((postern.home / "rollouts" / rollout / "events.jsonl").read_bytes())
        assert [e["text"] for e in events if e.get("type") == "user"] == ["Write 'two'.", "Write $(three)."]
        assert [e["text"] for e in events if e["kind"] == "assistant"] == ["Done 1.", "Done 2.", "Done 3."]
    finally:
        trainer.stop()
        server.stop()


ACP_TURNS = r"""
import json, sys, urllib.request
def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request["method"] != "session/prompt":
        send(id=request["id"], result={"protocolVersion": 1, "sessionId": "s"})
        continue
    body = json.dumps({}).encode()
    url = "http://127.0.0.1:13131/v1/tools/count"
    count = json.load(urllib.request.urlopen(urllib.request.Request(url, body, {"content-type": "application/json"})))["result"]
    text = request["params"]["prompt"][0]["text"] + " " + count.strip()
    send(method="session/update", params={"update": {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}})
    send(id=request["id"], result={"stopReason": "end_turn"})
"""


def test_a_conversation_and_its_tools_outlive_the_server(postern, tmp):
    """kill -9 while the trainer is asked what the user says: the next server asks again, and the agent goes on."""
    (tmp / "agent.py").write_text(ACP_TURNS)
    (tmp / "acp.toml").write_text(ACP_SPEC % "x")
    count = "n=$(cat /tmp/n 2>/dev/null || echo 0); n=$((n+1)); echo $n > /tmp/n; echo $n"
    server = Server(postern)
    rollout = server.submit(agent=str(tmp / "acp.toml"), tools=[{"type": "user"}], task={
        "name": "t", "instruction": "one", "turns": ["two"], "tools": [{"name": "count", "command": ["sh", "-c", count], "where": "apart"}]})
    first = server.control.take(wait_ms=60000)[0]
    assert first["kind"] == "user" and first["arguments"]["transcript"][-1]["content"] == "two 2", first
    assert server.control.answer(first, {"messages": [{"role": "assistant", "content": "x"}]})[0] == 400
    assert server.control.answer(first, {"messages": [{"role": "user", "content": "three"}]})[0] == 200
    lib.until(lambda: server.control.take(wait_ms=1000), 60, "the next turn to be over")  # and taken by nobody who answers
    server.process.kill()
    server.process.communicate(timeout=60)
    server = Server(postern)
    try:
        second = server.control.take(wait_ms=60000)[0]
        assert second["arguments"]["transcript"][-1]["content"] == "three 3", second
        assert server.control.answer(second, {"messages": [{"role": "user", "content": "four"}]})[0] == 200
        third = server.control.take(wait_ms=60000)[0]
        assert third["arguments"]["transcript"][-1]["content"] == "four 4", third
        assert server.control.answer(third, {"messages": []})[0] == 200
        result = server.result(rollout)
        assert result["fate"] == "ok" and result["final_text"] == "four 4", result
    finally:
        server.stop()


def test_a_conversation_that_grows_without_end_is_over(postern, tmp):
    """The agent says megabytes each time; the user is not asked again when there were too many."""
    agent = "\n".join(line for line in ACP_TURNS.splitlines() if "count =" not in line)
    agent = agent.replace('+ " " + count.strip()', "* 100000").replace("    send(method", "    for _ in range(10): send(method")
    (tmp / "agent.py").write_text(agent)
    (tmp / "acp.toml").write_text(ACP_SPEC % "x")
    server = Server(postern)
    try:
        rollout = server.submit(agent=str(tmp / "acp.toml"), tools=[{"type": "user"}],
                                task={"name": "t", "instruction": "one", "verify": ["true"]})
        for expected in (1, 2):
            call = server.control.take(wait_ms=60000)[0]
            assert len(call["arguments"]["transcript"]) == 2 * expected, expected
            assert server.control.answer(call, {"messages": [{"role": "user", "content": "two"}]})[0] == 200
        result = server.result(rollout)
        assert result["fate"] == "ok" and result["reward"] == 1, result
        events = lib.json_lines((postern.home / "rollouts" / rollout / "events.jsonl").read_bytes())
        assert [e["text"] for e in events if e["kind"] == "user_failed"] == [
            "user and agent have said more than 8388608 bytes to each other"]
    finally:
        server.stop()


def test_each_step_of_a_task_is_a_conversation_of_its_own(postern, tmp):
    """What the trainer said in the first step is not said again in the second."""
    agent = "\n".join(line for line in ACP_TURNS.splitlines() if "count =" not in line)
    (tmp / "agent.py").write_text(agent.replace('+ " " + count.strip()', ""))
    (tmp / "acp.toml").write_text(ACP_SPEC % "x")
    folder = tmp / "steps"
    (folder / "environment").mkdir(parents=True)
    for name in ("one", "two"):
        (folder / "steps" / name / "tests").mkdir(parents=True)
        (folder / "steps" / name / "instruction.md").write_text(name)
        (folder / "steps" / name / "tests" / "test.sh").write_text("mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt\n")
    (folder / "task.toml").write_text('[task]\nname = "steps"\n[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n')
    server = Server(postern)
    try:
        rollout = server.submit(agent=str(tmp / "acp.toml"), tools=[{"type": "user"}], task=str(folder))
        seen = []
        for words in ("more", None, None):
            call = server.control.take(wait_ms=60000)[0]
            seen.append([m["content"].strip() for m in call["arguments"]["transcript"]])
            said = [{"role": "user", "content": words}] if words else []
            assert server.control.answer(call, {"messages": said})[0] == 200
        assert seen == [["one", "one"], ["one", "one", "more", "more"], ["two", "two"]], seen
        result = server.result(rollout)
        assert result["fate"] == "ok" and [step["reward"] for step in result["steps"]] == [1, 1], result
    finally:
        server.stop()


def test_gemini_takes_several_turns_and_agents_without_acp_are_refused_them(agents_postern, installed, tmp):
    postern, agent = agents_postern, installed("gemini-cli")
    several = task(tmp / "t.json", instruction=INSTRUCTION, turns=["Second $(x) \"q\"", "-- third"], verify=["grep -q yes /app/answer"])
    result = run(postern, agent, several, script(tmp / "m.toml", "One.", calls(agent.shell("echo yes > /app/answer")), "Two.", "Three."))
    assert result["fate"] == "ok" and result["reward"] == 1 and result["final_text"] == "Three.", (result, tail_of(postern, result))
    recorded, _ = records(postern, result)
    asked = list(texts_in([call["request"]["messages"] for call in recorded]))
    assert all(any(words in text for text in asked) for words in (INSTRUCTION, 'Second $(x) "q"', "-- third"))
    done = postern("run", "--json", "--agent", "mini", "--task", several, "--model", script(tmp / "m.toml", "x"))
    assert done.code != 0 and "several turns" in done.error, done
