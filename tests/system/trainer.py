"""A trainer as people write one: takes held calls and answers them, over HTTP or over one WebSocket. Standard
library only."""

import base64
import http.client
import json
import os
import socket
import struct
import threading


class Control:
    """The control listener."""

    def __init__(self, port, token):
        self.port, self.token = port, token

    def connection(self, seconds=60):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)

    @property
    def headers(self):
        return {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}

    def ask(self, method, path, body=None):
        """status, object"""
        connection = self.connection()
        try:
            connection.request(method, path, None if body is None else json.dumps(body), self.headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        finally:
            connection.close()

    def take(self, **options):
        status, body = self.ask("POST", "/v1/gate/take", {"wait_ms": 20000, **options})
        assert status == 200, body
        return body["calls"]

    def path(self, call, verb):
        return f"/v1/gate/calls/{call['call_id']}/{verb}?lease={call['lease']}"

    def answer(self, call, answer):
        return self.ask("POST", self.path(call, "answer"), answer)

    def fail(self, call, **error):
        return self.ask("POST", self.path(call, "fail"), error)

    def stream(self, call, chunks, sse=False):
        """Sends each chunk when the iterator yields it. status, object"""

        def body():
            for chunk in chunks:
                line = json.dumps(chunk)
                yield (f"data: {line}\n\n" if sse else line + "\n").encode()
            if sse:
                yield b"data: [DONE]\n\n"

        connection = self.connection()
        try:
            connection.request("POST", self.path(call, "stream"), body(), self.headers, encode_chunked=True)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()


class Trainer:
    """Answers every call with what `policy(call)` returns: an answer, a list of chunks to stream, or an exception
    with the error to fail it with. The policy runs once per delivery; what it saw is in `calls`."""

    def __init__(self, control, policy, sse=False):
        self.control, self.policy, self.sse = control, policy, sse
        self.calls, self.results, self.stopping, self.trouble = [], [], False, None
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        try:
            while not self.stopping:
                for call in self.control.take(wait_ms=200):
                    self.calls.append(call)
                    self.results.append(self.handle(call))
        except Exception as error:
            self.trouble = error

    def handle(self, call):
        try:
            answer = self.policy(call)
        except Failure as failure:
            return self.control.fail(call, **failure.error)
        if isinstance(answer, dict):
            return self.control.answer(call, answer)
        return self.control.stream(call, answer, self.sse)

    def stop(self):
        self.stopping = True
        self.thread.join(30)
        if self.trouble:
            raise self.trouble


class Failure(Exception):
    def __init__(self, **error):
        super().__init__(error)
        self.error = error


class WebSocket:
    """Enough of RFC 6455 for a client."""

    def __init__(self, control, path="/v1/gate/ws"):
        self.socket = socket.create_connection(("127.0.0.1", control.port), timeout=60)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall((f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {control.token}\r\n"
                             f"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                             f"Sec-WebSocket-Key: {key}\r\n\r\n").encode())
        self.file = self.socket.makefile("rb")
        status = self.file.readline()
        assert b" 101 " in status, status
        while self.file.readline().strip():
            pass

    def send(self, data, opcode=1):
        data = data if isinstance(data, bytes) else json.dumps(data).encode()
        mask = os.urandom(4)
        size = len(data)
        head = bytes([0x80 | opcode])
        if size < 126:
            head += bytes([0x80 | size])
        elif size < 65536:
            head += bytes([0x80 | 126]) + struct.pack("!H", size)
        else:
            head += bytes([0x80 | 127]) + struct.pack("!Q", size)
        self.socket.sendall(head + mask + bytes(b ^ mask[i & 3] for i, b in enumerate(data)))

    def receive(self):
        """The next object; None when the server closed."""
        while True:
            first, second = self.file.read(2)
            size = second & 0x7f
            if size == 126:
                size, = struct.unpack("!H", self.file.read(2))
            elif size == 127:
                size, = struct.unpack("!Q", self.file.read(8))
            data = self.file.read(size)
            if first & 15 == 8:
                return None
            if first & 15 == 9:
                self.send(data, opcode=10)
            elif first & 15 == 1:
                return json.loads(data)

    def drop(self):
        """As if the process had died."""
        self.socket.shutdown(socket.SHUT_RDWR)
        self.file.close()
        self.socket.close()

    def close(self):
        self.send(struct.pack("!H", 1000), opcode=8)
        while self.receive() is not None:
            pass
        self.socket.close()
