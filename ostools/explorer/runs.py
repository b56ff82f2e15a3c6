"""The one thread that measures, what stops it, and the last results, from which a page saves without measuring again."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ostools.explorer.recipe import RecipeResult, calls, run
from ostools.explorer.views import Subject, ViewRequest
from ostools.ground.memory import give_back

Drawing = TypeVar("Drawing")
MOST_HELD = 8
"""The most results that are held."""
_LOOK = 0.05  # seconds between two looks whether the browser still waits


class Stopped(Exception):  # noqa: N818 (nothing went wrong)
    """Nobody waits for this run any more."""


class Runs:
    """Runs of one model, one after the other: while hooks are on a pass, a second pass may not run.

    Each run belongs to the request that asked for it and ends, at its next step, when that request does: a new keystroke, the
    stop button and a closed browser all take their request back. So two browsers cannot mix.
    """

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="ostools-explorer")
        # One thread that draws, too: memory that many threads took by turns would not come back.
        self._drawer = ThreadPoolExecutor(1, thread_name_prefix="ostools-explorer-drawing")
        self._closed = threading.Event()
        self._progress: tuple[float, int, int] | None = None
        self._recent: OrderedDict[tuple[str, ...], RecipeResult] = OrderedDict()

    async def result_of(self, view_request: ViewRequest, is_gone: Callable[[], Awaitable[bool]]) -> RecipeResult:
        """Run the request's calls. Raises `Stopped` where `is_gone` said so first, and their errors."""
        self._require_open()
        stop = threading.Event()
        running = asyncio.get_running_loop().run_in_executor(self._worker, self._run, view_request, stop)
        while not (await asyncio.wait([running], timeout=_LOOK))[0]:
            if not stop.is_set() and await is_gone():
                stop.set()
        if running.cancelled():
            raise Stopped
        return await running

    async def in_drawing_thread(self, work: Callable[[], Drawing]) -> Drawing:
        """Draw a result, beside the run of the next one. Raises `Stopped` after the end."""
        self._require_open()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._drawer, work)
        finally:
            give_back()

    def seconds_left(self) -> float | None:
        """Seconds that the present run still takes, by its steps so far; None before the first."""
        if self._progress is None:
            return None
        began, done_count, total = self._progress
        return (time.monotonic() - began) * (total - done_count) / done_count if 0 < done_count < total else None

    def close(self) -> None:
        """Begin no more runs, and end the present one at its next step."""
        self._closed.set()
        for worker in (self._worker, self._drawer):
            worker.shutdown(wait=False, cancel_futures=True)

    def _require_open(self) -> None:
        if self._closed.is_set():
            raise Stopped

    def _run(self, view_request: ViewRequest, stop: threading.Event) -> RecipeResult:
        def report(done_count: int, total: int) -> None:
            if stop.is_set() or self._closed.is_set():
                raise Stopped
            self._progress = (began, done_count, total)

        began = time.monotonic()
        report(0, 1)
        key = _key(view_request)
        recipe_result = self._recent.pop(key, None)
        if recipe_result is None:
            try:
                recipe_result = run(view_request, self._models(view_request), report)
            finally:
                self._progress = None
                give_back()
        self._recent[key] = recipe_result
        while len(self._recent) > MOST_HELD:
            self._recent.popitem(last=False)
        return recipe_result

    def _models(self, view_request: ViewRequest) -> dict[str, Any]:
        """The models by their variables."""
        second = self.subject.second if view_request.beside == "model" else None
        return {"model": self.subject.model} | ({} if second is None else {"second_model": second})


def _key(view_request: ViewRequest) -> tuple[str, ...]:
    """What decides the numbers: the calls and their texts. An attention has every layer and head."""
    lines = [call.line for call in calls(view_request)]
    return (view_request.prompt, view_request.second_text, view_request.beside, *lines)
