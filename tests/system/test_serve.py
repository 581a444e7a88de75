"""`postern serve`: the control listener. Who may ask what, what it answers, and that it ends when told."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import urllib.error
import urllib.request

import pytest

import postern as lib
from postern import Census, bash, script, task, until


class Server:
    def __init__(self, postern, *flags, env=None):
        self.home = postern.home
        self.process = postern.start("serve", "--port", "0", *flags, env=env)
        self.line = self.process.stdout.readline().decode()
        match = re.search(r"(http://[\d.]+:\d+)", self.line)
        if not match:
            self.process.kill()
            pytest.fail(f"no address in {self.line!r}: {self.process.communicate()[1]!r}")
        self.base = match[1]
        self.token = (self.home / "token").read_text().strip()

    def ask(self, path, token=True, method="GET", headers=None):
        """status, body"""
        request = urllib.request.Request(self.base + path, method=method, headers=headers or {})
        if token:
            request.add_header("Authorization", f"Bearer {self.token if token is True else token}")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        _, error = self.process.communicate(timeout=60)
        return self.process.returncode, error


@pytest.fixture
def server(postern):
    server = Server(postern)
    yield server
    if server.process.poll() is None:
        server.process.kill()
        server.process.communicate()


def test_it_starts_answers_and_stops(server):
    assert server.ask("/health", token=False) == (200, '{"status":"ok"}')
    code, error = server.stop()
    assert code == 0, error


def test_everything_else_needs_the_token(server):
    for path in ("/v1/version", "/v1/rollouts", "/metrics", "/v1/no-such-route", "/"):
        assert server.ask(path, token=False)[0] == 401, path
        assert server.ask(path, token="wrong-token-wrong-token")[0] == 401, path
        assert server.ask(path, token=server.token[:-1])[0] == 401, path
        assert server.ask(path, token=server.token + "x")[0] == 401, path
    assert server.ask("/v1/version")[0] == 200
    assert server.ask("/v1/no-such-route")[0] == 404
    assert server.ask("/v1/version", method="DELETE")[0] == 405


def test_the_token_is_for_its_owner_only(server):
    mode = (server.home / "token").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    assert len(server.token) >= 16
    assert server.token not in server.line


def test_it_is_on_loopback_only(server):
    port = int(server.base.rsplit(":", 1)[1])
    assert server.base.startswith("http://127.")
    listening = lib.command(["sh", "-c", "cat /proc/net/tcp /proc/net/tcp6"]).text
    rows = [line.split() for line in listening.splitlines() if f":{port:04X} " in line and " 0A " in line]
    assert rows and all(row[1].startswith("0100007F:") for row in rows), rows


@pytest.mark.parametrize("token", ["", "   \n", "short", "with blanks in the middle"])
def test_a_poor_token_is_refused_at_start(postern, tmp, token):
    (tmp / "token").write_text(token)
    done = postern("serve", "--port", "0", "--listen.token-file", str(tmp / "token"), seconds=30)
    assert 1 < done.code < 124, done
    lib.one_sentence(done, "token")
    if token.strip():
        assert token not in done.error


def test_rollouts_can_be_looked_at(postern, tmp):
    _, results = postern.run("--agent", "mini", "--task", task(tmp / "t.json", verify=["true"]), "--model",
                             script(tmp / "m.toml", bash("true"), "Done."), "-n", "3")
    server = Server(postern)
    try:
        status, body = server.ask("/v1/rollouts?limit=2")
        page = json.loads(body)
        assert status == 200 and len(page["rollouts"]) == 2 and page["next"], body
        rest = json.loads(server.ask(f"/v1/rollouts?before={page['next']}")[1])
        ids = {r["id"] for r in page["rollouts"] + rest["rollouts"]}
        assert ids == {r["rollout_id"] for r in results}
        status, body = server.ask(f"/v1/rollouts/{results[0]['rollout_id']}")
        assert status == 200 and json.loads(body)["fate"] == "ok", body
        assert server.ask("/v1/rollouts/r-nothing")[0] == 404
        assert server.ask("/v1/rollouts?limit=many")[0] == 400
        assert server.ask("/v1/rollouts/..%2f..%2ftoken")[0] == 404
        status, body = server.ask("/metrics")
        assert status == 200 and "postern_" in body, body
    finally:
        assert server.stop()[0] == 0


@pytest.mark.parametrize("data", [b"\x00" * 200 + b"\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"x" * 100000 + b" HTTP/1.1\r\n\r\n",
                                  b"POST /v1/version HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
                                  b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
                                  b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 100000 + b"\r\n"],
                         ids=["zeroes", "version", "long line", "length", "two lengths", "many headers"])
def test_nonsense_does_not_hurt_it(server, data):
    host, port = server.base[7:].split(":")
    with socket.create_connection((host, int(port)), timeout=60) as peer:
        try:
            peer.sendall(data)
            answer = peer.recv(1000)
        except OSError:
            answer = b""
    assert not answer or answer.startswith(b"HTTP/1.1 4") or answer.startswith(b"HTTP/1.1 5"), answer
    assert server.ask("/health", token=False)[0] == 200


def test_a_second_server_on_the_same_home_works_or_says_why(postern, server):
    second = postern.start("serve", "--port", "0")
    try:
        line = second.stdout.readline()
        if not line:
            _, error = second.communicate(timeout=60)
            assert second.returncode > 1 and len(error.splitlines()) == 1, error
    finally:
        if second.poll() is None:
            second.terminate()
            second.communicate(timeout=60)
    assert server.ask("/health", token=False)[0] == 200


def test_a_start_clears_what_a_killed_run_left(postern, tmp):
    mark = f"21098.{os.getpid()}"
    census = Census(postern.home)
    run = postern.start("run", "--json", "--agent", "mini", "--task", task(tmp / "t.json", verify=["true"]), "--model",
                        script(tmp / "m.toml", bash(f"sleep {mark}"), "Done."), "-n", "5", "--parallel", "5")
    until(lambda: len(lib.marked(mark, "sleep")) == 5, 60, "five agents at work")
    run.kill()
    run.communicate(timeout=60)
    server = Server(postern)
    try:
        until(lambda: not lib.processes(mark), 30, "the left-overs to go")
        listed = until(lambda: (lambda rows: rows if all(r["fate"] for r in rows) else None)(
            json.loads(server.ask("/v1/rollouts")[1])["rollouts"]), 20, "every rollout to have its fate")
        assert len(listed) == 5 and {r["fate"] for r in listed} == {"infra_failed"}, listed
        assert all(r["reward"] is None for r in listed)
    finally:
        assert server.stop()[0] == 0
    census.settled(mark)


def test_kill_9_of_an_idle_server_and_again(postern):
    for _ in range(2):
        server = Server(postern)
        server.process.kill()
        server.process.communicate()
    server = Server(postern)
    assert server.ask("/health", token=False)[0] == 200
    assert server.stop()[0] == 0


def test_an_address_in_use_is_one_sentence(postern, server):
    port = server.base.rsplit(":", 1)[1]
    done = postern("serve", "--port", port, seconds=30)
    assert 1 < done.code < 124, done
    lib.one_sentence(done, port)


def test_health_does_not_depend_on_stdin(postern):
    process = postern.start("serve", "--port", "0", stdin=subprocess.DEVNULL)
    assert b"http://" in process.stdout.readline()
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0
