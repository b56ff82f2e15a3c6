"""The one thread that measures. It has what stops it, and the last results, from which a page saves
without measuring again.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ostools.explorer.views import ViewRequest
from ostools.ground import TransformerBridge
from ostools.results import Result

Finished = TypeVar("Finished")
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
        self._recent: OrderedDict[tuple[str, str], Result] = OrderedDict()

    async def finished(
        self,
        view_request: ViewRequest,
        is_gone: Callable[[], Awaitable[bool]],
        finish: Callable[[Result], Finished],
    ) -> Finished:
        """Run the request's call, then `finish` (draw, save) on its result. Raises `Stopped` where
        `is_gone` said so first, and their errors.
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

    def _run(self, view_request: ViewRequest, stop: threading.Event) -> Result:
        def report(done_count: int, total: int) -> None:
            if stop.is_set() or self._closed.is_set():
                raise Stopped

        report(0, 1)
        # What decides the numbers: the call and its text. An attention has all heads.
        key = (view_request.prompt, view_request.line)
        result = self._recent.pop(key, None)
        if result is None:
            result = view_request.run(self.model, report)
        self._recent[key] = result
        while len(self._recent) > MOST_HELD:
            self._recent.popitem(last=False)
        return result
