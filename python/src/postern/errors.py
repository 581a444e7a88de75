"""What can go wrong, as types. Everything is a PosternError with `status` (None: there was no answer), `kind` and `reason` as
the server said them, and `field`: what of the request was wrong, where the server's sentence names it."""

from __future__ import annotations

import builtins
import json
import re
from typing import Optional, Type


class PosternError(Exception):
    def __init__(self, reason: str, status: Optional[int] = None, kind: Optional[str] = None,
                 field: Optional[str] = None, retry_after: Optional[float] = None) -> None:
        super().__init__(reason if status is None else f"{status}: {reason}")
        self.reason, self.status, self.kind, self.field, self.retry_after = reason, status, kind, field, retry_after


class InvalidRequest(PosternError):
    """400, 413: a field or parameter is wrong."""


class AuthError(PosternError):
    """401, 403: no token, or not this server's."""


class NotFound(PosternError):
    """404: no such rollout or call. A call is gone when it was answered, or when its agent left."""


class Conflict(PosternError):
    """409: the call is leased to somebody else, or an id is not unique."""


class Busy(PosternError):
    """429, 503: no room now; nothing was done."""


class ServerError(PosternError):
    """Any other answer that is no success."""


class Unreachable(PosternError, builtins.ConnectionError):
    """No connection, or it broke before the answer. `except ConnectionError` catches it as well."""


class TimedOut(PosternError, builtins.TimeoutError):
    """No answer, or no end of a rollout, in the time that was given."""


class CallFailed(Exception):
    """Raised by the function of a GateWorker: the agent gets this error, in its dialect."""

    def __init__(self, message: str, status: int = 500, type: str = "server_error") -> None:
        super().__init__(message)
        self.message, self.status, self.type = message, status, type


TYPES = {400: InvalidRequest, 413: InvalidRequest, 401: AuthError, 403: AuthError, 404: NotFound, 409: Conflict,
         429: Busy, 503: Busy}


def named_field(reason: str) -> Optional[str]:
    """The server says it in a sentence: "'index' is a number ...", "there is no field 'colour'", "unknown mode 'x'"."""
    named = re.match(r"(?:the parameter )?'(\w+)'", reason) or re.search(r"\bfield '([^']*)'", reason)
    if named:
        return named[1]
    thing = re.match(r"(?:unknown )?(mode|task|tool|agent) '", reason)
    return {"tool": "tools"}.get(thing[1], thing[1]) if thing else None


def from_answer(status: int, body: bytes, retry_after: Optional[str]) -> PosternError:
    kind, reason, field = None, "", None
    try:
        error = json.loads(body)["error"]
        kind, reason, field = error.get("type") or error.get("kind"), str(error["message"]), error.get("field")
    except (ValueError, KeyError, TypeError, AttributeError):
        reason = body[:300].decode("utf-8", "replace").strip() or "no reason was given"
    of: Type[PosternError] = TYPES.get(status, ServerError)
    if field is None and of in (InvalidRequest, NotFound):
        field = named_field(reason)
    wait = float(retry_after) if retry_after and retry_after.isdigit() else None
    return of(reason, status, kind, field, wait)
