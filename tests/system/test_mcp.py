"""A task's tools as an MCP server on the inlet: real agents with their own MCP clients, in sandboxes without network,
and the protocol's official client for Python. Tools are answered by programs of the task, beside the agent or apart, or by
the trainer."""

import json
import pathlib
import time

import pytest

import postern as lib
from postern import task, until
from test_agents import AGENTS, agents_postern, calls, installed, records, run, script, tail_of  # noqa: F401
from test_gate import Server
from test_sdk import inlet, python_sdk, run as run_case  # noqa: F401
from trainer import Failure, Trainer

CLIENT = pathlib.Path(__file__).with_name("mcp_client.py")

# How the model of each agent sees a tool of the server "task".
NAMES = {"codex": "mcp__task__{}", "claude-code": "mcp__task__{}", "opencode": "task_{}", "gemini-cli": "mcp_task_{}"}
COUNT = """import json, os, sys
print(len(os.listdir(json.load(sys.stdin)["folder"])))
"""
GUESS = """import json, pathlib, sys
tries = pathlib.Path("/tmp/tries")
tries.write_text(str(int(tries.read_text()) + 1 if tries.exists() else 1))
secret = pathlib.Path("/tools/secret.txt").read_text().strip()
guess = json.load(sys.stdin)["guess"]
if guess == "crash":
    sys.exit("it crashed, \\"badly\\"")
print(json.dumps({"right": guess == secret, "tries": int(tries.read_text())}))
"""
SCHEMA = {"type": "object", "properties": {"guess": {"type": "string"}}, "required": ["guess"]}


def tools_task(folder):
    """A folder with two programs: one beside the agent, one apart with a secret the agent must not see."""
    (folder / "environment").mkdir(parents=True)
    (folder / "tools").mkdir()
    (folder / "environment" / "count.py").write_text(COUNT)
    (folder / "tools" / "guess.py").write_text(GUESS)
    (folder / "tools" / "secret.txt").write_text("xyzzy-apart\n")
    (folder / "instruction.md").write_text("Use the tools.")
    (folder / "task.toml").write_text("""
        verify = ["test ! -e /tools && ! test -s found"]
        [[tools]]
        name = "count_files"
        description = "How many files are in a folder."
        parameters = { type = "object", properties = { folder = { type = "string" } } }
        command = ["python3", "/app/count.py"]
        [[tools]]
        name = "guess"
        description = "Is it the word?"
        parameters = { type = "object", properties = { guess = { type = "string" } }, required = ["guess"] }
        command = ["python3", "/tools/guess.py"]
        where = "apart"
        """)
    return str(folder)


@pytest.mark.parametrize("name", list(NAMES))
def test_an_agent_calls_tools_of_the_task_with_its_own_client(agents_postern, installed, tmp, name):  # noqa: F811
    postern, agent = agents_postern, installed(name)
    tool = NAMES[name].format
    turns = [calls((tool("count_files"), {"folder": "/app"}), (tool("guess"), {"guess": "no 'quotes' $(x)"})),
             calls((tool("guess"), {"guess": "crash"}),
                   agent.shell("grep -rs xyzzy-apart /tools /app /tmp /proc/*/cmdline | grep -v grep > found; true")),
             calls((tool("guess"), {"guess": "xyzzy-apart"})), "All is done."]
    result = run(postern, agent, tools_task(tmp / "t"), script(tmp / "m.toml", *turns))
    assert result["fate"] == "ok" and result["reward"] == 1, (result, tail_of(postern, result))
    recorded, events = records(postern, result)
    said = [json.loads(event["text"]) for event in events if event["kind"] == "task_tool"]
    answers = [(e["by"], e["answer"]["result"]) for e in said if "answer" in e]
    # The first two are asked for at once: whoever is ready first is told first.
    assert ("task", "1\n") in answers[:2] and ("task", {"right": False, "tries": 1}) in answers[:2], said
    assert answers[2:] == [("task", {"right": True, "tries": 3})], said
    assert [e["failure"] for e in said if "failure" in e][0].endswith('it crashed, "badly"')
    assert {"guess": "no 'quotes' $(x)"} in [e["arguments"] for e in said[:2]], said
    # The model saw them: in its list of tools, and the results in what it was asked next.
    offered = [t["name"] for t in recorded[0]["request"]["tools"]]
    assert {tool("count_files"), tool("guess")} <= set(offered), offered
    seen = json.dumps([call["request"]["messages"] for call in recorded])
    for word in ("crashed", "tries", "right"):
        assert word in seen, word
    mcp = result["gateway"]["mcp"]
    assert mcp["calls"] == 4 and mcp["sessions"] >= 1 and mcp["lists"] >= 1 and mcp["version"], mcp


def test_an_agent_without_mcp_is_refused_tools_before_any_work(agents_postern, installed, tmp):  # noqa: F811
    postern, _ = agents_postern, installed("pi")
    done = postern("run", "--json", "--agent", "pi", "--task", tools_task(tmp / "t"), "--model", script(tmp / "m.toml", "x"))
    assert done.code != 0 and "pi has no MCP" in done.error, done
    trainers = task(tmp / "t.json", tools=[{"name": "ask"}])
    done = postern("run", "--json", "--agent", "codex", "--task", trainers, "--model", script(tmp / "m.toml", "x"))
    assert done.code != 0 and "postern serve" in done.error, done


# ---------------------------------------------------------------- the official client
TOOLS = [{"name": "weather", "description": "Of a place.", "parameters": {"properties": {"city": {"type": "string"}}}},
         {"type": "function", "function": {"name": "broken"}}]


def answers(call):
    city = call["arguments"].get("city")
    if call["kind"] != "tool" or call["name"] == "broken":
        raise Failure(status=500, type="server_error", message="no weather today")
    if city == "slow":
        time.sleep(1.5)
    return {"result": {"city": city, "rain": True}}


class Forgetful(Trainer):
    """Leaves calls alone that it has no answer for."""

    def handle(self, call):
        return super().handle(call) if call["arguments"].get("city") != "never" else None


@pytest.mark.parametrize("mode,version", [("auto", "2026-07-28"), ("legacy", "2025-11-25")])
def test_the_official_client_lists_calls_waits_and_gives_up(inlet, python_sdk, mode, version):  # noqa: F811
    server = inlet(tools=json.dumps(TOOLS), keepalive_ms=300)
    trainer = Forgetful(server.control, answers)
    try:
        out = run_case([python_sdk[0], CLIENT], mode, server)
        assert out["server"] == "postern" and out["version"] == version
        assert [t["name"] for t in out["tools"]] == ["weather", "broken"]
        assert out["tools"][0]["inputSchema"]["type"] == "object"
        assert out["weather"] == {"structured": {"city": "Ulm", "rain": True}, "error": False}
        assert out["broken"]["error"] and "no weather today" in out["broken"]["text"]
        assert out["slow"]["structured"]["city"] == "slow" and out["progress"] >= 2, out
        assert out["unknown"] == -32602, out
        assert out["together"] == ["a", "b", "c"]
        assert out["given_up"]
        until(lambda: server.control.ask("GET", "/v1/gate")[1]["withdrawn"] == 1, what="what was given up is withdrawn")
    finally:
        trainer.stop()


def test_the_trainer_answers_tools_of_a_real_rollout(agents_postern, installed):  # noqa: F811
    postern, agent = agents_postern, installed("codex")
    server = Server(postern)

    def policy(call):
        if call["kind"] == "tool":
            return {"result": f"{call['name']} says {call['arguments']['q']}"}
        told = [m["content"] for m in call["messages"] if m["role"] == "tool"]
        tool, arguments = ("mcp__task__oracle", {"q": "ö"}) if not told else agent.shell("echo yes > /app/answer")
        if len(told) == 2:
            assert "oracle says ö" in json.dumps(told, ensure_ascii=False), told
            return {"content": "Done.", "token_ids": [1], "completion_logprobs": [-0.5]}
        function = {"name": tool, "arguments": json.dumps(arguments)}
        return {"content": "", "tool_calls": [{"id": f"call_{len(told)}", "type": "function", "function": function}],
                "token_ids": [1], "completion_logprobs": [-0.5]}

    trainer = Trainer(server.control, policy)
    try:
        rollout = server.submit(agent="codex", model="gate:the-model", tools=[{"name": "oracle", "parameters": SCHEMA}])
        result = server.result(rollout)
        assert result["fate"] == "ok" and result["reward"] == 1, result
        assert result["gateway"]["mcp"]["calls"] == 1
    finally:
        trainer.stop()
        server.stop()
