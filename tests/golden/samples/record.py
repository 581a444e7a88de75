#!/usr/bin/env python3
"""Records the conversations of real agents that are replayed by test_trace_sample_golden.c. Run by hand, when an agent's version changes:

    POSTERN=build/postern AGENTS=build/agents-home tests/golden/samples/record.py [NAME...]

Each scenario runs an unmodified agent in a sandbox against a scripted model (mode proxy), with settings that make it do what is to be seen:
sub-agents in parallel, compaction, history that is edited. What is kept of calls.jsonl is trimmed: long texts are cut to their two ends, a
hash and the summary they hold, schemas of tools are dropped, and the tokens are those of a toy tokenizer over the trimmed texts, so that they differ where and only where
the agent's copy of a message differs. `expected` is what came out; look at it before you commit it."""

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zlib

TOP = pathlib.Path(__file__).resolve().parents[3]
HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = os.environ.get("POSTERN", str(TOP / "build" / "postern"))
AGENTS = pathlib.Path(os.environ.get("AGENTS", TOP / "build" / "agents-home"))
TEXT_MAX = 240
READ = "Read greeting.txt, then write all.txt."
HELPERS = "Ask two helpers about greeting.txt."
SUMMARY = "<summary>The greeting was read; it says hello. Next, all.txt has to be written.</summary>"


def call(name, **arguments):
    members = ", ".join(f"{key} = {json.dumps(value)}" for key, value in arguments.items())
    return f"{{ name = {json.dumps(name)}, arguments = {{ {members} }} }}"


def helpers(start, kind, shell):
    """Two sub-agents at once, each with a tool call and an answer; then the main conversation goes on."""
    def helper(words, command, answer):
        return f"""
[[rule]]
when = {{ tools = true, instruction_has = "{words}" }}
[[rule.turns]]
call = {shell(command)}
[[rule.turns]]
say = "{answer}"
"""
    return (helper("count the letters", "wc -c greeting.txt", "There are six letters in it.") +
            helper("read the greeting", "cat greeting.txt", "The greeting says hello to everybody.") + f"""
[[rule]]
when.tools = true
[[rule.turns]]
say = "Two helpers will look."
call = [
  {call(start, description="count", prompt="Please count the letters of the greeting.", subagent_type=kind)},
  {call(start, description="read", prompt="Please read the greeting aloud to me.", subagent_type=kind)},
]
[[rule.turns]]
call = {shell("echo done > all.txt")}
[[rule.turns]]
say = "All is done."
[[rule]]
say = "A title"
""")


def compaction(shell, large, overflow=False):
    """Two turns, then a usage (or an error) that makes the agent compact; a summary; two more turns."""
    error = """
[[rule]]
when = { tools = true, result_has = "compact-now" }
times = 1
error = { status = 400, message = "maximum context length is 50000 tokens", code = "context_length_exceeded", show = true }
""" if overflow else ""
    small = "usage = { prompt = 1000, completion = 10 }"
    return f"""
[[rule]]
when.tools = false
say = "{SUMMARY}"
[[rule]]
when = {{ tools = true, last_has = "TEXT ONLY" }}
say = "<analysis>Short.</analysis>{SUMMARY}"
{error}
[[rule]]
when = {{ tools = true, result_has = "compact-now" }}
times = 1
say = "I go on."
usage = {{ prompt = {large}, completion = 100 }}
call = {shell("echo again")}
[[rule]]
when = {{ tools = true, result_has = "hello" }}
times = 1
{small}
call = {shell("echo compact-now")}
[[rule]]
when = {{ tools = true, turn = 0 }}
times = 1
reasoning = "Look first."
say = "I will look."
{small}
call = {shell("cat greeting.txt")}
[[rule]]
when.tools = true
times = 1
{small}
call = {shell("echo done > all.txt")}
[[rule]]
say = "All is done."
"""


def turns(*calls):
    return "[[rule]]\n" + "".join(f"[[rule.turns]]\ncall = {one}\n" for one in calls) + '[[rule.turns]]\nsay = "All is done."\n'


def much_output(shell, count):
    return turns(*[shell(f"seq {i}1000 {i}9999 | sed s/^/number./") for i in range(10, 10 + count)])


def bash(command):
    return call("bash", command=command)


def described(command):
    return call("bash", command=command, description="a command")


SCENARIOS = {
    # name: about, agent, changes to its spec, script, instruction
    "claude-code-sub-agents": (
        "The Task tool, twice at once. The history names the tool Agent, which the model called Task.",
        "claude-code", [('"Bash,Edit,Read,Write"', '"Bash,Edit,Read,Write,Task,Agent"')],
        helpers("Task", "general-purpose", lambda c: call("Bash", command=c)), HELPERS),
    "opencode-sub-agents": (
        "The task tool, twice at once.", "opencode", [('"task": false, ', "")], helpers("task", "general", described), HELPERS),
    "claude-code-completed-arguments": (
        "Edit comes back with a default filled in, under the same id: the same turn, other tokens.", "claude-code", [],
        turns(call("Read", file_path="/app/greeting.txt"),
              call("Edit", file_path="/app/greeting.txt", old_string="hello", new_string="goodbye")), "Change the greeting."),
    "claude-code-compaction": (
        "The summary is asked for with the tools still there; the last turn is kept as it was.", "claude-code",
        [('IS_SANDBOX = "1"',
          'IS_SANDBOX = "1"\nCLAUDE_AUTOCOMPACT_PCT_OVERRIDE = "10"\nCLAUDE_CODE_AUTO_COMPACT_WINDOW = "100000"')],
        compaction(lambda c: call("Bash", command=c), 190000), READ),
    "codex-compaction": (
        "The summary is asked for in the conversation itself, without tools; a user message then holds it.", "codex",
        [("model_context_window = 100000000", "model_context_window = 100000\nmodel_auto_compact_token_limit = 60000")],
        compaction(lambda c: call("exec_command", cmd=c), 99000), READ),
    "opencode-compaction": (
        "The summary is asked for in a prompt of its own; it comes back as the assistant's words.", "opencode",
        [('"context": 100000000', '"context": 100000'), ('"auto": false, "prune": false', '"auto": true, "prune": false')],
        compaction(described, 99000), READ),
    "pi-compaction": (
        "After a context overflow: the summary stands before the recent messages, which are kept.", "pi",
        [('"contextWindow": 100000000', '"contextWindow": 50000')], compaction(bash, 1000, overflow=True), READ),
    "gemini-cli-edited-history": (
        "Old tool outputs are masked as the history grows, twice: the agent edits its own history.", "gemini-cli", [],
        much_output(lambda c: call("run_shell_command", command=c, description="a command"), 13), "Look at much output."),
}


# ---------------------------------------------------------------- trimming

def trim(text):
    if len(text) <= TEXT_MAX:
        return text
    inner = SUMMARY[len("<summary>"):-len("</summary>")]
    middle = inner if inner in text[90:-90] else ""
    return f"{text[:90]}[{hashlib.sha1(text.encode()).hexdigest()[:12]}]{middle}{text[-90:]}"


def trim_message(message):
    message = dict(message)
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = trim(content)
    elif content:
        message["content"] = [{key: trim(value) if key == "text" else value for key, value in part.items()} for part in content]
    message.pop("opaque", None)
    return message


def pieces(text):
    return [10 + zlib.crc32(text[at:at + 12].encode()) % 50000 for at in range(0, len(text), 12)]


def tokens(message):
    """A role, the texts, the calls as they are spelled, an end; no reasoning, as most templates have it."""
    content = message.get("content") or ""
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    ids = [{"system": 1, "developer": 2, "user": 3, "assistant": 4, "tool": 5}[message["role"]]] + pieces(text)
    for one in message.get("tool_calls", ()):
        ids += [6] + pieces(one["name"] + one["arguments"])
    return ids + [0]


def trim_calls(lines):
    requests, sequences, out = {}, {}, []
    for line in map(json.loads, lines):
        kept = {key: line[key] for key in ("call_id", "number", "dialect", "state", "side", "accepted", "done", "http_status", "parent",
                                           "shared_messages", "shared_from", "error_kind", "error") if key in line}
        new = [trim_message(message) for message in line["request"]["messages"]]
        begin = line.get("shared_from", 0)
        end = begin + line.get("shared_messages", 0)
        whole = new[:begin] + requests.get(line.get("parent"), [])[begin:end] + new[begin:]
        requests[line["call_id"]] = whole
        kept["request"] = {"model": "m", "messages": new}
        if line["request"].get("tools"):
            kept["request"]["tools"] = [{"name": tool["name"]} for tool in line["request"]["tools"]]
        answer = line["answer"]
        if answer:
            message = trim_message(answer["message"])
            prompt = [part for message_ in whole for part in tokens(message_)] + [4]
            completion = tokens(message)[1:]
            before = sequences.get(line.get("parent"), [])
            shared = 0
            while shared < min(len(before), len(prompt)) and before[shared] == prompt[shared]:
                shared += 1
            sequences[line["call_id"]] = prompt + completion
            if shared >= 16:
                kept["shared_prompt_tokens"] = shared
            else:
                shared = 0
            kept["answer"] = {"message": message, "finish_reason": answer["finish_reason"], "usage": answer["usage"],
                              "prompt_token_ids": prompt[shared:], "token_ids": completion,
                              "logprobs": [round(-0.01 * (1 + at % 90), 2) for at in range(len(completion))]}
        else:
            kept["answer"] = None
        out.append(kept)
    return rename(out)


def rename(lines):
    """Short ids that do not change from one recording to the next."""
    text = json.dumps(lines)
    for line in lines:
        text = text.replace(line["call_id"], f"c-{line['number']}")
    return json.loads(text)


# ---------------------------------------------------------------- running

def record(name, home, work):
    about, agent, changes, script, instruction = SCENARIOS[name]
    spec = (TOP / "agents" / f"{agent}.toml").read_text()
    for old, new in changes:
        assert old in spec, f"{agent}: {old!r} is not in its spec"
        spec = spec.replace(old, new)
    (work / f"{agent}.toml").write_text(spec)
    (work / "model.toml").write_text('name = "the-model"\n' + script)
    task = {"name": name, "instruction": instruction, "setup": ["echo hello > greeting.txt"], "verify": ["true"]}
    (work / "task.json").write_text(json.dumps(task))
    done = subprocess.run([PROGRAM, "run", "--agent", work / f"{agent}.toml", "--task", work / "task.json", "--model",
                           f"script:{work / 'model.toml'}", "--mode", "proxy", "--json", "--timeout", "180s"],
                          env={**os.environ, "POSTERN_HOME": str(home)}, capture_output=True, text=True, timeout=400)
    result = json.loads(done.stdout.splitlines()[-1])
    print(f"{name}: {result['fate']} {result['error'] or ''} {result['calls']} calls", file=sys.stderr)
    lines = (home / "rollouts" / result["id"] / "calls.jsonl").read_text().splitlines()
    return {"about": about, "agent": agent, "version": result["versions"]["agent"], "calls": trim_calls(lines)}


def expect(kept, home):
    """What the program makes of the kept calls, in short."""
    folder = home / "rollouts" / "r-kept"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "calls.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept["calls"]))
    (folder / "result.json").write_text(json.dumps({"rollout_id": "r-kept", "reward": None, "fate": "ok"}))
    made = subprocess.run([PROGRAM, "export", "r-kept"], env={**os.environ, "POSTERN_HOME": str(home)}, capture_output=True, text=True,
                          check=True)
    rows = []
    for row in map(json.loads, made.stdout.splitlines()):
        rows.append({"branch": row["branch"]["kind"], "from_call": row["branch"]["from_call"],
                     "summary_call": row["branch"].get("summary_call"), "tool_call_id": row["branch"].get("tool_call_id"),
                     "calls": [turn["call_id"] for turn in row["turns"]],
                     "trained": [turn["call_id"] for turn in row["turns"] if turn["trained"]],
                     "continuity": row["continuity"]["status"],
                     "differs": [[item["call_id"], item["inside"]] for item in row["continuity"]["differences"]]})
    return rows


def main():
    home = pathlib.Path(tempfile.mkdtemp(prefix="rec-", dir="/tmp"))
    try:
        (home / "bundles").symlink_to((AGENTS / "bundles").resolve())
        for name in sys.argv[1:] or SCENARIOS:
            path = HERE / f"{name}.json"
            with tempfile.TemporaryDirectory() as work:
                kept = record(name, home, pathlib.Path(work)) if os.environ.get("KEEP") != "1" else json.loads(path.read_text())
            kept.pop("expected", None)
            kept["expected"] = expect(kept, home)
            head = json.dumps({key: value for key, value in kept.items() if key not in ("calls", "expected")}, ensure_ascii=False)
            calls = ",\n".join(json.dumps(line, ensure_ascii=False) for line in kept["calls"])
            rows = ",\n".join(json.dumps(row) for row in kept["expected"])
            path.write_text(f'{head[:-1]},\n"calls": [\n{calls}\n],\n"expected": [\n{rows}\n]}}\n')
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
