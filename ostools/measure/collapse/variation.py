"""Total variation in the proof of Theorem B.3, on a model's own attention: delta(alpha_n, alpha*_(n+1)) + alpha*_(n+1,n+1).

The formula is `theory.distances.proof_variation`; here are the passes in float64 whose patterns it is given.
`attention_variation` is this measurement alone, and `collapse` with `layers` puts it beside its distances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import hooks
from mitigations import Mitigation, changes_pass, running
from ostools.ground.errors import InputError
from ostools.ground.progress import Progress, tell
from ostools.measure.collapse.prompt_sets import PromptSet
from ostools.measure.passes.arithmetic import true_arithmetic
from ostools.measure.passes.last_tokens import batching_of
from ostools.measure.passes.precisions import Precision
from ostools.measure.passes.streams import no_logits
from ostools.results import Frame
from ostools.theory.distances import proof_variation

QUANTITIES = ("delta", "own", "total", "kl")
PRECISION = Precision.of_name("float64")
VariationTensor = Float[Tensor, "quantity layer head pair"]


@dataclass(frozen=True)
class Variation:
    """A row per seed, length, layer and head, as `AttentionVariation` has them; and whether v was read out of v*'s pass."""

    rows: pd.DataFrame
    route: str


def mean_over_heads(rows: Frame) -> Frame:
    """The mean over heads and seeds of each quantity, by layer and length."""
    return rows.groupby(["layer", "length"], as_index=False)[list(QUANTITIES)].mean()


def variation_of(
    model: TransformerBridge,
    sets: Sequence[PromptSet],
    task: str,
    mitigation: Mitigation | None = None,
    progress: Progress | None = None,
) -> Variation:
    """The total variation of every pair of the theorem in these sets, in every layer and head, in float64.

    Raises `InputError` where no pair is of the theorem (its prompts end in other words: its last tokens' rows are of other
    tokens), and for attention weights that are not finite.
    """
    _check_pairs(sets[0], task)
    batching = batching_of(model, [prompts.tree for prompts in sets])
    separate_passes = batching.name == "loop" or changes_pass(mitigation)
    plans = [list(_passes(prompts, separate_passes)) for prompts in sets]
    work, passes_done = PRECISION.prepared(model), 0
    tables = []
    for prompts, plan in zip(sets, plans, strict=True):
        for ids, pair_numbers in plan:
            with running(work, mitigation):
                variations = (
                    _separate(work, prompts, pair_numbers)
                    if separate_passes
                    else _in_one_pass(work, ids, prompts, pair_numbers)
                )
            passes_done += 1
            tell(progress, passes_done, sum(map(len, plans)))
            tables.append(_table(variations, prompts, pair_numbers, task))
    table: Any = pd.concat(tables).sort_values(["seed", "length", "layer", "head"], kind="stable", ignore_index=True)
    return Variation(table, "v and v* apart" if separate_passes else "v inside the pass of v*")


def _check_pairs(prompts: PromptSet, name: str) -> None:
    if not any(pair.kind == "theorem" for pair in prompts.pairs):
        raise InputError(
            f"{name}: expected pairs of which v* is v with its last token once more, found prompts with text after their "
            "sequence; 'figure-5a', 'letters' or 'text' have such pairs"
        )


def _passes(prompts: PromptSet, separate_passes: bool) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """The prompts to be run, each with the pairs that are read out of it: their v* begins it, or is it."""
    remaining = [number for number, pair in enumerate(prompts.pairs) if pair.kind == "theorem"]
    remaining.sort(key=lambda number: len(prompts.pairs[number].extended), reverse=True)
    while remaining:
        ids = prompts.pairs[remaining[0]].extended
        pair_numbers = [
            n
            for n in remaining
            if not separate_passes and ids[: len(prompts.pairs[n].extended)] == prompts.pairs[n].extended
        ]
        pair_numbers = pair_numbers or remaining[:1]
        yield ids, pair_numbers
        remaining = [number for number in remaining if number not in set(pair_numbers)]


def _in_one_pass(
    model: TransformerBridge, ids: Sequence[int], prompts: PromptSet, pair_numbers: Sequence[int]
) -> VariationTensor:
    """Every chosen pair out of one pass: rows n - 1 and n, counted from 0, of a pattern are v's last and the repeated one."""
    last = torch.tensor([len(prompts.pairs[number].ids) for number in pair_numbers])

    def compared(pattern: Tensor, layer: int | None) -> Tensor:
        rows = last.to(pattern.device)
        heads = len(pattern[0])
        return _compared(pattern[0, :, rows - 1], pattern[0, :, rows], rows.expand(heads, -1))

    return _captured(model, ids, compared)


def _separate(model: TransformerBridge, prompts: PromptSet, pair_numbers: Sequence[int]) -> VariationTensor:
    """One pair, each of its prompts in a pass of its own."""
    (pair,) = (prompts.pairs[number] for number in pair_numbers)

    def of_last(pattern: Tensor, layer: int | None) -> Tensor:
        return pattern[0, :, -1:].clone()

    alpha, alpha_star = (_captured(model, ids, of_last, stacked=0) for ids in (pair.ids, pair.extended))
    padded = torch.nn.functional.pad(alpha, (0, 1))
    last = torch.full(alpha.shape[:-1], len(pair.ids), dtype=torch.int64, device=alpha.device)
    return _compared(padded, alpha_star, last)


def _compared(alpha: Tensor, alpha_star: Tensor, last: Int[Tensor, "*batch"]) -> Tensor:
    """[quantity, ...]: in the order of `QUANTITIES`."""
    delta, self_weight, divergence = proof_variation(alpha.double(), alpha_star.double(), last)
    return torch.stack([delta, self_weight, delta + self_weight, divergence])


def _captured(
    model: TransformerBridge, ids: Sequence[int], reduce: Callable[[Tensor, int | None], Tensor], stacked: int = 1
) -> Tensor:
    """Reduce each layer's pattern by `reduce`; the layers are stacked along the axis `stacked`."""
    device = next(model.parameters()).device
    with torch.no_grad(), true_arithmetic(model), hooks.capture(model, "pattern", reduce=reduce) as record:
        model(torch.tensor([list(ids)], device=device), use_cache=False, logits_to_keep=no_logits(model))
    return torch.stack([record["pattern"][layer] for layer in sorted(record["pattern"])], dim=stacked)


def _table(variations: VariationTensor, prompts: PromptSet, pair_numbers: Sequence[int], task: str) -> pd.DataFrame:
    _, layers, heads, _ = variations.shape
    values = variations.cpu().numpy()
    if not bool(torch.isfinite(variations[:3]).all()):
        raise InputError(f"{task}: the attention weights are not finite: the model's weights or its dtype are broken")
    tables = []
    for place, number in enumerate(pair_numbers):
        pair = prompts.pairs[number]
        same = {"task": task, "seed": prompts.seed, "length": pair.length, "tokens": len(pair.ids)}
        numbers = {name: values[row, :, :, place].ravel() for row, name in enumerate(QUANTITIES)}
        names = {"layer": [layer for layer in range(layers) for _ in range(heads)], "head": [*range(heads)] * layers}
        tables.append(pd.DataFrame(same | names | numbers))
    return pd.concat(tables)
