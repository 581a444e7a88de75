"""A bad night: 2,000 rollouts with every kind of fault, on one server; then more of them while the server is killed again and again.

Every rollout is of a kind that says how it must end. It comes back exactly once, with that class; without a reward where
infrastructure failed; and when all are over nothing is left: no sandbox, process, mount, cgroup, descriptor or file, and the
server is as large as it was.

The agent is a shell that runs its instruction. What a fault needs from outside (a sandbox that is killed, a rollout that is
cancelled) the agent asks for itself, through the model: the model server of this file does it while the call is open.

SOAK=N changes the number of rollouts (2000), SOAK_KILLS that of server kills (6)."""

import collections
import contextlib
import http.server
import json
import os
import pathlib
import random
import re
import signal
import threading
import time

import pytest

import postern as lib
from postern import Census, until
from test_python_client import pc

COUNT = int(os.environ.get("SOAK", "2000"))
KILLS = int(os.environ.get("SOAK_KILLS", "6"))
KILLED = "the server that ran it died"

AGENT = """
name = "shell"
[run]
argv = ["/bin/bash", "{instruction_file}"]
timeout = "5m"
"""

# Asks the model, with the kind's name and the rollout's number, and fails when the answer is none. A connection that breaks before
# the answer is opened again, as every client library does it (RETRIES times).
ASK = r"""
trap '' PIPE
body='{"model":"m","messages":[{"role":"user","content":"NAME NUMBER"}]}'
for try in {0..RETRIES}; do
    status=
    exec 3<>/dev/tcp/127.0.0.1/13131 || { sleep 0.2; continue; }
    printf 'POST /v1/chat/completions HTTP/1.1\r\nHost: m\r\nConnection: close\r\nContent-Type: application/json\r\n' >&3
    printf 'Content-Length: %d\r\n\r\n%s' "${#body}" "$body" >&3
    IFS= read -r -u 3 status && break
    exec 3>&-
    sleep 0.2
done 2>/dev/null
cat <&3 > answer
[[ $status == *" 200 "* ]]
"""


class Kind:
    """A way to go, and how it must end. `task` holds fields of the task, `order` of the submission."""

    retries = 100

    def __init__(self, name, weight, fate, reward, script="true", stage=None, order=None, **task):
        self.name, self.weight, self.fate, self.reward, self.stage = name, weight, fate, reward, stage
        self.script, self.order, self.task = script, order or {}, task

    def make(self, number, folder):
        if self.name == "verifier-crashes":
            return str(folder / "verifier-crashes")
        script = self.script.replace("NAME", self.name).replace("NUMBER", str(number)).replace("RETRIES", str(self.retries))
        return {"name": self.name, "instruction": script, "verify": ["true"], **self.task}


KINDS = [
    Kind("fine", 46, "ok", 1),
    Kind("wrong", 10, "ok", 0, verify=["false"]),
    Kind("asks", 6, "ok", 1, ASK),
    Kind("model-fails-once", 3, "ok", 1, ASK),
    Kind("model-fails", 4, "upstream_failed", None, ASK, stage="running"),
    Kind("agent-crashes", 6, "agent_failed", 1, "kill -SEGV $$", stage="running"),
    Kind("agent-exits", 4, "agent_failed", 0, "exit 7", stage="running", verify=["false"]),
    Kind("agent-hangs", 2, "timed_out", 1, "sleep 1000", stage="running", order={"wall_ms_max": 300}),
    Kind("agent-eats", 1, "out_of_memory", 1, "x=$(head -c 200M /dev/zero | tr '\\0' x)", stage="running",
         environment={"memory_mb": 48}),
    Kind("setup-fails", 3, "setup_failed", None, stage="setup", setup=["exit 3"]),
    Kind("verifier-says-nan", 3, "infra_failed", None, stage="verifying",
         verify=["mkdir -p /logs/verifier; echo nan > /logs/verifier/reward.txt"]),
    Kind("verifier-crashes", 3, "infra_failed", None, stage="verifying"),
    Kind("sandbox-lost", 4, "infra_failed", None, f"(exec -a soak-lost-NUMBER- sleep 1000) &\n{ASK}", stage="running"),
    Kind("no-sandbox", 2, "infra_failed", None, stage="provisioning", environment={"image": "dir:/nonexistent/root"}),
    Kind("cancelled", 3, "cancelled", None, ASK, stage="running"),
]
BY_NAME = {kind.name: kind for kind in KINDS}
REWARDED = {"ok", "agent_failed", "timed_out", "limit", "stopped", "out_of_memory"}


def mixture(count, seed):
    """The kinds in fixed proportions, at least one of each, shuffled."""
    names = [kind.name for kind in KINDS for _ in range(max(1, kind.weight * count // 100))]
    names = (names + ["fine"] * count)[:count]
    random.Random(seed).shuffle(names)
    return names


def sandbox_of(mark):
    """The first process of the sandbox in which a process has `mark` as its name: the last ancestor in that PID namespace."""
    for pid in lib.processes(mark):
        with contextlib.suppress(OSError):
            space = os.readlink(f"/proc/{pid}/ns/pid")
            while True:
                parent = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
                if os.readlink(f"/proc/{parent}/ns/pid") != space:
                    return pid
                pid = parent
    return None


class Model(http.server.ThreadingHTTPServer):
    """The model server. Some of the calls it gets are orders."""

    daemon_threads, request_queue_size = True, 256

    def __init__(self, night):
        super().__init__(("127.0.0.1", 0), Handler)
        self.night, self.seen, self.killed = night, collections.Counter(), 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        pass  # the other side left: that is what this file is about

    def status_for(self, kind, number):
        self.seen[number] += 1
        if kind == "model-fails" or kind == "model-fails-once" and self.seen[number] == 1:
            return 500
        if kind == "sandbox-lost":
            os.kill(until(lambda: sandbox_of(f"soak-lost-{number}-"), 30, "the sandbox to kill"), signal.SIGKILL)
            self.killed += 1
        if kind == "cancelled":
            self.night.cancel(number)
        return 200


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        kind, number = asked["messages"][-1]["content"].split()
        status = self.server.status_for(kind, int(number))
        message = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
        answer = {"id": "x", "object": "chat.completion", "choices": [message]} if status == 200 else {"error": {"message": "no"}}
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Night:
    """A home, its server (the one of the moment), the model server, and what was submitted."""

    def __init__(self, home, tmp, flags):
        self.home, self.tmp = home, tmp
        self.flags = [*flags, "--gateway.retries-max", "1", "--rollout.parallel-max", "24"]
        self.ids, self.names, self.known = {}, {}, threading.Condition()  # by number
        self.server = self.client = None
        self.model = Model(self)
        (tmp / "shell.toml").write_text(AGENT)
        tests = tmp / "verifier-crashes" / "tests"
        tests.mkdir(parents=True)
        (tests / "test.sh").write_text("kill -SEGV $$\n")
        (tests.parent / "task.toml").write_text("")
        (tests.parent / "instruction.md").write_text("true\n")

    def start(self):
        self.server = pc.LocalServer(lib.PROGRAM, self.home, self.flags, 120)
        self.client = pc.Client(self.server.url, token_file=self.home / "token")

    def stop(self):
        self.client.close()
        code = self.server.stop(60)
        self.model.shutdown()
        self.model.server_close()
        return code

    def kill(self):
        self.server.process.kill()
        self.client.close()
        self.server.stop()
        self.start()

    def submit(self, names):
        """Their numbers."""
        first = len(self.ids)
        for number, name in enumerate(names, first):
            kind = BY_NAME[name]
            id = self.client.submit(str(self.tmp / "shell.toml"), kind.make(number, self.tmp), mode="black_box",
                                    model=f"http://127.0.0.1:{self.model.server_port}/v1#m", run="soak", index=number, **kind.order)
            with self.known:
                self.ids[number], self.names[number] = id, name
                self.known.notify_all()
        return range(first, first + len(names))

    def cancel(self, number):
        with self.known:
            assert self.known.wait_for(lambda: number in self.ids, 60)
        with contextlib.suppress(pc.PosternError):  # the server may have been killed just now
            self.client.cancel(self.ids[number])

    def numbers(self, pattern):
        return [float(found) for found in re.findall(rf"^{pattern} (\S+)$", self.client.metrics(), re.M)]

    def at_work(self):
        return sum(self.numbers(r"postern_rollouts\{[^}]*\}"))

    def rows(self):
        return list(self.client.all_rollouts(limit=1000))

    def quiet(self):
        """Nothing runs, nothing is held for anybody: what the server is when it has nothing to do."""
        until(lambda: self.at_work() == 0, 900, "the rollouts to end")
        until(lambda: self.numbers("postern_gateway_sessions") == [0], 60, "the sessions to close")
        self.client.close()
        pid = self.server.process.pid
        keeper, = lib.main_keepers(self.home)
        until(lambda: settled_descriptors(pid) and settled_descriptors(keeper), 60, "the descriptors to settle")
        return {"rss": lib.status_of(pid, "VmRSS"), "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
                "threads": lib.status_of(pid, "Threads"), "keeper rss": lib.status_of(keeper, "VmRSS"),
                "keeper descriptors": len(os.listdir(f"/proc/{keeper}/fd"))}


class Finals:
    """Listens to all events and counts how often each rollout is said to be over."""

    def __init__(self, client):
        self.client, self.seen, self.trouble = client, collections.Counter(), None
        self.thread = threading.Thread(target=self.listen, daemon=True)
        self.thread.start()

    def listen(self):
        try:
            for event in self.client.events():
                if event.kind == "final":
                    self.seen[event.data["rollout"]] += 1
                elif event.kind == "dropped":
                    self.trouble = event
        except pc.PosternError as error:
            self.trouble = self.trouble or error


def settled_descriptors(pid):
    counts = []
    for _ in range(5):
        counts.append(len(os.listdir(f"/proc/{pid}/fd")))
        time.sleep(0.05)
    return len(set(counts)) == 1


@pytest.fixture
def night(home, tmp, sandbox_works):
    night = Night(home, tmp, sandbox_works)
    night.start()
    yield night
    if night.server.process.poll() is None:
        night.stop()


def judge(night, killed=False):
    """Every rollout came back, once, and as its kind says. Returns how many ended with the server that ran them."""
    rows = night.rows()
    assert len(rows) == len(night.ids) and {row["id"] for row in rows} == set(night.ids.values())
    rows = {row["id"]: row for row in rows}
    wrong, ended = [], 0
    for number, id in night.ids.items():
        kind, row = BY_NAME[night.names[number]], rows[id]
        result = json.loads((night.home / "rollouts" / id / "result.json").read_text())
        told = (result["fate"], result["reward"], result.get("failed_stage"))
        if killed and told[:2] == ("infra_failed", None) and result["error"].startswith(KILLED):
            ended += 1
        elif killed and kind.name == "cancelled" and told[:2] == ("ok", 1):
            continue  # the server died before it heard of it
        elif told != (kind.fate, kind.reward, kind.stage):
            wrong.append((number, kind.name, told, result.get("error"), result.get("gateway")))
        assert row["fate"] == result["fate"] and row["reward"] == result["reward"] and row["done_ms"], (row, result)
        assert result["fate"] in REWARDED or result["reward"] is None
    assert not wrong, f"{len(wrong)} of {len(night.ids)} did not end as they must: {wrong[:8]}"
    return ended


def nothing_left(night, census):
    """After the server has ended."""
    census.settled("soak-lost-")
    until(lambda: not lib.keepers(night.home), 60, "the keeper to go")
    left = [str(path) for path in (night.home / "rollouts").glob("*/*") if path.name == "owner" or path.name.endswith(".tmp")]
    assert not left, left[:5]


def test_2000_rollouts_with_faults(night):
    census = Census(night.home)
    finals = Finals(night.client)
    names = mixture(COUNT, 1)
    marks = [COUNT * quarter // 4 for quarter in (1, 2, 3, 4)]
    taken, done, began = {}, 0, time.monotonic()
    for mark in marks:
        night.submit(names[done:mark])
        done = mark
        taken[mark] = night.quiet()
    seconds = time.monotonic() - began
    assert judge(night) == 0
    assert night.numbers("postern_sandboxes") == [0]
    counted = sum(night.numbers(r"postern_rollouts_total\{[^}]*\}"))
    assert counted == COUNT, "each is counted once"
    until(lambda: sum(finals.seen.values()) >= COUNT or not finals.thread.is_alive(), 60, "the last event")
    assert finals.trouble is None and finals.seen == collections.Counter(night.ids.values()), "each end is told once"
    lost = [number for number, name in night.names.items() if name == "sandbox-lost"]
    assert night.model.killed == len(lost), "every sandbox that was to be killed was"
    print(f"{COUNT} rollouts in {seconds:.0f} s, {COUNT / seconds:.0f}/s: {json.dumps(taken)}")
    first, _, third, last = (taken[mark] for mark in marks)
    assert last["descriptors"] <= first["descriptors"] + 2 and last["threads"] <= first["threads"] + 8, taken
    # The keeper has a shelf of namespaces and groups for the next sandboxes, of which more or fewer are made ahead.
    assert last["keeper descriptors"] <= third["keeper descriptors"] + 16, taken
    # The last 1,000 results stay in memory; then it has its size.
    assert last["rss"] - third["rss"] < 4 << 10 and last["rss"] - first["rss"] < 24 << 10, taken
    assert last["keeper rss"] - first["keeper rss"] < 1 << 10, taken
    assert night.stop() == 0
    nothing_left(night, census)


def test_the_server_is_killed_again_and_again(night):
    census = Census(night.home)
    dice = random.Random(2)
    for round in range(KILLS):
        numbers = night.submit(mixture(40, 10 + round))
        enough = dice.randrange(len(numbers))
        until(lambda: night.at_work() <= len(numbers) - enough, 120, "some of them to be over")
        night.kill()
    night.submit(mixture(40, 10 + KILLS))
    night.quiet()
    ended = judge(night, killed=True)
    print(f"{KILLS} kills, {len(night.ids)} rollouts, {ended} of them ended with their server")
    # Most go on: what is lost was being made or taken apart at that very moment.
    assert ended <= KILLS * 40 // 5
    assert night.stop() == 0
    nothing_left(night, census)


def test_an_agent_that_does_not_ask_again_after_a_kill_has_no_reward(night):
    """Its call died with the server. That it gave up then is not its failure, and no lesson."""
    kind = BY_NAME["asks"]
    kind.retries = 0
    asked, go_on = threading.Event(), threading.Event()

    def hold(*_):
        asked.set()
        go_on.wait(60)
        return 200

    night.model.status_for = hold
    try:
        night.submit(["asks"])
        assert asked.wait(60)
        night.kill()
        result = night.client.wait(night.ids[0], 60)
    finally:
        go_on.set()
        kind.retries = Kind.retries
    assert result["fate"] == "infra_failed" and result["reward"] is None and result["error"].startswith(KILLED), result


def test_who_was_cancelled_stays_cancelled_when_the_server_dies(night):
    """The agent is told to go and takes its time; meanwhile the server dies. Its successor finds it gone and must know why."""
    stubborn = Kind("stubborn", 0, "cancelled", None, "trap '' TERM\n" + ASK + "exec -a soak-stubborn- sleep 1000", stage="running")
    BY_NAME["stubborn"] = stubborn
    asked = threading.Event()
    night.model.status_for = lambda *_: asked.set() or 200
    try:
        night.submit(["stubborn"])
        assert asked.wait(60)
        until(lambda: lib.processes("soak-stubborn-"), 30, "the agent to wait")
        night.client.cancel(night.ids[0])
        until(lambda: "cancelled" in (night.home / "rollouts" / night.ids[0] / "events.jsonl").read_text(), 30, "the cancellation")
        night.kill()
        result = night.client.wait(night.ids[0], 60)
    finally:
        del BY_NAME["stubborn"]
    assert result["fate"] == "cancelled" and result["reward"] is None, result
    until(lambda: not lib.processes("soak-stubborn-"), 30, "the agent to go")
