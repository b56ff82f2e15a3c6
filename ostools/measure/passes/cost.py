"""What a measurement takes, counted from shapes before anything is loaded, and how long this machine needs for that.

`Cost` counts; `Machine` was measured, once; `Cost.seconds` puts them together. Each measurement counts its own beside its
code (`cost.py` of its room); sweeps, commands and reports add those up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from ostools.models.recast import BLOCK as PART
from ostools.models.shape import SMALL, Shape

# Small operations, and what they stand for was timed on the embedded model: a pass through a block with its hooks; a question
# that is posed, rendered and written down.
BLOCK, QUESTION = 1000, 3000
AS_STORED = 0.25
"""A number that is read as it is stored, for one vector, takes this share of the time of one that is cast."""
EIGENVALUES = 30
"""Eigenvalues of a d x d matrix in place of its norm take as long as so many d^3 products."""
# Squares of scores that eager attention holds at once: scores, mask, softmax, pattern, and what hooks keep.
_SQUARES = 4.5


@dataclass(frozen=True)
class Cost:
    """Bytes at the peak beside the stored weights; floating-point operations by the dtype that they are done in; numbers that
    are cast from stored ones or read once for one vector; small operations, whose size does not matter."""

    memory: int = 0
    half: float = 0.0
    single: float = 0.0
    double: float = 0.0
    cast: float = 0.0
    operations: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        """One after the other: the higher peak, all of the work."""
        work = (getattr(self, name) + getattr(other, name) for name in _WORK)
        return Cost(max(self.memory, other.memory), *work)

    def __mul__(self, times: float | int) -> Cost:
        """So many times, one after the other."""
        return replace(self, **{name: times * getattr(self, name) for name in _WORK})

    def seconds(self, machine: Machine) -> float:
        """On that machine."""
        products = self.half / machine.half + self.single / machine.single + self.double / machine.double
        return products + self.cast / machine.cast + self.operations * machine.operation


_WORK = ("half", "single", "double", "cast", "operations")


@dataclass(frozen=True)
class Machine:
    """Measured: floating-point operations a second of a product in 16, 32 and 64 bits; numbers a second that are cast from 16
    to 32 bits, a part of a matrix at a time, and multiplied with a few vectors; seconds of a small operation."""

    half: float
    single: float
    double: float
    cast: float
    operation: float


def machine(shape: Shape) -> Machine:
    """The one that a model of that shape runs on: with one thread where it is too small for more."""
    small = shape.parameters < SMALL
    return _measured(shape.device, 1 if small else torch.get_num_threads(), 384 if small else 1024)


@cache
def _measured(kind: str, threads: int, size: int) -> Machine:
    """In some tenths of a second; the best of a few, as others may be at work."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        size = size if kind == "cpu" else 4096
        single = torch.ones(size, size, device=kind)
        # There is no float64 on mps: what needs it runs on the CPU.
        double = (single.cpu() if kind == "mps" else single).double()
        half, small = single.bfloat16(), single[0, :8].clone()
        stored, few = single.new_ones(1 << 13, 1 << 10, dtype=torch.bfloat16), single.new_ones(8, 1 << 10)
        parts, room = stored.split(PART // few[0].nbytes), single.new_empty(PART // few[0].nbytes, 1 << 10)
        done = torch.cuda.synchronize if kind == "cuda" else lambda: None  # a CPU is done when it returns
        products = 2 * size**3
        return Machine(
            products / _best(lambda: half @ half, done),
            products / _best(lambda: single @ single, done),
            products / _best(lambda: double @ double, done),
            stored.numel() / _best(lambda: [few @ room[: len(part)].copy_(part).T for part in parts], done),
            _best(lambda: [small + small for _ in range(500)], done) / 500,
        )
    finally:
        torch.set_num_threads(before)


def _best(work: Callable[[], Any], done: Callable[[], None]) -> float:
    found = []
    for _ in range(6):
        start = time.perf_counter()
        work()
        done()
        found.append(time.perf_counter() - start)
    return min(found)


@dataclass(frozen=True)
class PromptTokens:
    """Tokens of the prompt at each length of a task, of what stands after the sequence, and of the right answer; and whether
    a mitigation acts in the forward pass."""

    prompts: tuple[int, ...]
    after: int = 0
    answer: int = 0
    hooked: bool = False


def one_pass(shape: Shape, rows: int, pos: int) -> float:
    """Floating-point operations of one pass over `rows` prompts of `pos` tokens: weights, then scores and pattern."""
    attention = 4 * shape.n_layers * shape.n_heads * shape.d_head * pos
    return float(rows * pos) * (2 * shape.n_layers * shape.block_parameters + attention)


def pass_bytes(shape: Shape, rows: int, pos: int, logits: int, element: int) -> int:
    """What one pass holds at once: scores, a block's vectors, keys and values of every layer, logits at some positions."""
    squares = _SQUARES * shape.n_heads * pos**2
    vectors = pos * (3 * shape.d_mlp + 8 * shape.d_model)
    cache = 2 * shape.n_layers * pos * shape.n_key_value_heads * shape.d_head
    return int(rows * element * (squares + vectors + cache + 3 * logits * shape.d_vocab))


def pass_cost(shape: Shape, pos: int, times: float | int = 1, element: int | None = None) -> Cost:
    """So many plain passes over one prompt of `pos` tokens, one after the other; their patterns kept."""
    element = shape.element if element is None else element
    cast = element != shape.element
    memory = pass_bytes(shape, 1, pos, 1, element) + shape.n_layers * shape.n_heads * pos**2 * element
    one = Cost(
        memory + cast * shape.view_bytes(element),
        cast=float(cast * shape.n_layers * shape.block_parameters),
        operations=float(shape.n_layers * BLOCK + QUESTION),
    )
    return (one + work_in(element, one_pass(shape, 1, pos))) * times


def in_full(shape: Shape) -> Shape:
    """The model that a formula is computed with: a 16-bit one is read as float32, number by number (`Shape.cast`)."""
    return shape if shape.element >= 4 else replace(shape, element=4, cast=True)


def work_in(element: int, products: float) -> Cost:
    """Products in numbers of so many bytes."""
    name = {2: "half", 4: "single", 8: "double"}[element]
    return replace(Cost(), **{name: float(products)})
