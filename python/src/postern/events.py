"""Waiting and watching: what both clients share. Feed reads a stream of server-sent events and knows where it was when the
connection breaks; Patience goes through rollouts that are to be over."""

from __future__ import annotations

import json
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from . import requests as ask
from .errors import PosternError, TimedOut
from .requests import Json

LINE_MAX = 16 << 20
POLL_S = 30.0    # one long-poll; also how often a stream that is silent is looked after
AWAY_MAX = 60.0  # seconds without a server before a stream that has no timeout of its own gives up


class Event(NamedTuple):
    """`kind` is "stage", "final", ...; `id` is what to pass as `after` to go on behind it."""

    kind: str
    data: Any
    id: Optional[str]


class Feed:
    def __init__(self, request: ask.Request, after: Optional[str], one: Optional[str], timeout: Optional[float]) -> None:
        self.request, self.last, self.one, self.timeout = request, after, one, timeout
        self.patience = POLL_S if timeout is None else max(min(POLL_S, timeout), 0.001)  # of one read
        self.over = False
        self._heard = time.monotonic()
        self._broken: Optional[PosternError] = None
        self._attempt = 0
        self._forget()

    def _forget(self) -> None:
        self._kind, self._data, self._id = "message", [], self.last  # type: Tuple[str, List[str], Optional[str]]

    def headers(self) -> Tuple[Tuple[str, str], ...]:
        self._forget()
        return (("Last-Event-ID", self.last),) if self.last else ()

    def line(self, line: bytes) -> Optional[Event]:
        """The event that this line ends, if it ends one."""
        if len(line) > LINE_MAX:
            raise ValueError("a line of an event is too long")
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        self._broken, self._attempt = None, 0
        if text:
            name, _, value = text.partition(":")
            value = value[1:] if value.startswith(" ") else value
            if name == "event":
                self._kind = value
            elif name == "data":
                self._data.append(value)
            elif name == "id":
                self._id = value
            return None
        if not self._data:
            self._forget()
            return None
        self._heard = time.monotonic()
        joined = "\n".join(self._data)
        try:
            data = json.loads(joined)
        except ValueError:
            data = joined
        event = Event(self._kind, data, self._id)
        self.last = self._id
        self.over = bool(self.one) and event.kind in ("final", "group_final") and _is_last(event, self.one)
        self._forget()
        return event

    def check(self) -> None:
        if self.timeout is not None and time.monotonic() - self._heard >= self.timeout:
            raise TimedOut(f"no event for {self.timeout:g} s")

    def broke(self, error: PosternError) -> None:
        self.check()
        if self._broken is None:
            self._since = time.monotonic()
        self._broken = error
        if self.timeout is None and time.monotonic() - self._since >= AWAY_MAX:
            raise error

    def pause(self) -> float:
        """Before the next connection."""
        self._attempt += 1
        return ask.back_off(self._attempt, self._broken.retry_after if self._broken else None)


def _is_last(event: Event, one: Optional[str]) -> bool:
    """A group's stream has the "final" of each of its rollouts, and ends with "group_final"."""
    if event.kind == "group_final":
        return True
    data: Dict[str, Any] = event.data if isinstance(event.data, dict) else {}
    return not (data.get("group") == one and data.get("rollout") != one)


class Patience:
    """Iterates over what is not over yet, again and again until nothing is left. Each question waits at the server."""

    def __init__(self, ids: Sequence[str], timeout: Optional[float]) -> None:
        self.ids, self.timeout = list(dict.fromkeys(ids)), timeout
        self.end = None if timeout is None else time.monotonic() + timeout
        self.results: Dict[str, Json] = {}
        self._attempt = 0

    def __iter__(self) -> Iterator[str]:
        for id in self.ids:
            while id not in self.results:
                yield id

    def left(self) -> float:
        return POLL_S if self.end is None else self.end - time.monotonic()

    def wait_ms(self) -> int:
        return max(0, int(min(self.left(), POLL_S) * 1000))

    def saw(self, id: str, seen: Json) -> None:
        self._attempt = 0
        if seen.get("fate"):
            self.results[id] = seen
        elif self.left() <= 0:
            raise TimedOut(f"{len(self.ids) - len(self.results)} of {len(self.ids)} rollouts are not over after {self.timeout} s")

    def pause(self, error: PosternError) -> float:
        self._attempt += 1
        if self.end is None or self.left() <= 0:
            raise error
        return min(ask.back_off(self._attempt), max(self.left(), 0.01))
