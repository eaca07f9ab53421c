"""Who is let in: only this machine, by its own name, with the token, and only to look.

The server listens on loopback. A page of another site could still send requests here, or pretend
that its name is that of this machine (DNS rebinding): so the `Host` must be a loopback address with
the right port, and every request needs the token, from the address that was printed or from the
cookie that it left. Only GET and HEAD are answered.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, QueryParams
from starlette.responses import PlainTextResponse, RedirectResponse, Response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Lets requests pass that have the token and the right host; others get 403."""

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        """Take what is behind it, the token, and the port that requests must name."""
        self._app = app
        self._token = token
        self._cookie = f"icefloe-{port}"
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(k.encode(), v.encode()) for k, v in _HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *headers]
            await send(message)

        answer: Response | None = self._refusal(scope)
        if answer is None and "token" in QueryParams(scope["query_string"]):
            # The token must not stay in the address, which is shown and remembered.
            answer = RedirectResponse("/", status_code=303)
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
        await (answer or self._app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        if scope["type"] != "http":
            return PlainTextResponse("only HTTP is spoken here", 403)
        headers = Headers(scope=scope)
        if headers.get("host", "").lower() not in self._hosts:
            return PlainTextResponse("this is not the name of this server", 403)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("this server only shows", 405, {"allow": "GET, HEAD"})
        if not self._has_token(headers, QueryParams(scope["query_string"])):
            return PlainTextResponse("open the address that `icefloe ui` printed", 403)
        return None

    def _has_token(self, headers: Headers, query: QueryParams) -> bool:
        from http.cookies import CookieError, SimpleCookie

        offered = query.get("token")
        if offered is None:
            try:
                morsel = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
            except CookieError:
                return False
            offered = "" if morsel is None else morsel.value
        return hmac.compare_digest(offered.encode(), self._token.encode())
