"""A plain web server of one folder, with ranges and a password: `python file_server.py PORT ROOT USER:PASSWORD`."""  # noqa: E501

from __future__ import annotations

import base64
import sys
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    root: Path
    password: str

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.path == "/":
            self.answer(200)
            return
        expected = f"Basic {base64.b64encode(self.password.encode()).decode()}"
        if self.headers.get("Authorization") != expected:
            self.answer(401)
            return
        path = (self.root / unquote(self.path).lstrip("/")).resolve()
        if not path.is_relative_to(self.root) or not path.is_file():
            self.answer(404)
            return
        data = path.read_bytes()
        headers = {"Last-Modified": formatdate(path.stat().st_mtime, usegmt=True)}
        wanted = self.headers.get("Range")
        if wanted is None:
            self.answer(200, data, headers)
            return
        start, _, end = wanted.removeprefix("bytes=").partition("-")
        if start:
            first, last = int(start), min(len(data), int(end) + 1) if end else len(data)
        else:
            first, last = max(0, len(data) - int(end)), len(data)
        if first >= len(data):
            self.answer(416)
            return
        headers["Content-Range"] = f"bytes {first}-{last - 1}/{len(data)}"
        self.answer(206, data[first:last], headers)

    def answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class Server(ThreadingHTTPServer):
    daemon_threads = True


if __name__ == "__main__":
    Handler.root = Path(sys.argv[2]).resolve()
    Handler.password = sys.argv[3]
    Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
