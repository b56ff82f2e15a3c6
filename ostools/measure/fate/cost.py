"""What probes and a verdict take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ostools.measure.answers.cost import behaviour_cost
from ostools.measure.collapse.cost import collapse_cost
from ostools.measure.fate.splits import FOLDS, TESTS
from ostools.measure.passes.batches import TOKENS, batches
from ostools.measure.passes.cost import BLOCK, QUESTION, Cost, PromptTokens, one_pass, pass_bytes, work_in
from ostools.measure.passes.precisions import Precision
from ostools.models.shape import Shape

_FITS = 12.0  # decompositions, or searches for a minimum, that one probe takes with its penalty
_NUMBER, _TOKEN = 700, 3000  # small operations of one
_SAID = 8  # tokens after a begun line: the answer itself, and the end of the line
PAIR_SEEDS = 3
"""Sequences of which the pairs of n and n + 1 items are compared."""
_DRAWING = 12  # bytes a weight while random ones are drawn: in float64, and again in float32
_DRAWS = 100  # random numbers that take as long as a small operation


def decodable_cost(
    shape: Shape,
    tokens: PromptTokens,
    dtypes: Sequence[str],
    *,
    target: str,
    seeds: int,
    random: bool = True,
) -> Cost:
    """`tokens`: of the prompt of every length, in which the line is yet to be begun; `random`: the control on random weights,
    whose model stands beside the other."""
    prompts, total = len(tokens.prompts) * seeds, Cost()
    for name in dtypes:
        element = Precision.named(name).dtype.itemsize
        work = sum(one_pass(shape, 1, pos + tokens.answer) for pos in tokens.prompts) * seeds * (1 + random)
        cast = shape.view_bytes(element) if element != shape.element else 0
        second = shape.element * shape.parameters if random else 0
        memory = _largest_batch(shape, tokens, seeds, element) + cast + second
        total += Cost(memory) + work_in(element, work)
    places = 2 * shape.n_layers + 3
    kept = 8 * prompts * (places * shape.d_model + 2 * shape.d_vocab)
    probes = places * len(TESTS) * FOLDS * (2 + random) * len(dtypes)
    fit = _TOKEN if target == "token" else _NUMBER
    wide = min(prompts, shape.d_model)
    fitted = Cost(kept, double=probes * _FITS * 4.0 * prompts * wide**2, operations=probes * _FITS * fit)
    asked = Cost(operations=float(prompts * QUESTION + len(dtypes) * len(tokens.prompts) * shape.n_layers * BLOCK))
    drawn = Cost(_DRAWING * shape.parameters, operations=2 * shape.parameters / _DRAWS) if random else Cost()
    return Cost(total.memory + kept) + total + fitted + asked + drawn


def fate_cost(
    shape: Shape,
    tokens: PromptTokens,
    pairs: PromptTokens,
    dtypes: Sequence[str],
    *,
    target: str,
    seeds: int,
    random: bool = True,
) -> Cost:
    """Without a mitigation. `tokens`: as of `decodable_cost`; `pairs`: of the longer prompt of every pair."""
    every = replace(tokens, prompts=tuple(pos + tokens.answer for pos in tokens.prompts) * seeds, answer=_SAID)
    answers = behaviour_cost(shape, every, probability=False, max_new_tokens=_SAID) * len(dtypes)
    curve = collapse_cost(shape, pairs, dtypes, seeds=min(PAIR_SEEDS, seeds))
    return decodable_cost(shape, tokens, dtypes, target=target, seeds=seeds, random=random) + answers + curve


def readout_cost(shape: Shape, tokens: PromptTokens, dtypes: Sequence[str], *, seeds: int) -> Cost:
    """Passes from every layer along two directions, and a probe a layer; in every dtype."""
    passes = sum(one_pass(shape, 1, pos + tokens.answer) for pos in tokens.prompts) * seeds * (1 + 4 * shape.n_layers)
    total = Cost()
    operations = float(4 * shape.n_layers**2 * len(tokens.prompts) * BLOCK + seeds * len(tokens.prompts) * QUESTION)
    for name in dtypes:
        element = Precision.named(name).dtype.itemsize
        cast = shape.view_bytes(element) if element != shape.element else 0
        memory = _largest_batch(shape, tokens, seeds, element) + cast
        total += Cost(memory, operations=operations) + work_in(element, passes)
    return total


def _largest_batch(shape: Shape, tokens: PromptTokens, seeds: int, element: int) -> int:
    """Bytes of the largest pass: begun prompts of one length go through together."""
    begun = [pos + tokens.answer for pos in tokens.prompts for _ in range(seeds)]
    together = batches(begun, False, TOKENS)
    return max(pass_bytes(shape, len(batch), begun[batch[0]], 1, element) for batch in together)
