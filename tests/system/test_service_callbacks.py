"""Results posted to somebody's URL: signed, tried again, at least once across restarts, and only where the operator
lets them go."""

import hashlib
import hmac
import http.client
import http.server
import json
import os
import threading

import pytest

from postern import bash, script, task, until
from service import Service

TASK = {"name": "easy", "instruction": "Do nothing.", "verify": ["true"]}
SECRET = "a-secret-nobody-may-see-0123456789"


class Receiver:
    """Answers each post with the next of `statuses`, then 200. `got` has (headers, body)."""

    def __init__(self, *statuses):
        self.statuses, self.got, self.lock, self.open = list(statuses), [], threading.Lock(), 0
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def setup(self):
                super().setup()
                with receiver.lock:
                    receiver.open += 1

            def finish(self):
                super().finish()
                with receiver.lock:
                    receiver.open -= 1

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                with receiver.lock:
                    receiver.got.append((dict(self.headers), body, self.path))
                    status = receiver.statuses.pop(0) if receiver.statuses else 200
                self.send_response(status)
                self.send_header("content-length", "0")
                if status == 302:
                    self.send_header("location", "/elsewhere")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def drain(self):
        """What a server sent before it ended has arrived. Connections are taken in the order they were made."""
        own = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=60)
        own.request("POST", "/drain", b"")
        own.getresponse().read()
        own.close()
        until(lambda: not self.open, what="what is still on its way")

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def model(tmp):
    return script(tmp / "model.toml", "Done.")


def order(model, **more):
    return {"agent": "mini", "task": TASK, "model": model, **more}


def start(postern, *flags, env=None):
    return Service(postern, "--listen.drain", "0", "--callback.pause", "20ms", *flags, env=env)


def state(service, rollout):
    rows = [row for row in service.get("/v1/rollouts")["rollouts"] if row["id"] == rollout]
    return rows[0].get("callback_state")


def test_a_result_is_posted_signed_and_tried_again(postern, model):
    receiver = Receiver(500, 302)
    service = start(postern, env={"CALLBACK_SECRET_1": SECRET})
    try:
        callback = {"url": receiver.url, "secret_env": "CALLBACK_SECRET_1"}
        rollout = service.post("/v1/rollouts", order(model, callback=callback))["id"]
        until(lambda: state(service, rollout) == "delivered", 60, "the delivery")
        assert len(receiver.got) == 3 and {path for _, _, path in receiver.got} == {"/hook"}
        for attempt, (headers, body, _) in enumerate(receiver.got, 1):
            headers = {name.lower(): value for name, value in headers.items()}
            assert json.loads(body)["id"] == rollout and json.loads(body)["class"] == "ok"
            assert headers["postern-delivery"] == rollout and headers["postern-attempt"] == str(attempt)
            text = f"{rollout}.{headers['postern-timestamp']}.".encode() + body
            assert headers["postern-signature"] == "sha256=" + hmac.new(SECRET.encode(), text, hashlib.sha256).hexdigest()
            assert "authorization" not in headers
        group = service.post("/v1/groups", order(model, n=3, callback={"url": receiver.url}))
        until(lambda: len(receiver.got) == 6, 60, "one for each of the group")
        assert {json.loads(body)["id"] for _, body, _ in receiver.got[3:]} == set(group["rollouts"])
        assert not any(name.lower() == "postern-signature" for headers, _, _ in receiver.got[3:] for name in headers)
    finally:
        code, error = service.stop()
        receiver.close()
    assert code == 0 and SECRET not in error
    for path in service.home.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_what_was_not_delivered_is_after_a_restart(postern, model):
    receiver = Receiver(*[503] * 10000)
    service = start(postern)
    rollout = service.post("/v1/rollouts", order(model, callback={"url": receiver.url}))["id"]
    service.over(rollout)
    until(lambda: len(receiver.got) >= 2, 60, "two tries")
    assert state(service, rollout) == "pending"
    service.kill()
    receiver.drain()
    receiver.statuses.clear()
    before = len(receiver.got)
    again = start(postern)
    try:
        until(lambda: state(again, rollout) == "delivered", 60, "the delivery")
        assert len(receiver.got) == before + 1
        headers = {name.lower(): value for name, value in receiver.got[-1][0].items()}
        assert headers["postern-delivery"] == rollout
    finally:
        assert again.stop()[0] == 0
        receiver.close()


def test_an_end_that_only_the_next_server_books_is_told(postern, model, tmp):
    """Killed between a result and its row, or when nothing can be gone on with: somebody still waits to be told."""
    receiver = Receiver()
    path = task(tmp / "t.json", verify=["true"])
    slow = script(tmp / "slow.toml", bash("sleep 600"), "Done.")
    service = start(postern)
    rollout = service.post("/v1/rollouts", order(slow, callback={"url": receiver.url}, key="k") | {"task": path})["id"]
    service.kill()
    os.unlink(path)
    again = start(postern)
    try:
        until(lambda: state(again, rollout) == "delivered", 60, "the delivery")
        assert json.loads(receiver.got[-1][1])["fate"] == "infra_failed" and json.loads(receiver.got[-1][1])["reward"] is None
    finally:
        assert again.stop()[0] == 0
        receiver.close()


def test_a_result_that_takes_long_to_read_holds_up_nobody(postern, model):
    receiver = Receiver(*[503] * 100)
    service = start(postern)
    rollout = service.post("/v1/rollouts", order(model, callback={"url": receiver.url}))["id"]
    service.over(rollout)
    until(lambda: receiver.got, 60, "a try")
    assert service.stop()[0] == 0
    path = postern.home / "rollouts" / rollout / "result.json"
    text = path.read_bytes()
    path.unlink()
    os.mkfifo(path)  # a disk that does not answer
    receiver.drain()
    receiver.statuses.clear()
    before = len(receiver.got)
    again = start(postern)
    try:
        other = again.post("/v1/rollouts", order(model))["id"]
        assert again.over(other)["fate"] == "ok" and len(receiver.got) == before
        assert again.get("/v1/sandboxes")["lanes"]
        path.write_bytes(text)
        until(lambda: state(again, rollout) == "delivered", 60, "the delivery")
        assert receiver.got[-1][1] == text
    finally:
        assert again.stop()[0] == 0
        receiver.close()


def test_it_gives_up_in_the_end_and_at_once_when_told(postern, model):
    receiver = Receiver(410)
    closed = Receiver()
    closed.close()
    service = start(postern, "--callback.tries-max", "3")
    try:
        gone = service.post("/v1/rollouts", order(model, callback={"url": receiver.url}))["id"]
        until(lambda: state(service, gone) == "failed", 60, "the end of it")
        assert len(receiver.got) == 1
        lost = service.post("/v1/rollouts", order(model, callback={"url": closed.url}))["id"]
        until(lambda: state(service, lost) == "failed", 60, "the end of it")
        assert service.get(f"/v1/rollouts/{lost}")["fate"] == "ok", "the rollout is none the worse for it"
    finally:
        assert service.stop()[0] == 0
        receiver.close()


def test_callbacks_go_where_the_operator_lets_them(postern, model):
    service = start(postern, env={"OTHER_SECRET": SECRET})
    cases = [({"url": "http://192.0.2.1/"}, 403, "callback.url"), ({"url": "http://169.254.169.254/latest"}, 403, "callback.url"),
             ({"url": "http://127.0.0.1.example.com/"}, 403, "callback.url"), ({"url": "http://localhost.example.com/"}, 403, "callback.url"),
             ({"url": "http://127.evil.test/"}, 403, "callback.url"), ({"url": "http://127.1/"}, 403, "callback.url"),
             ({"url": "http://127.0.0.1@example.com/"}, 400, "callback.url"), ({"url": "file:///etc/passwd"}, 400, "callback.url"),
             ({"url": "unix:/run/docker.sock:/x"}, 400, "callback.url"), ({"url": "http://127.0.0.1:1/a b"}, 400, "callback.url"),
             ({"url": 7}, 400, "callback.url"), ({}, 400, "callback.url"), ("http://127.0.0.1/", 400, "callback"),
             ({"url": "http://127.0.0.1/", "secret": "x"}, 400, "callback.secret"),
             ({"url": "http://127.0.0.1/", "secret_env": "OTHER_SECRET"}, 400, "callback.secret_env"),
             ({"url": "http://127.0.0.1/", "secret_env": "CALLBACK_SECRET_NONE"}, 400, "callback.secret_env")]
    try:
        for callback, status, field in cases:
            error = service.refused("/v1/rollouts", order(model, callback=callback), status, field)
            assert SECRET not in error["message"]
        assert service.get("/v1/rollouts")["rollouts"] == []
    finally:
        assert service.stop()[0] == 0
    receiver = Receiver()
    service = start(postern, "--callback.allow", f"https://trainer.example/hooks, {receiver.url}")
    try:
        for url in ("http://127.0.0.1:9/", receiver.url + "er", receiver.url.replace("/hook", "/other"), receiver.url + "/../x",
                    receiver.url + "/%2e%2E/x", receiver.url + "/..?x=1", receiver.url + "/.%2e",
                    "https://trainer.example.evil/hooks", "http://trainer.example/hooks", "https://trainer.example/hooksy"):
            status, body = service.ask("POST", "/v1/rollouts", order(model, callback={"url": url}))
            assert status in (400, 403) and body["error"]["field"] == "callback.url", (url, body)
        rollout = service.post("/v1/rollouts", order(model, callback={"url": receiver.url + "/below?x=1"}))["id"]
        until(lambda: state(service, rollout) == "delivered", 60, "the delivery")
    finally:
        assert service.stop()[0] == 0
        receiver.close()
