"""terminus, our terminal agent: rollouts with programs that want a terminal, in roots with and without bash, and the program
itself against a model server that says what a test wants."""

import http.server
import json
import os
import pathlib
import re
import subprocess
import threading
import tomllib

import pytest

import postern as lib
from postern import script, task

PROGRAM = pathlib.Path(lib.PROGRAM).resolve().parent / "postern-terminus"


def keys(text, seconds=30):
    return {"keystrokes": text, "duration": seconds}


def says(*commands, analysis="Going on.", done=False):
    return json.dumps({"analysis": analysis, "plan": "Type.", "commands": list(commands), "task_complete": done})


def sure(analysis="All is done."):
    return [says(done=True), says(done=True, analysis=analysis)]


def rollout(postern, task_, model, *more):
    done, results = postern.run("--agent", "terminus", "--task", task_, "--model", model, *postern.flags, *more, seconds=120)
    assert results, done
    folder = postern.home / "rollouts" / results[0]["rollout_id"]
    return results[0], lib.json_lines((folder / "calls.jsonl").read_bytes()), lib.json_lines((folder / "events.jsonl").read_bytes())


def shown(calls):
    """What the terminal was said to show, question by question."""
    return [call["request"]["messages"][-1]["content"] for call in calls]


def test_programs_that_want_a_terminal_get_one(postern, tmp):
    turns = [says(keys("python3 -q\n", 2), keys("answer = 6 * 7\n", 0.5), keys("print('it is', answer)\n", 1)),
             says(keys("open('answer', 'w').write(str(answer))\n", 1), keys("C-d")),
             says(keys("seq 1 500 | less\n", 2), keys("PageDown", 1)),
             says(keys("q"), keys("cat\n", 0.5), keys("typed\n", 0.5), keys("C-c")),
             says(keys("tty && echo $TERM $(stty size)\n"), analysis="Looking at the terminal."), *sure("It is 42.")]
    task_ = task(tmp / "t.json", verify=["grep -qx 42 /app/answer"], system="Be quick. {\"x\": $(id)}")
    result, calls, events = rollout(postern, task_, script(tmp / "m.toml", *turns))
    assert result["fate"] == "ok" and result["reward"] == 1, result
    assert result["turns"] == len(turns) and result["final_text"] == "It is 42."
    system, first = calls[0]["request"]["messages"]
    assert system["content"].startswith("Be quick. {\"x\": $(id)}\n\n") and "keystrokes" in system["content"]
    assert first["content"].startswith("Do what has to be done.")
    said = shown(calls)
    assert ">>> print('it is', answer)\nit is 42\n>>> " in said[1]
    assert said[3].startswith("The screen shows:") and "\n60\n" in said[3], "the second page of the pager"
    assert "\n1\n" not in said[3], "and not the first"
    assert "typed\ntyped\n^C" in said[4]
    assert re.search(r"/dev/pts/\d+\nxterm 40 160\n", said[5])
    assert "You said that the task is complete" in said[6]
    kinds = [event["kind"] for event in events]
    assert kinds.count("tool_call") == kinds.count("tool_result") == 12 and kinds.count("done") == 1
    assert [e["text"] for e in events if e["kind"] == "assistant"][-1] == "It is 42."


@pytest.mark.parametrize("name", ["fix-failing-test", "edit-config"])
def test_a_sample_task_is_solved(postern, tmp, name):
    """The commands of the demo's script, typed: here documents and all."""
    rules = tomllib.loads((lib.REPOSITORY / "tasks" / "demo-script.toml").read_text())["rule"]
    solving = [rule["call"]["arguments"]["command"].strip() for rule in rules
               if rule.get("when", {}).get("task") == name and rule["when"].get("index_modulo", [3, 0])[1] == 0 and "call" in rule]
    turns = [says(keys(command + "\n")) for command in solving] + sure()
    result, _, _ = rollout(postern, str(lib.REPOSITORY / "tasks" / name), script(tmp / "m.toml", *turns))
    assert result["fate"] == "ok" and result["reward"] == 1, result


def test_an_image_without_bash_is_enough(postern, tmp):
    """No terminfo, no bashrc."""
    root = lib.small_root(tmp / "root", "cat", "ls", "sleep")
    turns = [says(keys("echo from $0 > answer; ls\n")), says(keys("cat\n", 0.5), keys("C-d"), keys("echo $((20+1))$((1+1))\n")), *sure()]
    task_ = task(tmp / "t.json", verify=["/bin/cat answer"])
    result, calls, _ = rollout(postern, task_, script(tmp / "m.toml", *turns), "--root", f"dir:{root}")
    assert result["fate"] == "ok" and result["reward"] == 1, shown(calls)[1:3]
    assert "from sh" in result["verify"][0]["output"] and "\nanswer\n" in shown(calls)[1] and "\n212\n" in shown(calls)[2]


def test_answers_that_cannot_be_used_are_told_and_the_limit_is_a_limit(postern, tmp):
    turns = ["I would rather talk.", "Here:\n" + says(keys("echo hi > hi\n")), says(keys("exit 3\n")), says(keys("cat hi\n"))]
    result, calls, events = rollout(postern, task(tmp / "t.json", verify=["test -e hi"]), script(tmp / "m.toml", *turns, "x"),
                                    "--turns", "4")
    assert result["fate"] == "limit" and result["reward"] == 1, result
    said = shown(calls)
    assert "could not be used" in said[1] and "no JSON object" in said[1]
    assert "text before the JSON object was ignored" in said[2]
    assert "the shell ended with code 3" in said[3]
    assert [event["kind"] for event in events].count("error") == 1


# ---------------------------------------------------------------- the program itself
class Model(http.server.BaseHTTPRequestHandler):
    """Answers what `answer(body)` says: a text, or a status and a message."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(body)
        answer = self.server.answer(body)
        status, value = (200, {"choices": [{"index": 0, "message": {"role": "assistant", "content": answer},
                                            "finish_reason": "stop"}]}) if isinstance(answer, str) else (
            answer[0], {"error": {"message": answer[1]}})
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def terminus(tmp):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    def run(answer, *flags, instruction="Count."):
        server.answer = answer
        env = {"PATH": os.environ["PATH"], "OPENAI_BASE_URL": f"http://127.0.0.1:{server.server_port}/v1", "OPENAI_MODEL": "m",
               "OPENAI_API_KEY": "sk-a-key"}
        done = subprocess.run([PROGRAM, "--json", "--no-stream", *flags, instruction], cwd=tmp, env=env, capture_output=True,
                              timeout=120)
        return done.returncode, lib.json_lines(done.stdout), server.asked

    yield run
    server.shutdown()
    thread.join()
    server.server_close()


def aside(body):
    """Which of the three questions of a hand-over this is."""
    last = body["messages"][-1]["content"]
    for part, sign in (("note", "write a note"), ("questions", "You are about to take over"), ("answers", "has read your note")):
        if sign in last:
            return part
    return None


@pytest.mark.parametrize("by", ["count", "refusal"])
def test_a_conversation_that_grows_too_long_is_handed_over(terminus, by):
    """Before the model's own limit when that is known; when the server refuses otherwise."""
    def answer(body):
        text = json.dumps(body["messages"])
        if by == "refusal" and len(text) > 14000:
            return 400, "This model's maximum context length is 3000 tokens."
        part = aside(body)
        if part:
            return {"note": "NOTE: counted to nine.", "questions": "QUESTION: which file?", "answers": "ANSWER: n.txt"}[part]
        if "NOTE: counted to nine." in text:
            return says(done=True, analysis="Took over.")
        return says(keys("seq -s ' ' 1 400\n"))

    code, events, asked = terminus(answer, *(["--context-tokens", "5000"] if by == "count" else []))
    assert code == 0, events
    assert [e["what"] for e in events if e["type"] == "note"] == ["handed over"]
    assert [p for p in map(aside, asked) if p] in (["note", "questions", "answers"], ["note", "note", "questions", "answers"],
                                                   ["note", "note", "questions", "answers", "answers"])
    successor = next(body for body in asked if aside(body) == "questions")
    assert len(successor["messages"]) == 1, "it knows the note and nothing else"
    fresh = asked[-2]["messages"]
    assert [message["role"] for message in fresh] == ["system", "user"]
    for part in ("Count.", "NOTE: counted", "QUESTION: which", "ANSWER: n.txt", "The terminal shows:"):
        assert part in fresh[1]["content"]
    assert max(len(json.dumps(body["messages"])) for body in asked) < 40000


def test_long_output_loses_its_middle_and_the_key_is_nowhere(terminus):
    def answer(body):
        if len(body["messages"]) > 2:
            return says(done=True)
        return says(keys("env | grep -c sk-a-key; seq 1 100000; echo the end\n"))

    code, _, asked = terminus(answer)
    said = asked[1]["messages"][-1]["content"]
    assert code == 0 and len(said) < 11000
    assert "bytes left out" in said and "\n0\n1\n2\n" in said and "\n100000\nthe end\n" in said, said[:300] + said[-300:]
    assert "sk-a-key" not in json.dumps(asked).replace("grep -c sk-a-key", "")


def test_what_runs_in_the_terminal_goes_with_the_agent(terminus, tmp):
    mark = f"30{os.getpid()}"

    def answer(body):
        if len(body["messages"]) == 2:
            return says(keys(f"sleep {mark}\n", 0.5))
        return says(done=True)

    code, _, _ = terminus(answer, "--no-confirm")
    assert code == 0
    lib.until(lambda: not lib.processes(mark), what="the end of a sleep")
