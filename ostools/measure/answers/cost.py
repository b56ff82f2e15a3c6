"""What asking a model takes: the prompts of a batch, steps through a cache, and the right answers' probability."""

from __future__ import annotations

from ostools.measure.passes.batches import TOKENS, batches
from ostools.measure.passes.cost import AS_STORED, BLOCK, QUESTION, Cost, PromptTokens, one_pass, pass_bytes, work_in
from ostools.models.shape import Shape

_DRAWN = 64  # samples of a prompt that batches are made of; more of them take as much more time
AN_ANSWER = 64
"""Tokens of an answer that is forecast where no limit is given."""


def behaviour_cost(
    shape: Shape,
    tokens: PromptTokens,
    *,
    samples: int = 1,
    max_new_tokens: int | None = None,
    probability: bool = True,
    goes_on: bool = False,
) -> Cost:
    """`goes_on`: answers are expected to take `max_new_tokens`, as reasoning does; else to end where the right one does.

    Where an answer ends is not known before it is given: this is the one forecast that a model can prove wrong.
    """
    asked, samples = samples, min(samples, _DRAWN)
    most = AN_ANSWER if max_new_tokens is None else max_new_tokens
    padded = shape.element >= 4 and not tokens.hooked
    steps = most if goes_on else min(most, tokens.answer + 2)
    passes = 2 if probability else 1
    memory, work, read = 0, 0.0, 0.0
    operations = float(QUESTION * len(tokens.prompts) * samples)
    for group in batches([pos for pos in tokens.prompts for _ in range(samples)], padded, TOKENS):
        rows, longest = len(group), max(tokens.prompts[one // samples] for one in group)
        memory = max(memory, pass_bytes(shape, rows, longest + most, tokens.answer + 2, shape.element))
        work += passes * one_pass(shape, rows, longest + steps) + steps * 2.0 * shape.parameters * rows
        read += steps * shape.parameters * AS_STORED
        operations += (passes + steps) * shape.n_layers * BLOCK
    if tokens.hooked:
        work += sum(2 * one_pass(shape, 1, pos) for pos in tokens.prompts)
        operations += 2 * len(tokens.prompts) * shape.n_layers * BLOCK
    more = asked / samples
    return Cost(memory) + (work_in(shape.element, work) + Cost(cast=float(read), operations=float(operations))) * more
