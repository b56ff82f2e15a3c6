"""What a cell of a sweep will take, in seconds and bytes, before its model is loaded.

Memory is counted from shapes: the weights, what of them is cast at a time, and the largest pass over them. Time
is counted in products and in small operations, times what this machine does with either, measured once. Cost: reading a
configuration and a tokenizer, once a model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from ostools.models.checks import check_weight_files
from ostools.models.shape import Shape
from ostools.models.sources import Source
from ostools.runs.asked.cells import to_load
from ostools.runs.forecast.prompts import prompt_tokens
from ostools.runs.measurements import MEASUREMENTS
from ostools.runs.measurements.counts import Count
from ostools.runs.measurements.record import Cell
from ostools.theory.distances import dtype_named

LIBRARIES = 560 << 20
"""Bytes that a process holds before it has a model: Python, torch, transformers and what they keep."""


@dataclass(frozen=True)
class Forecast:
    """A forecast, not a measurement. `seconds`: on the machine where it was made, on one of its threads, or on its GPU;
    `memory`: bytes at the peak, the libraries and the model among them; on a GPU those of the GPU, and of the model alone.

    A cell that nothing is known of has no `seconds`, and of `memory` what any cell takes."""

    seconds: float | None
    memory: int


def forecast(cell: Cell, source: Source, device: str) -> Forecast:
    """What measuring `cell` on the model at `source` will take, the loading of the model included.

    Held against peaks and times on the embedded model and on checkpoints up to 34 M parameters, see `benchmarks.forecast`:
    memory within a factor of 2 and never 25% too low, time within a factor of 3 or so. Where answers end is not known: a
    model is expected to end where the right answer does, and one that goes on to `max_new_tokens` takes longer than forecast.

    Of a cell that cannot be measured (a model that is not whole, a length that a task cannot have) it forecasts nothing: the
    error comes when the cell is measured.
    """
    kind = device.partition(":")[0]
    libraries = LIBRARIES if kind == "cpu" else 0
    try:
        stored, weights, largest = _weights(source.directory)
        shape = _shape(source, dtype_named(to_load(cell)[1]), kind)
        tokens = prompt_tokens(cell, source)
    except (
        Exception
    ):  # whatever a plugin or a broken checkpoint raises: it is for the cell to fail, not for its forecast
        return Forecast(None, libraries)
    count = MEASUREMENTS[cell.measurement].count(shape, cell, tokens, weights)
    # A weight is read through a mapping of the file, whose pages count as the process's own until they are dropped.
    loading = weights * shape.element + (largest if kind == "cpu" else 0)
    memory = libraries + max(loading, count.memory)
    return Forecast(_seconds(count, stored, shape, kind), memory)


_shape = lru_cache(maxsize=64)(Shape.of_source)
"""A model is read once, and not for each of its cells."""


@lru_cache(maxsize=64)
def _weights(directory: Path) -> tuple[int, int, int]:
    """The bytes of a checkpoint's weights as stored, how many numbers they are, and the bytes of the largest. Reads headers."""
    stored, numbers, largest = 0, 0, 0
    for shard in check_weight_files(directory):
        stored += shard.stat().st_size
        with safe_open(shard, "pt") as file:
            for name in file.keys():  # noqa: SIM118 (a file is no mapping)
                size = math.prod(file.get_slice(name).get_shape())
                numbers, largest = numbers + size, max(largest, size)
    return stored, numbers, largest * stored // max(numbers, 1)


@dataclass(frozen=True)
class _Speed:
    """Of one thread, or of a GPU: products a second in float32 and float64 (two operations each), seconds of a small one."""

    single: float
    double: float
    operation: float


@cache
def _speed(kind: str) -> _Speed:
    """Measured in a tenth of a second; the best of a few, as others may be at work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        size = 384 if kind == "cpu" else 4096
        single = torch.ones(size, size, device=kind)
        double, small = single.double(), single[0, :8].clone()
        done = torch.cuda.synchronize if kind == "cuda" else lambda: None  # a CPU is done when it returns
        products = 2 * size**3
        return _Speed(
            products / _best(lambda: single @ single, done),
            products / _best(lambda: double @ double, done),
            _best(lambda: [small + small for _ in range(500)], done) / 500,
        )
    finally:
        torch.set_num_threads(threads)


def _best(work: Callable[[], Any], done: Callable[[], None]) -> float:
    found = []
    for _ in range(6):
        start = time.perf_counter()
        work()
        done()
        found.append(time.perf_counter() - start)
    return min(found)


_LOAD_OPERATIONS, _LAYER_OPERATIONS, _READ = 60_000, 8_000, 5e8
"""Of loading: small operations of any model, of each layer; bytes of weights read, hashed, copied and checked a second."""


def _seconds(count: Count, stored: int, shape: Shape, kind: str) -> float:
    speed = _speed(kind)
    loading = (_LOAD_OPERATIONS + _LAYER_OPERATIONS * shape.n_layers) * speed.operation + stored / _READ
    products = count.single / speed.single + count.double / speed.double
    return loading + products + count.operations * speed.operation
