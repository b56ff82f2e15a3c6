"""The application: the page's files and its runs; for this machine's browser alone.

What the page shows of a result: numbers of each token, charts, and how to have them again.
"""

import asyncio
import json
import math
import re
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ostools.explorer.views import ViewRequest, described
from ostools.ground import METHOD_KINDS, InputError, TransformerBridge
from ostools.hooks import HookError, active_edits, locked
from ostools.measure import Attention, Attribution, Hops, Sensitivity
from ostools.mitigations import MitigationError
from ostools.models import describe, encode
from ostools.reporting.findings import present
from ostools.reporting.findings.sensitivity import certificate_words
from ostools.reporting.page import page
from ostools.reporting.page.page import stored_at
from ostools.reporting.page.section import block
from ostools.reporting.style.theme import KINDS, display_token, visible
from ostools.results import Result

Values: TypeAlias = dict[str, object]
"""Plain data that a page gets as JSON."""
_NORMS = {
    "operator norm": ("operator_norm", "operator_lower", "operator_upper"),
    "Frobenius norm": ("frobenius_norm", "frobenius_lower", "frobenius_upper"),
}


def answer(request: ViewRequest, result: Result, *, draws: bool = True) -> Values:
    """The page's values, as plain data.

    draws: with the chart, which takes longer than a first look.
    """
    tokens = _tokens(request, result)
    return {
        "view": request.view,
        "words": request.of_view.words + ", under active edits" * bool(result.provenance.edits),
        "kind": _kind(result),
        "tokens": tokens,
        "code": code(request, result),
        "charts": [_chart(request, result, bool(tokens))] if draws else [],
    }


def code(request: ViewRequest, result: Result) -> str:
    """Python lines that give the same result; where edits are active, which they are."""
    model = result.provenance.model
    words = f"{stored_at(model)!r}, dtype={model['dtype']!r}, device={model['device']!r}"
    lines = ["import ostools as ost", "", f"model = ost.load_model({words})"]
    lines += [
        f"# Measured under edits, which these lines do not make: {it}" for it in _edits(result)
    ]
    return "\n".join([*lines, f"prompt = {request.prompt!r}", request.line, "print(result)"]) + "\n"


def _edits(result: Result) -> list[str]:
    """A line that names the edits under which it was measured; none where there were none."""
    return present(visible("; ".join(result.provenance.edits)))


def _kind(result: Result) -> str:
    """The kind of its numbers, in the words of every legend."""
    if isinstance(result, Attention):
        return "attention weights"
    frame = result.frame
    kinds = ["measured"]
    if isinstance(result, Hops):
        kinds = ["estimated"] if result.is_estimated else kinds
    elif "method" in frame:
        kinds = [METHOD_KINDS[str(method)] for method in frame["method"].unique()]
    elif "kind" in frame:
        kinds = [str(kind) for kind in frame["kind"].unique()]
    return ", ".join(KINDS[kind] for kind in dict.fromkeys(kinds))


def _tokens(request: ViewRequest, result: Result) -> list[Values]:
    """Each token with its numbers, the one that colours it first in `value`; none of a result that
    is a chart alone.
    """
    if isinstance(result, Sensitivity):
        rows = result.frame.to_dict("records")
        return [_token(row, row["frobenius_norm"], _norms(row)) for row in rows]
    if isinstance(result, Attribution):
        rows = result.of_tokens.to_dict("records")
        name = f"part of the logit of {display_token(str(result.provenance.parameters['token']))}"
        values = [row["contribution"] for row in rows]
    elif isinstance(result, Attention):
        rows = result.frame.iloc[: len(result.tokens)].to_dict("records")
        name, values = _weights(request, result)
    else:
        return []
    pairs = zip(rows, values, strict=True)
    return [_token(row, value, [_number(name, value)]) for row, value in pairs]


def _token(row: Mapping[Hashable, object], value: float, numbers: list[Values]) -> Values:
    return {
        "position": int(str(row["position"])),
        "token": display_token(str(row["token"])),
        "value": _plain(value),
        "numbers": numbers,
    }


def _norms(row: Mapping[Hashable, Any]) -> list[Values]:
    """Both norms with their intervals; of a sketch's operator norm the limits alone are known."""
    return [
        _number(name, *(row[column] for column in columns))
        for name, columns in _NORMS.items()
        if pd.notna(row[columns[0]])
    ]


def _weights(request: ViewRequest, result: Attention) -> tuple[str, list[float]]:
    """The last token's weights in the chosen layer and head, or their mean over all, by name."""
    weights = result.last if request.layer < 0 else result.last[[request.layer]]
    weights = weights if request.head < 0 else weights[:, [request.head]]
    layer = "all layers" if request.layer < 0 else f"layer {request.layer}"
    head = "all heads" if request.head < 0 else f"head {request.head}"
    return f"mean weight, {layer}, {head}", weights.mean((0, 1)).tolist()


def _number(name: str, value: float, low: float | None = None, high: float | None = None) -> Values:
    """A number; an exact one has its limits equal to itself, and is shown without them."""
    interval = None
    if low is not None and high is not None and not low == value == high:
        interval = [_plain(low), _plain(high)]
    return {"name": name, "value": _plain(value), "interval": interval}


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _chart(request: ViewRequest, result: Result, has_tokens: bool) -> Values:
    """The chart with its title and notes (of a sensitivity the certificate), or why there is
    none."""
    words, sentences = request.of_view.words, [] if has_tokens else result.findings()
    if isinstance(result, Sensitivity):
        sentences = [certificate_words(result)]
    sentences = [*(f"Active edits: {edits}." for edits in _edits(result)), *sentences]
    part = block(result, "chart", words, sentences, in_detail=False)
    figure = part.figure
    return {
        "chart": figure and str(figure.data),
        "title": figure.title if figure else words,
        "notes": [*sentences, *(figure.notes if figure else part.notes)],
    }


# --- the runs

MOST_HELD = 8
"""The most results that are held."""
_LOOK = 0.05  # seconds between two looks whether the browser still waits


class Stopped(Exception):  # noqa: N818 (nothing went wrong)
    """Nobody waits for this run any more."""


class Runs:
    """Runs of one model, one after the other: while hooks are on a pass, a second pass may not run.

    Each run belongs to the request that asked for it and ends, at its next step, when that request
    does: a new keystroke, the stop button and a closed browser all take their request back. So two
    browsers cannot mix.
    """

    def __init__(self, model: TransformerBridge) -> None:
        self.model = model
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="ostools-explorer")
        self._closed = threading.Event()
        self._recent: OrderedDict[tuple[object, ...], Result] = OrderedDict()

    async def answer_to(
        self,
        view_request: ViewRequest,
        is_gone: Callable[[], Awaitable[bool]],
        *,
        draws: bool = True,
    ) -> Values:
        """Run the request's call, and `answer` with its result. Raises `Stopped` where `is_gone`
        said so first, and their errors.
        """
        if self._closed.is_set():
            raise Stopped
        stop = threading.Event()
        work = asyncio.get_running_loop().run_in_executor(
            self._worker,
            lambda: answer(view_request, self._run(view_request, stop), draws=draws),
        )
        while not (await asyncio.wait([work], timeout=_LOOK))[0]:
            if not stop.is_set() and await is_gone():
                stop.set()
        if work.cancelled():
            raise Stopped
        return await work

    def close(self) -> None:
        """Begin no more runs, and end the present one at its next step."""
        self._closed.set()
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _run(self, view_request: ViewRequest, stop: threading.Event) -> Result:
        def report(done_count: int, total: int) -> None:
            if stop.is_set() or self._closed.is_set():
                raise Stopped

        report(0, 1)
        with locked(self.model):
            # What decides the numbers: the call, its texts, how the tokenizer reads them, and the
            # model, which a notebook may change meanwhile. An attention has all heads.
            model, edits = describe(self.model), active_edits(self.model)
            texts = present(view_request.prompt, view_request.logit or "")
            prompts = [encode(self.model, text) for text in texts]
            tokens = tuple((prompt.tokens, *prompt.ids.tolist()) for prompt in prompts)
            key = (view_request.prompt, view_request.line, repr(model), edits, tokens)
            result = self._recent.pop(key, None)
            if result is None:
                result = view_request.run(self.model, report)
        self._recent[key] = result
        while len(self._recent) > MOST_HELD:
            self._recent.popitem(last=False)
        return result


# --- the server

PAGE = Path(__file__).parent / "page"
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
    scripts = {f"/{path.name}": path.read_text("utf-8") for path in PAGE.glob("*.js")}
    scripts |= {"/draw.js": page.drawing().source, "/vega.js": page.library().source}
    texts = {path: (text, "text/javascript") for path, text in scripts.items()}
    texts["/"] = ((PAGE / "explorer.html").read_text("utf-8"), "text/html")
    for style in (PAGE / "explorer.css", page.TEMPLATES / "style.css"):
        texts[f"/{style.name}"] = (style.read_text("utf-8"), "text/css")
    files = {path: Response(text, media_type=kind) for path, (text, kind) in texts.items()}
    files["/start"] = JSONResponse({**described(runs.model), "prompt": prompt})

    async def serve_file(request: Request) -> Response:
        return files[request.url.path]

    routes = [Route(path, serve_file) for path in files]
    return Guard(Starlette(routes=[*routes, Route("/run", partial(_run, runs), methods=["POST"])]))


async def _run(runs: Runs, request: Request) -> Response:
    """The answer to a view request, without its chart where `chart` is false; the one line of a
    refusal; nothing where nobody waits any more.

    Where `before` is a number, the answer of the quicker view at that place; {} where there is
    none.
    """
    try:
        sent = await _json_of(request)
        view_request, place = ViewRequest.of(sent, runs.model), sent.get("before")
        if isinstance(place, int) and place >= 0:
            quicker = view_request.before(place)
            if quicker is None:
                return JSONResponse({})
            view_request = quicker
        draws = sent.get("chart") is not False
        values = await runs.answer_to(view_request, request.is_disconnected, draws=draws)
        return JSONResponse(values)
    except (InputError, MitigationError, HookError) as error:
        return JSONResponse({"error": str(error)}, status_code=400)
    except (Stopped, ClientDisconnect):
        return Response(status_code=204)


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
