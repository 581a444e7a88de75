"""The client for asyncio: a small HTTP/1.1 client on asyncio's streams, with the same methods as Client, each of them a
coroutine. One AsyncClient belongs to one event loop. What is repeated and what is not: see client.py."""

from __future__ import annotations

import asyncio
import pathlib
import ssl
from typing import Any, AsyncIterable, AsyncIterator, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from . import events
from . import requests as ask
from .client import read_answer, unreachable
from .errors import Busy, PosternError, TimedOut, Unreachable, from_answer
from .events import Event, Feed, Patience
from .samples import Samples
from .requests import Call, Json

POOL_MAX = 256
LINE_MAX = 64 << 10
BODY_MAX = 256 << 20
Chunk = Union[str, Mapping[str, Any]]


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send_head(self, method: str, target: str, host: str, headers: Iterable[Tuple[str, str]]) -> None:
        lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", *(f"{name}: {value}" for name, value in headers)]
        self.writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("ascii"))

    async def receive(self) -> Tuple[int, Dict[str, str], bytes]:
        """Status, headers with names in lower case, body."""
        status, headers = await self.receive_head()
        return status, headers, await self.receive_body(status, headers)

    async def receive_head(self) -> Tuple[int, Dict[str, str]]:
        """Interim answers (100) are skipped."""
        status = 100
        headers: Dict[str, str] = {}
        while status < 200:
            parts = (await self._line()).split(" ", 2)
            if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not parts[1].isdigit():
                raise ValueError("the answer is not HTTP")
            status = int(parts[1])
            headers = {}
            while True:
                line = await self._line()
                if not line:
                    break
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
        return status, headers

    async def receive_body(self, status: int, headers: Dict[str, str]) -> bytes:
        if status in (204, 304):
            return b""
        if "chunked" in headers.get("transfer-encoding", "").lower():
            return b"".join([piece async for piece in self._pieces()])
        size = headers.get("content-length")
        if size is None:
            headers["connection"] = "close"
            return await self.reader.read(BODY_MAX)
        if not size.isdigit() or int(size) > BODY_MAX:
            raise ValueError(f"an answer of {size} bytes is too large")
        return await self.reader.readexactly(int(size))

    async def lines(self, headers: Dict[str, str]) -> AsyncIterator[bytes]:
        """The body line by line, as it comes."""
        if "chunked" not in headers.get("transfer-encoding", "").lower():
            while True:
                line = await self.reader.readline()
                if not line:
                    return
                yield line
        rest = b""
        async for piece in self._pieces(endless=True):
            *whole, rest = (rest + piece).split(b"\n")
            if len(rest) > events.LINE_MAX:
                raise ValueError("a line of the answer is too long")
            for line in whole:
                yield line + b"\n"

    async def _line(self) -> str:
        line = await self.reader.readline()
        if not line.endswith(b"\n"):
            raise ConnectionResetError("the connection was closed")
        return line.decode("latin-1").rstrip("\r\n")

    async def _pieces(self, endless: bool = False) -> AsyncIterator[bytes]:
        total = 0
        while True:
            size = int((await self._line()).split(";")[0], 16)
            total += size
            if size < 0 or size > BODY_MAX or total > BODY_MAX and not endless:
                raise ValueError("the answer is too large")
            if size == 0:
                while await self._line():
                    pass
                return
            yield await self.reader.readexactly(size)
            await self._line()

    def close(self) -> None:
        self.writer.close()


class AsyncClient:
    """The control listener of a Postern server, for asyncio. `url` as in Client."""

    def __init__(self, url: str, token: Optional[str] = None, token_file: Union[str, pathlib.Path, None] = None,
                 timeout: float = 30.0, retries: int = 3) -> None:
        self.address = ask.address(url)
        self.token = ask.read_token(token, token_file)
        self.timeout, self.retries = timeout, retries
        self._idle: List[_Connection] = []

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<postern.{type(self).__name__} {self.address}>"

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        for connection in idle:
            try:
                await connection.writer.wait_closed()
            except OSError:
                pass  # it was broken before

    # ------------------------------------------------------------ the server
    async def health(self) -> Json:
        return await self._ask(ask.health())

    async def version(self) -> str:
        return str((await self._ask(ask.version()))["version"])

    async def metrics(self) -> str:
        return str(await self._ask(ask.metrics()))

    # ------------------------------------------------------------ rollouts
    async def submit(self, agent: str, task: Union[str, Mapping[str, Any]], **order: Any) -> str:
        return str((await self._ask(ask.submit({"agent": agent, "task": task, **order})))["id"])

    async def submit_many(self, orders: Iterable[Mapping[str, Any]]) -> List[str]:
        return [str(each["id"]) for each in (await self._ask(ask.submit_many(orders)))["rollouts"]]

    async def submit_group(self, count: int, agent: str, task: Union[str, Mapping[str, Any]], group: Optional[str] = None,
                           **order: Any) -> List[str]:
        return list((await self.create_group(count, agent, task, group=group, **order))["rollouts"])

    async def create_group(self, n: int, agent: str, task: Union[str, Mapping[str, Any]], **order: Any) -> Json:
        return await self._ask(ask.submit_group({"agent": agent, "task": task, "n": n, **order}))

    async def group(self, id: str, wait_ms: int = 0) -> Json:
        return await self._ask(ask.group(id, wait_ms))

    async def groups(self, **query: Any) -> Json:
        return await self._ask(ask.groups(**query))

    async def cancel_group(self, id: str) -> None:
        await self._ask(ask.cancel_group(id))

    async def wait_group(self, id: str, timeout: Optional[float] = None) -> List[Json]:
        return await self.wait_all([each["id"] for each in (await self.group(id))["rollouts"]], timeout)

    async def rollout(self, id: str, wait_ms: int = 0) -> Json:
        return await self._ask(ask.rollout(id, wait_ms))

    async def calls(self, id: str) -> List[Json]:
        return list((await self._ask(ask.calls(id)))["calls"])

    async def call(self, id: str) -> Json:
        return await self._ask(ask.call(id))

    async def rollouts(self, limit: int = 100, before: Optional[str] = None, run: Optional[str] = None,
                       task: Optional[str] = None, stage: Optional[str] = None, fate: Optional[str] = None,
                       **query: Any) -> Json:
        return await self._ask(ask.rollouts(limit=limit, before=before, run=run, task=task, stage=stage, fate=fate, **query))

    async def all_rollouts(self, **query: Any) -> AsyncIterator[Json]:
        while True:
            page = await self.rollouts(**query)
            for row in page["rollouts"]:
                yield row
            if not page["next"]:
                return
            query["before"] = page["next"]

    async def samples(self, id: str) -> Samples:
        return Samples(await self._ask(ask.samples(id)))

    async def group_samples(self, id: str) -> Samples:
        return Samples(await self._ask(ask.samples(id, group=True)))

    async def cancel(self, id: str) -> None:
        await self._ask(ask.cancel(id))

    async def wait(self, id: str, timeout: Optional[float] = None) -> Json:
        return (await self.wait_all([id], timeout))[0]

    async def wait_all(self, ids: Sequence[str], timeout: Optional[float] = None) -> List[Json]:
        patience = Patience(ids, timeout)
        for id in patience:
            try:
                patience.saw(id, await self.rollout(id, patience.wait_ms()))
            except Unreachable as error:
                await asyncio.sleep(patience.pause(error))
        return [patience.results[id] for id in ids]

    # ------------------------------------------------------------ events
    async def events(self, rollout: Optional[str] = None, group: Optional[str] = None, after: Optional[str] = None,
                     timeout: Optional[float] = None) -> AsyncIterator[Event]:
        feed = Feed(ask.events(rollout, group), after, rollout or group, timeout)
        while not feed.over:
            connection: Optional[_Connection] = None
            try:
                connection = await self._connection()
                connection.send_head("GET", self.address.prefix + feed.request.path, self.address.host,
                                     (*ask.headers(self.token)[:1], ("Accept", "text/event-stream"),
                                      *ask.headers(self.token)[2:], *feed.headers()))
                status, headers = await asyncio.wait_for(connection.receive_head(), self.timeout)
                if status == 204:
                    return
                if status != 200:
                    raise from_answer(status, await asyncio.wait_for(connection.receive_body(status, headers), self.timeout),
                                      headers.get("retry-after"))
                lines = connection.lines(headers)
                while True:
                    line = await asyncio.wait_for(lines.__anext__(), feed.patience)
                    event = feed.line(line)
                    if event:
                        yield event
                    if feed.over:
                        return
                    feed.check()
            except StopAsyncIteration:
                pass  # it ended; asked again, the server says whether anything follows
            except (asyncio.TimeoutError, TimeoutError):
                feed.check()
            except (Busy, OSError, EOFError, ValueError) as error:
                feed.broke(error if isinstance(error, PosternError) else unreachable(self.address, error))
            finally:
                if connection is not None:
                    connection.close()
            await asyncio.sleep(feed.pause())

    # ------------------------------------------------------------ the gate
    async def gate(self) -> Json:
        return await self._ask(ask.gate())

    async def take(self, max: int = 1, wait_ms: int = 30000, lease_ms: Optional[int] = None, group: Optional[str] = None,
                   rollout: Optional[str] = None, raw: bool = False) -> List[Json]:
        return list((await self._ask(ask.take(max, wait_ms, lease_ms, group, rollout, raw)))["calls"])

    async def answer(self, call: Union[Call, str], answer: Union[str, Mapping[str, Any]]) -> Json:
        return await self._ask(ask.answer(call, answer))

    async def stream(self, call: Union[Call, str], chunks: Union[AsyncIterable[Chunk], Iterable[Chunk]]) -> Json:
        """As Client.stream; the iterator may be an asynchronous one. Ends early, with NotFound, when the agent leaves."""
        request = ask.stream(call)
        connection = await self._connection()
        source = _as_async(chunks)
        reading = asyncio.ensure_future(connection.receive())
        keep = False
        try:
            connection.send_head(request.method, self.address.prefix + request.path, self.address.host,
                                 (*ask.headers(self.token), ("Transfer-Encoding", "chunked")))
            keep = await self._send_chunks(connection, source, reading)
            status, headers, data = await asyncio.wait_for(asyncio.shield(reading), self.timeout)
            keep = keep and headers.get("connection", "").lower() != "close"
        except (asyncio.TimeoutError, TimeoutError) as error:
            keep = False
            raise TimedOut(f"no answer from {self.address} to a stream in {self.timeout:g} s") from error
        except (OSError, EOFError, ValueError) as error:
            keep = False
            raise unreachable(self.address, error) from error
        except _ChunksFailed as failed:
            raise failed.__cause__ or failed
        finally:
            if not reading.done():
                reading.cancel()
                keep = False
            elif not reading.cancelled():
                reading.exception()  # seen, so that nobody warns about it
            close = getattr(source, "aclose", None)
            if close:
                await close()
            self._put_back(connection, keep)
        answer: Json = read_answer(request, status, data, headers.get("retry-after"))
        return answer

    async def _send_chunks(self, connection: _Connection, source: AsyncIterator[Chunk],
                           reading: "asyncio.Future[Any]") -> bool:
        """True: the body went out to its end. False: the server answered before that."""
        finished = False
        while True:
            coming = asyncio.ensure_future(_next(source))
            try:
                await asyncio.wait({coming, reading}, return_when=asyncio.FIRST_COMPLETED)
                if reading.done():
                    return False
            finally:
                if not coming.done():
                    coming.cancel()
                    await asyncio.gather(coming, return_exceptions=True)
            chunk = coming.result()
            if chunk is None:
                break
            finished = finished or ask.has_finish(chunk)
            await self._send_piece(connection, ask.chunk_bytes(chunk))
        if not finished:
            await self._send_piece(connection, ask.chunk_bytes(ask.LAST_CHUNK))
        connection.writer.write(b"0\r\n\r\n")
        await connection.writer.drain()
        return True

    @staticmethod
    async def _send_piece(connection: _Connection, data: bytes) -> None:
        connection.writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await connection.writer.drain()

    async def extend(self, call: Union[Call, str], lease_ms: Optional[int] = None) -> Json:
        return await self._ask(ask.extend(call, lease_ms))

    async def release(self, call: Union[Call, str]) -> Json:
        return await self._ask(ask.release(call))

    async def fail(self, call: Union[Call, str], message: str, status: int = 500, type: Optional[str] = None) -> Json:
        return await self._ask(ask.fail(call, message, status, type))

    # ------------------------------------------------------------ the policy
    async def policy(self) -> Json:
        return await self._ask(ask.policy())

    async def set_policy(self, version: Optional[int] = None, pause: bool = False, resume: bool = False,
                         max_staleness: Optional[int] = None, batch: Optional[int] = None) -> Json:
        return await self._ask(ask.set_policy(version, pause, resume, max_staleness, batch))

    async def pause(self) -> Json:
        return await self.set_policy(pause=True)

    async def resume(self, version: Optional[int] = None) -> Json:
        return await self.set_policy(version, resume=True)

    # ------------------------------------------------------------ the connection
    async def _ask(self, request: ask.Request) -> Json:
        attempt = 0
        while True:
            try:
                answer: Json = await self._once(request)
                return answer
            except (Busy, Unreachable) as error:
                attempt += 1
                if attempt > self.retries or not (isinstance(error, Busy) or request.again):
                    raise
                await asyncio.sleep(ask.back_off(attempt, error.retry_after))

    async def _connection(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.reader.at_eof() and not connection.writer.is_closing():
                return connection
            connection.close()
        where = self.address
        try:
            if where.scheme == "unix":
                opening = asyncio.open_unix_connection(where.host, limit=LINE_MAX)
            else:
                secure = ssl.create_default_context() if where.scheme == "https" else None
                opening = asyncio.open_connection(where.host, where.port, ssl=secure, limit=LINE_MAX)
            return _Connection(*await asyncio.wait_for(opening, self.timeout))
        except (asyncio.TimeoutError, TimeoutError) as error:
            raise TimedOut(f"no connection to {where} in {self.timeout:g} s") from error
        except OSError as error:
            raise unreachable(where, error) from error

    def _put_back(self, connection: _Connection, keep: bool) -> None:
        if keep and len(self._idle) < POOL_MAX:
            self._idle.append(connection)
        else:
            connection.close()

    async def _once(self, request: ask.Request) -> Any:
        connection = await self._connection()
        timeout = self.timeout + request.wait_s
        keep = False
        try:
            body = request.body or b""
            connection.send_head(request.method, self.address.prefix + request.path, self.address.host,
                                 (*ask.headers(self.token), ("Content-Length", str(len(body)))))
            connection.writer.write(body)
            status, headers, data = await asyncio.wait_for(connection.receive(), timeout)
            keep = headers.get("connection", "").lower() != "close"
        except (asyncio.TimeoutError, TimeoutError) as error:
            raise TimedOut(f"{request.method} {request.path.split('?')[0]}: no answer from {self.address} "
                           f"in {timeout:g} s") from error
        except (OSError, EOFError, ValueError) as error:
            raise unreachable(self.address, error) from error
        finally:
            self._put_back(connection, keep)
        return read_answer(request, status, data, headers.get("retry-after"))


class _ChunksFailed(Exception):
    """The caller's iterator raised: not to be taken for an error of the connection."""


async def _next(source: AsyncIterator[Chunk]) -> Optional[Chunk]:
    try:
        return await source.__anext__()
    except StopAsyncIteration:
        return None
    except Exception as error:
        raise _ChunksFailed() from error


def _as_async(chunks: Union[AsyncIterable[Chunk], Iterable[Chunk]]) -> AsyncIterator[Chunk]:
    if isinstance(chunks, AsyncIterable):
        return chunks.__aiter__()

    async def each() -> AsyncIterator[Chunk]:
        for chunk in chunks:
            yield chunk

    return each()
