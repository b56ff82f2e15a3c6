"""The application: a page, its files, and four questions that the page asks: what there is, a run, how long
it still takes, a file to save."""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hooks import HookError
from mitigations import MitigationError
from ostools.explorer.answer import answer
from ostools.explorer.guard import Guard
from ostools.explorer.question import Question
from ostools.explorer.runs import Runs, Stopped
from ostools.ground.errors import InputError, unknown_name
from ostools.reporting.page import page
from ostools.results import Result

PAGE = Path(__file__).parent / "page"
PAGE_FILES = {
    "explorer.css": "text/css",
    **{
        f"{name}.js": "text/javascript" for name in ("kit", "controls", "strip", "heads", "lengths", "take", "explorer")
    },
}
"""The page's own files: one script for each thing that it shows, and `explorer.js`, which asks the server."""
LARGEST = 200_000
"""The most bytes that a request may have."""
_ENDINGS = {
    "html": "text/html", "png": "image/png", "svg": "image/svg+xml", "pdf": "application/pdf",
    "csv": "text/csv", "json": "application/json", "parquet": "application/vnd.apache.parquet",
}  # fmt: skip
Handler = Callable[[Mapping[str, Any], Request, Runs], Awaitable[Response]]


def application(runs: Runs, prompt: str, host: str, token: str | None) -> Guard:
    """The guarded application; `prompt`: what stands in the field at first."""
    start = {**runs.subject.described(), "prompt": prompt, "endings": list(_ENDINGS)}

    async def serve_start(request: Request) -> Response:
        return JSONResponse(start)

    files = {
        "/": ((PAGE / "explorer.html").read_text("utf-8"), "text/html"),
        **{f"/{name}": ((PAGE / name).read_text("utf-8"), kind) for name, kind in PAGE_FILES.items()},
        "/style.css": ((page.TEMPLATES / "style.css").read_text("utf-8"), "text/css"),
        "/draw.js": (page.drawing().source, "text/javascript"),
        "/vega.js": (page.library().source, "text/javascript"),
    }
    page_routes = [Route(path, _file(text, kind)) for path, (text, kind) in files.items()]
    posted = {"/run": _run, "/left": _time_left, "/save": _save}
    post_routes = [Route(path, _answering(handler, runs), methods=["POST"]) for path, handler in posted.items()]
    post_routes.append(Route("/start", serve_start))
    return Guard(Starlette(routes=[*page_routes, *post_routes]), host, token)


def _file(text: str, kind: str) -> Any:
    async def served(request: Request) -> Response:
        return Response(text, media_type=kind)

    return served


def _answering(handler: Handler, runs: Runs) -> Any:
    """An endpoint: the handler's answer, the one line of a refusal, or nothing where nobody waits any more."""

    async def endpoint(request: Request) -> Response:
        try:
            return await handler(await _request_values(request), request, runs)
        except (InputError, MitigationError, HookError) as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        except (Stopped, ClientDisconnect):
            return Response(status_code=204)

    return endpoint


async def _run(request_values: Mapping[str, Any], request: Request, runs: Runs) -> Response:
    """A question with {chart, before}: the answer, without its chart where `chart` is false.

    Where `before` is a number, the answer is that of what is shown at this place before the question's own, or {} where there
    is none.
    """
    question, place = Question.of(request_values, runs.subject), request_values.get("before")
    if isinstance(place, int) and place >= 0:
        quicker = question.before(place)
        if quicker is None:
            return JSONResponse({})
        question = quicker
    recipe_result = await runs.result_of(question, request.is_disconnected)
    draws = request_values.get("chart") is not False
    return JSONResponse(await runs.in_drawing_thread(partial(answer, question, recipe_result, draws)))


async def _time_left(request_values: Mapping[str, Any], request: Request, runs: Runs) -> Response:
    """Seconds that the run at work still takes, null where that is not known yet."""
    return JSONResponse({"left": runs.seconds_left()})


async def _save(request_values: Mapping[str, Any], request: Request, runs: Runs) -> Response:
    """A question with its {ending}: the file, or of two sides that stand beside each other a ZIP archive of two. Their names
    and places are ours: no path comes from the browser."""
    question, ending = Question.of(request_values, runs.subject), request_values.get("ending")
    if not isinstance(ending, str) or ending not in _ENDINGS:
        raise unknown_name("ending", ending, _ENDINGS)
    recipe_result = await runs.result_of(question, request.is_disconnected)
    files = await runs.in_drawing_thread(partial(_saved, recipe_result.results, ending))
    if len(files) == 1:
        (content,) = files.values()
        return Response(content, media_type=_ENDINGS[ending])
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)  # without a time: the same numbers, the same bytes
    return Response(packed.getvalue(), media_type="application/zip")


def _saved(results: Mapping[str, Result], ending: str) -> dict[str, bytes]:
    """The bytes of each result's file, by its name."""
    with tempfile.TemporaryDirectory() as directory:
        saved = [result.save(Path(directory) / f"{name}.{ending}") for name, result in results.items()]
        return {path.name: path.read_bytes() for path in saved}


async def _request_values(request: Request) -> dict[str, Any]:
    """The request as plain values. Raises `InputError` for what is no small JSON object."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise InputError("expected a request of type application/json, found another")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LARGEST:
            raise InputError(f"expected a request of at most {LARGEST:,} bytes, found more: shorten the prompt")
    try:
        request_values = json.loads(body)
    except (ValueError, RecursionError):
        raise InputError("expected a request in JSON, found something else") from None
    if not isinstance(request_values, dict):
        raise InputError("expected a request that is a JSON object, found something else")
    try:
        json.dumps(request_values, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise InputError("expected text in Unicode, found half of a character in it: leave it out") from None
    return request_values
