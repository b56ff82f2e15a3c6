"""The calls of `ost` that answer a request: run here, and copied from here as code.

One thread measures. It has what stops it, and the last results, from which a page saves without
measuring again.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import ostools
from ostools import mitigations
from ostools.explorer.views import ViewRequest
from ostools.ground import Progress, TransformerBridge, part_of
from ostools.measure import RECORDS
from ostools.measure.mitigated_prompts import InactiveMitigationError, rewriting
from ostools.reporting.page.page import stored_at
from ostools.results import Result

Finished = TypeVar("Finished")
MOST_HELD = 8
"""The most results that are held."""
_LOOK = 0.05  # seconds between two looks whether the browser still waits
SIDES = ("first", "second")


@dataclass(frozen=True)
class Call:
    """One call: `name = ost.function(*variables, **keywords, **options)`.

    `variables` and `keywords` are names of variables; `options` are values.
    """

    name: str
    function: str
    variables: tuple[str, ...] = ("model", "prompt")
    options: Mapping[str, object] = field(default_factory=dict)
    keywords: Mapping[str, str] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """The call as Python."""
        values = {**self.keywords, **{name: repr(value) for name, value in self.options.items()}}
        arguments = [*self.variables, *(f"{name}={value}" for name, value in values.items())]
        place = "ost" if self.function in ostools.__all__ else "ost.measure"
        return f"{self.name} = {place}.{self.function}({', '.join(arguments)})"

    def run(self, scope: Mapping[str, object], progress: Progress) -> Result:
        """The call itself; `progress` is passed where the function takes it."""
        function = RECORDS[self.function].function
        options = {
            **self.options,
            **{name: scope[variable] for name, variable in self.keywords.items()},
        }
        if "progress" in inspect.signature(function).parameters:
            options["progress"] = progress
        return cast(Result, function(*(scope[name] for name in self.variables), **options))


@dataclass(frozen=True)
class RecipeResult:
    """Results of one or two sides, and what compares them, where a function does.

    inactive: why a mitigation was refused that changes nothing; there is one side then.
    """

    sides: tuple[Result, ...]
    compared: Result | None = None
    inactive: str = ""

    @property
    def results(self) -> dict[str, Result]:
        """What is drawn and saved, by its variable in the copied code."""
        result = self.sides[0] if len(self.sides) == 1 else self.compared
        return dict(zip(SIDES, self.sides, strict=True)) if result is None else {"result": result}


def calls(request: ViewRequest) -> list[Call]:
    """`result`, or `first` and `second` and, where a function compares them, `result`."""
    if not request.second_kind:
        return [_side(request, "result")]
    second = {
        "prompt": _side(request, "second", prompt="second_prompt"),
        "mitigation": _side(request, "second", mitigation=request.second_text),
    }[request.second_kind]
    pair = [_side(request, "first"), second]
    if (compared := request.of_view.compared) is not None and _of_one_text(request):
        pair.append(Call("result", compared, SIDES))
    return pair


def _of_one_text(request: ViewRequest) -> bool:
    """Whether both sides read the same text, so that they can be compared token by token."""
    mitigated = request.second_kind == "mitigation"
    return mitigated and not rewriting(mitigations.mitigation(request.second_text))


def _side(request: ViewRequest, name: str, prompt: str = "prompt", **mitigation: str) -> Call:
    view, options = request.of_view, dict(request.of_view.options)
    if view.layers == "streams":
        options |= {"layers": (request.layer,)}
    if request.logit is not None:
        options |= {"logit": request.logit}
    if "longest" in view.takes:
        options |= {"lengths": range(1, request.longest + 1)}
    elif "task" not in inspect.signature(RECORDS[view.function].function).parameters:
        return Call(name, view.function, ("model", prompt), options | mitigation)
    return Call(name, view.function, ("model",), options | mitigation, {"prompt": prompt})


def run(request: ViewRequest, model: TransformerBridge, progress: Progress = False) -> RecipeResult:
    """Run the calls. Raises `InputError` as the calls do."""
    scope: dict[str, Any] = {"model": model, "prompt": request.prompt}
    scope["second_prompt"] = request.second_text
    try:
        all_calls = calls(request)
        for place, call in enumerate(all_calls):
            share = part_of(progress, place, place + 1, len(all_calls))
            scope[call.name] = call.run(scope, share or False)
    except InactiveMitigationError as error:
        return RecipeResult((scope["first"],), inactive=str(error))
    if not request.second_kind:
        return RecipeResult((scope["result"],))
    return RecipeResult((scope["first"], scope["second"]), scope.get("result"))


def code(request: ViewRequest, recipe_result: RecipeResult) -> str:
    """Python lines that give the same results."""
    lines = ["import ostools as ost", "", f"model = {_loaded(recipe_result.sides[0])}"]
    lines.append(f"prompt = {request.prompt!r}")
    if request.second_kind == "prompt":
        lines.append(f"second_prompt = {request.second_text!r}")
    lines += [call.line for call in calls(request)]
    return "\n".join([*lines, *(f"print({name})" for name in recipe_result.results)]) + "\n"


def _loaded(result: Result) -> str:
    model = result.provenance.model
    options = {"dtype": str(model["dtype"]), "device": str(model["device"])}
    words = "".join(f", {name}={value!r}" for name, value in options.items())
    return f"ost.load_model({stored_at(model)!r}{words})"


# --- the one thread that measures


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
        self._recent: OrderedDict[tuple[str, ...], RecipeResult] = OrderedDict()

    async def finished(
        self,
        view_request: ViewRequest,
        is_gone: Callable[[], Awaitable[bool]],
        finish: Callable[[RecipeResult], Finished],
    ) -> Finished:
        """Run the request's calls, then `finish` (draw, save) on their result. Raises `Stopped`
        where `is_gone` said so first, and their errors.
        """
        if self._closed.is_set():
            raise Stopped
        stop = threading.Event()
        work = asyncio.get_running_loop().run_in_executor(
            self._worker, lambda: finish(self._run(view_request, stop))
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

    def _run(self, view_request: ViewRequest, stop: threading.Event) -> RecipeResult:
        def report(done_count: int, total: int) -> None:
            if stop.is_set() or self._closed.is_set():
                raise Stopped

        report(0, 1)
        # What decides the numbers: the calls and their texts. An attention has all heads.
        lines = [call.line for call in calls(view_request)]
        key = (view_request.prompt, view_request.second_text, view_request.second_kind, *lines)
        recipe_result = self._recent.pop(key, None)
        if recipe_result is None:
            recipe_result = run(view_request, self.model, report)
        self._recent[key] = recipe_result
        while len(self._recent) > MOST_HELD:
            self._recent.popitem(last=False)
        return recipe_result
