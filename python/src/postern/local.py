"""A server of one's own, for notebooks, examples and tests: `with postern.local() as client: ...`"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import select
import shutil
import subprocess
import tempfile
import time
from typing import Iterator, Optional, Sequence, Union

from .client import Client
from .errors import PosternError

Path = Union[str, pathlib.Path]


class LocalServer:
    """`postern serve` as a child of this process, on a free port of loopback. Its log is <home>/serve.log."""

    def __init__(self, program: Optional[Path], home: pathlib.Path, flags: Sequence[str], start_s: float) -> None:
        self.home = home
        self.log = home / "serve.log"
        path = str(program or os.environ.get("POSTERN") or shutil.which("postern") or "")
        if not path:
            raise PosternError("there is no program 'postern' on the PATH: say where it is (program=..., or POSTERN)")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("POSTERN_")}
        environment["POSTERN_HOME"] = str(home)
        try:
            with open(self.log, "ab") as log:
                # A session of its own: an interrupt in the notebook is not meant for the server.
                self.process = subprocess.Popen([path, "serve", "--port", "0", *flags], stdin=subprocess.DEVNULL,
                                                stdout=subprocess.PIPE, stderr=log, env=environment,
                                                start_new_session=True)
        except OSError as error:
            raise PosternError(f"'{path}' cannot be started: {error.strerror}") from error
        try:
            self.url = self._read_address(time.monotonic() + start_s)
        except BaseException:
            self.stop(0)
            raise

    def _read_address(self, end: float) -> str:
        assert self.process.stdout
        said = b""
        while True:
            match = re.search(rb"http://[\d.]+:\d+", said)
            if match and b"\n" in said[match.end():]:
                return match[0].decode()
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, end - time.monotonic()))
            data = os.read(self.process.stdout.fileno(), 4096) if ready else b""
            if not data:
                what = "said no address in time" if not ready else "ended at once"
                raise PosternError(f"postern serve {what}: {self.tail() or 'it said nothing'}")
            said += data

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_bytes()[-2000:].decode("utf-8", "replace").strip() if self.log.exists() else ""

    def stop(self, wait_s: float = 30.0) -> int:
        """SIGTERM, and SIGKILL when that takes too long. The exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        return self.process.returncode


@contextlib.contextmanager
def local(program: Optional[Path] = None, home: Optional[Path] = None, flags: Sequence[str] = (),
          start_s: float = 30.0) -> Iterator[Client]:
    """Starts a server and yields its client; `client.server` is the LocalServer. Without `home` it gets a new one, which is
    removed with everything in it at the end."""
    folder = pathlib.Path(home) if home is not None else pathlib.Path(tempfile.mkdtemp(prefix="postern-"))
    server = None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        server = LocalServer(program, folder, flags, start_s)
        with Client(server.url, token_file=folder / "token") as client:
            client.server = server
            yield client
    finally:
        if server is not None:
            server.stop()
        if home is None:
            shutil.rmtree(folder, ignore_errors=True)
