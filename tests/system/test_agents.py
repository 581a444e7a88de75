"""Agents people train, unmodified, from their published packages, in sandboxes without network: OpenCode, Pi, Codex,
Claude Code and Gemini CLI. `postern agents install` builds them once into build/agents-home, which needs npm and the network; the
rollouts need neither."""

import http.server
import json
import os
import pathlib
import shutil
import threading

import pytest

import postern as lib
from postern import must, task
from test_gate import Server
from trainer import Trainer

CACHE = lib.REPOSITORY / "build" / "agents-home"

INSTRUCTION = ("-n --help \"double\" 'single' $(touch /app/pwned) `touch /app/pwned` ${HOME} \\n %s {model} {\"a\": [1]} ;&|<>*?~#!\n"
               "second line: zwölf, 日本語, 🙂\n\n\ttabbed, and \\u0041 stays as it is\u00a0.")
SYSTEM = "Système \"prompt\": $(touch /app/pwned) \\ 'x' {key}\n= second line #1 🙂"
WORKDIR = "/work/my dir $(touch pwned) 'q' \"d\" é-日本 --x"
MODEL = "org/we\"ird $(touch pwned) 'mödel' \\ {key}: v1"
PATCH = "apply_patch <<'EOF'\n*** Begin Patch\n*** Update File: greeting.txt\n@@\n-hello\n+goodbye\n*** End Patch\nEOF"


class Agent:
    """How the scripted model must speak to an agent: the names and arguments of its tools. `edit` and `read` are told the
    folder greeting.txt is in."""

    def __init__(self, name, shell, edit, hosts=(), read=None, folder=WORKDIR):
        self.folder = folder
        self.name, self.shell, self.edit, self.read, self.hosts = name, shell, edit, read, tuple(hosts)


AGENTS = {agent.name: agent for agent in (
    Agent("codex", lambda c: ("exec_command", {"cmd": c}), lambda d: ("exec_command", {"cmd": PATCH})),
    Agent("claude-code", lambda c: ("Bash", {"command": c}),
          lambda d: ("Edit", {"file_path": f"{d}/greeting.txt", "old_string": "hello", "new_string": "goodbye"}),
          read=lambda d: ("Read", {"file_path": f"{d}/greeting.txt"})),
    Agent("pi", lambda c: ("bash", {"command": c}),
          lambda d: ("edit", {"path": "greeting.txt", "edits": [{"oldText": "hello", "newText": "goodbye"}]}),
          read=lambda d: ("read", {"path": "greeting.txt"})),
    # It tries its registry in the background; there is no switch against that.
    Agent("opencode", lambda c: ("bash", {"command": c, "description": "a command"}),
          lambda d: ("edit", {"filePath": f"{d}/greeting.txt", "oldString": "hello", "newString": "goodbye"}),
          read=lambda d: ("read", {"filePath": f"{d}/greeting.txt"}), hosts=["registry."]),
    Agent("gemini-cli", lambda c: ("run_shell_command", {"command": c, "description": "a command"}),
          lambda d: ("replace", {"file_path": "greeting.txt", "old_string": "hello", "new_string": "goodbye",
                                 "instruction": "a change"}),
          read=lambda d: ("read_file", {"file_path": "greeting.txt"}),
          folder="/work/a b-é"),  # it refuses to edit below "suspicious characters"
)}
every_agent = pytest.mark.parametrize("name", list(AGENTS))


@pytest.fixture(scope="session")
def installed(program):
    """Installs an agent once, for all runs of the tests."""
    done = {}

    def install(name):
        if name not in done:
            CACHE.mkdir(parents=True, exist_ok=True)
            done[name] = lib.Postern(CACHE)("agents", "install", name, seconds=900)
        if done[name].code:
            must(f"{name} cannot be installed here (npm and the network are needed once): {done[name].error.strip()}")
        return AGENTS[name]

    if not shutil.which("npm") and not (CACHE / "bundles").is_dir():
        must("there is no npm to install agents with")
    return install


@pytest.fixture
def agents_postern(postern):
    """The program with a home of its own that has all installed agents."""
    (CACHE / "bundles").mkdir(parents=True, exist_ok=True)
    (postern.home / "bundles").symlink_to(CACHE / "bundles")
    return postern


def calls(*pairs):
    return {"calls": [{"name": name, "arguments": arguments} for name, arguments in pairs]}


def turn_text(turn, table="rule"):
    turn = {"say": turn} if isinstance(turn, str) else turn
    lines = [f"{key} = {lib.quoted(turn[key])}" for key in ("reasoning", "say") if key in turn]
    for call in turn.get("calls", ()):
        lines += [f"[[{table}.call]]", f"name = {lib.quoted(call['name'])}",
                  f"arguments = {lib.quoted(json.dumps(call['arguments']))}"]
    return "\n".join(lines)


def script(path, *turns, before="", name="the-model"):
    """A scripted model: each turn a text, or calls with perhaps reasoning and words. `before`: rules that come first."""
    lines = [f"name = {lib.quoted(name)}", before, "[[rule]]", "when.tools = true"]
    for turn in turns:
        lines += ["[[rule.turns]]", turn_text(turn, "rule.turns")]
    lines += ["[[rule]]", "when.tools = false", 'say = "A title"']
    pathlib.Path(path).write_text("\n".join(lines) + "\n")
    return f"script:{path}"


def editing(agent, folder="/app"):
    """Several tools at once, an edit with the agent's own tool, a look at it, a last word."""
    first = [agent.shell("echo one > one.txt"), agent.shell("echo two > two.txt")] + ([agent.read(folder)] if agent.read else [])
    return [{"reasoning": "Look first.", "say": "I will look.", **calls(*first)}, calls(agent.edit(folder)),
            calls(agent.shell("cat greeting.txt one.txt two.txt > all.txt")), "All is done."]


def editing_task(path, **more):
    return task(path, name="edit", setup=["echo hello > greeting.txt"], instruction=INSTRUCTION,
                verify=["test \"$(cat all.txt | tr '\\n' ' ')\" = 'goodbye one two '", "! test -e pwned && ! test -e /app/pwned"],
                **more)


def run(postern, agent, task_, model, *more, **options):
    done, results = postern.run("--agent", agent.name, "--task", task_, "--model", model, *postern.flags, *more,
                                **{"seconds": 300, **options})
    assert results, done
    return results[0]


def records(postern, result):
    folder = postern.home / "rollouts" / result["rollout_id"]
    return lib.json_lines((folder / "calls.jsonl").read_bytes()), lib.json_lines((folder / "events.jsonl").read_bytes())


def texts_in(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from texts_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)


def tail_of(postern, result):
    return (postern.home / "rollouts" / result["rollout_id"] / "agent.log").read_text(errors="replace")[-3000:]


def test_no_shipped_spec_switches_permission_checks_off_unasked():
    for path in (lib.REPOSITORY / "agents").glob("*.toml"):
        tomllib = pytest.importorskip("tomllib")
        argv = [text for text in tomllib.loads(path.read_text()).get("run", {}).get("argv", [])]
        for flag in ("-y", "--yolo", "--dangerously-skip-permissions", "--dangerously-bypass-approvals-and-sandbox"):
            assert flag not in argv, path


@pytest.mark.parametrize("path", sorted((lib.REPOSITORY / "agents").glob("*.toml")), ids=lambda path: path.stem)
def test_a_spec_is_fine_and_fits_the_schema(bare_postern, path):
    done = bare_postern("agents", "check", str(path))
    assert done.code == 0, done
    jsonschema, tomllib = pytest.importorskip("jsonschema"), pytest.importorskip("tomllib")
    schema = json.loads((lib.REPOSITORY / "agents" / "schema.json").read_text())
    jsonschema.validate(tomllib.loads(path.read_text()), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**tomllib.loads(path.read_text()), "shell": "x"}, schema)


@every_agent
def test_an_agent_edits_files_with_its_own_tools(agents_postern, installed, tmp, name):
    postern, agent = agents_postern, installed(name)
    turns = editing(agent, agent.folder)
    result = run(postern, agent, editing_task(tmp / "t.json", system=SYSTEM, workdir=agent.folder),
                 script(tmp / "m.toml", *turns, name=MODEL))
    assert result["fate"] == "ok" and result["reward"] == 1, (result, tail_of(postern, result))
    assert result["agent_exit"] == {"end": "exited", "code": 0}
    assert result["final_text"] == "All is done."
    # Names are given by their beginning.
    assert all(any(host.startswith(known) for known in agent.hosts) for host in result["hosts"]), result["hosts"]

    recorded, events = records(postern, result)
    main = [call for call in recorded if not call["side"]]
    assert result["turns"] == len(turns) == len(main)
    assert [call["number"] for call in recorded] == list(range(1, len(recorded) + 1))
    assert all(call["state"] == "answered" for call in recorded)
    # A name in a URL has no backslashes: clients make slashes of them.
    asked = {call["request"]["model"] for call in main}
    assert asked == {MODEL} or main[0]["dialect"] == "google" and asked == {MODEL.replace("\\", "/")}
    first = list(texts_in(main[0]["request"]["messages"]))
    assert any(INSTRUCTION in text for text in first), "the instruction arrived as it is"
    assert any(SYSTEM in text for text in first), "the system prompt arrived as it is"
    # Each conversation is all of the one before and something new: the record holds only that.
    whole = 0
    for before, call in zip([None] + main, main):
        assert call.get("parent") == (before and before["call_id"])
        assert call.get("shared_messages", 0) == whole
        whole += len(call["request"]["messages"])

    kinds = [event["kind"] for event in events]
    tools = sum(len(turn.get("calls", ())) for turn in turns if isinstance(turn, dict))
    assert kinds.count("tool_call") == kinds.count("tool_result") == tools, kinds
    said = [event["text"] for event in events if event["kind"] == "assistant"]
    assert said == ["I will look.", "All is done."], said
    assert kinds.count("done") == 1 and "error" not in kinds
    assert all(event.get("name") for event in events if event["kind"] == "tool_call")


@every_agent
def test_an_agent_gets_over_a_rate_limit_an_error_and_a_reset(agents_postern, installed, tmp, name):
    postern, agent = agents_postern, installed(name)
    troubles = """
        [[rule]]
        when = { tools = true, turn = 0 }
        times = 1
        error = { status = 429, message = "slow down", retry_after = "1s", show = true }
        [[rule]]
        when = { tools = true, turn = 0 }
        times = 1
        error = { status = 500, message = "a bad day", show = true }
        [[rule]]
        when = { tools = true, turn = 1 }
        times = 1
        say = "A sentence that is long enough to be cut in the middle of its words, and so it will be."
        reset_after = 2
        """
    result = run(postern, agent, editing_task(tmp / "t.json"), script(tmp / "m.toml", *editing(agent), before=troubles))
    assert result["fate"] == "ok" and result["reward"] == 1, (result, tail_of(postern, result))
    assert result["turns"] == len(editing(agent)) and result["final_text"] == "All is done."


class Slow:
    """Rollouts whose model takes a minute for its first word. They only wait, so they do it while other tests run."""

    def __init__(self, folder, flags):
        self.folder, self.flags, self.threads, self.results = folder, flags, {}, {}

    def start(self, agent):
        if agent.name in self.threads:
            return
        home = self.folder / agent.name
        home.mkdir()
        (home / "bundles").symlink_to(CACHE / "bundles")
        slow = '[[rule]]\nwhen = { tools = true, turn = 0 }\nfirst_delay = "60s"\n'
        model = script(home / "m.toml", *editing(agent), before=slow + turn_text(editing(agent)[0]))
        task_ = editing_task(home / "t.json")

        def work():
            try:
                self.results[agent.name] = run(lib.Postern(home, self.flags), agent, task_, model)
            except AssertionError as error:
                self.results[agent.name] = error

        self.threads[agent.name] = threading.Thread(target=work)
        self.threads[agent.name].start()

    def result(self, name):
        self.threads[name].join()
        if isinstance(self.results[name], AssertionError):
            raise self.results[name]
        return lib.Postern(self.folder / name), self.results[name]


@pytest.fixture(scope="module")
def slow(sandbox_works, installed):
    folder = lib.short_dir("pt-slow-")
    yield Slow(folder, sandbox_works)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def slow_ones_start_early(request):
    names = [item.callspec.params["name"] for item in request.session.items
             if item.originalname == test_a_minute_without_a_word_is_waited_for.__name__ and item.module is request.module]
    if names:
        slow, install = request.getfixturevalue("slow"), request.getfixturevalue("installed")
        for name in names:
            slow.start(install(name))


@every_agent
def test_a_refusal_is_the_agents_failure_whatever_its_exit_code_says(agents_postern, installed, tmp, name):
    postern, agent = agents_postern, installed(name)
    refusal = '[[rule]]\nerror = { status = 400, message = "no such thing", show = true }\n'
    result = run(postern, agent, editing_task(tmp / "t.json"), script(tmp / "m.toml", "never said", before=refusal))
    assert result["fate"] == "agent_failed" and "no such thing" in result["cause"], (result, tail_of(postern, result))
    assert result["turns"] == 0


# ---------------------------------------------------------------- a model server with a key
class ChatServer(http.server.BaseHTTPRequestHandler):
    """Speaks chat, streamed: one command, then a last word. Remembers the keys it was shown."""

    protocol_version = "HTTP/1.1"
    keys, bodies, call = [], [], None

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
        ChatServer.keys.append(self.headers.get("authorization"))
        ChatServer.bodies.append(body)
        answered = any(message["role"] == "tool" for message in body["messages"])
        if answered or not body.get("tools"):
            delta, reason = {"role": "assistant", "content": "Nothing found."}, "stop"
        else:
            name, arguments = ChatServer.call
            function = {"name": name, "arguments": json.dumps(arguments)}
            delta = {"role": "assistant", "tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}
            reason = "tool_calls"
        common = {"id": "x", "created": 1, "model": "m"}
        if body.get("stream"):
            kind, chunks = "text/event-stream", [{"index": 0, "delta": delta, "finish_reason": None},
                                                 {"index": 0, "delta": {}, "finish_reason": reason}]
            usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
            data = "".join(f"data: {json.dumps({**common, 'object': 'chat.completion.chunk', 'choices': [chunk]})}\n\n"
                           for chunk in chunks)
            data += f"data: {json.dumps({**common, 'object': 'chat.completion.chunk', 'choices': [], 'usage': usage})}\n\n"
            data += "data: [DONE]\n\n"
        else:
            kind = "application/json"
            data = json.dumps({**common, "object": "chat.completion",
                               "choices": [{"index": 0, "message": delta, "finish_reason": reason}]})
        data = data.encode()
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def chat_server():
    ChatServer.keys, ChatServer.bodies = [], []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), ChatServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1#the-model"
    server.shutdown()
    server.server_close()


class Argv:
    """Looks for a word in the command lines of this machine for as long as it lives."""

    def __init__(self, word):
        self.word, self.found, self.looks, self.stopping = word.encode(), [], 0, threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def look(self):
        while not self.stopping.wait(0.02):
            self.looks += 1
            for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    line = entry.read_bytes()
                except OSError:
                    continue
                if self.word in line:
                    self.found.append(line)

    def stop(self):
        self.stopping.set()
        self.thread.join(30)
        return self.found


@every_agent
def test_no_key_is_found_where_an_agent_could_look_and_any_agent_can_use_a_chat_server(agents_postern, installed, tmp,
                                                                                       chat_server, name):
    postern, agent = agents_postern, installed(name)
    secret = f"sk-marked-{os.getpid()}-secret"
    # A pattern that does not find itself; what is planted shows that it would find something.
    look = ("printf 'sk-%s' marked > /app/planted; grep -lras '[s]k-marked' "
            "/proc/*/environ /proc/*/cmdline /home /root /opt /tmp /app /etc /run /var > /tmp/found; mv /tmp/found /app")
    ChatServer.call = agent.shell(look)
    task_ = task(tmp / "t.json", instruction="Look around.", verify=["test \"$(cat /app/found)\" = /app/planted"])
    argv = Argv(secret)
    done, results = postern.run("--agent", agent.name, "--task", task_, "--model", chat_server, *postern.flags, "--key-env",
                                "MARKED_KEY", "--mode", "proxy", "--gateway.model-api", "chat", "--log.level", "debug",
                                env={"MARKED_KEY": secret}, seconds=300)
    result = results[0]
    assert argv.stop() == [] and argv.looks > 5, "no command line of this machine had it, at any moment"
    assert secret not in done.text and secret not in done.error, "nor what it printed and logged"
    assert result["fate"] == "ok" and result["reward"] == 1, (result, tail_of(postern, result))
    assert result["turns"] == 2 and result["final_text"] == "Nothing found."
    assert ChatServer.keys and set(ChatServer.keys) == {f"Bearer {secret}"}
    assert {body["model"] for body in ChatServer.bodies} == {"the-model"}
    leaks = [path for path in postern.home.rglob("*")
             if path.is_file() and CACHE not in path.resolve().parents and secret.encode() in path.read_bytes()]
    assert leaks == []


# ---------------------------------------------------------------- the trainer answers
@every_agent
def test_the_trainer_answers_an_agent(agents_postern, installed, name):
    postern, agent = agents_postern, installed(name)
    server = Server(postern)

    def policy(call):
        if any(message["role"] == "tool" for message in call["messages"]):
            return {"content": "Done.", "token_ids": [1], "completion_logprobs": [-0.5]}
        tool, arguments = agent.shell("echo yes > /app/answer")
        function = {"name": tool, "arguments": json.dumps(arguments)}
        return {"content": "", "tool_calls": [{"id": "call_1", "type": "function", "function": function}], "token_ids": [1],
                "completion_logprobs": [-0.5]}

    trainer = Trainer(server.control, policy)
    try:
        rollout = server.submit(agent=agent.name, model="gate:the-model")
        result = server.result(rollout)
        assert result["fate"] == "ok" and result["reward"] == 1, result
        assert result["turns"] == 2
    finally:
        trainer.stop()
        server.stop()


# ---------------------------------------------------------------- what specs say about calls
def changed(tmp, name, *pairs):
    """The shipped spec of an agent, with changes; its bundle stays the same."""
    text = (lib.REPOSITORY / "agents" / f"{name}.toml").read_text()
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new, 1)
    (tmp / f"{name}.toml").write_text(text)
    return str(tmp / f"{name}.toml")


TITLES = {"claude-code": [("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "X_NOT_SAID")],
          "opencode": [(', "--title", "task"', ""), ('"title": {"disable": true}', '"title": {}')]}


@pytest.mark.parametrize("name", list(TITLES))
def test_a_title_is_known_to_be_one_by_the_spec_and_an_agents_files_are_kept(agents_postern, installed, tmp, name):
    postern, agent = agents_postern, installed(name)
    home = ".claude" if name == "claude-code" else ".config/opencode/opencode.json"
    spec = changed(tmp, name, *TITLES[name], ("[bundle]\n", f'artifacts = ["{{home}}/{home}", "{{home}}/no-such"]\n\n[bundle]\n'))
    done, results = postern.run("--agent", spec, "--task", task(tmp / "t.json", verify=["grep -q yes /app/answer"]), "--model",
                                script(tmp / "m.toml", calls(agent.shell("echo yes > /app/answer")), "Done."), *postern.flags,
                                seconds=300)
    result = results[0]
    assert result["fate"] == "ok" and result["reward"] == 1, (done, result)
    recorded, _ = records(postern, result)
    assert "title" in [call.get("side_name") for call in recorded], recorded
    assert [call.get("side_name") for call in recorded if not call["side"]] == [None, None] and result["turns"] == 2
    kept, missing = result["artifacts"]
    assert kept["state"] == "kept" and (postern.home / "rollouts" / result["rollout_id"] / kept["file"]).exists()
    assert missing["state"] == "missing"


def test_codex_says_the_same_in_every_rollout_where_the_spec_knows_its_nonces(agents_postern, installed, tmp):
    """The record and the model get canonical words, and what stood there can be put back."""
    postern, agent = agents_postern, installed("codex")
    result = run(postern, agent, task(tmp / "t.json"), script(tmp / "m.toml", calls(agent.shell("echo yes")), "Done."),
                 "--mode", "proxy")
    recorded, _ = records(postern, result)
    notes = recorded[1]["nonces"]
    assert [note["name"] for note in notes] == ["chunk", "wall-time"], notes
    assert "Chunk ID: 000000" in json.dumps(recorded[1]["request"]) and notes[0]["was"] not in json.dumps(recorded[1]["request"])


def test_what_an_agent_needs_is_looked_for_before_it_runs(postern, tmp):
    model, task_ = script(tmp / "m.toml", "Done."), task(tmp / "t.json")
    needs = {'programs = ["sh", "no-such-program"]': "needs no-such-program", 'paths = ["/no/such/path"]': "needs /no/such/path",
             'versions = { python3 = "99.1" }': "needs python3 99.1 or newer; in this sandbox it is 3.",
             'programs = ["sh"]\npaths = ["/proc"]\nversions = { python3 = "3.0" }': None}
    for words, refusal in needs.items():
        spec = changed(tmp, "mini", ("[run]\n", f"[needs]\n{words}\n\n[run]\n"))
        _, results = postern.run("--agent", spec, "--task", task_, "--model", model, *postern.flags)
        assert results[0]["fate"] == ("infra_failed" if refusal else "ok"), results
        if refusal:
            assert refusal in results[0]["cause"] and results[0]["reward"] is None, results
    spec = changed(tmp, "mini", ("[run]\n", '[needs]\nuser = "ordinary"\n\n[run]\n'))
    done = postern("run", "--json", "--agent", spec, "--task", task(tmp / "t.json", root=True), "--model", model, *postern.flags)
    assert done.code != 0 and "does not run as root" in done.error, done


# ---------------------------------------------------------------- many, and new ones
@every_agent
def test_a_minute_without_a_word_is_waited_for(slow, name):
    postern, result = slow.result(name)
    assert result["fate"] == "ok" and result["reward"] == 1, (result, tail_of(postern, result))
    recorded, _ = records(postern, result)
    main = [call for call in recorded if not call["side"]]
    assert [call["state"] for call in main] == ["answered"] * len(editing(AGENTS[name])), "asked once, waited, nothing asked again"


def test_32_rollouts_of_a_real_agent_at_once(agents_postern, installed, tmp):
    postern, agent = agents_postern, installed("codex")
    done, results = postern.run("--agent", "codex", "--task", editing_task(tmp / "t.json"), "--model",
                                script(tmp / "m.toml", *editing(agent)), "-n", "32", "--parallel", "32", *postern.flags, seconds=300)
    assert done.code == 0 and len(results) == 32, done
    assert {(r["fate"], r["reward"], r["turns"]) for r in results} == {("ok", 1, 4)}, results


NEW_AGENT = r'''
import json, os, subprocess, sys, urllib.request
messages = [{"role": "user", "content": sys.argv[sys.argv.index("--") + 1]}]
tools = [{"type": "function", "function": {"name": "sh", "parameters": {"type": "object", "properties": {}}}}]
config = json.load(open(os.environ["NEW_CONFIG"]))
print(json.dumps({"event": {"what": "hello"}, "model": config["model"]}))
while True:
    body = json.dumps({"model": config["model"], "messages": messages, "tools": tools}).encode()
    request = urllib.request.Request(config["url"] + "/chat/completions", body, {"content-type": "application/json"})
    message = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    messages.append(message)
    if not message.get("tool_calls"):
        print(json.dumps({"event": {"what": "end"}, "words": message["content"]}))
        break
    for call in message["tool_calls"]:
        command = json.loads(call["function"]["arguments"])["command"]
        print(json.dumps({"event": {"what": "calls"}, "tools": [{"tool": "sh", "input": command}]}))
        output = subprocess.run(command, shell=True, capture_output=True, text=True).stdout
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})
'''
NEW_SPEC = '''
name = "newcomer"
version = "1.0"
dialect = "chat"
[bundle]
kind = "script"
source = "build.sh"
[[files]]
to = "{home}/new.json"
format = "json"
content = '{"model": "{model}", "url": "{base_url}"}'
[run]
argv = ["/usr/bin/python3", "{bundle}/agent.py"]
argv_last = ["--", "{instruction}"]
instruction = "argument"
[run.env]
NEW_CONFIG = "{home}/new.json"
[output]
format = "jsonl"
type = "event.what"
[[output.rules]]
when = { event.what = "calls", ".tool" = "*" }
each = "tools"
kind = "tool_call"
name = ".tool"
text = ".input"
[[output.rules]]
when = { event.what = "end" }
kind = "done"
text = "words"
[exit]
needs = ["done"]
'''


GENERIC = r"""#!/usr/bin/python3
import json, os, subprocess, sys, urllib.request
def ask(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(request))
words = sys.stdin.read()
assert words == open(os.environ["INSTRUCTION_FILE"]).read()
message = {"role": "user", "content": words}
said = ask(os.environ["OPENAI_BASE_URL"] + "/chat/completions", {"model": os.environ["OPENAI_MODEL"], "messages": [message]})
command = said["choices"][0]["message"]["content"]
subprocess.run(["sh", "-c", command], check=True, cwd=os.environ["AGENT_WORKDIR"])
said = ask(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages",
           {"model": os.environ["ANTHROPIC_MODEL"], "max_tokens": 9, "messages": [message, {"role": "assistant", "content": command}, message]})
print(said["content"][0]["text"])
"""


def test_any_program_that_reads_a_base_url_runs_with_the_generic_spec(postern, tmp):
    (tmp / "m.toml").write_text('[[rule]]\n[[rule.turns]]\nsay = "echo yes > answer"\n[[rule.turns]]\nsay = "Finished."\n')
    task_ = task(tmp / "t.json", instruction=INSTRUCTION, files=[{"path": "bin/agent", "content": GENERIC, "mode": "0755"}],
                 env={"PATH": "/app/bin:/usr/bin:/bin"}, verify=["grep -q yes /app/answer", "! test -e /app/pwned"])
    done, results = postern.run("--agent", "generic", "--task", task_, "--model", f"script:{tmp / 'm.toml'}", *postern.flags)
    assert results[0]["fate"] == "ok" and results[0]["reward"] == 1, (done, tail_of(postern, results[0]))
    assert results[0]["final_text"].strip() == "Finished."
    recorded, _ = records(postern, results[0])
    assert [call["dialect"] for call in recorded] == ["chat", "messages"]


def test_a_package_nobody_here_knew_becomes_an_agent_by_the_example_in_the_docs(postern, tmp):
    """llm from PyPI: built into the cache of the agents, as they are."""
    spec = str(lib.REPOSITORY / "docs" / "examples" / "agent-llm.toml")
    CACHE.mkdir(parents=True, exist_ok=True)
    done = lib.Postern(CACHE)("agents", "install", spec, seconds=900)
    if done.code:
        must(f"llm cannot be installed here (pip and the network are needed once): {done.error.strip()}")
    (postern.home / "bundles").symlink_to(CACHE / "bundles")
    task_ = task(tmp / "t.json", instruction=INSTRUCTION, system=SYSTEM, verify=["grep -q yes /app/answer", "! test -e /app/pwned"])
    model = script(tmp / "m.toml", calls(("shell", {"command": "echo yes > /app/answer"})), "Finished.", name=MODEL)
    done, results = postern.run("--agent", spec, "--task", task_, "--model", model, *postern.flags)
    assert results[0]["fate"] == "ok" and results[0]["reward"] == 1, (done, tail_of(postern, results[0]))
    assert results[0]["final_text"].strip() == "Finished." and results[0]["turns"] == 2
    recorded, _ = records(postern, results[0])
    assert [m["content"] for m in recorded[0]["request"]["messages"]] == [SYSTEM, INSTRUCTION]
    assert recorded[0]["request"]["model"] == MODEL


def test_a_new_agent_is_a_data_file(postern, tmp):
    (tmp / "agent.py").write_text(NEW_AGENT)
    (tmp / "build.sh").write_text(f"cp {tmp}/agent.py .\n")
    (tmp / "newcomer.toml").write_text(NEW_SPEC)
    spec = str(tmp / "newcomer.toml")
    task_ = task(tmp / "t.json", instruction=INSTRUCTION, verify=["grep -q yes /app/answer", "! test -e /app/pwned"])
    model = script(tmp / "m.toml", calls(("sh", {"command": "echo yes > /app/answer"})), "Finished.")
    refused = postern("run", "--json", "--agent", spec, "--task", task_, "--model", model)
    assert refused.code == lib.EXIT_NOT_FOUND and "postern agents install" in refused.error, refused
    done = postern("agents", "install", spec)
    assert done.code == 0, done
    done, results = postern.run("--agent", spec, "--task", task_, "--model", model, *postern.flags)
    assert results[0]["fate"] == "ok" and results[0]["reward"] == 1, (done, results)
    assert results[0]["final_text"] == "Finished."
    recorded, events = records(postern, results[0])
    assert recorded[0]["request"]["messages"][0]["content"] == INSTRUCTION
    assert [e["name"] for e in events if e["kind"] == "tool_call"] == ["sh"]


# ---------------------------------------------------------------- the Agent Client Protocol
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


def test_a_bundle_that_cannot_be_built_leaves_nothing(postern, tmp):
    (tmp / "build.sh").write_text("echo half > half\necho this is why >&2\nexit 7\n")
    (tmp / "newcomer.toml").write_text(NEW_SPEC)
    done = postern("agents", "install", str(tmp / "newcomer.toml"))
    assert done.code != 0 and "this is why" in done.error, done
    assert [p.name for p in (postern.home / "bundles").iterdir()] == [".lock"]


def test_a_file_with_another_checksum_is_not_installed(postern, tmp):
    (tmp / "program").write_text("#!/bin/sh\n")
    spec = NEW_SPEC.replace('"script"\nsource = "build.sh"', '"binary"\nsource = "program"\nsha256 = "%s"' % ("0" * 64))
    (tmp / "newcomer.toml").write_text(spec)
    done = postern("agents", "install", str(tmp / "newcomer.toml"))
    assert done.code == lib.EXIT_INPUT and "sha256" in done.error, done
    assert [p.name for p in (postern.home / "bundles").iterdir()] == [".lock"]
