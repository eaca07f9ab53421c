"""An S3 server on loopback for the benchmarks: moto, in a process of its own."""

from __future__ import annotations

import atexit
import contextlib
import http.client
import importlib.util
import sys
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent
BUCKET = "icefloe-benchmarks"
CREDENTIALS = {"access_key_id": "bench-access-key", "secret_access_key": "bench-secret-key"}


def start() -> str:
    """Start a server with an empty bucket; it ends with this process. Returns its address."""
    from tests.endpoints.processes import free_port, server

    port = free_port()
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    script = ROOT / "tests" / "endpoints" / "moto_server.py"
    url = stack.enter_context(server([_python(), str(script), str(port)], port))
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    connection.request("PUT", f"/{BUCKET}", headers={"Content-Length": "0"})
    connection.getresponse().read()
    connection.close()
    return url


def _python() -> str:
    """An interpreter that has moto: the benchmarks' own, or that of the tests."""
    if importlib.util.find_spec("moto") is not None:
        return sys.executable
    return str(ROOT / ".venv" / "bin" / "python")
