"""Fair timing on a noisy machine: the contenders take turns, and the median round is quoted."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def in_turn(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each contender over `rounds` rounds; the caller has run each once before."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}
