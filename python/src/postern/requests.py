"""What can be asked of the control listener, one function per route: each returns a Request, and both clients know
how to send one. `again` says that sending it twice does what sending it once does, so a broken connection may be
answered with a second try."""

from __future__ import annotations

import json
import pathlib
import secrets
from typing import Any, Dict, Iterable, Mapping, NamedTuple, Optional, Tuple, Union
from urllib.parse import quote, urlencode, urlsplit

from .errors import PosternError

Call = Mapping[str, Any]
Json = Dict[str, Any]


class Request(NamedTuple):
    method: str
    path: str
    body: Optional[bytes] = None
    again: bool = False
    wait_s: float = 0  # what the server may take, on top of the client's timeout
    text: bool = False
    raw: bool = False  # the answer's bytes as they are


class Address(NamedTuple):
    scheme: str  # http, https or unix
    host: str    # of unix: the path
    port: int
    prefix: str

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix:{self.host}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"


def address(url: str) -> Address:
    if url.startswith("unix:"):
        return Address("unix", url[5:], 0, "")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is no http://, https:// or unix: address")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return Address(parts.scheme, parts.hostname, port, parts.path.rstrip("/"))


def read_token(token: Optional[str], token_file: Union[str, pathlib.Path, None]) -> Optional[str]:
    if token is not None and token_file is not None:
        raise ValueError("token and token_file exclude each other")
    if token_file is not None:
        try:
            token = pathlib.Path(token_file).read_text().strip()
        except OSError as error:
            raise PosternError(f"the token file '{token_file}' cannot be read: {error.strerror}") from error
    if token is not None and (not token.isascii() or not token.isprintable() or " " in token):
        raise ValueError("the token has characters that no token has")
    return token


def _json(method: str, path: str, members: Mapping[str, Any], **more: Any) -> Request:
    return Request(method, path, json.dumps({k: v for k, v in members.items() if v is not None}).encode(), **more)


def health() -> Request:
    return Request("GET", "/health", again=True)


def version() -> Request:
    return Request("GET", "/v1/version", again=True)


def metrics() -> Request:
    return Request("GET", "/metrics", again=True, text=True)


def gate() -> Request:
    return Request("GET", "/v1/gate", again=True)


def policy() -> Request:
    return Request("GET", "/v1/policy", again=True)


def set_policy(version: Optional[int], pause: bool, resume: bool, max_staleness: Optional[int], batch: Optional[int]) -> Request:
    return _json("POST", "/v1/policy", {"version": version, "pause": pause or None, "resume": resume or None,
                                        "max_staleness": max_staleness, "batch": batch}, again=True)


def _keyed(order: Mapping[str, Any]) -> Json:
    """With a key a submission that is sent twice is taken once: one that has none gets one nobody else has."""
    return {**order, "key": order.get("key") or f"auto-{secrets.token_hex(16)}"}


def submit(order: Mapping[str, Any]) -> Request:
    return _json("POST", "/v1/rollouts", _keyed(order), again=True)


def submit_many(orders: Iterable[Mapping[str, Any]]) -> Request:
    members = [{k: v for k, v in _keyed(order).items() if v is not None} for order in orders]
    return Request("POST", "/v1/rollouts", json.dumps(members).encode(), again=True)


def submit_group(order: Mapping[str, Any]) -> Request:
    return _json("POST", "/v1/groups", _keyed(order), again=True)


def _get(path: str, query: Mapping[str, Any], **more: Any) -> Request:
    text = urlencode({k: v for k, v in query.items() if v is not None})
    return Request("GET", path + (f"?{text}" if text else ""), again=True, **more)


def rollouts(**query: Any) -> Request:
    return _get("/v1/rollouts", query)


def groups(**query: Any) -> Request:
    return _get("/v1/groups", query)


def rollout(id: str, wait_ms: int = 0) -> Request:
    return _get(f"/v1/rollouts/{quote(id, safe='')}", {"wait_ms": wait_ms or None}, wait_s=wait_ms / 1000)


def group(id: str, wait_ms: int = 0) -> Request:
    return _get(f"/v1/groups/{quote(id, safe='')}", {"wait_ms": wait_ms or None}, wait_s=wait_ms / 1000)


def cancel_group(id: str) -> Request:
    return Request("POST", f"/v1/groups/{quote(id, safe='')}/cancel", again=True)


def calls(id: str) -> Request:
    return _get(f"/v1/rollouts/{quote(id, safe='')}/calls", {})


def call(id: str) -> Request:
    return _get(f"/v1/calls/{quote(id, safe='')}", {})


def events(rollout: Optional[str], group: Optional[str]) -> Request:
    if rollout and group:
        raise ValueError("events are of a rollout or of a group, not of both")
    if rollout:
        return _get(f"/v1/rollouts/{quote(rollout, safe='')}/events", {})
    return _get(f"/v1/groups/{quote(group, safe='')}/events" if group else "/v1/events", {})


def samples(id: str, group: bool = False) -> Request:
    kind = "groups" if group else "rollouts"
    return Request("GET", f"/v1/{kind}/{quote(id, safe='')}/samples?format=binary", again=True, raw=True)


def cancel(id: str) -> Request:
    return Request("POST", f"/v1/rollouts/{quote(id, safe='')}/cancel", again=True)


def take(max: int, wait_ms: int, lease_ms: Optional[int], group: Optional[str], rollout: Optional[str],
         raw: bool) -> Request:
    return _json("POST", "/v1/gate/take", {"max": max, "wait_ms": wait_ms, "lease_ms": lease_ms, "group": group,
                                            "rollout": rollout, "raw": raw}, wait_s=wait_ms / 1000)


def _call_path(call: Union[Call, str], verb: str) -> str:
    """A call as take() gave it, with its lease; or only its id."""
    if isinstance(call, str):
        return f"/v1/gate/calls/{quote(call, safe='')}/{verb}"
    lease = call.get("lease")
    return _call_path(call["call_id"], verb) + (f"?lease={quote(lease, safe='')}" if lease else "")


def answer(call: Union[Call, str], answer: Union[str, Mapping[str, Any]]) -> Request:
    """As it is: a tool's result may be None."""
    members = {"content": answer} if isinstance(answer, str) else dict(answer)
    return Request("POST", _call_path(call, "answer"), json.dumps(members).encode())


def stream(call: Union[Call, str]) -> Request:
    return Request("POST", _call_path(call, "stream"))


def chunk_bytes(chunk: Union[str, Mapping[str, Any]]) -> bytes:
    return json.dumps({"content": chunk} if isinstance(chunk, str) else chunk).encode() + b"\n"


def has_finish(chunk: Union[str, Mapping[str, Any]]) -> bool:
    if isinstance(chunk, str):
        return False
    choices: Iterable[Any] = chunk.get("choices") or ()
    return bool(chunk.get("finish_reason")) or any(choice.get("finish_reason") for choice in choices)


LAST_CHUNK: Json = {"finish_reason": "stop"}


def extend(call: Union[Call, str], lease_ms: Optional[int]) -> Request:
    return _json("POST", _call_path(call, "extend"), {"lease_ms": lease_ms}, again=True)


def release(call: Union[Call, str]) -> Request:
    return _json("POST", _call_path(call, "release"), {})


def fail(call: Union[Call, str], message: str, status: int, type: Optional[str]) -> Request:
    cut = message.encode()[:3900].decode("utf-8", "ignore").replace("\0", "")
    return _json("POST", _call_path(call, "fail"), {"status": status, "type": type, "message": cut})


def headers(token: Optional[str]) -> Tuple[Tuple[str, str], ...]:
    base = (("Content-Type", "application/json"), ("Accept", "application/json"))
    return base + ((("Authorization", f"Bearer {token}"),) if token else ())


def back_off(attempt: int, retry_after: Optional[float] = None) -> float:
    """Seconds before try number `attempt` (from 1) is repeated."""
    return min(retry_after, 30.0) if retry_after is not None else min(0.1 * 2.0 ** (attempt - 1), 5.0)
