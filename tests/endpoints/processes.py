"""Server processes that die with the tests: on a free port of 127.0.0.1, ready when returned."""

from __future__ import annotations

import ctypes
import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HOST = "127.0.0.1"
_READY_WITHIN_SECONDS = 60
_PR_SET_PDEATHSIG = 1
# Loaded before the fork: between fork and exec no lock may be taken.
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def server(command: Sequence[str], port: int) -> Iterator[str]:
    """Run a server until the block ends, and give its URL."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_environment(),
            preexec_fn=_die_with_parent,  # noqa: PLW1509 (one prctl, loaded beforehand)
        )
        try:
            _wait_until_ready(process, port, log)
            yield f"http://{HOST}:{port}"
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return {**kept, "AWS_EC2_METADATA_DISABLED": "true"}


def _die_with_parent() -> None:
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: IO[bytes]) -> None:
    deadline = time.monotonic() + _READY_WITHIN_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        connection = http.client.HTTPConnection(HOST, port, timeout=5)
        try:
            connection.request("GET", "/")
            connection.getresponse().read()
        except OSError:
            time.sleep(0.05)
        else:
            return
        finally:
            connection.close()
    log.seek(0)
    text = log.read()[-2000:].decode(errors="replace")
    raise RuntimeError(f"server did not get ready (exit code {process.poll()}): {text}")
