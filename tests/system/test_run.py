"""`postern run` and its friends: results, rewards, fates, what is written, what is never written."""

import http.server
import json
import math
import os
import pathlib
import re
import shlex
import signal
import socket
import threading

import pytest

import postern as lib
from postern import EXIT_CANCELLED, bash, must, script, task, until

FIELDS = {"rollout_id", "task", "agent", "model", "mode", "backend", "fate", "stage", "reward", "calls", "turns", "tries"}


@pytest.fixture
def solved(tmp):
    """A task and a model that solves it."""
    return (task(tmp / "task.json", name="touch", verify=["test -f /app/solved", "test -s /app/solved"]),
            script(tmp / "good.toml", bash("echo yes > /app/solved"), "It is done."))


def reward_of(result):
    value = result["reward"]
    return value["value"] if isinstance(value, dict) else value


def run(postern, task_, model, *more, **options):
    return postern.run("--agent", "mini", "--task", task_, "--model", model, *more, **options)


def test_a_solved_task_has_its_reward(postern, solved):
    done, results = run(postern, *solved)
    assert done.code == 0, done
    assert len(results) == 1, done
    assert FIELDS <= set(results[0]), sorted(FIELDS - set(results[0]))
    assert results[0]["fate"] == "ok" and reward_of(results[0]) == 1, results
    assert results[0]["turns"] == 2 and results[0]["calls"] >= 2, results


def test_an_unsolved_task_has_reward_0_and_is_no_failure(postern, solved, tmp):
    done, results = run(postern, solved[0], script(tmp / "bad.toml", bash("true"), "I gave up."))
    assert results[0]["fate"] == "ok" and reward_of(results[0]) == 0, results


def test_the_reward_is_the_part_that_passed(postern, tmp):
    task_ = task(tmp / "t.json", verify=["true", "false", "true", "true"])
    _, results = run(postern, task_, script(tmp / "m.toml", "Done."))
    assert reward_of(results[0]) == 0.75, results


def test_many_rollouts_come_back_once_each(postern, solved):
    done, results = run(postern, *solved, "-n", "12", "--parallel", "6")
    assert done.code == 0, done
    assert len(results) == 12 and len({r["rollout_id"] for r in results}) == 12, done
    assert all(reward_of(r) == 1 for r in results)
    assert len(postern.rollouts()) == 12
    for folder in postern.rollouts():
        written = json.loads((folder / "result.json").read_text())
        assert written["rollout_id"] == folder.name
        calls = lib.json_lines((folder / "calls.jsonl").read_bytes())
        assert len(calls) == written["calls"] and all(c["state"] == "answered" for c in calls)


def test_json_goes_to_stdout_and_everything_else_to_stderr(postern, solved):
    done, results = run(postern, *solved, "-n", "2")
    assert len(done.out.splitlines()) == 2 and all(isinstance(r, dict) for r in results)


def test_without_json_people_get_lines_and_a_summary(postern, solved):
    done = postern("run", "--agent", "mini", "--task", solved[0], "--model", solved[1], "-n", "2", seconds=120)
    assert done.code == 0, done
    assert "\x1b" not in done.text + done.error, "no terminal, no escape sequences"
    assert re.search(r"reward", done.text + done.error, re.I), done


def test_a_task_can_come_from_stdin(postern, tmp, solved):
    done, results = postern.run("--agent", "mini", "--task", "-", "--model", solved[1],
                                stdin=pathlib.Path(solved[0]).read_bytes())
    assert reward_of(results[0]) == 1, done


def test_ls_and_show_tell_what_happened(postern, solved):
    _, results = run(postern, *solved)
    listed = postern("ls")
    assert listed.code == 0 and results[0]["rollout_id"][:8] in listed.text, listed
    shown = postern("show", results[0]["rollout_id"])
    assert shown.code == 0 and "It is done." in shown.text and "echo yes" in shown.text, shown
    with open(postern.home / "rollouts" / results[0]["rollout_id"] / "calls.jsonl", "a") as lines:
        lines.write('{"call_id":"c-1","num\n')
    shown = postern("show", results[0]["rollout_id"])
    assert shown.code == 0 and "It is done." in shown.text and "of calls.jsonl cannot be read" in shown.text, shown


# ---------------------------------------------------------------- fates
def test_a_setup_that_fails_has_no_reward(postern, tmp):
    task_ = task(tmp / "t.json", setup=["echo preparing", "exit 3", "touch /app/never"], verify=["true"])
    _, results = run(postern, task_, script(tmp / "m.toml", "Done."))
    assert results[0]["fate"] == "setup_failed" and reward_of(results[0]) is None, results
    assert [c["code"] for c in results[0]["setup"]] == [0, 3], results


def test_an_agent_that_takes_too_long_is_timed_out_and_still_scored(postern, tmp):
    task_ = task(tmp / "t.json", timeout="6s", verify=["test -f /app/early"])
    _, results = run(postern, task_, script(tmp / "m.toml", bash("touch /app/early; sleep 600"), "Done."))
    assert results[0]["fate"] == "timed_out" and reward_of(results[0]) == 1, results


def test_a_model_that_fails_is_an_upstream_failure_without_reward(postern, tmp):
    (tmp / "m.toml").write_text('[[rule]]\n[rule.error]\nstatus = 400\nmessage = "no"\nshow = true\n')
    task_ = task(tmp / "t.json", verify=["true"])
    _, results = run(postern, task_, f"script:{tmp / 'm.toml'}")
    assert results[0]["fate"] in ("upstream_failed", "agent_failed"), results
    if results[0]["fate"] == "upstream_failed":
        assert reward_of(results[0]) is None


def test_a_replayed_rollout_takes_its_answers_from_the_record_and_says_where_it_parts(postern, tmp):
    model = script(tmp / "m.toml", bash("echo hello > out.txt; cat out.txt"), "done")
    first = task(tmp / "t.json", instruction="write hello", verify=["grep hello out.txt"])
    _, results = run(postern, first, model)
    old = results[0]["id"]
    done, results = run(postern, first, f"replay:{old}")
    assert (done.code, results[0]["reward"], results[0]["cause"], results[0]["calls"]) == (0, 1, None, 2)
    other = task(tmp / "u.json", instruction="write HELLO", verify=["grep hello out.txt"])
    _, results = run(postern, other, f"replay:{old}")
    assert results[0]["class"] == "ok" and results[0]["reward"] == 1
    assert results[0]["cause"].startswith("call 1 differs from the record's call 1 in message 2")
    assert "write HELLO" in results[0]["cause"] and "write hello" in results[0]["cause"]


def test_a_root_that_is_missing_is_an_infrastructure_failure_without_reward(postern, tmp):
    task_ = task(tmp / "t.json", image="dir:/does/not/exist", verify=["true"])
    done, results = run(postern, task_, script(tmp / "m.toml", "Done."))
    assert done.code != 0, done
    for result in results:
        assert result["fate"] == "infra_failed" and reward_of(result) is None, results
        assert "/does/not/exist" in result["error"], result


def test_turns_are_limited(postern, tmp):
    task_ = task(tmp / "t.json", turns_max=2, verify=["true"])
    _, results = run(postern, task_, script(tmp / "m.toml", *[bash("true")] * 6, "Done."))
    assert results[0]["fate"] == "limit" and results[0]["turns"] <= 2, results


def test_a_verifier_that_breaks_gives_no_reward(postern, tmp):
    folder = tmp / "task"
    (folder / "tests").mkdir(parents=True)
    (folder / "task.toml").write_text('version = "1.0"\n')
    (folder / "instruction.md").write_text("Do it.\n")
    (folder / "tests" / "test.sh").write_text("#!/bin/sh\nmkdir -p /logs/verifier\necho nan > /logs/verifier/reward.txt\n")
    _, results = run(postern, str(folder), script(tmp / "m.toml", "Done."))
    value = reward_of(results[0])
    assert value is None or math.isfinite(value) and results[0]["fate"] != "ok", results


def harbor(folder, test, **toml):
    (folder / "tests").mkdir(parents=True)
    (folder / "task.toml").write_text('version = "1.0"\n' + "".join(f"{k} = {json.dumps(v)}\n" for k, v in toml.items()))
    (folder / "instruction.md").write_text("Make /app/solved.\n")
    (folder / "tests" / "test.sh").write_text("#!/bin/sh\nmkdir -p /logs/verifier\n" + test)
    return str(folder)


SCORE = "if [ -f /app/solved ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"


# ---------------------------------------------------------------- 23: reward tampering
TAMPERING = {
    "writes the reward": "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; "
                         "echo '{\"reward\": 1}' > /logs/verifier/reward.json",
    "leaves a daemon": "(setsid sh -c 'while :; do mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; "
                       "touch /app/x; sleep 0.01; done' >/dev/null 2>&1 &)",
    "brings its own tests": "mkdir -p /tests; printf '#!/bin/sh\\nmkdir -p /logs/verifier; echo 1 > "
                            "/logs/verifier/reward.txt\\n' > /tests/test.sh; chmod +x /tests/test.sh",
    "makes links": "rm -rf /logs/verifier; mkdir -p /app/v /logs; ln -s /app/v /logs/verifier; echo 1 > /app/v/reward.txt",
    "changes the shell's start": "echo 'mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; exit 0' "
                                 "| tee ~/.profile ~/.bashrc ~/.shrc; export ENV=$HOME/.profile",
    "puts programs in front": "mkdir -p /usr/local/bin ~/bin; for p in test mkdir echo sh; do printf '#!/bin/true\\n' > "
                              "/usr/local/bin/$p; chmod +x /usr/local/bin/$p; done; true",
}


@pytest.mark.parametrize("how", TAMPERING)
def test_23_the_reward_cannot_be_written_by_the_agent(postern, tmp, how):
    task_ = harbor(tmp / "task", SCORE)
    _, results = run(postern, task_, script(tmp / "m.toml", bash(TAMPERING[how]), "Done."))
    assert results[0]["fate"] == "ok" and reward_of(results[0]) in (0, None), results


def test_23_python_of_the_verifier_takes_nothing_of_the_agents(postern, tmp):
    """Code in the agent's own site-packages runs in every Python the agent starts, and in none of the verifier's."""
    evil = ("d=$(python3 -m site --user-site); mkdir -p $d; echo 'import os; os._exit(0)' > $d/usercustomize.py; "
            "cp $d/usercustomize.py $d/sitecustomize.py; python3 -c 'import sys; sys.exit(1)'; echo inside-$?")
    task_ = task(tmp / "t.json", verify=["python3 -c 'import sys; sys.exit(1)'"])
    _, results = run(postern, task_, script(tmp / "m.toml", bash(evil), "Done."))
    log = (postern.rollouts()[0] / "agent.log").read_text(errors="replace")
    assert "inside-0" in log, "the counter-proof: it does work for the agent itself"
    assert results[0]["fate"] == "ok" and reward_of(results[0]) == 0, results


def test_23_the_same_task_can_be_solved(postern, tmp):
    """The counter-proof of the above: the verifier does give 1 when the work is done."""
    task_ = harbor(tmp / "task", SCORE)
    _, results = run(postern, task_, script(tmp / "m.toml", bash("touch /app/solved"), "Done."))
    assert reward_of(results[0]) == 1, results


def test_23_the_verifiers_files_are_not_there_while_the_agent_works(postern, tmp):
    task_ = harbor(tmp / "task", "echo a-secret-test > /dev/null\n" + SCORE)
    _, results = run(postern, task_, script(
        tmp / "m.toml", bash("ls -laR /tests 2>&1; grep -r a-secret-test / --include=test.sh 2>/dev/null"), "Done."))
    log = "".join(p.read_text(errors="replace") for p in postern.rollouts()[0].glob("*.jsonl"))
    assert "a-secret-test >" not in log and '"test.sh"' not in log, log[-3000:]
    assert reward_of(results[0]) == 0


# ---------------------------------------------------------------- 20: the way out, during a rollout
def test_20_connect_is_refused_at_the_inlet_and_counted(postern, tmp):
    ask = ("exec 3<>/dev/tcp/127.0.0.1/13131; printf 'CONNECT evil.example:443 HTTP/1.1\\r\\nHost: evil.example:443\\r\\n\\r\\n'"
           " >&3; head -1 <&3; getent hosts telemetry.example; echo looked-up-$?")
    _, results = run(postern, task(tmp / "t.json"), script(tmp / "m.toml", bash(f"bash -c {shlex.quote(ask)}"), "Done."))
    text = "".join(p.read_text(errors="replace") for p in postern.rollouts()[0].glob("*.jsonl"))
    assert "403" in text and "looked-up-2" in text, text[-3000:]
    assert "evil.example" in json.dumps(results[0]["hosts"]), results
    assert "telemetry.example" in json.dumps(results[0]["hosts"]), results


@pytest.mark.parametrize("request_", ["GET /v1/rollouts", "GET /metrics", "POST /v1/gate/take", "GET /reset", "GET /state",
                                      "GET /health", "GET /../../etc/passwd", "DELETE /v1/rollouts"])
def test_20_nothing_but_model_routes_is_at_the_inlet(postern, tmp, request_):
    ask = (f"exec 3<>/dev/tcp/127.0.0.1/13131; printf '{request_} HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 0\\r\\n"
           "Connection: close\\r\\n\\r\\n' >&3; read -r _ code _ <&3; echo answered-$code")
    run(postern, task(tmp / "t.json"), script(tmp / "m.toml", bash(f"bash -c {shlex.quote(ask)}"), "Done."))
    text = "".join(p.read_text(errors="replace") for p in postern.rollouts()[0].glob("*.jsonl"))
    codes = set(re.findall(r"answered-(\d+)", text))
    assert codes and all(c.startswith("4") for c in codes), text[-2000:]


# ---------------------------------------------------------------- secrets
class ModelServer(http.server.BaseHTTPRequestHandler):
    """A model server that says one thing and remembers what it was told. `troubles` come first, one per request."""

    seen = []
    troubles = []
    protocol_version = "HTTP/1.1"

    def in_trouble(self):
        trouble = ModelServer.troubles.pop(0) if ModelServer.troubles else None
        if trouble == "cut":
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            piece = b'data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,' \
                    b'"delta":{"role":"assistant","content":"half of a sen"},"finish_reason":null}]}\n\n'
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
            self.close_connection = True
        elif trouble:
            self.send_response(trouble)
            self.send_header("retry-after", "1")
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")
        return trouble

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        ModelServer.seen.append((dict(self.headers), json.loads(body)))
        if self.in_trouble():
            return
        message = {"role": "assistant", "content": "All done."}
        if json.loads(body).get("stream"):
            chunks = [{"choices": [{"index": 0, "delta": message, "finish_reason": None}]},
                      {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}]
            data = b"".join(b"data: " + json.dumps({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m",
                                                     **c}).encode() + b"\n\n" for c in chunks) + b"data: [DONE]\n\n"
            kind = "text/event-stream"
        else:
            data = json.dumps({"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [
                {"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
            kind = "application/json"
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def model_server():
    ModelServer.seen, ModelServer.troubles = [], []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), ModelServer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1#the-model"
    server.shutdown()
    server.server_close()


def found_in(folder, word):
    hits = []
    for path in pathlib.Path(folder).rglob("*"):
        if path.is_file() and word.encode() in path.read_bytes():
            hits.append(str(path))
    return hits


@pytest.mark.parametrize("how", ["--key-env", "--key-file"])
def test_a_key_reaches_the_model_server_and_nothing_else(postern, tmp, model_server, how):
    secret = f"sk-marked-{os.getpid()}-secret"
    env = {"MARKED_KEY": secret} if how == "--key-env" else {}
    (tmp / "key").write_text(secret + "\n")
    task_ = task(tmp / "t.json", verify=["! env | grep -q marked", "true"])
    done, results = run(postern, task_, model_server, how, "MARKED_KEY" if how == "--key-env" else str(tmp / "key"),
                        "--log.level", "debug", env=env)
    assert results and results[0]["fate"] == "ok", done
    assert any(secret in h.get("Authorization", h.get("authorization", "")) for h, _ in ModelServer.seen), "the key was used"
    assert secret.encode() not in done.out + done.err
    assert found_in(postern.home, secret) == []
    # The detector detects.
    (postern.home / "leak").write_text(secret)
    assert len(found_in(postern.home, secret)) == 1


def test_sampling_is_imposed_in_proxy_and_refused_elsewhere(postern, tmp, model_server):
    task_ = task(tmp / "t.json", verify=["true"])
    asked = '{"temperature": 0.25, "top_p": 0.5, "max_tokens": 77, "thinking": false}'
    done, results = run(postern, task_, model_server, "--mode", "proxy", "--sampling", asked)
    assert results and results[0]["fate"] == "ok", done
    bodies = [body for _, body in ModelServer.seen]
    assert bodies, "the model server was asked"
    for body in bodies:
        assert body["temperature"] == 0.25 and body["top_p"] == 0.5, body
        assert 77 in (body.get("max_tokens"), body.get("max_completion_tokens")), body
        assert body["chat_template_kwargs"]["enable_thinking"] is False, body
    for mode, sampling, word in [("black_box", asked, "black_box"), ("proxy", '{"temperature": -1}', "sampling.temperature"),
                                 ("proxy", '{"max_tokens": 0}', "sampling.max_tokens"), ("proxy", '{"thinking": null}', "sampling.thinking"),
                                 ("proxy", '{"top_logprobs": 5}', "top_logprobs"), ("proxy", "[", "sampling")]:
        done, results = run(postern, task_, model_server, "--mode", mode, "--sampling", sampling)
        assert done.code != 0 and not results and word.encode() in done.err, (sampling, done)


@pytest.mark.parametrize("trouble", [503, 429, 500, "cut"])
def test_troubles_of_the_model_server_are_survived(postern, tmp, model_server, trouble):
    """Absorbed by trying again, or shown in a way that makes the agent try again; never taken for an answer."""
    ModelServer.troubles = [trouble, trouble]
    done, results = run(postern, task(tmp / "t.json", verify=["true"]), model_server)
    assert results[0]["fate"] == "ok" and reward_of(results[0]) == 1, done
    assert len(ModelServer.seen) == 3
    answered = [c for c in lib.json_lines((postern.rollouts()[0] / "calls.jsonl").read_bytes()) if c["state"] == "answered"]
    assert len(answered) == 1 and "half of a sen" not in json.dumps(answered), answered


def test_a_model_server_that_is_not_there_is_named_and_gives_no_reward(postern, tmp):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        done, results = run(postern, task(tmp / "t.json", verify=["true"]), f"http://127.0.0.1:{port}/v1#m",
                            "--gateway.retries-max", "1", "--timeout", "6s")
    assert done.code == 1 and results[0]["fate"] == "upstream_failed" and reward_of(results[0]) is None, done
    assert str(port) in results[0]["error"] or "refused" in results[0]["error"].lower(), results


HOSTILE = r"""head -c 300000 /dev/urandom; printf '\033[2J\033]0;owned\007\000\377\376{"fate":"ok","reward":1}\n'; """ \
          r"""head -c 20000000 /dev/zero | tr '\0' x; printf '\n{"type":"done","reward":1}\n'"""


def test_hostile_output_stays_data(postern, tmp):
    """Control sequences, bytes that are no text, lines without end, lines that look like ours."""
    done, results = run(postern, task(tmp / "t.json", verify=["false"]), script(tmp / "m.toml", bash(HOSTILE), "Done."))
    assert len(results) == 1 and results[0]["fate"] == "ok" and reward_of(results[0]) == 0, done
    for path in postern.rollouts()[0].glob("*.jsonl"):
        lib.json_lines(path.read_bytes())
    size = sum(p.stat().st_size for p in postern.rollouts()[0].rglob("*") if p.is_file())
    assert size < 64 << 20, size
    for words in (["show", results[0]["rollout_id"]], ["ls"]):
        shown = postern(*words)
        assert shown.code == 0 and b"\x1b" not in shown.out and b"\x07" not in shown.out, words


def test_the_secrets_of_a_tasks_environment_are_not_logged(postern, tmp):
    """env of the verifier only: the agent does not see it, the folder of the rollout does not hold it."""
    secret = f"verifier-{os.getpid()}-secret"
    (tmp / "t.toml").write_text('name = "t"\ninstruction = "Do it."\n[verifier]\ncommands = ["test -n \\"$ANSWER\\""]\n'
                                f'[verifier.env]\nANSWER = "{secret}"\n')
    _, results = run(postern, str(tmp / "t.toml"), script(tmp / "m.toml", bash("env; cat /proc/*/environ"), "Done."))
    assert reward_of(results[0]) == 1, results
    assert found_in(postern.home / "rollouts", secret) == []


# ---------------------------------------------------------------- ends
def test_ctrl_c_leaves_no_sandbox_and_exits_130(postern, tmp):
    mark = f"54321.{os.getpid()}"
    model = script(tmp / "m.toml", bash(f"sleep {mark}"), "Done.")
    process = postern.start("run", "--json", "--agent", "mini", "--task", task(tmp / "t.json", verify=["true"]), "--model",
                            model, "-n", "6", "--parallel", "4")
    until(lambda: len(lib.marked(mark, "sleep")) == 4, 60, "four agents at work")
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert process.returncode == EXIT_CANCELLED, error
    assert lib.processes(mark) == [], "nothing runs on"
    results = lib.json_lines(out)
    assert len(results) == 6 and all(r["fate"] == "cancelled" and reward_of(r) is None for r in results), out


def test_the_demo_shows_rewards_that_differ(postern):
    done = postern("demo", "--json", seconds=120)
    assert done.code == 0, done
    results = lib.json_lines(done.out)
    rewards = {reward_of(r) for r in results}
    assert len(results) >= 5 and len(rewards) >= 2, rewards
    assert len({r["task"] for r in results}) >= 5
    assert all(r["fate"] in ("ok", "agent_failed", "timed_out", "limit") for r in results), results


def test_the_demo_is_fine_on_a_terminal(postern):
    env = postern.environment({"TERM": "xterm-256color"})
    terminal = lib.Terminal([lib.PROGRAM, "demo"], env=env)
    terminal.size(50, 120)
    assert terminal.wait(120) == 0, terminal.output[-2000:]
    assert b"\x1b[" in terminal.output
    terminal.close()


def test_shipped_tasks_and_agents_are_sound(bare_postern):
    tasks = sorted(p for p in (lib.REPOSITORY / "tasks").iterdir() if p.is_dir())
    assert len(tasks) >= 5
    for path in tasks:
        done = bare_postern("tasks", "check", str(path))
        assert done.code == 0, done
    agents = sorted((lib.REPOSITORY / "agents").glob("*.toml"))
    assert agents
    for path in agents:
        done = bare_postern("agents", "check", str(path))
        assert done.code == 0, done


# ---------------------------------------------------------------- an ordinary user
def as_user(postern, *args, **options):
    become = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all"]
    return lib.command([*become, lib.PROGRAM, *args], env=postern.environment({"HOME": str(postern.home)}), **options)


def test_an_ordinary_user_can_do_it_too(home, tmp):
    if os.geteuid() != 0:
        must("this becomes another user, which needs root")
    os.chmod(home, 0o777)
    postern = lib.Postern(home)
    weaker = ["--isolation", "no-limits"]
    done = as_user(postern, "exec", *weaker, "--", "/bin/sh", "-c", "id -u; exit 7")
    assert done.code == 7 and done.out.strip().isdigit(), done
    done = as_user(postern, "exec", *weaker, "--", "cat", "/proc/self/status")
    fields = dict(line.split(":", 1) for line in done.lines() if ":" in line)
    assert int(fields["CapEff"], 16) == int(fields["CapBnd"], 16) == 0 and fields["Seccomp"].strip() == "2", done
    os.chmod(tmp, 0o755)
    for folder in tmp.parents:
        if str(folder).startswith("/tmp/"):
            os.chmod(folder, 0o755)
    task_ = task(tmp / "t.json", verify=["test -f /app/solved"])
    model = script(tmp / "m.toml", bash("touch /app/solved"), "Done.")
    done = as_user(postern, "run", "--json", *weaker, "--agent", "mini", "--task", task_, "--model", model, seconds=90)
    results = lib.json_lines(done.out)
    assert results and reward_of(results[0]) == 1, done


def test_an_ordinary_user_without_cgroups_is_refused_by_name(home):
    """Fails closed: full isolation without limits is refused, and the sentence says how to accept less."""
    if os.geteuid() != 0:
        must("this becomes another user, which needs root")
    os.chmod(home, 0o777)
    done = as_user(lib.Postern(home), "exec", "--", "true")
    if done.code == 0:
        return  # this machine delegates cgroups to ordinary users
    assert done.code == lib.EXIT_OWN, done
    assert "no-limits" in lib.one_sentence(done)
