"""Two threads on one model at once, each under a state of torch of its own: every measurement gives
the numbers of one thread in a fresh process, to the bit.

A case draws two measurements and two states: autocast, inference mode, no gradients, another
default device.
"""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from tests.measure.test_threads import FAST
from tests.measure.test_torch_state import STATES, assert_equal, expected_tables, measure

CASES = 100
_OF_A_THREAD = {
    name: STATES[name] for name in ("autocast", "inference mode", "no gradients", "device block")
}
_OF_A_THREAD |= {"autocast in float16": lambda: torch.autocast("cpu", torch.float16)}


def run(cases: int, seed: int) -> int:
    """How many cases gave other numbers, or none."""
    chosen, failures = random.Random(seed), 0
    for case in range(cases):
        calls = [(chosen.choice(FAST), chosen.choice(sorted(_OF_A_THREAD))) for _ in range(2)]
        for name, _ in calls:
            expected_tables(name)
        barrier = threading.Barrier(len(calls))
        with ThreadPoolExecutor(len(calls)) as pool:
            errors = [
                done.exception() for done in [pool.submit(_check, barrier, *call) for call in calls]
            ]
        for call, error in zip(calls, errors, strict=True):
            if error is not None:
                print(
                    f"threads, case {case}: {calls}: {call[0]}: {' '.join(str(error).split())[:500]}"
                )
                failures += 1
    return failures


def _check(barrier: threading.Barrier, name: str, state: str) -> None:
    with _OF_A_THREAD[state]():
        barrier.wait()
        assert_equal(measure(name), expected_tables(name))
