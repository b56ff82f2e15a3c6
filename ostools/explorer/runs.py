"""The one thread that measures, what stops it, and the last results, from which a page saves without measuring again."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from transformer_lens.model_bridge import TransformerBridge

from ostools.explorer.question import Question, Subject
from ostools.explorer.recipe import RecipeResult, run, steps
from ostools.ground.memory import give_back
from ostools.models import view_in

Drawing = TypeVar("Drawing")
MOST_KEPT = 8
"""How many results are held at most."""
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
        self._drawing = ThreadPoolExecutor(1, thread_name_prefix="ostools-explorer-drawing")
        self._closed = threading.Event()
        self._at: tuple[float, int, int] | None = None
        self._kept: OrderedDict[tuple[str, ...], RecipeResult] = OrderedDict()

    async def result_of(self, question: Question, is_gone: Callable[[], Awaitable[bool]]) -> RecipeResult:
        """What the question's calls give. Raises `Stopped` where `is_gone` said so first, and what the calls raise."""
        self._require_open()
        stop = threading.Event()
        running = asyncio.get_running_loop().run_in_executor(self._worker, self._run, question, stop)
        while not (await asyncio.wait([running], timeout=_LOOK))[0]:
            if not stop.is_set() and await is_gone():
                stop.set()
        if running.cancelled():
            raise Stopped
        return await running

    async def in_drawing_thread(self, work: Callable[[], Drawing]) -> Drawing:
        """What `work` makes of a result, beside the run of the next one. Raises `Stopped` after the end, and what it raises."""
        self._require_open()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._drawing, work)
        finally:
            give_back()

    def seconds_left(self) -> float | None:
        """Seconds that the run at work still takes, as far as the steps that are done tell; None where none is done."""
        if self._at is None:
            return None
        began, done_count, total = self._at
        return (time.monotonic() - began) * (total - done_count) / done_count if 0 < done_count < total else None

    def close(self) -> None:
        """From now on runs do not begin, and the one at work ends at its next step."""
        self._closed.set()
        for worker in (self._worker, self._drawing):
            worker.shutdown(wait=False, cancel_futures=True)

    def _require_open(self) -> None:
        if self._closed.is_set():
            raise Stopped

    def _run(self, question: Question, stop: threading.Event) -> RecipeResult:
        def report(done_count: int, total: int) -> None:
            if stop.is_set() or self._closed.is_set():
                raise Stopped
            self._at = (began, done_count, total)

        began = time.monotonic()
        report(0, 1)
        key = _key(question)
        recipe_result = self._kept.pop(key, None)
        if recipe_result is None:
            try:
                recipe_result = run(question, self._models(question), report)
            finally:
                self._at = None
                give_back()
        self._kept[key] = recipe_result
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return recipe_result

    def _models(self, question: Question) -> dict[str, Any]:
        """The models by their variables, as the question wants them read."""
        models = {"model": _read(self.subject.model, question.dtype)}
        if question.beside == "model" and self.subject.second is not None:
            models["other_model"] = _read(self.subject.second, question.dtype)
        return models


def _read(model: TransformerBridge, dtype: str) -> TransformerBridge:
    """The model in that dtype: what loading it so would give, of the weights that are there."""
    torch_dtype: torch.dtype = getattr(torch, dtype)
    return model if model.cfg.dtype == torch_dtype else view_in(model, torch_dtype)


def _key(question: Question) -> tuple[str, ...]:
    """What decides the numbers: the calls and their texts. Which layer or head is looked at does not change an attention."""
    calls = [step.line for step in steps(question)]
    return (question.prompt, question.other, question.dtype, question.beside, *calls)
