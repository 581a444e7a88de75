"""The client of the Postern rollout service. See docs/python.md."""

from .aio import AsyncClient
from .client import Client
from .engine import Engine
from .errors import (AuthError, Busy, CallFailed, Conflict, InvalidRequest, NotFound, PosternError, ServerError, TimedOut,
                     Unreachable)
from .events import Event
from .local import LocalServer, local
from . import samples
from .samples import Sample, Samples
from .training import advantages
from .worker import GateWorker

__all__ = ["AsyncClient", "AuthError", "Busy", "CallFailed", "Client", "Conflict", "Engine", "Event", "GateWorker", "InvalidRequest",
           "LocalServer", "NotFound", "PosternError", "ServerError", "TimedOut", "Unreachable", "advantages", "local",
           "Sample", "Samples", "samples"]
__version__ = "0.1.0"
