"""Collapse over lengths 1..512 against the loop over lengths that a reader would otherwise write,
in one run.

Both run the same prompts in float32 and in float64 (the reference for rounding noise). The loop
measures one distance, at y; `collapse` returns its whole table, tokenizing and checks included. The
model has the embedded one's shape and random weights.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from transformer_lens.model_bridge import TransformerBridge

from ostools import hooks, tasks
from ostools.measure import collapse
from ostools.models import encode, view_in
from tests.checkpoints import tiny_model

LENGTHS = range(1, 513)
ROUNDS = 3


@dataclass(frozen=True)
class Row:
    """Seconds for one task, and the largest difference of the two routes' distances relative to the
    largest distance.
    """

    task: str
    route: str
    loop_seconds: float
    collapse_seconds: float
    difference: float

    @property
    def ratio(self) -> float:
        return self.loop_seconds / self.collapse_seconds


def loop(model: TransformerBridge, task: tasks.Figure5Task, lengths: Sequence[int]) -> list[float]:
    """||y - y*||_2 in float32 at every length, one pass a prompt; the same in float64 beside it."""
    exact = view_in(model, torch.float64)
    found = []
    for length in lengths:
        ids = encode(model, task.text(length)).ids.tolist()
        with hooks.exact_arithmetic(exact):
            _distance(exact, ids)
        found.append(_distance(model, ids))
    return found


def _distance(model: TransformerBridge, ids: list[int]) -> float:
    rows = []
    for prompt in (ids, [*ids, ids[-1]]):
        with torch.no_grad(), hooks.capture(model, "final_norm") as record:
            model(torch.tensor([prompt]))
        rows.append(record["final_norm"][0, -1].double())
    return float((rows[0] - rows[1]).norm())


Measured = TypeVar("Measured")


def _timed(work: Callable[[], Measured]) -> tuple[float, Measured]:
    """Seconds, and what the work gave."""
    start = time.perf_counter()
    found = work()
    return time.perf_counter() - start, found


def run(
    model: TransformerBridge,
    lengths: Sequence[int] = LENGTHS,
    names: Iterable[str] = tasks.FIGURE_5,
) -> Iterator[Row]:
    """One row per task of Figure 5 (the theorem pairs)."""
    collapse(
        model, "figure-5a", lengths=[1, 2], dtypes=["float32"]
    )  # the first pass of a process pays for imports
    for name in names:
        # Short beside the loop, and one run says little on a busy machine: the median of several,
        # before the loop and after.
        once = partial(
            _timed, lambda name=name: collapse(model, name, lengths=lengths, dtypes=["float32"])
        )
        timed = [once() for _ in range(ROUNDS)]
        loop_seconds, expected = _timed(
            lambda name=name: loop(model, tasks.FIGURE_5[name](), lengths)
        )
        timed += [once() for _ in range(ROUNDS)]
        result = timed[0][1]
        curve = result.frame.query(
            "pair == 'theorem' and site == 'y' and per == 'vector' and norm == 'l2'"
        )
        difference = max(abs(a - b) for a, b in zip(curve["mean"], expected, strict=True)) / max(
            expected
        )
        yield Row(
            name,
            str(result.provenance.parameters["route"]),
            loop_seconds,
            statistics.median(seconds for seconds, _ in timed),
            difference,
        )


def main() -> None:
    """Print the table, a row as soon as it is measured: some minutes, nearly all of them the
    loop's.
    """
    model = tiny_model(
        "gemma",
        d_model=128,
        n_layers=4,
        n_key_value_heads=1,
        d_head=32,
        d_mlp=512,
        d_vocab=1024,
        context=1024,
    )
    print(f"collapse, lengths {LENGTHS[0]}..{LENGTHS[-1]}, 4 layers, d_model 128")
    print(
        f"  {'task':11} {'route':12} {'loop':>9} {'collapse':>9} {'ratio':>7}  largest difference"
    )
    for row in run(model):
        times = f"{row.loop_seconds:8.2f}s {row.collapse_seconds:8.2f}s {row.ratio:6.1f}x"
        print(
            f"  {row.task:11} {row.route:12} {times}  {row.difference:.1e} of the largest distance",
            flush=True,
        )


if __name__ == "__main__":
    main()
