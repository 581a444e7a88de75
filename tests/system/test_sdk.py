"""The vendors' own clients, for Python and for Node, against the gateway: what they accept is what agents will get.
They talk to an inlet without a sandbox (tests/unit/test_api_inlet.c) whose calls a trainer answers, or a script.

The clients come from the package indexes into build/venv-sdk and build/npm-sdk, once, in the versions named here.
Without a network the tests say so."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest

import postern as lib
from postern import until
from trainer import Control, Failure, Trainer

PACKAGES = ["openai==3.49.0", "anthropic==2.8.0", "google-genai==3.1.0", "mcp==2.3.0"]
NODE_PACKAGES = ["openai@7.53.0", "@anthropic-ai/sdk@1.8.0"]
CLIENT = pathlib.Path(__file__).with_name("sdk_client.py")
NODE_CLIENT = pathlib.Path(__file__).with_name("sdk_client.mjs")
INLET = lib.PROGRAM_DIR / "unit" / "test_api_inlet"


@pytest.fixture(scope="session")
def python_sdk():
    """How a case is run with the clients for Python."""
    folder = lib.REPOSITORY / "build" / "venv-sdk"
    python, mark = folder / "bin" / "python", folder / "packages"
    if not mark.exists() or mark.read_text() != " ".join(PACKAGES):
        made = lib.command([sys.executable, "-m", "venv", "--clear", folder], seconds=120)
        if made.code:
            lib.must(f"no virtual environment: {made.error[-300:]}")
        done = lib.command([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *PACKAGES], seconds=600)
        if done.code:
            lib.must(f"the clients cannot be installed: {done.error[-300:]}")
        mark.write_text(" ".join(PACKAGES))
    return [python, CLIENT]


@pytest.fixture(scope="session")
def node_sdk():
    """The same with those for Node."""
    folder = lib.REPOSITORY / "build" / "npm-sdk"
    mark = folder / "packages"
    if not shutil.which("npm"):
        lib.must("there is no npm")
    if not mark.exists() or mark.read_text() != " ".join(NODE_PACKAGES):
        folder.mkdir(parents=True, exist_ok=True)
        done = lib.command(["npm", "install", "--prefix", folder, "--no-audit", "--no-fund", "--ignore-scripts", *NODE_PACKAGES],
                           seconds=600)
        if done.code:
            lib.must(f"the clients cannot be installed: {done.error[-300:]}")
        mark.write_text(" ".join(NODE_PACKAGES))
    shutil.copy(NODE_CLIENT, folder)  # modules are looked for beside the program
    return ["node", folder / NODE_CLIENT.name]


@pytest.fixture
def sdk(python_sdk):
    return python_sdk


@pytest.fixture(params=["python", "node"])
def both_sdks(request):
    return request.getfixturevalue(f"{request.param}_sdk")


class Inlet:
    def __init__(self, home, **settings):
        if not INLET.exists():
            lib.must(f"{INLET} is not built")
        self.home = home
        env = {**os.environ, "INLET_DIR": str(home), **{f"INLET_{k.upper()}": str(v) for k, v in settings.items()}}
        self.process = subprocess.Popen([INLET], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env)
        until(lambda: (home / "ready").exists() or self.process.poll() is not None, what="the inlet")
        if self.process.poll() is not None:
            pytest.fail(self.process.stdout.read().decode())
        ready = json.loads((home / "ready").read_text())
        self.base = f"http://127.0.0.1:{ready['inlet']}"
        self.control = Control(ready["control"], (home / "token").read_text().strip())

    def records(self):
        return lib.json_lines((self.home / "calls.jsonl").read_bytes())

    def stop(self):
        out, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, out.decode()


@pytest.fixture
def inlet(home):
    made = []

    def make(**settings):
        made.append(Inlet(home, **settings))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def run(sdk, case, inlet, seconds=120):
    done = lib.command([*sdk, case, inlet.base], seconds=seconds)
    assert done.code == 0, done
    return json.loads(done.text.splitlines()[-1])


def start(sdk, case, inlet):
    return subprocess.Popen([*sdk, case, inlet.base], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


# ---------------------------------------------------------------- what the trainer says
CALLS = [{"id": "t1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}},
         {"id": "t2", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}}]
EXPECTED_CALLS = [["weather", {"city": "Ulm"}], ["weather", {"city": "Bonn"}]]
TOKENS = {"token_ids": [4, 5, 6], "completion_logprobs": [-0.5, -0.25, -0.125], "prompt_token_ids": [1, 2, 3, 4]}


def text_answer(_):
    return {"content": "It rains.", **TOKENS}


def tools_answer(_):
    return {"content": "Let me look.", "tool_calls": CALLS, **TOKENS}


def chunk(finish=None, **delta):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def tools_stream(_):
    yield chunk(content="Let me ")
    yield chunk(content="look.")
    for i, call in enumerate(CALLS):
        arguments = call["function"]["arguments"]
        yield chunk(tool_calls=[{"index": i, "id": call["id"], "type": "function", "function": {"name": "weather", "arguments": ""}}])
        yield chunk(tool_calls=[{"index": i, "function": {"arguments": arguments[:5]}}])
        yield chunk(tool_calls=[{"index": i, "function": {"arguments": arguments[5:]}}])
    yield {**chunk(finish="tool_calls"), **TOKENS}


def check_records(inlet, count, dialect):
    records = inlet.records()
    assert [r["state"] for r in records] == ["answered"] * count
    assert {r["dialect"] for r in records} == {dialect}
    for record in records:
        answer = record["answer"]
        assert answer["prompt_token_ids"] == [1, 2, 3, 4] and answer["token_ids"] == [4, 5, 6]
        assert len(answer["logprobs"]) == 3 and "tokens_note" not in answer


# ---------------------------------------------------------------- answers in every dialect
UNARY = [("chat", "chat"), ("responses", "responses"), ("messages", "messages")]
STREAMED = [("chat_stream", "chat"), ("chat_helper", "chat"), ("responses_stream", "responses"), ("messages_stream", "messages")]


@pytest.mark.parametrize("case,dialect", UNARY + STREAMED)
def test_a_whole_answer_with_parallel_tools_is_understood(both_sdks, inlet, case, dialect):
    server = inlet()
    trainer = Trainer(server.control, tools_answer)
    got = run(both_sdks, case, server)
    trainer.stop()
    assert got["text"] == "Let me look." and got["calls"] == EXPECTED_CALLS, got
    assert got.get("finish") in (None, "tool_calls", "tool_use") and got.get("status") in (None, "completed")
    call, = trainer.calls
    assert call["dialect"] == dialect and call["messages"][-1]["role"] == "user"
    assert call["tools"][0]["function"]["name"] == "weather"
    assert trainer.results[0][0] == 200
    check_records(server, 1, dialect)


@pytest.mark.parametrize("sse", [False, True])
@pytest.mark.parametrize("case,dialect", STREAMED + UNARY[:1])
def test_a_streamed_answer_with_parallel_tools_is_understood(both_sdks, inlet, case, dialect, sse):
    server = inlet()
    trainer = Trainer(server.control, tools_stream, sse)
    got = run(both_sdks, case, server)
    trainer.stop()
    assert got["text"] == "Let me look." and got["calls"] == EXPECTED_CALLS, got
    check_records(server, 1, dialect)


@pytest.mark.parametrize("case", ["chat_helper", "responses_stream", "messages_stream"])
def test_calls_whose_pieces_come_in_turns_stay_apart(sdk, inlet, case):
    """Engines that generate calls side by side send their pieces so; only chat completions can say which is which."""
    def policy(_):
        arguments = [call["function"]["arguments"] for call in CALLS]
        yield chunk(content="Let me look.")
        yield chunk(tool_calls=[{"index": i, "id": call["id"], "type": "function", "function": {"name": "weather", "arguments": ""}}
                                for i, call in enumerate(CALLS)])
        for cut in (slice(0, 4), slice(4, 9), slice(9, None)):
            yield chunk(tool_calls=[{"index": i, "function": {"arguments": text[cut]}} for i, text in enumerate(arguments)])
        yield {**chunk(finish="tool_calls"), **TOKENS}

    server = inlet()
    trainer = Trainer(server.control, policy)
    got = run(sdk, case, server)
    trainer.stop()
    assert got["text"] == "Let me look." and got["calls"] == EXPECTED_CALLS, got
    assert [call["arguments"] for call in server.records()[0]["answer"]["message"]["tool_calls"]] == [
        call["function"]["arguments"] for call in CALLS]


def test_custom_tools_come_back_as_they_were_declared(sdk, inlet):
    server = inlet()
    trainer = Trainer(server.control, lambda call: {
        "tool_calls": [{"id": "p1", "type": "custom", "custom": {"name": "apply_patch", "input": '*** "Begin"'}}]
        if call["dialect"] == "chat" else
        [{"id": "p1", "type": "function", "function": {"name": "apply_patch", "arguments": '{"input": "*** \\"Begin\\""}'}}]})
    got = run(sdk, "custom", server)
    trainer.stop()
    assert got == {"chat": ["custom", "apply_patch", '*** "Begin"'],
                   "responses": ["custom_tool_call", "apply_patch", '*** "Begin"']}


def test_text_without_tools(sdk, inlet):
    server = inlet()
    trainer = Trainer(server.control, text_answer)
    got = run(sdk, "completions", server)
    assert got == {"text": "It rains.", "streamed": "It rains."}
    got = run(sdk, "google", server)
    assert got["text"] == got["streamed"] == "It rains." and "STOP" in got["finish"]
    assert run(sdk, "messages", server)["finish"] == "end_turn"
    trainer.stop()


def test_functions_that_googles_client_calls_itself(sdk, inlet):
    """It answers calls by their name, whatever ids they have, and writes schemas in a form of its own."""
    def policy(call):
        if call["messages"][-1]["role"] == "tool" or not call["tools"]:
            return text_answer(call)
        return {"tool_calls": [{"id": f"t{i}", "type": "function", "function": {"name": "weather", "arguments": json.dumps(
            {"city": city})}} for i, city in enumerate(["Ulm", "Bonn"])]}

    server = inlet()
    trainer = Trainer(server.control, policy)
    assert run(sdk, "google_tools", server)["text"] == "It rains."
    trainer.stop()
    first, second, third = trainer.calls
    schema = first["tools"][0]["function"]["parameters"]
    assert schema["type"] == "object" and schema["properties"]["city"]["type"] == "string", schema
    results = [message for message in second["messages"] if message["role"] == "tool"]
    assert [result["tool_call_id"] for result in results] == ["t0", "t1"], results
    assert "Ulm" in results[0]["content"] and "Bonn" in results[1]["content"]
    asked = third["sampling"]["response_format"]["json_schema"]["schema"]
    assert asked["type"] == "object" and asked["properties"]["city"]["type"] == ["string", "null"], asked


@pytest.mark.parametrize("language,case", [("python", "responses_stream"), ("python", "messages_stream"), ("python", "google"),
                                           ("node", "responses_stream")])
def test_signs_of_life_are_no_part_of_an_answer(request, inlet, language, case):
    """A stream that waits long for its model gets them, before its first event and between two."""
    sdk = request.getfixturevalue(f"{language}_sdk")

    def policy(_):
        time.sleep(0.6)
        yield chunk(content="It ")
        time.sleep(0.6)
        yield {**chunk(content="rains.", finish="stop"), **TOKENS}

    server = inlet(keepalive_ms=100)
    trainer = Trainer(server.control, policy)
    got = run(sdk, case, server)
    trainer.stop()
    assert "It rains." in (got["text"], got.get("streamed")), got


def test_questions_that_are_no_calls(sdk, inlet):
    server = inlet(model="gate:learner")
    assert run(sdk, "models", server) == {
        "models": ["learner"], "one": "learner", "anthropic": ["learner"], "anthropic_one": "model",
        "google": ["models/learner"], "google_one": "models/learner"}
    assert run(sdk, "messages_count", server)["tokens"] > 0


# ---------------------------------------------------------------- errors, retries, aborts
@pytest.mark.parametrize("case", ["chat_error", "messages_error"])
@pytest.mark.parametrize("status,name", [(400, "BadRequestError"), (429, "RateLimitError"), (503, None)])
def test_errors_of_the_trainer_are_the_clients_errors(both_sdks, inlet, case, status, name):
    def policy(_):
        raise Failure(status=status, type="some_type", message="the reason for it")

    server = inlet()
    trainer = Trainer(server.control, policy)
    got = run(both_sdks, case, server)
    trainer.stop()
    assert got["status"] == status and "the reason for it" in got["message"], got
    assert name in (None, got["type"])
    assert len(trainer.calls) == 1


def test_an_error_in_responses_has_its_status(sdk, inlet):
    def policy(_):
        raise Failure(status=429, type="some_type", message="the reason for it")

    server = inlet()
    trainer = Trainer(server.control, policy)
    got = run(sdk, "responses_error", server)
    trainer.stop()
    assert got["status"] == 429 and got["type"] == "RateLimitError" and "the reason for it" in got["message"], got


def test_a_client_that_retries_gets_there(sdk, inlet):
    server = inlet()
    seen = []

    def policy(call):
        seen.append(call)
        if len(seen) < 3:
            raise Failure(status=500, message="once more")
        return text_answer(call)

    trainer = Trainer(server.control, policy)
    assert run(sdk, "chat_retry", server)["text"] == "It rains."
    trainer.stop()
    assert [r["state"] for r in server.records()][-1] == "answered"


@pytest.mark.parametrize("case", ["responses_broken", "messages_broken"])
def test_a_stream_that_breaks_is_no_success_in_other_dialects(sdk, inlet, case):
    breaks(sdk, inlet, case)


def test_a_stream_that_breaks_is_no_success(both_sdks, inlet):
    breaks(both_sdks, inlet, "chat_broken")


def breaks(sdk, inlet, case):
    def policy(_):
        yield chunk(content="half an ")
        time.sleep(1)  # the first piece is with the agent before the rest breaks: earlier, the call would be redelivered
        yield "nonsense"

    server = inlet(retry_grace_ms=500)
    trainer = Trainer(server.control, policy)
    got = run(sdk, case, server)
    trainer.stop()
    assert got["broken"], got
    assert trainer.results[0][0] == 400
    until(lambda: [r["state"] for r in server.records()] == ["broken"] or None, what="the record", seconds=40)


def test_a_client_that_leaves_is_noticed(sdk, inlet):
    left = []

    def policy(_):
        yield chunk(content="first ")
        while not left:
            yield chunk(content="more ")
            time.sleep(0.01)

    server = inlet()
    call_process = start(sdk, "chat_abort", server)
    call, = server.control.take()
    try:
        result = server.control.stream(call, policy(call))
        assert result[0] in (404, 409), result
    except (BrokenPipeError, ConnectionResetError):
        pass  # the answer came while the body was still being sent
    assert call_process.communicate(timeout=60)[0]
    until(lambda: server.records() and server.records()[0]["state"] == "broken", what="the record", seconds=60)


# ---------------------------------------------------------------- how long a piece takes
@pytest.mark.parametrize("case", ["chat_stream", "responses_stream", "messages_stream"])
def test_pieces_arrive_as_they_are_made(both_sdks, inlet, case, tmp_path, monkeypatch):
    """How late a piece is gets printed, not asserted: the machine may be busy. But the first one is there before
    the last ones are made: those wait for it."""
    sent, first = [], tmp_path / "first"
    monkeypatch.setenv("SDK_FIRST", str(first))

    def policy(_):
        for i in range(20):
            time.sleep(0.05)
            if i == 15:
                until(first.exists, what="the first piece, before the last one is made")
            sent.append(time.time())
            yield chunk(content=f"word{i} ")
        yield {**chunk(finish="stop"), **TOKENS}

    server = inlet()
    trainer = Trainer(server.control, policy)
    got = run(both_sdks, case, server)
    trainer.stop()
    assert len(got["times"]) == len(sent) == 20
    late = sorted((b - a) * 1000 for a, b in zip(sent, got["times"]))
    print(f"\n{case}: a piece every 50 ms arrives after {late[10]:.1f} ms (median), {late[-1]:.1f} ms (worst)")
    assert first.exists()


# ---------------------------------------------------------------- other modes
SCRIPT = """
[defaults]
tokens = "generate"
[[rule]]
say = "Let me look."
chunk = 4
[[rule.call]]
name = "weather"
arguments = { city = "Ulm" }
[[rule.call]]
name = "weather"
arguments = { city = "Bonn" }
"""


@pytest.mark.parametrize("mode", ["black_box", "proxy"])
@pytest.mark.parametrize("case,dialect", UNARY + STREAMED)
def test_a_scripted_model_is_understood(sdk, inlet, tmp, mode, case, dialect):
    (tmp / "model.toml").write_text(SCRIPT)
    server = inlet(model=f"script:{tmp}/model.toml", mode=mode)
    got = run(sdk, case, server)
    assert got["text"] == "Let me look." and got["calls"] == EXPECTED_CALLS, got
    record, = server.records()
    assert record["dialect"] == dialect and record["mode"] == mode
    assert ("token_ids" in record["answer"]) == (mode == "proxy")
