"""S3 by moto, made linearizable: `python moto_server.py PORT`.

moto looks and then writes, and between the two another request may come in. One lock around all
that writes makes its conditional writes atomic; a hostile thread switching interval shows that it
is the lock, and not luck, that does it.
"""

from __future__ import annotations

import io
import sys
import threading
from typing import TYPE_CHECKING, Any

from moto.server import DomainDispatcherApplication, create_backend_app  # type: ignore[attr-defined]
from werkzeug.serving import WSGIRequestHandler, make_server

if TYPE_CHECKING:
    from collections.abc import Iterable


class OneWriterAtATime:
    def __init__(self) -> None:
        self._application = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return self._application(environ, start_response)
        # A slow sender must not hold up the others: take the body in before the lock.
        length = int(environ.get("CONTENT_LENGTH") or 0)
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
        with self._lock:
            return list(self._application(environ, start_response))


class KeepAlive(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_: Any) -> None:
        pass


if __name__ == "__main__":
    sys.setswitchinterval(1e-6)
    make_server(
        "127.0.0.1",
        int(sys.argv[1]),
        OneWriterAtATime(),
        threaded=True,
        request_handler=KeepAlive,
    ).serve_forever()
