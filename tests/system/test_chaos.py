"""A very bad night. 256 agents in sandboxes of their own hang up, ask again and are cut off; the model server resets, refuses and
breaks off; trainers take calls and die; the server is killed with SIGKILL every few seconds. In the morning the answers the agents
took are the answers in the record: nothing is lost, nothing is there twice.

CHAOS_AGENTS and CHAOS_SECONDS say how many and for how long (256 agents, 60 seconds)."""

import http.server
import json
import os
import random
import shutil
import socket
import socketserver
import subprocess
import threading
import time

import pytest

import postern as lib
from postern import Census, until
from test_recover import Service
from trainer import Control

AGENTS = int(os.environ.get("CHAOS_AGENTS", "256"))
SECONDS = float(os.environ.get("CHAOS_SECONDS", "60"))
TURNS = 6


class Serial:
    """Answers that exist once."""

    def __init__(self, letter):
        self.letter, self.number, self.lock = letter, 0, threading.Lock()

    def next(self):
        with self.lock:
            self.number += 1
            return f"<{self.letter}{self.number:07d}>"


class Upstream(http.server.BaseHTTPRequestHandler):
    """A model server on a bad day."""
    protocol_version = "HTTP/1.1"
    serial = Serial("u")
    trouble = True

    def log_message(self, *args):
        pass

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        luck = random.random() if self.trouble else 1
        text = self.serial.next()
        if luck < 0.05:
            self.send(503, {"error": {"message": "later"}})
        elif luck < 0.10:
            self.close_connection = True
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        elif request.get("stream"):
            self.stream(text, luck)
        else:
            self.send(200, {"id": text, "object": "chat.completion", "created": 1, "model": "m", "choices": [
                {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]})

    def send(self, status, body):
        data = json.dumps(body, separators=(",", ":")).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def stream(self, text, luck):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        for start in range(0, len(text), 3):
            if luck < 0.18 and start >= 3:
                return  # cut off in the middle
            delta = {"choices": [{"index": 0, "delta": {"content": text[start:start + 3]}}]}
            self.wfile.write(f"data: {json.dumps(delta, separators=(',', ':'))}\n\n".encode())
        self.wfile.write(b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n')


class Threads(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads, request_queue_size = True, 1024

    def handle_error(self, request, address):
        pass


class Trainers:
    """Threads that take calls and answer them, or take them and are never heard of again."""

    def __init__(self, control, count=6):
        self.control, self.serial, self.stopping, self.trouble = control, Serial("t"), False, True
        self.threads = [threading.Thread(target=self.work, daemon=True) for _ in range(count)]
        for thread in self.threads:
            thread.start()

    def work(self):
        while not self.stopping:
            try:
                for call in self.control.take(max=8, wait_ms=500, lease_ms=1500):
                    luck = random.random() if self.trouble else 1
                    if luck < 0.08:
                        continue  # it died with the call
                    text = self.serial.next()
                    if luck < 0.5:
                        self.control.answer(call, {"content": text})
                    else:
                        self.control.stream(call, self.pieces(text, luck))
            except (OSError, ValueError, AssertionError, KeyError, http.client.HTTPException):
                time.sleep(0.05)  # the server is dead again

    @staticmethod
    def pieces(text, luck):
        for start in range(0, len(text), 4):
            if luck < 0.56 and start >= 4:
                raise OSError("it died in the middle")
            yield {"delta": {"content": text[start:start + 4]}}
        yield {"finish_reason": "stop"}

    def stop(self):
        self.stopping = True
        for thread in self.threads:
            thread.join(timeout=30)


def free_port():
    """One that is still free after each kill: the kernel gives none of these to those who only connect."""
    for port in random.Random().sample(range(15000, 30000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass
    raise AssertionError("a hundred ports are taken")


@pytest.fixture
def agent(tmp):
    program = tmp / "chaos-agent"
    compiler = shutil.which("musl-gcc") or "gcc"
    subprocess.run([compiler, "-std=gnu17", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-static", "-s", "-o",
                    str(program), str(lib.REPOSITORY / "tests/system/chaos_agent.c")], check=True)
    pause = int(SECONDS * 1000 / TURNS)
    spec = tmp / "chaos.toml"
    spec.write_text(f"""name = "chaos"
summary = "asks, hangs up, asks again"
version = "1"
[[files]]
from = "{program}"
to = "/opt/chaos"
mode = "0755"
[run]
argv = ["/bin/sh", "-c", "exec /opt/chaos $(cat {{instruction_file}}) {TURNS} {pause}"]
instruction = "file"
timeout = "20m"
[output]
format = "jsonl"
text = ["text"]
[output.events]
assistant = ["assistant"]
done = ["done"]
[exit]
ok = [0]
""")
    return str(spec)


def answers_of(folder):
    """What the agent took, in order: its own words."""
    return [line["text"] for line in lib.json_lines((folder / "agent.log").read_bytes()) if line["type"] == "assistant"]


def content(call):
    """The answer's text in the record."""
    words = call["answer"]["message"]["content"]
    return words if isinstance(words, str) else "".join(part.get("text", "") for part in words)


def asked(call, calls):
    """A line leaves out what its parent's line has."""
    if call.get("shared_messages") and not call["request"]["messages"]:
        return asked(next(c for c in calls if c["call_id"] == call["parent"]), calls)
    words = call["request"]["messages"][-1]["content"]
    return words if isinstance(words, str) else words[0]["text"]


def check(service, id_, seed):
    """One rollout in the morning. Returns the answers it took."""
    result = service.result(id_, 600)
    assert result["fate"] == "ok" and result["reward"] == 1, (id_, result.get("error"), result)
    taken = answers_of(service.folder(id_))
    assert len(taken) == TURNS, (id_, taken)
    calls = service.calls(id_)
    answered = {asked(c, calls): content(c) for c in calls if c["state"] == "answered"}
    assert len([c for c in calls if c["state"] == "answered"]) == len(answered) == TURNS, (
        id_, [(c["number"], c["state"], c["attempts"], c.get("error"), asked(c, calls), c.get("deliveries")) for c in calls], taken)
    assert [answered[f"agent {seed} turn {n + 1}"] for n in range(TURNS)] == taken, (id_, answered, taken)
    # The index says the same, call by call.
    rows = service.control.ask("GET", f"/v1/rollouts/{id_}/calls")[1]["calls"]
    assert sorted(r["number"] for r in rows if r["state"] == "answered") == sorted(
        c["number"] for c in calls if c["state"] == "answered"), (id_, rows, calls)
    assert not [r for r in rows if r["state"] == "open"], (id_, rows)
    assert result["turns"] == TURNS and len(service.events(id_, "result")) == 1
    return taken


def test_chaos(postern, tmp, agent):
    census = Census(postern.home)
    upstream = Threads(("127.0.0.1", 0), Upstream)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    Upstream.trouble = True
    service = Service(postern, "--port", str(free_port()), "--rollout.parallel-max", str(AGENTS), "--sandbox.starting-max", "16",
                      "--gateway.retry-grace", "60s", "--gateway.keepalive", "1s")
    trainers = Trainers(service.control)
    dice = random.Random(7)
    try:
        seeds = {}
        for index in range(AGENTS):
            seed = index + 1
            work = {"name": "chaos", "instruction": str(seed), "verify": ["true"]}
            order = dict(agent=agent, task=work, index=index)
            order.update(mode="gate") if index % 2 else order.update(
                mode="proxy", model=f"http://127.0.0.1:{upstream.server_address[1]}/v1#m")
            seeds[service.submit(**order)] = seed
        end, kills = time.monotonic() + SECONDS, 0
        while time.monotonic() < end or kills < SECONDS / 5:  # a slow machine takes longer for as many
            time.sleep(1.5 + dice.random() * 2.5)
            service.restart()
            kills += 1
        Upstream.trouble = trainers.trouble = False
        for id_ in seeds:
            service.result(id_, 600)
        taken = [answer for id_, seed in seeds.items() for answer in check(service, id_, seed)]
        assert len(taken) == len(set(taken)) == AGENTS * TURNS
        service.over()
    finally:
        trainers.stop()
        upstream.shutdown()
        if service.process.poll() is None:
            service.kill()
    census.settled("/opt/chaos")
