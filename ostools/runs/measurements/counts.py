"""Counts from shapes, for forecasts: bytes at the peak of a pass, products and small operations.

The memory of sensitivity and of path sums is what they themselves plan (`ostools.measure.jacobian.memory`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ostools.models.shape import Shape

# Small operations, and what they stand for was timed on the embedded model: a pass through a block with its hooks; a question
# that is posed, rendered and written down.
BLOCK, QUESTION = 1000, 3000
EIGENVALUES = 30
"""Eigenvalues of a d x d matrix in place of its norm take as long as so many d^3 products."""
# Squares of scores that eager attention holds at once: scores, mask, softmax, pattern, and what hooks keep.
_SQUARES = 4.5


@dataclass(frozen=True)
class PromptTokens:
    """Tokens of the prompt at each length of a cell, of what stands behind the sequence, and of the right answer; and whether
    a mitigation acts in the forward pass."""

    prompts: tuple[int, ...]
    after: int
    answer: int
    hooked: bool


@dataclass(frozen=True)
class Count:
    """Bytes at the peak, the model among them; floating-point operations in float32 (or below) and in float64; and small
    operations, whose size does not matter."""

    memory: int
    single: float = 0.0
    double: float = 0.0
    operations: float = 0.0


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


def in_full(shape: Shape, weights: int) -> tuple[Shape, int]:
    """The model that a formula is computed with, and the bytes of its weights: those of a 16-bit one are cast to float32."""
    stored = weights * shape.element
    if shape.element >= 4:
        return shape, stored
    return replace(shape, element=4, cast=True), stored + shape.view_bytes(4)
