"""Who may ask: the page's own requests, under the address that the server was started with.

Any page in a browser can send requests to this machine. Three things keep it out: the Host header must be an address of this
server (a foreign name that was made to point here is refused), the Origin must be the page's own, and beyond loopback the
address must hold the token.
"""

from __future__ import annotations

import ipaddress
import secrets
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ostools.measure.hosted.address import is_loopback

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "font-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors http://127.0.0.1:* http://localhost:*"
)
"""Vega writes style attributes, for which 'unsafe-inline' stands; a notebook on this machine may hold the page in a cell."""
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
OPEN = (".css", ".js")
"""The endings of files that are the same for everybody. A request for one of these needs no token."""


@dataclass(frozen=True)
class Guard:
    """The application, behind the checks. `token`: None on loopback."""

    app: ASGIApp
    host: str
    token: str | None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses with 403 what is not the page's own; every answer has the page's policy."""
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                policy_headers = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *policy_headers]}
            await send(message)

        refused = self.refusal(Request(scope))
        answering = self.app if refused is None else _forbidden(refused)
        await answering(scope, receive, with_headers)

    def refusal(self, request: Request) -> str | None:
        """Why a request is refused; None where it is not."""
        host = request.headers.get("host", "")
        if not self._is_ours(_name(host)):
            return "expected the address that the explorer printed, found another Host"
        origin = request.headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return "expected a request of the explorer's own page, found another Origin"
        if self.token is None or request.url.path.endswith(OPEN):
            return None
        token = request.query_params.get("token", "")
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            return "expected the token that the explorer printed in its address, found none or another"
        return None

    def _is_ours(self, name: str) -> bool:
        """No name can be made to point here but those listed; an address of numbers cannot be rebound."""
        if self.token is None:
            return is_loopback(name)
        return name in ("localhost", self.host) or _is_address(name)


def _name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _forbidden(why: str) -> Response:
    return PlainTextResponse(f"{why}\n", status_code=403)
