"""What taking tokens out takes: passes over the prompt, some of them shorter."""

from __future__ import annotations

from collections.abc import Sequence

from ostools.measure.faithfulness.without import MASKED, REMOVED, REPLACED, together
from ostools.measure.passes.batches import TOKENS
from ostools.measure.passes.cost import BLOCK, QUESTION, Cost, in_full, one_pass, pass_bytes, work_in
from ostools.models.shape import Shape
from ostools.theory.deletion import deletion_steps


def faithfulness_cost(
    shape: Shape, pos: int, *, profiles: int, ways: Sequence[str], draws: int, orders: int, steps: int
) -> Cost:
    """Of a prompt of `pos` tokens, held against so many profiles."""
    work, others = in_full(shape), pos - 1
    single = {REMOVED: others, REPLACED: draws * others, MASKED: others}
    points = (profiles + orders) * len(deletion_steps(others, steps))
    # Removed tokens make a deletion curve's prompts half as long in the mean.
    whole = sum(single[way] + points * (0.5 if way == REMOVED else 1.0) for way in ways)
    cases = sum(single[way] + points for way in ways)
    rows = min(max(1, TOKENS // pos), together(shape.d_vocab), max(1, int(cases)))
    memory = pass_bytes(work, rows, pos, 1, work.element) + 4 * 8 * rows * shape.d_vocab
    operations = cases / rows * shape.n_layers * BLOCK + QUESTION
    products = one_pass(work, 1, pos) * whole + 2.0 * cases * shape.d_vocab * shape.d_model
    return Cost(memory, operations=operations, cast=8.0 * cases * shape.d_vocab) + work_in(work.element, products)
