"""`postern serve` for tests: started with a home of its own, asked over HTTP, its events read as they come."""

import http.client
import json
import re
import signal
import socket
import threading

import pytest

from trainer import Control


class Service:
    def __init__(self, postern, *flags, env=None):
        self.postern, self.home = postern, postern.home
        self.process = postern.start("serve", "--port", "0", *postern.flags, *flags, env=env)
        line = self.process.stdout.readline().decode()
        match = re.search(r"http://[\d.]+:(\d+)", line)
        if not match:
            self.process.kill()
            pytest.fail(f"no address in {line!r}: {self.process.communicate()[1]!r}")
        self.port = int(match[1])
        self.control = Control(self.port, (self.home / "token").read_text().strip())

    def ask(self, method, path, body=None):
        """status, object"""
        return self.control.ask(method, path, body)

    def get(self, path):
        status, body = self.ask("GET", path)
        assert status == 200, (path, status, body)
        return body

    def post(self, path, body, status=201):
        got, answer = self.ask("POST", path, body)
        assert got == status, (path, got, answer)
        return answer

    def refused(self, path, body, status, field):
        """The submission is refused with this status, and the field is named."""
        got, answer = self.ask("POST", path, body)
        assert got == status, (got, answer)
        assert answer["error"]["field"] == field, answer
        assert answer["error"]["message"] and answer["error"]["type"], answer
        return answer["error"]

    def over(self, rollout, seconds=120):
        """Long-polls until it is over."""
        for _ in range(max(1, seconds // 20)):
            body = self.get(f"/v1/rollouts/{rollout}?wait_ms=20000")
            if body.get("fate"):
                return body
        raise AssertionError(f"{rollout} is not over: {body}")

    def group_over(self, group, seconds=180):
        for _ in range(max(1, seconds // 20)):
            body = self.get(f"/v1/groups/{group}?wait_ms=20000")
            if body["state"] == "over":
                return body
        raise AssertionError(f"{group} is not over: {body}")

    def pages(self, query="", limit=2):
        """Every row, page by page."""
        rows, before = [], ""
        while True:
            page = self.get(f"/v1/rollouts?limit={limit}{query}{before}")
            rows += page["rollouts"]
            if not page["next"]:
                return rows
            before = f"&before={page['next']}"

    def events(self, path, after=None, last_event_id=None):
        return Events(self, path, after, last_event_id)

    def tell(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def kill(self):
        self.process.kill()
        self.process.communicate()

    def stop(self, number=signal.SIGTERM, seconds=90):
        """exit code, what it said on standard error"""
        self.tell(number)
        _, error = self.process.communicate(timeout=seconds)
        return self.process.returncode, error.decode()


class Events:
    """One stream of server-sent events, read by a thread into `all`: (id, kind, object)."""

    def __init__(self, service, path, after=None, last_event_id=None):
        self.connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
        headers = dict(service.control.headers)
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        self.connection.request("GET", path + (f"?after={after}" if after is not None else ""), headers=headers)
        self.socket = self.connection.sock
        self.answer = self.connection.getresponse()
        self.status, self.all, self.comments, self.ended = self.answer.status, [], 0, False
        self.change = threading.Condition()
        if self.status == 200:
            assert self.answer.getheader("content-type").startswith("text/event-stream")
            self.thread = threading.Thread(target=self._read, daemon=True)
            self.thread.start()

    def _read(self):
        event = {}
        try:
            for line in self.answer:
                line = line.decode().rstrip("\n")
                if not line and "data" in event:
                    with self.change:
                        self.all.append((event.get("id"), event.get("event", "message"), json.loads(event["data"])))
                        self.change.notify_all()
                    event = {}
                elif line.startswith(":"):
                    self.comments += 1
                elif line:
                    name, _, value = line.partition(": ")
                    event[name] = value
        except (OSError, http.client.HTTPException, ValueError, AttributeError):
            pass
        with self.change:
            self.ended = True
            self.change.notify_all()

    def wait(self, condition, seconds=60, what="an event"):
        """Waits until condition(events) is true and returns its value."""
        with self.change:
            if not self.change.wait_for(lambda: condition(self.all), seconds):
                raise AssertionError(f"waited {seconds} s for {what}; had {[(i, k) for i, k, _ in self.all]}")
            return condition(self.all)

    def end(self, seconds=60):
        with self.change:
            assert self.change.wait_for(lambda: self.ended, seconds), [(i, k) for i, k, _ in self.all]
            return self.all

    def kinds(self):
        with self.change:
            return [kind for _, kind, _ in self.all]

    def close(self):
        try:
            self.socket.shutdown(socket.SHUT_RDWR)  # the reading thread lets go
        except OSError:
            pass
        self.connection.close()
