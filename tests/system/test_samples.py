"""Samples from end to end: a real agent in a real sandbox with a model that gives token ids; the rows in the folder, over the API, in the
binary form and in the trace shape; and what the Python package makes of them."""

import http.server
import importlib.util
import json
import struct
import sys
import textwrap
import threading
import urllib.request

import pytest

import postern as lib
from postern import task
from test_agents import agents_postern, installed  # noqa: F401
from test_gate import Server as GateServer
from test_serve import Server

SOURCE = lib.REPOSITORY / "python" / "src" / "postern"

# The third rollout's engine writes a token of the first answer differently when it comes back: the tokens fork there.
SCRIPT = """
name = "the-model"
[defaults]
tokens = "generate"
[[rule]]
when.index = 0
[[rule.turns]]
reasoning = "first I look"
say = "I look around."
call = { name = "bash", arguments = { command = "ls" } }
[[rule.turns]]
call = { name = "bash", arguments = { command = "echo yes > answer" } }
[[rule.turns]]
say = "Done."
[[rule]]
when.index = 1
[[rule.turns]]
call = { name = "bash", arguments = { command = "true" } }
[[rule.turns]]
say = "cut of"
finish = "length"
[[rule]]
[[rule.turns]]
tokens = { ids = [1, 2], logprobs = [-0.5, -0.25], prompt_ids = [7, 8, 9] }
call = { name = "bash", arguments = { command = "true" } }
[[rule.turns]]
tokens = { ids = [3], logprobs = [-0.125], prompt_ids = [7, 8, 9, 5, 2, 10, 11] }
say = "bye"
"""


@pytest.fixture
def rolled(postern, tmp_path):
    """Three rollouts, in the order of their index."""
    (tmp_path / "model.toml").write_text(SCRIPT)
    job = task(tmp_path / "task.json", name="make-it", verify=["grep -q yes answer"], workdir="/app", setup=["echo set up"],
               artifacts=["answer", "/app/none"])
    done = postern("run", "--agent", "mini", "--task", job, "--model", f"script:{tmp_path / 'model.toml'}", "--mode", "proxy",
                   "--count", "3", "--json", *postern.flags, seconds=120)
    assert done.code == 0, done
    return sorted(map(json.loads, done.lines()), key=lambda result: result["index"])


def rows_of(postern, result):
    return [json.loads(line) for line in (postern.home / "rollouts" / result["id"] / "samples.jsonl").read_text().splitlines()]


def check_row(row):
    count = row["token_count"]
    assert [len(row[name]) for name in ("token_ids", "mask", "logprobs", "provenance")] == [count] * 4
    assert sum(row["mask"]) == row["trained_count"]
    for turn in row["turns"]:
        start, end = turn["completion"]
        assert row["mask"][start:end] == [int(turn["trained"])] * (end - start)
        assert row["provenance"][start:end] == [1] * (end - start)


def test_rows_stand_in_the_folder(postern, rolled):
    rewarded, cut, forked = [rows_of(postern, result) for result in rolled]
    for row in [*rewarded, *cut, *forked]:
        check_row(row)
    row, = rewarded
    assert row["reward"] == 1 and row["fate"] == "ok" and row["branch"]["kind"] == "main"
    assert row["continuity"]["status"] == "clean" and len(row["turns"]) == 3 and all(turn["trained"] for turn in row["turns"])
    assert row["group_id"] == rolled[0]["group_id"] and row["task"] == "make-it" and row["agent"] == "mini"
    row, = cut
    assert row["truncated"] and row["reward"] == 0 and row["index"] == 1
    first, second = forked
    assert first["token_ids"] == [7, 8, 9, 1, 2] and first["mask"] == [0, 0, 0, 1, 1]
    assert second["token_ids"] == [7, 8, 9, 5, 2, 10, 11, 3] and second["mask"] == [0] * 7 + [1]
    assert second["logprobs"][-1] == -0.125 and second["branch"]["kind"] == "retokenised"
    difference, = second["continuity"]["differences"]
    assert (difference["position"], difference["expected_id"], difference["got_id"]) == (3, 1, 5)


def test_the_result_is_a_superset_of_a_rollout_result(postern, rolled):
    kinds = {"task_id": str, "sandbox_id": str, "reward": (int, float), "agent_exit_code": int, "wall_s": (int, float), "mode": str,
             "setup_results": list, "verify_results": list, "proxy_turns": list, "files": dict, "files_extra": list,
             "agent_log_tail": str, "proxy_log_tail": str, "error": type(None)}
    for result in rolled:
        for name, kind in kinds.items():
            assert isinstance(result[name], kind), name
    result = rolled[0]
    assert result["sandbox_id"] == result["sandbox"]["id"] and result["wall_s"] > 0 and result["agent_exit_code"] == 0
    assert result["files"] == {"answer": "yes\n"} and result["files_extra"] == ["/app/none"]
    assert [(command["cmd"], command["exit_code"], command["stdout"]) for command in result["setup_results"]] == [("echo set up", 0, "set up\n")]
    command, = result["verify_results"]
    assert command["exit_code"] == 0 and command["cmd"] and set(command) == {"cmd", "exit_code", "stdout", "stderr", "duration_s"}
    assert [len(turn["completion_token_ids"]) for turn in result["proxy_turns"]] == \
           [len(turn["per_token_logps"]) for turn in result["proxy_turns"]]
    assert sum(len(turn["completion_token_ids"]) for turn in result["proxy_turns"]) == result["samples"]["trained_tokens"]
    assert result["samples"]["rows"] == 1 and result["samples"]["continuity"]["clean"] == 3
    assert rolled[2]["samples"]["continuity"]["first_difference"]["got_id"] == 5
    assert rolled[1]["samples"]["truncated_turns"] == 1


def test_export_makes_the_same_rows_from_the_record(postern, rolled, tmp_path):
    for result in rolled:
        made = postern("export", result["id"])
        assert made.code == 0 and made.out == (postern.home / "rollouts" / result["id"] / "samples.jsonl").read_bytes()
    # The line of a call may be missing: the journal has it.
    folder = postern.home / "rollouts" / rolled[0]["id"]
    kept = folder / "calls.jsonl"
    whole = kept.read_bytes()
    kept.write_bytes(whole.splitlines(keepends=True)[0] + b'{"call_id": "torn')
    made = postern("export", rolled[0]["id"])
    assert [json.loads(made.text)[key] for key in ("token_ids", "mask", "logprobs")] == \
           [rows_of(postern, rolled[0])[0][key] for key in ("token_ids", "mask", "logprobs")]
    kept.write_bytes(whole)
    # Bridged on demand, and marked.
    row, = map(json.loads, postern("export", "--realign", "8", rolled[2]["id"]).lines())
    assert row["continuity"]["status"] == "realigned" and row["token_ids"] == [7, 8, 9, 1, 2, 10, 11, 3]
    assert row["mask"] == [0, 0, 0, 1, 1, 0, 0, 1] and row["context_differs"] == [[7, 8]]
    assert postern("export", "r-nobody").code == lib.EXIT_NOT_FOUND
    assert postern("export", "--format", "xml", rolled[0]["id"]).code == lib.EXIT_INPUT
    shown = postern("show", "--samples", rolled[2]["id"])
    assert shown.code == 0 and "retokenised" in shown.text and "token 3 of what was expected is 1, the prompt has 5" in shown.text


READER = textwrap.dedent("""
    import importlib.util, json, sys
    source, binary, lines, numpy = sys.argv[1:5]
    if numpy == "without":
        sys.modules["numpy"] = None
    spec = importlib.util.spec_from_file_location("client", source + "/__init__.py", submodule_search_locations=[source])
    client = importlib.util.module_from_spec(spec)
    sys.modules["client"] = client
    spec.loader.exec_module(client)
    a, b = client.samples.read(binary), client.samples.read(lines)
    assert len(a) == len(b) > 0
    for x, y in zip(a, b):
        for name in ("token_ids", "mask", "logprobs", "provenance"):
            assert list(getattr(x, name)) == list(getattr(y, name)), name
        assert x.policy_versions == y.policy_versions and x.context_differs == y.context_differs
        assert {k: v for k, v in x.meta.items()} == {k: v for k, v in y.meta.items()}
        assert x.reward == y.reward and x.rollout_id and len(x) == x.token_count and sum(x.mask) == x.trained_count
        assert len(x.versions()) == len(x)
        assert client.samples.importance(x, list(x.logprobs)) == [1.0] * x.trained_count
    if numpy == "with":
        import numpy
        assert isinstance(a[0].token_ids, numpy.ndarray) and not a[0].token_ids.flags.owndata and a[0].token_ids.dtype == "<i4"
    pairs = client.samples.with_advantages(a)
    assert len(pairs) == len(a) and abs(sum({s.rollout_id: v for s, v in pairs}.values())) < 1e-6
    for bad in (b"", b"POSTERNS", b"x" * 200, open(binary, "rb").read()[:-9]):
        try:
            client.samples.Samples(bad)
        except ValueError:
            continue
        raise AssertionError(bad[:20])
    print("fine", len(a))
""")


@pytest.mark.parametrize("numpy", ["with", "without"])
def test_both_forms_say_the_same_to_python(postern, rolled, tmp_path, numpy):
    if numpy == "with" and not importlib.util.find_spec("numpy"):
        lib.must("numpy is not installed")
    ids = [result["id"] for result in rolled]
    binary, lines = tmp_path / "s.bin", tmp_path / "s.jsonl"
    assert postern("export", "-f", "binary", "-o", binary, *ids).code == 0
    lines.write_bytes(postern("export", *ids).out)
    done = lib.command([sys.executable, "-c", READER, SOURCE, binary, lines, numpy])
    assert done.code == 0 and done.text.strip() == "fine 4", done


def test_the_trace_shape_is_as_described(postern, rolled):
    made = postern("export", "--format", "trace", *[result["id"] for result in rolled])
    assert made.code == 0
    episodes = [json.loads(line) for line in made.lines()]
    assert len(episodes) == 3
    for episode, result in zip(episodes, rolled):
        assert episode["ok"] and episode["group"]["id"] == result["group_id"] and episode["task"]["data"]["name"] == "make-it"
        trace, = episode["traces"]
        assert trace["version"] == 1 and trace["is_completed"] and trace["stop_condition"] == "agent_completed"
        assert trace["rewards"]["reward"] == {"score": result["reward"], "weight": 1}
        nodes = trace["nodes"]
        for at, node in enumerate(nodes):
            assert node.get("parent", -1) < at and node["message"]["role"] in ("system", "user", "assistant", "tool")
            assert len(node["mask"]) == len(node["token_ids"]) and sum(node["mask"]) == len(node["logprobs"])
            assert node["sampled"] == bool(node["logprobs"])
        paths = {}
        parents = {node.get("parent") for node in nodes}
        for leaf in set(range(len(nodes))) - parents:
            ids, at = [], leaf
            while at is not None:
                ids = nodes[at]["token_ids"] + ids
                at = nodes[at].get("parent")
            paths[tuple(ids)] = leaf
        # Along each path: what the model saw.
        assert set(paths) == {tuple(row["token_ids"]) for row in rows_of(postern, result)}
        for call in trace["calls"]:
            assert nodes[call["node"]]["sampled"] and call["endpoint"] == "/chat/completions" and call["time"]["end"] > 0
    timing = episodes[0]["traces"][0]["timing"]
    assert timing["boot"]["end"] <= timing["setup"]["end"] <= timing["agent"]["end"] <= timing["scoring"]["end"]
    if importlib.util.find_spec("verifiers"):
        from verifiers.v1.episode import WireEpisode
        for episode, result in zip(episodes, rolled):
            read = WireEpisode.model_validate(episode).traces[0]
            assert read.reward == result["reward"]
            assert sorted(map(tuple, (branch.token_ids for branch in read.branches))) == \
                   sorted(tuple(row["token_ids"]) for row in rows_of(postern, result))


def test_the_api_gives_both_forms(postern, rolled):
    server = Server(postern)
    try:
        for result in rolled:
            status, body = server.ask(f"/v1/rollouts/{result['id']}/samples")
            assert status == 200
            assert body.encode() == (postern.home / "rollouts" / result["id"] / "samples.jsonl").read_bytes()
        request = urllib.request.Request(f"{server.base}/v1/rollouts/{rolled[2]['id']}/samples?format=binary",
                                         headers={"Authorization": f"Bearer {server.token}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            data = answer.read()
        magic, version, head, count, table, records, total = struct.unpack_from("<8sIIQQQQ", data)
        assert (magic, version, head, count, total) == (b"POSTERNS", 1, 64, 2, len(data))
        assert postern("export", "-f", "binary", "-o", postern.home / "s.bin", rolled[2]["id"]).code == 0
        assert (postern.home / "s.bin").read_bytes() == data
        assert server.ask("/v1/rollouts/r-nobody/samples")[0] == 404
        assert server.ask(f"/v1/rollouts/{rolled[0]['id']}/samples?format=xml")[0] == 400
        assert server.ask(f"/v1/rollouts/{rolled[0]['id']}/samples", token=False)[0] == 401
    finally:
        server.stop()


def test_a_rollout_without_tokens_has_rows_of_messages(postern, tmp_path):
    (tmp_path / "model.toml").write_text(SCRIPT)
    job = task(tmp_path / "task.json", verify=["true"])
    done = postern("run", "--agent", "mini", "--task", job, "--model", f"script:{tmp_path / 'model.toml'}", "--json", *postern.flags)
    result, = map(json.loads, done.lines())
    row, = rows_of(postern, result)
    assert row["kind"] == "messages" and row["token_ids"] is None and "has no token ids" in row["note"]
    assert [message["role"] for message in row["messages"] if message.get("sampled")] == ["assistant"] * 3
    assert result["samples"]["token_rows"] == 0 and row["reward"] == 1


def test_a_rollout_that_others_broke_has_rows_without_a_reward(postern, tmp_path):
    """The model server fails after the first turn: what was sampled is there, a reward is not, not even 0."""
    (tmp_path / "model.toml").write_text('[defaults]\ntokens = "generate"\n[[rule]]\n[[rule.turns]]\n'
                                         'call = { name = "bash", arguments = { command = "echo yes > answer" } }\n')
    job = task(tmp_path / "task.json", verify=["grep -q yes answer"], workdir="/app")
    done = postern("run", "--agent", "mini", "--task", job, "--model", f"script:{tmp_path / 'model.toml'}", "--mode", "proxy", "--json",
                   *postern.flags)
    result, = map(json.loads, done.lines())
    assert result["fate"] == "upstream_failed" and result["reward"] is None
    row, = rows_of(postern, result)
    check_row(row)
    assert row["fate"] == "upstream_failed" and row["reward"] is None and "rewards" not in row and row["trained_count"] > 0
    assert result["samples"]["excluded"].get("broken", 0) >= 1 and result["error"]


# ---------------------------------------------------------------- exact prefixes

class Engine(http.server.ThreadingHTTPServer):
    """A stand-in for an engine with a chat template and a tokenizer of its own: vLLM's /tokenize and /v1/chat/completions, and the route that
    takes token ids, /v1/chat/completions/tokens. It samples letter by letter; its tokenizer makes one token of two equal letters: an answer that
    is tokenised again has other tokens than were sampled."""

    START, END, LINE = 1, 2, 3

    def __init__(self, routes=("/tokenize", "/v1/chat/completions/tokens"), shell=("bash", "command")):
        super().__init__(("127.0.0.1", 0), Handler)
        self.routes, self.shell, self.asked = routes, shell, []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def sampled(self, text):
        return [100 + ord(letter) for letter in text]

    def tokenised(self, text):
        ids, at = [], 0
        while at < len(text):
            two = text[at:at + 2]
            wide = len(two) == 2 and two[0] == two[1]
            ids.append(100000 + ord(two[0]) if wide else 100 + ord(two[0]))
            at += 2 if wide else 1
        return ids

    def words(self, message):
        content = message.get("content") or ""
        text = content if isinstance(content, str) else "".join(part["text"] for part in content)
        return text + "".join("<call>" + json.dumps([call["function"]["name"], json.loads(call["function"]["arguments"])])
                              for call in message.get("tool_calls") or ())

    def render(self, messages, generate):
        ids = []
        for message in messages:
            ids += [self.START, *self.tokenised(message["role"]), self.LINE, *self.tokenised(self.words(message)), self.END, self.LINE]
        return ids + ([self.START, *self.tokenised("assistant"), self.LINE] if generate else [])

    def answer(self, body, prompt):
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        message = [{"content": "I will look, really."}, {"content": "All well, really."}, {"content": "Hello, bye."}][turn]
        if turn < 2:
            call = {"name": self.shell[0], "arguments": json.dumps({self.shell[1]: "echo yes > answer"})}
            message["tool_calls"] = [{"id": f"call-{turn}", "type": "function", "function": call}]
        ids = [*self.sampled(self.words(message)), self.END]
        choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "tool_calls" if turn < 2 else "stop",
                  "token_ids": ids, "logprobs": {"content": [{"token": "x", "logprob": -0.5} for _ in ids]}}
        return {"id": "x", "object": "chat.completion", "created": 1, "model": body["model"], "choices": [choice], "prompt_token_ids": prompt,
                "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": len(prompt) + len(ids)}}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        engine, body = self.server, json.loads(self.rfile.read(int(self.headers["content-length"])))
        engine.asked.append((self.path, body))
        status = 200
        if self.path != "/v1/chat/completions" and self.path not in engine.routes:
            status, out = 404, {"error": {"message": "not here"}}
        elif self.path == "/tokenize":
            tokens = engine.render(body["messages"], body["add_generation_prompt"])
            out = {"count": len(tokens), "max_model_len": 9999, "tokens": tokens}
        else:
            out = engine.answer(body, body["tokens"] if self.path.endswith("/tokens") else engine.render(body["messages"], True))
        stream = status == 200 and body.get("stream")
        data = self.pieces(out) if stream else json.dumps(out).encode()
        self.send_response(status)
        self.send_header("content-type", "text/event-stream" if stream else "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def pieces(self, out):
        """The same as a stream: the message, then what is said at the end."""
        choice, = out.pop("choices")
        message = choice.pop("message")
        for at, call in enumerate(message.get("tool_calls") or ()):
            call["index"] = at
        head = {**out, "object": "chat.completion.chunk"}
        usage = head.pop("usage")
        finish = choice.pop("finish_reason")
        chunks = [{**head, "choices": [{**choice, "delta": message, "finish_reason": None}]},
                  {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}, {**head, "choices": [], "usage": usage}]
        return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks).encode() + b"data: [DONE]\n\n"


def run_against(postern, tmp_path, engine, *flags, agent="mini"):
    job = task(tmp_path / "task.json", name="make-it", verify=["grep -q yes answer"], workdir="/app")
    done = postern("run", "--agent", agent, "--task", job, "--model", f"http://127.0.0.1:{engine.server_address[1]}/v1#m", "--mode", "proxy",
                   "--json", *flags, *postern.flags, seconds=300)
    assert done.lines(), done
    result = json.loads(done.lines()[-1])
    assert result["fate"] == "ok" and result["reward"] == 1 and result["turns"] == 3, result
    return result, rows_of(postern, result)


def test_an_engine_that_takes_token_ids_never_tokenises_an_answer_again(postern, tmp_path):
    plain, exact, poor = Engine(), Engine(), Engine(routes=())
    result, rows = run_against(postern, tmp_path, plain)
    assert [row["continuity"]["status"] for row in rows] == ["clean", "forked", "forked"]
    assert {path for path, _ in plain.asked} == {"/v1/chat/completions"}

    result, rows = run_against(postern, tmp_path, exact, "--exact-prefix")
    row, = rows
    check_row(row)
    assert row["continuity"]["status"] == "clean" and row["context_differs"] == [] and len(row["turns"]) == 3
    assert result["gateway"]["exact_prefix"] == {"calls": 3, "used": 2, "trouble": None}
    # The engine was asked with exactly what the row says, and an answer's end is followed by the template's own tokens.
    asked = [body for path, body in exact.asked if path == "/v1/chat/completions/tokens"]
    for body, turn in zip(asked, row["turns"][1:]):
        assert body["tokens"] == row["token_ids"][:turn["completion"][0]]
        start = turn["prompt"][0]
        assert row["token_ids"][start - 1:start + 2] == [Engine.END, Engine.LINE, Engine.START]
    assert [path for path, _ in exact.asked].count("/tokenize") == 4

    # An engine without these routes is used as it is, and the result says so.
    result, rows = run_against(postern, tmp_path, poor, "--exact-prefix")
    assert result["gateway"]["exact_prefix"]["used"] == 0 and "/tokenize" in result["gateway"]["exact_prefix"]["trouble"]
    assert [row["continuity"]["status"] for row in rows] == ["clean", "forked", "forked"]
    refused = postern("run", "--agent", "mini", "--task", tmp_path / "task.json", "--model", "http://127.0.0.1:1/v1#m", "--exact-prefix")
    assert refused.code == lib.EXIT_INPUT and "mode proxy or gate" in refused.error


@pytest.mark.parametrize("name, shell", [("pi", ("bash", "command")), ("claude-code", ("Bash", "command"))])
def test_agents_that_write_arguments_anew_still_go_on_from_what_was_sampled(agents_postern, installed, tmp_path, name, shell):
    """Real agents, streamed, one of them translated: their copy of a call has other blanks, and the engine never sees it."""
    installed(name)
    exact = Engine(shell=shell)
    result, rows = run_against(agents_postern, tmp_path, exact, "--exact-prefix", "--gateway.model-api", "chat", agent=name)
    row, = rows
    check_row(row)
    assert row["continuity"]["status"] == "clean" and result["gateway"]["exact_prefix"]["used"] == 2
    history = [message for path, body in exact.asked if path.endswith("/tokens") for message in body["messages"]]
    assert any('":"' in call["function"]["arguments"] for message in history for call in message.get("tool_calls") or ())


def test_a_trainer_renders_only_what_is_new(postern, tmp_path):
    """Mode gate: the held call carries the tokens before; a trainer that goes on from them gets one clean row, whatever its tokenizer would do."""
    engine = Engine()
    server = GateServer(postern)
    try:
        trainer, prompts = server.control, []
        id = server.submit(exact_prefix=True, group="g-exact")
        while len(prompts) < 3:
            for call in trainer.take():
                if prompts:
                    new = call["messages"][call["new_messages_from"]:]
                    assert call["prefix_token_ids"] == prompts[-1][1] and [message["role"] for message in new] == ["tool"]
                    prompt = call["prefix_token_ids"] + [Engine.LINE] + engine.render(new, True)
                else:
                    assert "prefix_token_ids" not in call
                    prompt = engine.render(call["messages"], True)
                assert trainer.ask("GET", f"/v1/rollouts/{id}/samples")[0] == 409
                made = engine.answer({"messages": call["messages"], "model": "m"}, prompt)
                prompts.append((prompt, prompt + made["choices"][0]["token_ids"]))
                assert trainer.answer(call, made)[0] == 200
        result = server.result(id)
        assert result["fate"] == "ok" and result["reward"] == 1, result
        row, = rows_of(postern, result)
        check_row(row)
        assert row["continuity"]["status"] == "clean" and row["token_ids"] == prompts[-1][1]
        assert result["gateway"]["exact_prefix"] == {"calls": 3, "used": 2, "trouble": None}
        # The rows of the group are the rows of its rollouts.
        lib.until(lambda: trainer.ask("GET", "/v1/groups/g-exact/samples")[0] == 200, 20)
        assert trainer.ask("GET", "/v1/groups/g-exact/samples")[1] == row
        assert trainer.ask("GET", "/v1/groups/g-nobody/samples")[0] == 404
    finally:
        server.stop()


def test_a_killed_server_loses_no_turn(postern):
    """kill -9 between two turns: the agent goes on with the next server, and the rows are whole."""
    engine, seen = Engine(), []

    def answer_one(trainer):
        call, = lib.until(lambda: trainer.take(wait_ms=5000), 60, "a held call")
        made = engine.answer({"messages": call["messages"], "model": "m"}, engine.render(call["messages"], True))
        assert trainer.answer(call, made)[0] == 200
        seen.append(made)

    server = GateServer(postern)
    id = server.submit(realign_max=4096)
    answer_one(server.control)
    lib.until(lambda: server.records(id), 30, "the first turn on record")
    server.process.kill()
    server.process.communicate()
    server = GateServer(postern)
    try:
        while len(seen) < 3:
            answer_one(server.control)
        result = server.result(id)
        assert result["fate"] == "ok" and result["reward"] == 1, result
        row, = rows_of(postern, result)
        check_row(row)
        # The letters of an answer come back as other tokens: bridged, as was asked for.
        assert row["continuity"]["status"] == "realigned" and [turn["trained"] for turn in row["turns"]] == [True] * 3
        trained = [id for id, one in zip(row["token_ids"], row["mask"]) if one]
        assert trained == [id for made in seen for id in made["choices"][0]["token_ids"]]
    finally:
        server.stop()
