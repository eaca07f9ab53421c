"""Serves the page and its answers on loopback, until it is stopped."""

from __future__ import annotations

import secrets
import socket
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from icefloe.errors import IcefloeError, InvalidInputError, NotFoundError
from icefloe.viewer.answers import Answers
from icefloe.viewer.guard import Guard
from icefloe.viewer.sampling import Plane

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from icefloe.repository import Repository

_PAGE_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/viewer.js": ("viewer.js", "text/javascript; charset=utf-8"),
    "/history.js": ("history.js", "text/javascript; charset=utf-8"),
    "/pictures.js": ("pictures.js", "text/javascript; charset=utf-8"),
}
"""The only files that are served, by name: no path of a request reaches the disk."""


class Viewer:
    """A server for one repository: its socket is bound, and its address known, when it is made."""

    def __init__(self, repository: Repository, port: int = 0) -> None:
        """Bind a port of loopback; any free one by default."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("127.0.0.1", port))
            self._socket.listen(128)  # a browser that comes before the server runs has to wait
        except OSError as error:
            self._socket.close()
            raise InvalidInputError(f"port {port} cannot be used: {error.strerror}") from None
        self.port: int = self._socket.getsockname()[1]
        self.token = secrets.token_urlsafe(24)
        self.app = make_app(Answers(repository), self.token, self.port)

    @property
    def url(self) -> str:
        """The address to open, with the token."""
        return f"http://127.0.0.1:{self.port}/?token={self.token}"

    def run(self) -> None:
        """Serve until a signal stops it."""
        import uvicorn

        config = uvicorn.Config(
            self.app, log_level="warning", access_log=False, server_header=False, lifespan="off"
        )
        try:
            uvicorn.Server(config).run(sockets=[self._socket])
        finally:
            self.close()

    def close(self) -> None:
        """Give the port back."""
        self._socket.close()


def make_app(answers: Answers, token: str, port: int) -> ASGIApp:
    """The page and its answers, behind the guard."""
    questions: dict[str, Callable[[_Question], dict[str, Any]]] = {
        "summary": lambda _: answers.summary(),
        "history": lambda q: answers.history(q.text("cursor", ""), q.number("count", 100)),
        "commit": lambda q: answers.commit(q.text("version")),
        "tree": lambda q: answers.tree(q.text("version")),
        "node": lambda q: answers.node(q.text("version"), q.text("path")),
        "sizes": lambda q: answers.sizes(q.text("version"), q.text("path")),
        "chunks": lambda q: answers.chunks(
            q.text("version"), q.text("path"), q.optional_number("rows"), q.number("columns")
        ),
        "picture": lambda q: answers.picture(q.text("version"), q.text("path"), q.plane()),
        "difference": lambda q: answers.difference(
            q.text("from"), q.text("to"), q.text("path"), q.plane()
        ),
        "changes": lambda q: answers.changes(q.text("from"), q.text("to")),
    }
    routes = [Route(f"/api/{name}", _endpoint(answer)) for name, answer in questions.items()]
    routes += [Route(path, _file(*file)) for path, file in _PAGE_FILES.items()]
    return Guard(Starlette(routes=routes), token, port)


def _endpoint(
    answer: Callable[[_Question], dict[str, Any]],
) -> Callable[[Request], Response]:
    def respond(request: Request) -> Response:
        try:
            body, status = answer(_Question(request)), 200
        except NotFoundError as error:
            body, status = {"error": error.message}, 404
        except InvalidInputError as error:
            body, status = {"error": error.message}, 400
        except IcefloeError as error:
            body, status = {"error": error.message}, 502
        return Response(msgspec.json.encode(body, enc_hook=str), status, media_type=_JSON)

    return respond


_JSON = "application/json"


def _file(name: str, media_type: str) -> Callable[[Request], Response]:
    content = (files("icefloe.viewer") / "page" / name).read_bytes()

    def respond(_: Request) -> Response:
        return Response(content, media_type=media_type)

    return respond


class _Question:
    """The arguments of a request, checked."""

    def __init__(self, request: Request) -> None:
        self._arguments = request.query_params

    def text(self, name: str, default: str | None = None) -> str:
        value = self._arguments.get(name, default)
        if value is None:
            raise InvalidInputError(f"the argument {name!r} is missing")
        return value

    def optional_number(self, name: str) -> int | None:
        return self.number(name) if self._arguments.get(name) else None

    def number(self, name: str, default: int | None = None) -> int:
        value = self.text(name, None if default is None else str(default))
        if not value.isdecimal() or len(value) > 18:
            raise InvalidInputError(f"the argument {name!r} is a number, found {value[:20]!r}")
        return int(value)

    def plane(self) -> Plane:
        places = self.text("at", "")
        parts = places.split(",") if places else []
        if not all(part.isdecimal() and len(part) <= 18 for part in parts):
            raise InvalidInputError("the argument 'at' has an index for each axis")
        return Plane(self.optional_number("rows"), self.number("columns"), tuple(map(int, parts)))
