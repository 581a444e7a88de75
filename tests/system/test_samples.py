"""Samples from end to end: a real agent in a real sandbox with a model that gives token ids; the rows in the folder, over the API, in the
binary form and in the trace shape; and what the Python package makes of them."""

import importlib.util
import json
import struct
import sys
import textwrap

import pytest

import postern as lib
from postern import task
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
    job = task(tmp_path / "task.json", name="make-it", verify=["grep -q yes answer"], workdir="/app")
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
        import urllib.request
        request = urllib.request.Request(f"{server.base}/v1/rollouts/{rolled[2]['id']}/samples?format=binary",
                                         headers={"Authorization": f"Bearer {server.token}"})
        with urllib.request.urlopen(request, timeout=20) as answer:
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
