"""The client for plain code: http.client, one connection per request under way, kept for the next. It may be used from
many threads at once.

What is repeated, at most `retries` times: requests the server refused because it had no room (nothing was done), and
requests whose connection broke if doing them twice does no harm. Submissions and answers are never sent twice."""

from __future__ import annotations

import http.client
import json
import pathlib
import select
import socket
import threading
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Union

from . import requests as ask
from .errors import Busy, PosternError, TimedOut, Unreachable, from_answer
from .requests import Call, Json
from .samples import Samples

POOL_MAX = 64


class _ChunksFailed(Exception):
    """The caller's iterator raised."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Client:
    """The control listener of a Postern server. `url` is http://host:port, https://... or unix:/path."""

    def __init__(self, url: str, token: Optional[str] = None, token_file: Union[str, pathlib.Path, None] = None,
                 timeout: float = 30.0, retries: int = 3) -> None:
        self.address = ask.address(url)
        self.token = ask.read_token(token, token_file)
        self.timeout, self.retries = timeout, retries
        self.server: Any = None  # what postern.local() started
        self._idle: List[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<postern.{type(self).__name__} {self.address}>"

    def close(self) -> None:
        """Closes what is idle; a request made later opens a connection again."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    # ------------------------------------------------------------ the server
    def health(self) -> Json:
        return self._ask(ask.health())

    def version(self) -> str:
        return str(self._ask(ask.version())["version"])

    def metrics(self) -> str:
        """Numbers in the Prometheus text format."""
        return self._ask(ask.metrics())

    # ------------------------------------------------------------ rollouts
    def submit(self, agent: str, task: Union[str, Mapping[str, Any]], **order: Any) -> str:
        """Starts a rollout and returns its id. Further fields (mode, model, group, index, ...): docs/http-api.md."""
        return str(self._ask(ask.submit({"agent": agent, "task": task, **order}))["id"])

    def submit_group(self, count: int, agent: str, task: Union[str, Mapping[str, Any]], group: str,
                     **order: Any) -> List[str]:
        """`count` rollouts of one task, with index 0, 1, ... Their ids. If one is refused, those before it are cancelled."""
        ids: List[str] = []
        try:
            for index in range(count):
                ids.append(self.submit(agent, task, group=group, index=index, **order))
        except PosternError:
            for id in ids:
                self.cancel(id)
            raise
        return ids

    def rollout(self, id: str) -> Json:
        """The result when it is over; how it stands while it runs."""
        return self._ask(ask.rollout(id))

    def rollouts(self, limit: int = 100, before: Optional[str] = None, run: Optional[str] = None,
                 task: Optional[str] = None, stage: Optional[str] = None, fate: Optional[str] = None) -> Json:
        """One page, newest first: {"rollouts": [...], "next": ...}."""
        return self._ask(ask.rollouts(limit=limit, before=before, run=run, task=task, stage=stage, fate=fate))

    def all_rollouts(self, **query: Any) -> Iterator[Json]:
        """Every row, page by page."""
        while True:
            page = self.rollouts(**query)
            yield from page["rollouts"]
            if not page["next"]:
                return
            query["before"] = page["next"]

    def samples(self, id: str) -> Samples:
        """The training rows of a rollout that is over: docs/samples.md. Arrays are views of the answer."""
        return Samples(self._ask(ask.samples(id)))

    def group_samples(self, id: str) -> Samples:
        """The rows of all rollouts of a group that are over."""
        return Samples(self._ask(ask.samples(id, group=True)))

    def cancel(self, id: str) -> None:
        """Its result still comes."""
        self._ask(ask.cancel(id))

    def wait(self, id: str, timeout: Optional[float] = None) -> Json:
        """The result, when the rollout is over. TimedOut: it is not, and goes on."""
        return self.wait_all([id], timeout)[0]

    def wait_all(self, ids: Sequence[str], timeout: Optional[float] = None) -> List[Json]:
        end = None if timeout is None else time.monotonic() + timeout
        results: Dict[str, Json] = {}
        pause = 0.02
        while True:
            for id in ids:
                if id not in results:
                    seen = self.rollout(id)
                    if seen.get("fate"):
                        results[id] = seen
            if len(results) == len(set(ids)):
                return [results[id] for id in ids]
            if end is not None and time.monotonic() >= end:
                raise TimedOut(f"{len(set(ids)) - len(results)} of {len(set(ids))} rollouts are not over after {timeout} s")
            time.sleep(pause)
            pause = min(pause * 1.5, 0.5)

    # ------------------------------------------------------------ the gate
    def gate(self) -> Json:
        """Counts: held, leased, streaming now; taken, answered, failed, ... ever."""
        return self._ask(ask.gate())

    def take(self, max: int = 1, wait_ms: int = 30000, lease_ms: Optional[int] = None, group: Optional[str] = None,
             rollout: Optional[str] = None, raw: bool = False) -> List[Json]:
        """Held calls, leased to the asker. Empty: there was none in that time, or the policy is paused."""
        return list(self._ask(ask.take(max, wait_ms, lease_ms, group, rollout, raw))["calls"])

    def answer(self, call: Union[Call, str], answer: Union[str, Mapping[str, Any]]) -> Json:
        """A whole answer: text, or an object in any form docs/http-api.md names."""
        return self._ask(ask.answer(call, answer))

    def stream(self, call: Union[Call, str], chunks: Iterable[Union[str, Mapping[str, Any]]]) -> Json:
        """An answer in pieces, each sent when the iterator gives it. A finish reason is added when there was none. If the
        iterator raises, the stream breaks off and the agent's connection is reset."""
        request = ask.stream(call)

        def body() -> Iterator[bytes]:
            finished = False
            try:
                for chunk in chunks:
                    finished = finished or ask.has_finish(chunk)
                    yield ask.chunk_bytes(chunk)
            except Exception as error:  # not to be taken for one of the connection
                raise _ChunksFailed() from error
            if not finished:
                yield ask.chunk_bytes(ask.LAST_CHUNK)

        try:
            return self._once(request, body)
        except _ChunksFailed as failed:
            raise failed.__cause__ or failed

    def extend(self, call: Union[Call, str], lease_ms: Optional[int] = None) -> Json:
        return self._ask(ask.extend(call, lease_ms))

    def release(self, call: Union[Call, str]) -> Json:
        return self._ask(ask.release(call))

    def fail(self, call: Union[Call, str], message: str, status: int = 500, type: Optional[str] = None) -> Json:
        return self._ask(ask.fail(call, message, status, type))

    # ------------------------------------------------------------ the policy
    def policy(self) -> Json:
        return self._ask(ask.policy())

    def set_policy(self, version: Optional[int] = None, pause: bool = False, resume: bool = False) -> Json:
        return self._ask(ask.set_policy(version, pause, resume))

    def pause(self) -> Json:
        return self.set_policy(pause=True)

    def resume(self, version: Optional[int] = None) -> Json:
        return self.set_policy(version, resume=True)

    # ------------------------------------------------------------ the connection
    def _ask(self, request: ask.Request) -> Any:
        attempt = 0
        while True:
            try:
                return self._once(request)
            except (Busy, Unreachable) as error:
                attempt += 1
                if attempt > self.retries or not (isinstance(error, Busy) or request.again):
                    raise
                time.sleep(ask.back_off(attempt, error.retry_after))

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                break
            # One the server has closed meanwhile is readable: it must not swallow a request that is sent only once.
            if connection.sock is not None and not select.select([connection.sock], [], [], 0)[0]:
                connection.sock.settimeout(timeout)
                return connection
            connection.close()
        where = self.address
        if where.scheme == "unix":
            return _UnixConnection(where.host, timeout)
        of = http.client.HTTPSConnection if where.scheme == "https" else http.client.HTTPConnection
        return of(where.host, where.port, timeout=timeout)

    def _once(self, request: ask.Request, body: Optional[Callable[[], Iterator[bytes]]] = None) -> Any:
        timeout = self.timeout + request.wait_s
        connection = self._connection(timeout)
        keep = False
        try:
            early = False
            try:
                connection.request(request.method, self.address.prefix + request.path, body() if body else request.body,
                                   dict(ask.headers(self.token)), encode_chunked=body is not None)
            except (BrokenPipeError, ConnectionResetError):
                early = True  # the server may have said why before it closed
            answer = connection.getresponse()
            data = answer.read()
            keep = not early and not answer.will_close
        except socket.timeout as error:
            raise TimedOut(f"{request.method} {request.path.split('?')[0]}: no answer from {self.address} "
                           f"in {timeout:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise unreachable(self.address, error) from error
        finally:
            if keep and len(self._idle) < POOL_MAX:
                with self._lock:
                    self._idle.append(connection)
            else:
                connection.close()
        return read_answer(request, answer.status, data, answer.getheader("retry-after"))


def unreachable(where: ask.Address, error: BaseException) -> Unreachable:
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return Unreachable(f"no answer from {where}: {why}")


def read_answer(request: ask.Request, status: int, data: bytes, retry_after: Optional[str]) -> Any:
    if not 200 <= status < 300:
        raise from_answer(status, data, retry_after)
    if request.raw:
        return data
    if request.text:
        return data.decode()
    try:
        return json.loads(data or b"null")
    except ValueError as error:
        raise from_answer(status, b"the answer is not JSON", None) from error
