"""When attention runs in strips of queries, and in how large ones: where one block's pattern would take over 64 MiB."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from transformer_lens.model_bridge import TransformerBridge

import hooks
from ostools.ground.chunks import chunk
from ostools.ground.errors import InputError
from ostools.ground.memory import available_memory
from ostools.models.shape import Shape

WHOLE_PATTERN_BYTES = 1 << 26
"""Bytes of one block's pattern up to which it is made as a whole: 2,048 tokens at 4 heads in float32, 1,024 at 16."""

_SQUARES = 10
"""Patterns of one block's size that are held at once where they are read as a whole."""

STRIP = 1 << 25
"""Bytes of one strip's pattern."""


def strip_size(shape: Shape, pos: int) -> int | None:
    """How many queries of a prompt of `pos` tokens go through attention at a time; None: all of them, the prompt is short."""
    row = shape.n_heads * pos * shape.element
    return None if row * pos <= chunk(WHOLE_PATTERN_BYTES) else max(1, chunk(STRIP) // row)


@contextmanager
def strips_where_long(model: TransformerBridge, pos: int) -> Iterator[None]:
    """Run the block in strips where prompts of `pos` tokens are long (`hooks.in_strips`), as ever where they are short.

    Attention that cannot run in strips (a replaced pattern, an observer of patterns, an architecture that they do not know)
    runs as a whole where that fits into the memory. Raises `InputError` where it does not.
    """
    shape = Shape.of(model)
    size = strip_size(shape, pos)
    if size is None:
        yield
        return
    with ExitStack() as stack:
        try:
            stack.enter_context(hooks.in_strips(model, size))
        except hooks.HookError as error:
            whole_bytes = _SQUARES * shape.n_heads * pos**2 * shape.element
            if hooks.active_strips(model) is not None or whole_bytes > available_memory(
                next(model.parameters()).device
            ):
                raise InputError(
                    f"{pos} tokens need {whole_bytes / 2**30:.1f} GiB for whole attention patterns, more than is free, and "
                    f"cannot go in strips of queries: {error}; leave that block, or shorten the prompt"
                ) from error
        yield
