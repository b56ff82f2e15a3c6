"""The one thread that measures, what stops it, and the last results, from which a page saves without measuring again."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from transformer_lens.model_bridge import TransformerBridge

from ostools.explorer.views import VIEWS, seconds
from ostools.results import Result

KEPT = 8
"""Results that are held at most."""
_LOOK = 0.05  # seconds between two looks whether the browser still waits


class Stopped(Exception):  # noqa: N818 (nothing went wrong)
    """Nobody waits for this run any more."""


class Runs:
    """Runs of one model, one after the other: a pass with hooks on it is no place for a second one.

    Each run belongs to the request that asked for it and ends, at its next step, when that request does: a new keystroke, the
    stop button and a closed browser all take their request back. So two browsers cannot mix.
    """

    def __init__(self, model: TransformerBridge) -> None:
        self.model = model
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="ostools-explorer")
        self._closed = threading.Event()
        self._kept: OrderedDict[tuple[str, str], Result] = OrderedDict()

    async def result(self, name: str, prompt: str, is_gone: Callable[[], Awaitable[bool]]) -> Result:
        """A view's result. Raises `Stopped` where `is_gone` said so first, and what the view raises."""
        self._require_open()
        stop = threading.Event()
        running = asyncio.get_running_loop().run_in_executor(self._worker, self._run, name, prompt, stop)
        while not (await asyncio.wait([running], timeout=_LOOK))[0]:
            if not stop.is_set() and await is_gone():
                stop.set()
        if running.cancelled():
            raise Stopped
        return await running

    async def seconds(self, name: str, prompt: str) -> float:
        """The forecast of a view; 0 for a result that is still held. Raises `Stopped` after the end."""
        self._require_open()
        if (name, prompt) in self._kept:
            return 0.0
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._worker, seconds, self.model, VIEWS[name], prompt)

    def close(self) -> None:
        """No run begins any more, and the one at work ends at its next step."""
        self._closed.set()
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _require_open(self) -> None:
        if self._closed.is_set():
            raise Stopped

    def _run(self, name: str, prompt: str, stop: threading.Event) -> Result:
        def told(done: int, total: int) -> None:
            if stop.is_set() or self._closed.is_set():
                raise Stopped

        told(0, 1)
        found = self._kept.pop((name, prompt), None)
        if found is None:
            found = VIEWS[name].run(self.model, prompt, told)
        self._kept[name, prompt] = found
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return found
