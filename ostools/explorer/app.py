"""The application: the page's files, a run, the time that it still takes, a file to save; guarded."""

from __future__ import annotations

import io
import ipaddress
import json
import secrets
import tempfile
import zipfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ostools.explorer.answer import answer
from ostools.explorer.recipe import Runs, Stopped
from ostools.explorer.views import ViewRequest
from ostools.ground.errors import InputError
from ostools.ground.names import checked_name, is_loopback
from ostools.hooks import HookError
from ostools.mitigations import MitigationError
from ostools.reporting.page import page
from ostools.results import Result

PAGE = Path(__file__).parent / "page"
_SCRIPTS = ("kit", "controls", "strip", "explorer")
LARGEST = 200_000
"""The most bytes that a request may have."""
_ENDINGS = {
    "html": "text/html", "png": "image/png", "svg": "image/svg+xml", "pdf": "application/pdf",
    "csv": "text/csv", "json": "application/json", "parquet": "application/vnd.apache.parquet",
}  # fmt: skip
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "font-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors http://127.0.0.1:* http://localhost:*"
)
"""Vega writes style attributes, for which 'unsafe-inline' stands; a local notebook may frame the
page.
"""
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
OPEN = (".css", ".js")
"""Endings of files that are the same for everybody: a request for one needs no token."""
Handler = Callable[[Mapping[str, Any], Request, Runs], Awaitable[Response]]


@dataclass(frozen=True)
class Guard:
    """The application behind its checks; `token`: None on loopback.

    Any page in a browser can send requests to this machine. Three things keep it out: the Host
    header must be an address of this server (a foreign name that points here is refused), the
    Origin must be the page's own, and beyond loopback the address must hold the token.
    """

    app: ASGIApp
    host: str
    token: str | None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses with 403 what is not the page's own; every answer has the page's policy."""
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *headers]}
            await send(message)

        refusal = self.refusal(Request(scope))
        app = self.app if refusal is None else PlainTextResponse(f"{refusal}\n", status_code=403)
        await app(scope, receive, with_headers)

    def refusal(self, request: Request) -> str | None:
        """Why a request is refused; None where it is not."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if not self._is_address_of_ours(host):
            return "expected the address that the explorer printed, found another Host"
        if origin is not None and origin != f"http://{host}":
            return "expected a request of the explorer's own page, found another Origin"
        if self.token is None or request.url.path.endswith(OPEN):
            return None
        token = request.query_params.get("token", "")
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            return (
                "expected the token that the explorer printed in its address, found none or another"
            )
        return None

    def _is_address_of_ours(self, host: str) -> bool:
        """Only listed names and addresses of numbers, which nobody can point here."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
            if self.token is None:
                return is_loopback(name)
            return name in ("localhost", self.host) or bool(ipaddress.ip_address(name))
        except ValueError:
            return False


def application(runs: Runs, prompt: str, host: str, token: str | None) -> Guard:
    """The guarded application; `prompt`: what stands in the field at first."""
    start = {**runs.subject.described(), "prompt": prompt, "endings": list(_ENDINGS)}

    async def serve_start(request: Request) -> Response:
        return JSONResponse(start)

    async def serve_time_left(request: Request) -> Response:
        """Seconds that the present run still takes, null where that is not known yet."""
        return JSONResponse({"left": runs.seconds_left()})

    texts = {
        "/": ((PAGE / "explorer.html").read_text("utf-8"), "text/html"),
        "/explorer.css": ((PAGE / "explorer.css").read_text("utf-8"), "text/css"),
        "/style.css": ((page.TEMPLATES / "style.css").read_text("utf-8"), "text/css"),
        "/draw.js": (page.drawing().source, "text/javascript"),
        "/vega.js": (page.library().source, "text/javascript"),
    }
    scripts = {f"/{name}.js": (PAGE / f"{name}.js").read_text("utf-8") for name in _SCRIPTS}
    texts |= {path: (text, "text/javascript") for path, text in scripts.items()}
    handlers: dict[str, Handler] = {"/run": _run, "/save": _save}
    routes = [
        *(Route(path, _file(text, kind)) for path, (text, kind) in texts.items()),
        *(
            Route(path, _endpoint(handler, runs), methods=["POST"])
            for path, handler in handlers.items()
        ),
        Route("/start", serve_start),
        Route("/left", serve_time_left),
    ]
    return Guard(Starlette(routes=routes), host, token)


def _file(text: str, kind: str) -> Any:
    async def serve_file(request: Request) -> Response:
        return Response(text, media_type=kind)

    return serve_file


def _endpoint(handler: Handler, runs: Runs) -> Any:
    """The handler's answer, the one line of a refusal, or nothing where nobody waits any more."""

    async def endpoint(request: Request) -> Response:
        try:
            return await handler(await _json_of(request), request, runs)
        except (InputError, MitigationError, HookError) as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        except (Stopped, ClientDisconnect):
            return Response(status_code=204)

    return endpoint


async def _run(sent: Mapping[str, Any], request: Request, runs: Runs) -> Response:
    """The answer to a view request, without its chart where `chart` is false.

    Where `before` is a number, the answer of the quicker view at that place; {} where there is
    none.
    """
    view_request, place = ViewRequest.of(sent, runs.subject), sent.get("before")
    if isinstance(place, int) and place >= 0:
        quicker = view_request.before(place)
        if quicker is None:
            return JSONResponse({})
        view_request = quicker
    recipe_result = await runs.result_of(view_request, request.is_disconnected)
    draws = sent.get("chart") is not False
    return JSONResponse(
        await runs.in_drawing_thread(partial(answer, view_request, recipe_result, draws))
    )


async def _save(sent: Mapping[str, Any], request: Request, runs: Runs) -> Response:
    """The result as a file with the `ending`; of two sides a ZIP archive of two.

    Their names and places are ours: no path comes from the browser.
    """
    view_request = ViewRequest.of(sent, runs.subject)
    ending = checked_name("ending", sent.get("ending"), _ENDINGS)
    recipe_result = await runs.result_of(view_request, request.is_disconnected)
    files = await runs.in_drawing_thread(partial(_file_bytes, recipe_result.results, ending))
    if len(files) == 1:
        return Response(next(iter(files.values())), media_type=_ENDINGS[ending])
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(
                zipfile.ZipInfo(name), content
            )  # without a time: the same bytes each time
    return Response(packed.getvalue(), media_type="application/zip")


def _file_bytes(results: Mapping[str, Result], ending: str) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as directory:
        paths = [
            result.save(Path(directory) / f"{name}.{ending}") for name, result in results.items()
        ]
        return {path.name: path.read_bytes() for path in paths}


async def _json_of(request: Request) -> dict[str, Any]:
    """The request's values. Raises `InputError` for what is no small JSON object."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise InputError("expected a request of type application/json, found another")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST:
            raise InputError(
                f"expected a request of at most {LARGEST:,} bytes, found more: shorten the prompt"
            )
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        raise InputError("expected a request in JSON, found something else") from None
    if not isinstance(values, dict):
        raise InputError("expected a request that is a JSON object, found something else")
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise InputError(
            "expected text in Unicode, found half of a character in it: leave it out"
        ) from None
    return values
