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
