"""GateWorker: takes held calls, has them answered, delivers. The policy is a function or an OpenAI-compatible engine.

One asyncio loop does the work, in a thread of its own (`with worker:`, `worker.start()`) or in the caller's loop (`async with
worker:`). Plain functions run in a pool of threads, so they may block. While an answer is being made its lease is extended
every third of its length; when the server says that the call is gone (the agent left, the rollout was cancelled) the work on
it is given up. A server that is away is asked again with growing pauses. Stopping takes no new calls, finishes those in hand
for `grace_s` and gives the rest back to the queue."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import inspect
import logging
import threading
import time
from typing import (Any, AsyncIterator, Awaitable, Callable, Deque, Dict, Iterable, Iterator, Mapping, Optional, Set,
                    Tuple, Union)

from . import requests as ask
from .aio import AsyncClient, Chunk
from .client import Client
from .engine import Engine
from .errors import (AuthError, Busy, CallFailed, Conflict, InvalidRequest, NotFound, PosternError, TimedOut,
                     Unreachable)
from .requests import Json

POLL_MS = 500  # a take under way is what stopping waits for
TAKE_MAX = 1024
ERRORS_MAX = 100
DELIVERIES_MAX = 4
log = logging.getLogger("postern")

Whole = Union[str, Mapping[str, Any]]
Answer = Union[Whole, Iterable[Chunk], AsyncIterator[Chunk]]
Policy = Callable[[Json], Union[Answer, Awaitable[Answer]]]


class GateWorker:
    """`answer` is a function of one call, an Engine, or the URL of one. A function returns text, an answer as an object, or an
    iterator of chunks (also an asynchronous one), which is streamed; it raises CallFailed to choose the agent's error.

    `tools` maps names to functions of the arguments (an object) that return a tool's result; a tool call with no such
    function goes to `answer`. Text for a call of kind "user" is what the user says. `engine_options` are added to every
    request to an engine."""

    def __init__(self, client: Union[Client, AsyncClient], answer: Union[Policy, Engine, str], concurrency: int = 8,
                 lease_ms: int = 60000, group: Optional[str] = None, rollout: Optional[str] = None, raw: bool = False,
                 tools: Optional[Mapping[str, Callable[[Any], Any]]] = None, grace_s: float = 30.0,
                 engine_key: Optional[str] = None, engine_options: Optional[Mapping[str, Any]] = None,
                 engine_timeout: float = 600.0) -> None:
        if concurrency < 1 or lease_ms < 1:
            raise ValueError("concurrency and lease_ms are at least 1")
        self.client, self.concurrency, self.lease_ms, self.grace_s = client, concurrency, lease_ms, grace_s
        self.filter: Dict[str, Any] = {"group": group, "rollout": rollout, "raw": raw}
        self.tools = dict(tools or {})
        self.taken = self.answered = self.failed = self.lost = 0
        self.errors: Deque[BaseException] = collections.deque(maxlen=ERRORS_MAX)  # what functions raised, the newest last
        self._answer, self._engine_key = answer, engine_key
        self._engine_options, self._engine_timeout = dict(engine_options or {}), engine_timeout
        self._engine: Optional[Engine] = None
        self._stop_asked = False
        self._stopping: Optional[asyncio.Event] = None
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._thread: Optional[threading.Thread] = None
        self._task: Optional["asyncio.Task[None]"] = None
        self._fatal: Optional[BaseException] = None

    # ------------------------------------------------------------ its life
    def start(self) -> "GateWorker":
        if self._thread or self._task:
            raise RuntimeError("a GateWorker is started once")
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main(None)), name="postern-gate", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ends it, and raises what ended it before, if anything did."""
        self._ask_to_stop()
        if self._thread:
            self._thread.join()
        if self._fatal:
            raise self._fatal

    def run(self) -> None:
        """Works until interrupted."""
        with self:
            assert self._thread
            self._thread.join()

    def __enter__(self) -> "GateWorker":
        return self.start()

    def __exit__(self, kind: Any, *_: Any) -> None:
        try:
            self.stop()
        except Exception:
            if kind is None:
                raise

    async def __aenter__(self) -> "GateWorker":
        if self._thread or self._task:
            raise RuntimeError("a GateWorker is started once")
        own = self.client if isinstance(self.client, AsyncClient) else None
        self._task = asyncio.ensure_future(self._main(own))
        return self

    async def __aexit__(self, kind: Any, *_: Any) -> None:
        self._ask_to_stop()
        assert self._task
        await self._task
        if self._fatal and kind is None:
            raise self._fatal

    def _ask_to_stop(self) -> None:
        self._stop_asked = True
        loop, stopping = self._loop, self._stopping
        if loop and stopping:
            try:
                loop.call_soon_threadsafe(stopping.set)
            except RuntimeError:
                pass  # the loop is closed: it has ended already

    async def _main(self, client: Optional[AsyncClient]) -> None:
        own = client or AsyncClient(str(self.client.address), self.client.token, timeout=self.client.timeout)
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if self._stop_asked:
            self._stopping.set()
        if isinstance(self._answer, str):
            self._engine = Engine(self._answer, self._engine_key, "plain", options=self._engine_options,
                                  timeout=self._engine_timeout)
        elif isinstance(self._answer, Engine):
            self._engine = self._answer
        self._pool = concurrent.futures.ThreadPoolExecutor(self.concurrency, "postern-answer")
        try:
            await self._serve(own)
        except Exception as error:
            self._fatal = error
            log.error("the gate worker ends: %s", error)
        finally:
            self._pool.shutdown(wait=False)
            if client is None:
                await own.close()
            if self._engine is not None:
                await self._engine.close()

    # ------------------------------------------------------------ taking
    async def _serve(self, client: AsyncClient) -> None:
        assert self._stopping
        running: Set["asyncio.Task[None]"] = set()
        stopped = asyncio.ensure_future(self._stopping.wait())
        attempt = 0
        try:
            while not stopped.done():
                free = min(self.concurrency - len(running), TAKE_MAX)
                if free == 0:
                    await asyncio.wait({stopped, *running}, return_when=asyncio.FIRST_COMPLETED)
                    continue
                began = time.monotonic()
                try:
                    calls = await client.take(free, POLL_MS, self.lease_ms, **self.filter)
                    attempt = 0
                except (AuthError, InvalidRequest):
                    raise  # asking again would not help
                except PosternError as error:
                    attempt += 1
                    log.warning("taking calls: %s", error)
                    await asyncio.wait({stopped}, timeout=ask.back_off(attempt))
                    continue
                for call in calls:
                    self.taken += 1
                    task = asyncio.ensure_future(self._handle(client, call))
                    running.add(task)
                    task.add_done_callback(running.discard)
                if not calls and time.monotonic() - began < 0.05:
                    await asyncio.wait({stopped}, timeout=0.05)  # a server that is about to end answers at once
        finally:
            stopped.cancel()
            if running:
                await asyncio.wait(set(running), timeout=self.grace_s)
            left = set(running)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    # ------------------------------------------------------------ one call
    async def _handle(self, client: AsyncClient, call: Json) -> None:
        gone = asyncio.Event()
        lease = asyncio.ensure_future(self._keep_lease(client, call, gone))
        left = asyncio.ensure_future(gone.wait())
        work = asyncio.ensure_future(self._work(client, call, lease))
        try:
            await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self.lost += 1
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
        except asyncio.CancelledError:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            await self._quietly(client.release(call))
            raise
        finally:
            lease.cancel()
            left.cancel()

    async def _work(self, client: AsyncClient, call: Json, lease: "asyncio.Future[None]") -> None:
        try:
            whole, chunks = await self._make(call)
        except Exception as error:
            await self._fail(client, call, error)
            return
        try:
            if chunks is None:
                await self._deliver(client, call, whole)
            else:
                lease.cancel()  # the open stream is the lease now
                await client.stream(call, chunks)
            self.answered += 1
        except (NotFound, Conflict):
            self.lost += 1
        except (Unreachable, TimedOut, Busy) as error:
            # The policy did its part: no failure that an agent should see.
            self.failed += 1
            self.errors.append(error)
            log.warning("delivering %s: %s", call["call_id"], error)
            await self._quietly(client.release(call))
        except Exception as error:
            await self._fail(client, call, error)

    @staticmethod
    async def _deliver(client: AsyncClient, call: Json, whole: Whole) -> None:
        """With its lease an answer counts once, however often it is sent: one that had arrived before is NotFound."""
        for attempt in range(1, DELIVERIES_MAX):
            try:
                await client.answer(call, whole)
                return
            except Unreachable as error:
                log.info("delivering %s: %s", call["call_id"], error)
                await asyncio.sleep(ask.back_off(attempt))
        await client.answer(call, whole)

    async def _fail(self, client: AsyncClient, call: Json, error: Exception) -> None:
        self.failed += 1
        self.errors.append(error)
        if isinstance(error, CallFailed):
            failure = error
        elif isinstance(error, InvalidRequest):
            failure = CallFailed(f"the answer was refused: {error.reason}", 500, "worker_error")
        else:
            # The text may hold what is no business of an agent's; the type is enough for it.
            log.warning("answering %s: %r", call["call_id"], error)
            failure = CallFailed(f"the policy failed: {type(error).__name__}", 500, "worker_error")
        await self._quietly(client.fail(call, failure.message, failure.status, failure.type))

    async def _keep_lease(self, client: AsyncClient, call: Json, gone: asyncio.Event) -> None:
        lease_ms = min(self.lease_ms, call.get("lease_ms") or self.lease_ms)  # the server has a maximum
        while True:
            await asyncio.sleep(lease_ms / 3000)
            try:
                await client.extend(call, self.lease_ms)
            except (NotFound, Conflict):
                gone.set()
                return
            except PosternError as error:
                log.warning("extending the lease of %s: %s", call["call_id"], error)

    @staticmethod
    async def _quietly(request: Awaitable[Any]) -> None:
        """For the last word on a call: when the server does not hear it, the lease runs out."""
        try:
            await request
        except PosternError as error:
            log.info("%s", error)

    # ------------------------------------------------------------ the answer
    async def _make(self, call: Json) -> Tuple[Whole, Optional[AsyncIterator[Chunk]]]:
        """A whole answer, or chunks of which the first is there already: what goes wrong before it is an error the agent
        is told, not a broken stream."""
        kind = call.get("kind", "model")
        tool = kind == "tool"
        if tool and call["name"] in self.tools:
            return {"result": await self._run(self.tools[call["name"]], call["arguments"])}, None
        if self._engine is not None:
            if tool:
                raise CallFailed(f"nobody runs the tool '{call['name']}' here", 501, "not_implemented")
            if kind != "model":
                raise CallFailed(f"nobody answers as the {kind} here", 501, "not_implemented")
            return await self._engine(call), None
        assert not isinstance(self._answer, (str, Engine))
        made = await self._run(self._answer, call)
        if isinstance(made, str):
            if kind == "user":
                return {"messages": [{"role": "user", "content": made}]}, None
            return {"result" if tool else "content": made}, None
        if isinstance(made, Mapping):
            return made, None
        if hasattr(made, "__aiter__"):
            source = made.__aiter__()
        elif hasattr(made, "__iter__"):
            source = self._iterate(iter(made))
        else:
            raise TypeError(f"an answer is text, an object or an iterator of chunks, not {type(made).__name__}")
        try:
            first = await source.__anext__()
        except StopAsyncIteration:
            return {"content": ""}, None
        return {}, _with_first(first, source)

    async def _run(self, function: Callable[[Any], Any], argument: Any) -> Any:
        if inspect.iscoroutinefunction(function):
            return await function(argument)
        if inspect.isasyncgenfunction(function):
            return function(argument)
        made = await asyncio.get_running_loop().run_in_executor(self._pool, function, argument)
        return await made if inspect.isawaitable(made) else made

    async def _iterate(self, chunks: Iterator[Chunk]) -> AsyncIterator[Chunk]:
        """A plain iterator, each step in the pool: it may block."""
        end = object()
        try:
            while True:
                chunk = await asyncio.get_running_loop().run_in_executor(self._pool, next, chunks, end)
                if chunk is end:
                    return
                yield chunk  # type: ignore[misc]
        finally:
            close = getattr(chunks, "close", None)
            try:
                if close:
                    close()
            except ValueError:
                pass  # it is in the middle of a step, in its thread, and ends with that


async def _with_first(first: Chunk, rest: AsyncIterator[Chunk]) -> AsyncIterator[Chunk]:
    try:
        yield first
        async for chunk in rest:
            yield chunk
    finally:
        close = getattr(rest, "aclose", None)
        if close:
            await close()
