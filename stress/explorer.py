"""Ten minutes of typing into the explorer: what its process holds grows by less than 1%.

Every case is a keystroke as the page sends it, over the network: a prediction, then a measurement with its chart, of a text
that grows and is wiped; in every view, with a second side or a mitigation now and then. Every third keystroke is followed by
another before its answer has come: that request is dropped, and its run must end.
"""

from __future__ import annotations

import ctypes
import gc
import http.client
import json
import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import psutil
import torch

import ostools as ost
from stress.memory import judged

CASES = 600
"""One a second for ten minutes, where the machine keeps up."""
_WORDS = ["The", "farmer", "walked", "to", "11", "12", "0", "of", "and", "<b>", "é", "river"]
_LONGEST = 12  # words; then the field is wiped
_LARGE, _THRESHOLD = 128 * 1024, -3
"""glibc: a block of so many bytes has pages of its own, which go back to the system with it; and the name of this setting."""
_BESIDE: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"beside": "prompt", "other": "The farmer walked home"},
    {"beside": "mitigation", "other": "sliding-window:window=4"},
)
_VIEWS: tuple[dict[str, Any], ...] = (
    {"view": "frozen"},
    {"view": "full", "layer": 1},
    {"view": "attention", "layer": 1, "head": 1},
    {"view": "contributions"},
    {"view": "predicted-full"},
    {"view": "flow"},
    {"view": "collapse", "longest": 8, "dtypes": ["bfloat16"]},
)


def run(cases: int, seed: int) -> int:
    """1 where the process grew too much, or an answer was an error; the curve goes to stderr."""
    curve, errors = typed(cases, seed)
    return judged(curve, [f"the explorer answered: {error}" for error in errors], "keystrokes")


def typed(cases: int, seed: int, views: Sequence[Mapping[str, Any]] = _VIEWS) -> tuple[list[int], list[str]]:
    """The bytes that the process holds after each keystroke, and what went wrong."""
    chosen, curve, errors, words = random.Random(seed), [], [], []
    if (library := _glibc()) is not None:
        # Else glibc keeps large blocks in its heap: what is between them is held, in waves of 2% that say nothing of a leak.
        library.mallopt(_THRESHOLD, _LARGE)
    torch.set_num_threads(1)
    process, explorer = psutil.Process(), ost.explore(ost.load_model())
    port = int(explorer.url.rsplit(":", 1)[1].strip("/"))
    for case in range(cases):
        words = [] if len(words) >= _LONGEST else words
        words.append(chosen.choice(_WORDS))
        asked = {"prompt": " ".join(words), "sure": True, **chosen.choice(views), **chosen.choice(_BESIDE)}
        for more in ({"predict": True, "chart": False}, {}):
            errors += _sent(port, {**asked, **more}, dropped=case % 3 == 2)
        curve.append(_held(process))
        if sys.stderr.isatty():
            print(f"\r  {case + 1} of {cases}: {curve[-1] / 2**20:.1f} MiB", end="", file=sys.stderr)
    explorer.stop()
    return curve, errors


def _held(process: psutil.Process) -> int:
    """The bytes of the process, after what nobody holds any more was given back to the system, where the C library can."""
    gc.collect()
    if (library := _glibc()) is not None:
        library.malloc_trim(0)
    return process.memory_info().rss


def _glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "malloc_trim") else None


def _sent(port: int, asked: Mapping[str, Any], *, dropped: bool) -> list[str]:
    """What the answer says is wrong; nothing of one that nobody waits for."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request("POST", "/run", json.dumps(asked), {"Content-Type": "application/json"})
        if dropped:
            return []
        answer = connection.getresponse()
        found = json.loads(answer.read())
        return [] if answer.status == 200 and "error" not in found else [f"{answer.status}, {found} to {asked}"]
    finally:
        connection.close()
