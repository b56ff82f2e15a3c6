"""Bytes that path sums hold: the blocks read in turns, and the matrices that each variant makes of them."""

from __future__ import annotations

from collections.abc import Sequence

from ostools.ground.out_of_memory import chunk as chunk_of
from ostools.measure.bounds.belief import COTANGENTS
from ostools.measure.bounds.variants import LINEARISATION, USUAL, checked_variants, variant_named
from ostools.measure.formulas.forward import KEPT_BYTES, kept_weights
from ostools.measure.jacobian.memory import ALLOCATOR, sensitivity_bytes
from ostools.measure.passes.batches import in_full
from ostools.measure.unloaded import Unloaded
from ostools.models.shape import Shape
from ostools.theory.path_sum import CHUNK_BUDGET

_ELEMENT = 8
"""Bytes of a number: blocks are read in float64."""


def bounds_bytes(shape: Shape, pos: int, variants: Sequence[str]) -> int:
    """Bytes of all variants on a prompt of `pos` tokens, out of the same blocks."""
    windows = any(name.startswith("windowed") for name in variants)
    folded = _reading(in_full(shape), pos, heads=windows) + 2 * _ELEMENT * shape.block_parameters
    folded += kept_weights(shape, _ELEMENT) + _terms(shape, pos, pairs=windows)
    if all(variant_named(name).kind == "certified" for name in variants):
        return folded
    # One after the other: the larger of the two.
    return max(folded, sensitivity_bytes(shape, pos, (LINEARISATION,), method="sketch", cotangents=COTANGENTS))


def _reading(shape: Shape, pos: int, *, heads: bool) -> int:
    """O(n^2) numbers a head, of one block at a time: as the model runs it, then what is read off it.

    `heads`: a variant reads the heads' patterns one by one in float64. Measured on a CPU from 1,000 to 4,000 tokens it is
    within 30%, mostly below.
    """
    squares, square = shape.n_heads * pos**2 * shape.element, pos**2 * 8
    vectors = pos * (6 * shape.d_mlp + 20 * shape.d_model) * 8
    # Rows in float64, scores and what they are compared with.
    reading = squares + 5 * square + (2 if heads else 0) * squares
    sites = shape.site_bytes(pos)
    kept_site_bytes = sites if sites <= chunk_of(KEPT_BYTES) else 0
    return ALLOCATOR + kept_site_bytes + vectors + max(7 * squares // 2, reading)


def _terms(shape: Shape, pos: int, *, pairs: bool) -> int:
    """Matrices beside a block's weights: ff x d and d x d for the Jacobian of a position, as many again for that of a pair."""
    position = (shape.d_mlp + shape.d_model) * shape.d_model * _ELEMENT
    chunk_bytes = min(pos * position, max(position, chunk_of(CHUNK_BUDGET)))
    return (1 + 2 * pairs) * chunk_bytes + 8 * shape.d_model**2 * _ELEMENT


def bounds_memory(model: Unloaded, pos: int, *, variants: str | Sequence[str] = USUAL) -> int:
    """Bytes of a prompt's path sums."""
    return bounds_bytes(model.shape, pos, checked_variants(variants))
