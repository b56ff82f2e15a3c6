"""Bytes that one forward pass holds beside the stored weights, by the shape of the model: of a prompt,
of a batch, and with every layer's pattern kept.

What is larger than a pass is counted beside the code that holds it (`jacobian.memory`, `paths.memory`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ostools.measure.passes.batches import TOKENS
from ostools.models.shape import Shape

# Squares of scores that eager attention holds at once: scores, mask, softmax, pattern, and what hooks keep.
_SQUARES = 4.5


@dataclass(frozen=True)
class LongestPrompt:
    """Tokens of the longest prompt that a measurement reads, and of the right answer to it."""

    tokens: int
    answer: int = 0


def pass_bytes(shape: Shape, rows: int, pos: int, logits: int, element: int) -> int:
    """Bytes that `rows` prompts of `pos` tokens hold: scores, a block's vectors, keys and values of every
    layer, and logits at some positions."""
    squares = _SQUARES * shape.n_heads * pos**2
    vectors = pos * (3 * shape.d_mlp + 8 * shape.d_model)
    cache = 2 * shape.n_layers * pos * shape.n_key_value_heads * shape.d_head
    return int(rows * element * (squares + vectors + cache + 3 * logits * shape.d_vocab))


def patterns_bytes(shape: Shape, pos: int, element: int | None = None) -> int:
    """A pass over one prompt whose patterns are kept, of every layer; `element`: bytes of a number,
    where it is not read as it is loaded."""
    element = shape.element if element is None else element
    pattern_bytes = shape.n_layers * shape.n_heads * pos**2 * element
    return pass_bytes(shape, 1, pos, 1, element) + pattern_bytes + cast_bytes(shape, element)


def batch_bytes(
    shape: Shape,
    prompts: int,
    pos: int,
    *,
    answer: int = 0,
    logits: int = 1,
    element: int | None = None,
) -> int:
    """A pass over so many prompts of at most `pos` tokens, or as many of them as go through together,
    each with so many tokens of an answer behind it."""
    element = shape.element if element is None else element
    rows = min(prompts, max(1, TOKENS // pos))
    return pass_bytes(shape, rows, pos + answer, logits, element) + cast_bytes(shape, element)


def cast_bytes(shape: Shape, element: int) -> int:
    """Weights that are read as numbers of `element` bytes, where they are stored as others."""
    return 0 if element == shape.element else shape.view_bytes(element)


def in_full(shape: Shape) -> Shape:
    """The model that a formula is computed with: a 16-bit one is read as float32, number by number
    (`Shape.cast`)."""
    return shape if shape.element >= 4 else replace(shape, element=4, cast=True)
