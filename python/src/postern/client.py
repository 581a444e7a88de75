"""The client for plain code: http.client, one connection per request under way, kept for the next. It may be used from
many threads at once.

What is repeated, at most `retries` times: requests the server refused because it had no room (nothing was done), and
requests whose connection broke if doing them twice does no harm. Submissions carry a key, so that one that arrives twice is one
rollout. Answers are never sent twice."""

from __future__ import annotations

import http.client
import json
import pathlib
import select
import socket
import threading
import time
from typing import Any, Callable, Iterable, Iterator, List, Mapping, Optional, Sequence, Union

from . import requests as ask
from .errors import Busy, PosternError, TimedOut, Unreachable, from_answer
from .events import LINE_MAX, Event, Feed, Patience
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
        return str(self._ask(ask.metrics()))

    # ------------------------------------------------------------ rollouts
    def submit(self, agent: str, task: Union[str, Mapping[str, Any]], **order: Any) -> str:
        """Starts a rollout and returns its id. Further fields (mode, model, group, index, key, ...): docs/http-api.md."""
        return str(self._ask(ask.submit({"agent": agent, "task": task, **order}))["id"])

    def submit_many(self, orders: Iterable[Mapping[str, Any]]) -> List[str]:
        """Several at once, each with its fields; all of them or none. Their ids, in the same order."""
        return [str(each["id"]) for each in self._ask(ask.submit_many(orders))["rollouts"]]

    def submit_group(self, count: int, agent: str, task: Union[str, Mapping[str, Any]], group: Optional[str] = None,
                     **order: Any) -> List[str]:
        """`count` rollouts of one task, all of them or none, with index 0, 1, ... Their ids."""
        return list(self.create_group(count, agent, task, group=group, **order)["rollouts"])

    def create_group(self, n: int, agent: str, task: Union[str, Mapping[str, Any]], **order: Any) -> Json:
        """The same: {"id", "rollouts"}. `group` is its name; the server makes one otherwise. `share_setup`: prepared once."""
        return self._ask(ask.submit_group({"agent": agent, "task": task, "n": n, **order}))

    def group(self, id: str, wait_ms: int = 0) -> Json:
        """How it stands: counts, fates, rewards. With `wait_ms`: when it is over, or when that time is up."""
        return self._ask(ask.group(id, wait_ms))

    def groups(self, **query: Any) -> Json:
        """One page: {"groups": [...], "next": ...}."""
        return self._ask(ask.groups(**query))

    def cancel_group(self, id: str) -> None:
        """What is left of it. The results still come."""
        self._ask(ask.cancel_group(id))

    def wait_group(self, id: str, timeout: Optional[float] = None) -> List[Json]:
        """The results of its rollouts, by index, when all of them are over."""
        return self.wait_all([each["id"] for each in self.group(id)["rollouts"]], timeout)

    def rollout(self, id: str, wait_ms: int = 0) -> Json:
        """The result when it is over; how it stands while it runs. With `wait_ms`: when it is over, or when that time is up."""
        return self._ask(ask.rollout(id, wait_ms))

    def calls(self, id: str) -> List[Json]:
        """The model calls of a rollout."""
        return list(self._ask(ask.calls(id))["calls"])

    def call(self, id: str) -> Json:
        """One call as it is kept: request, answer, tokens."""
        return self._ask(ask.call(id))

    def rollouts(self, limit: int = 100, before: Optional[str] = None, run: Optional[str] = None,
                 task: Optional[str] = None, stage: Optional[str] = None, fate: Optional[str] = None, **query: Any) -> Json:
        """One page, newest first: {"rollouts": [...], "next": ...}."""
        return self._ask(ask.rollouts(limit=limit, before=before, run=run, task=task, stage=stage, fate=fate, **query))

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
        """The results in the same order, when all are over. A server that is away meanwhile is waited for as well, until the
        time is up."""
        patience = Patience(ids, timeout)
        for id in patience:
            try:
                patience.saw(id, self.rollout(id, patience.wait_ms()))
            except Unreachable as error:
                time.sleep(patience.pause(error))
        return [patience.results[id] for id in ids]

    # ------------------------------------------------------------ events
    def events(self, rollout: Optional[str] = None, group: Optional[str] = None, after: Optional[str] = None,
               timeout: Optional[float] = None) -> Iterator[Event]:
        """What happens, as it happens: of a rollout or a group until it is over, else of all, for ever. A connection that breaks
        is opened again and nothing is told twice; `after` is the id of the last event that is known. `timeout`: TimedOut after
        so many seconds without an event."""
        feed = Feed(ask.events(rollout, group), after, rollout or group, timeout)
        while not feed.over:
            connection = self._connection(feed.patience)
            try:
                headers = dict((*ask.headers(self.token), ("Accept", "text/event-stream"), *feed.headers()))
                connection.request("GET", self.address.prefix + feed.request.path, headers=headers)
                answer = connection.getresponse()
                if answer.status == 204:
                    return
                if answer.status != 200:
                    raise from_answer(answer.status, answer.read(), answer.getheader("retry-after"))
                while True:
                    line = answer.readline(LINE_MAX + 1)
                    if not line:
                        break
                    event = feed.line(line)
                    if event:
                        yield event
                    if feed.over:
                        return
                    feed.check()
            except socket.timeout:
                feed.check()
            except (Busy, OSError, http.client.HTTPException) as error:
                feed.broke(error if isinstance(error, PosternError) else unreachable(self.address, error))
            finally:
                connection.close()
            time.sleep(feed.pause())

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
            answer: Json = self._once(request, body)
            return answer
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

    def set_policy(self, version: Optional[int] = None, pause: bool = False, resume: bool = False,
                   max_staleness: Optional[int] = None, batch: Optional[int] = None) -> Json:
        return self._ask(ask.set_policy(version, pause, resume, max_staleness, batch))

    def pause(self) -> Json:
        return self.set_policy(pause=True)

    def resume(self, version: Optional[int] = None) -> Json:
        return self.set_policy(version, resume=True)

    # ------------------------------------------------------------ the connection
    def _ask(self, request: ask.Request) -> Json:
        attempt = 0
        while True:
            try:
                answer: Json = self._once(request)
                return answer
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
