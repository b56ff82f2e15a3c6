"""What each measurement of a sweep holds and computes: bytes at its peak, products and small operations, counted from shapes.

The memory of sensitivity and of path sums is what they themselves plan (`ostools.measure.jacobian.memory`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ostools.measure.jacobian.estimate import most_rows
from ostools.measure.jacobian.linearisations import HELD
from ostools.measure.jacobian.memory import path_sum_bytes, plan
from ostools.measure.passes.batches import TOKENS, batches
from ostools.measure.passes.precisions import PRECISIONS, Precision
from ostools.measure.paths.variants import variant_named
from ostools.models.shape import Shape
from ostools.runs.asked.cells import Cell
from ostools.runs.asked.prompts import PromptTokens

# Small operations, and what they stand for was timed on the embedded model: a pass through a block with its hooks, a copy of a
# block's modules, a question that is posed, rendered and written down.
_BLOCK, _COPY, _QUESTION = 1000, 4000, 3000
# Eigenvalues of a d x d matrix in place of its norm take as long as so many d^3 products.
_EIGENVALUES = 30
# Squares of scores that eager attention holds at once: scores, mask, softmax, pattern, and what hooks keep.
_SQUARES = 4.5
_DRAWN = 64  # samples of a prompt that batches are made of; more of them take as much more time
_CHECKS = 20  # passes over a prompt that finite differences and frozen passes take, of each linearisation


@dataclass(frozen=True)
class Passes:
    """Floating-point operations in float32 (or below) and in float64, and small operations, whose size does not matter."""

    single: float = 0.0
    double: float = 0.0
    operations: float = 0.0


@dataclass(frozen=True)
class Count:
    """Bytes at the peak, the model among them, and all that is computed."""

    memory: int
    passes: Passes


def _pass(shape: Shape, rows: int, pos: int) -> float:
    """Floating-point operations of one pass over `rows` prompts of `pos` tokens: weights, then scores and pattern."""
    attention = 4 * shape.n_layers * shape.n_heads * shape.d_head * pos
    return float(rows * pos) * (2 * shape.n_layers * shape.block_parameters + attention)


def _pass_bytes(shape: Shape, rows: int, pos: int, logits: int, element: int) -> int:
    """What one pass holds at once: scores, a block's vectors, keys and values of every layer, logits at some positions."""
    squares = _SQUARES * shape.n_heads * pos**2
    vectors = pos * (3 * shape.d_mlp + 8 * shape.d_model)
    cache = 2 * shape.n_layers * pos * shape.n_key_value_heads * shape.d_head
    return int(rows * element * (squares + vectors + cache + 3 * logits * shape.d_vocab))


def _behaviour(shape: Shape, cell: Cell, tokens: PromptTokens, weights: int, options: dict[str, Any]) -> Count:
    """The prompts of a batch, then steps through a cache; the right answers' probability in one more pass."""
    asked = int(options["samples"])
    samples = min(asked, _DRAWN)
    padded = shape.element >= 4 and not tokens.hooked
    groups = batches([pos for pos in tokens.prompts for _ in range(samples)], padded, TOKENS)
    longest = {index: max(tokens.prompts[one // samples] for one in group) for index, group in enumerate(groups)}
    # Where an answer ends is not known before: behind the right one's tokens, if all is well.
    steps = min(int(options["max_new_tokens"]), tokens.answer + 2)
    memory, single, operations = 0, 0.0, float(_QUESTION * len(tokens.prompts) * samples)
    for index, group in enumerate(groups):
        rows, pos = len(group), longest[index] + steps
        text = longest[index] + int(options["max_new_tokens"])
        memory = max(memory, _pass_bytes(shape, rows, text, tokens.answer + 2, shape.element))
        single += 2 * _pass(shape, rows, pos) + steps * _step(shape, rows)
        operations += (2 + steps) * shape.n_layers * _BLOCK
    if tokens.hooked:
        single += sum(2 * _pass(shape, 1, pos) for pos in tokens.prompts)
        operations += 2 * len(tokens.prompts) * shape.n_layers * _BLOCK
    more = asked / samples
    return Count(weights * shape.element + memory, Passes(single=single * more, operations=operations * more))


def _step(shape: Shape, rows: int) -> float:
    """One token a row: reading the weights from memory takes as long as some ten products with each."""
    return 2.0 * shape.parameters * max(10, rows)


def _collapse(shape: Shape, cell: Cell, tokens: PromptTokens, weights: int, options: dict[str, Any]) -> Count:
    """float64 and the precision: the longest prompt in one pass, the others as branches off it; by a loop under hooks."""
    precision = Precision.named(cell.dtype)
    trunk, count = max(tokens.prompts), len(tokens.prompts)
    branches = (tokens.after + 2) * 2 * count
    work = _pass(shape, 1, trunk) + branches * _pass(shape, 1, trunk) / trunk
    passes = 2 + branches // 192
    if tokens.hooked:
        work, passes = sum(2 * _pass(shape, 1, pos) for pos in tokens.prompts), 2 * count
    work += 2 * _pass(shape, 1, trunk)  # prompts in passes of their own, to check it; distances
    rounded = 0 if precision in (PRECISIONS["float32"], PRECISIONS["float64"]) else _stored(precision)
    copies = weights * (4 + 8 + (4 if precision.part == "weights" else 0))
    rows = min((1 << 22) // max(shape.d_vocab, 1) + 1, 2 * count)
    pairs = 12 * 8 * max(rows * shape.d_vocab, min(2 * count, (1 << 22) // shape.d_model) * shape.d_model)
    memory = copies + _pass_bytes(shape, 1, trunk, 1, 8) + pairs
    in_double = PRECISIONS["float64"] == precision
    operations = 1.0 * (2 * passes + 2) * shape.n_layers * _BLOCK + count * _QUESTION
    operations += (1 + bool(rounded)) * shape.n_layers * _COPY
    return Count(memory, Passes(0.0 if in_double else work, work, operations))


def _stored(precision: Precision) -> int:
    """Bytes of a number in the copy that runs; 0 where the model itself does."""
    return 4 if precision.part == "weights" else 0 if precision.part else precision.dtype.itemsize


def _sensitivity(shape: Shape, cell: Cell, tokens: PromptTokens, weights: int, options: dict[str, Any]) -> Count:
    """d_model cotangents through every block and the norms of n Jacobians, of each linearisation."""
    work, held = _in_full(shape, weights)
    is_exact = options["method"] == "exact"
    d_model, memory, single, operations = shape.d_model, 0, 0.0, 0.0
    for name in options["linearisations"]:
        live = not HELD[name].attention
        for pos in tokens.prompts:
            kept = None if is_exact else most_rows(d_model)
            way = plan(work, pos, 1, live=live, max_memory=1 << 62, rows=kept)
            memory = max(memory, way.peak)
            rows = d_model if is_exact else 2 * most_rows(d_model)
            through = rows * (_pass(work, 1, pos) * (1.5 if live else 1.0))
            norms = pos * (2 + _EIGENVALUES) * d_model**3 if is_exact else 0
            single += through + norms + _CHECKS * _pass(work, 1, pos)
            blocks = -(-rows // way.chunk) + _CHECKS
            operations += blocks * shape.n_layers * _BLOCK + _QUESTION
    return Count(held + memory, _passes_of(work, single, operations))


def _path_sum(shape: Shape, cell: Cell, tokens: PromptTokens, weights: int, options: dict[str, Any]) -> Count:
    """A block read in float64 at a time, and the norms that each variant takes of it."""
    work, held = _in_full(shape, weights)
    variants = [variant_named(name) for name in options["variants"]]
    paired = any(variant.name.startswith(("heads", "edge", "windowed")) for variant in variants)
    live = any(variant.linearisation == "full" for variant in variants)
    predicted = [variant for variant in variants if variant.kind == "predicted"]
    pos = max(tokens.prompts)
    inner = 3 * shape.d_model * shape.d_mlp * 8
    memory = path_sum_bytes(work, pos, heads=paired or bool(predicted), live=live)
    memory += 3 * 8 * shape.block_parameters + 3 * max(0, inner - (1 << 26))
    small = min(shape.d_model, shape.n_key_value_heads * shape.d_head)
    double, operations = 0.0, 0.0
    for pos in tokens.prompts:
        each = 4 * shape.d_model**2 * shape.d_mlp + (2 + _EIGENVALUES) * shape.d_model**3
        block = pos * each * (len(variants) > len(predicted)) * (2 if live else 1)
        block += paired * pos**2 / 2 * (2 + _EIGENVALUES) * small**3
        block += len(predicted) * (shape.n_heads * pos**3 + 2 * shape.d_mlp**2 * (shape.d_model + pos))
        double += shape.n_layers * block + 4 * _pass(work, 1, pos)
        operations += 4 * shape.n_layers * _BLOCK + _QUESTION
    return Count(held + memory, Passes(double=double, operations=operations))


def _in_full(shape: Shape, weights: int) -> tuple[Shape, int]:
    """The model that a formula is computed with, and the bytes of its weights: a 16-bit one stands beside a float32 copy."""
    element = max(shape.element, 4)
    return replace(shape, element=element), weights * (shape.element + (element if shape.element < 4 else 0))


def _passes_of(shape: Shape, work: float, operations: float) -> Passes:
    return Passes(double=work, operations=operations) if shape.element == 8 else Passes(work, 0.0, operations)


Counting = Callable[[Shape, Cell, PromptTokens, int, dict[str, Any]], Count]
COUNTS: dict[str, Counting] = {
    "behaviour": _behaviour,
    "collapse": _collapse,
    "sensitivity": _sensitivity,
    "path-sum": _path_sum,
}
"""By measurement, of a shape, a cell, its tokens, the number of weights, and the measurement's own options."""
