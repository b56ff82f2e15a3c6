"""The application: the page's files, a run, a file to save; for this machine's browser alone."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ostools.explorer.answer import answer
from ostools.explorer.runs import Runs, Stopped
from ostools.explorer.views import ViewRequest, described
from ostools.ground import InputError, checked_name
from ostools.hooks import HookError
from ostools.mitigations import MitigationError
from ostools.reporting.page import page
from ostools.results import Result

PAGE = Path(__file__).parent / "page"
_ENDINGS = {
    "html": "text/html", "png": "image/png", "svg": "image/svg+xml", "pdf": "application/pdf",
    "csv": "text/csv", "json": "application/json", "parquet": "application/vnd.apache.parquet",
}  # fmt: skip
_HEADERS = {
    # Vega writes style attributes, for which 'unsafe-inline' stands; a local notebook may frame
    # the page.
    "content-security-policy": "default-src 'none'; script-src 'self'; "
    "style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data:; font-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors http://127.0.0.1:* http://localhost:*",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_OURS = re.compile(r"(127\.0\.0\.1|localhost)(:\d+)?")
"""The Host of a request to this server: a foreign name that points here is another one."""
Handler = Callable[[Mapping[str, object], Request, Runs], Awaitable[Response]]


class Guard:
    """The application behind its checks, with the page's policy on every answer.

    Any page in a browser can send requests to this machine. Two things keep it out with a 403: the
    Host header must be this server's, and the Origin, where there is one, the page's own.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *headers]}
            await send(message)

        sent = Headers(scope=scope)
        host = sent.get("host", "")
        app = self.app
        if not _OURS.fullmatch(host) or sent.get("origin", f"http://{host}") != f"http://{host}":
            app = PlainTextResponse("expected a request of the explorer's own page\n", 403)
        await app(scope, receive, with_headers)


def application(runs: Runs, prompt: str) -> Guard:
    """The guarded application; `prompt`: what stands in the field at first."""
    start = {**described(runs.model), "prompt": prompt, "endings": list(_ENDINGS)}
    scripts = {f"/{path.name}": path.read_text("utf-8") for path in PAGE.glob("*.js")}
    scripts |= {"/draw.js": page.drawing().source, "/vega.js": page.library().source}
    texts = {path: (text, "text/javascript") for path, text in scripts.items()}
    texts["/"] = ((PAGE / "explorer.html").read_text("utf-8"), "text/html")
    for style in (PAGE / "explorer.css", page.TEMPLATES / "style.css"):
        texts[f"/{style.name}"] = (style.read_text("utf-8"), "text/css")
    files = {path: Response(text, media_type=kind) for path, (text, kind) in texts.items()}
    files["/start"] = JSONResponse(start)

    async def serve_file(request: Request) -> Response:
        return files[request.url.path]

    routes = [Route(path, serve_file) for path in files]
    routes += [
        Route(path, _endpoint(handler, runs), methods=["POST"])
        for path, handler in (("/run", _run), ("/save", _save))
    ]
    return Guard(Starlette(routes=routes))


def _endpoint(handler: Handler, runs: Runs) -> Callable[[Request], Awaitable[Response]]:
    """The handler's answer, the one line of a refusal, or nothing where nobody waits any more."""

    async def endpoint(request: Request) -> Response:
        try:
            return await handler(await _json_of(request), request, runs)
        except (InputError, MitigationError, HookError) as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        except (Stopped, ClientDisconnect):
            return Response(status_code=204)

    return endpoint


async def _run(sent: Mapping[str, object], request: Request, runs: Runs) -> Response:
    """The answer to a view request, without its chart where `chart` is false.

    Where `before` is a number, the answer of the quicker view at that place; {} where there is
    none.
    """
    view_request, place = ViewRequest.of(sent, runs.model), sent.get("before")
    if isinstance(place, int) and place >= 0:
        quicker = view_request.before(place)
        if quicker is None:
            return JSONResponse({})
        view_request = quicker
    answer_of_view = partial(answer, view_request, draws=sent.get("chart") is not False)
    return JSONResponse(await runs.finished(view_request, request.is_disconnected, answer_of_view))


async def _save(sent: Mapping[str, object], request: Request, runs: Runs) -> Response:
    """The result as a file with the `ending`. Its name and place are ours: no path comes from the
    browser.
    """
    view_request = ViewRequest.of(sent, runs.model)
    ending = checked_name("ending", sent.get("ending"), _ENDINGS)
    saved = partial(_file_bytes, ending)
    content = await runs.finished(view_request, request.is_disconnected, saved)
    return Response(content, media_type=_ENDINGS[ending])


def _file_bytes(ending: str, result: Result) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        return result.save(Path(directory) / f"result.{ending}").read_bytes()


async def _json_of(request: Request) -> dict[str, object]:
    """The request's values. Raises `InputError` for what is no small JSON object of whole text."""
    # A form of another page cannot send this type without asking this server first.
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise InputError("expected a request of type application/json, found another")
    try:
        values = await request.json()
        json.dumps(values, ensure_ascii=False).encode()  # half of a character has no UTF-8
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise InputError("expected a request that is a JSON object of Unicode text, found another")
    return values
