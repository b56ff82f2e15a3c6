"""The total variation in the proof of Theorem B.3, on a model's own attention: delta(alpha_n, alpha*_(n+1)) + alpha*_(n+1,n+1).

The proof compares what the last token of v attends to with what the repeated token of v* attends to, bounds the difference of
the two attention outputs by that sum ("We assume for simplicity that the values are unit norm"), and lets it go to 0 with n:
delta by Lemma B.2, which needs positional encodings that decay with distance, the own weight by Lemma B.1. The printed delta is
of "alpha_(n,:)" and "alpha*_(n,:n)"; the lines before it say the row n + 1, which is meant here.

The bound is the proof's for layer 0, where v_n = v*_(n+1). At later layers the values differ too, and the sum is one part of
what the induction needs; `collapse(layers="all")` has the distances themselves.

Cost: one forward pass in float64 for each prompt v* that is no beginning of another: one for all lengths of a repeated token.
The row of v's last token is row n of the same pass, as the model is causal; where a family is unknown, where its rotation
depends on the length, or under a mitigation that acts in the pass, v has a pass of its own. Of each layer's pattern only these
numbers are kept. Memory: a float64 copy of the model, and one layer's patterns beside a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import hooks
from mitigations import Mitigation, changes_pass, label, optional, running
from ostools import tasks
from ostools.ground.errors import InputError
from ostools.ground.progress import Progress, tell
from ostools.ground.whole_numbers import checked_lengths
from ostools.measure.collapse.posed_pairs import as_pairs
from ostools.measure.collapse.prompt_sets import PromptSet
from ostools.measure.passes.arithmetic import true_arithmetic
from ostools.measure.passes.last_tokens import way_of
from ostools.measure.passes.precisions import Precision
from ostools.results import Frame, Provenance, Result
from ostools.tasks import CollapseTask
from ostools.tasks.base import seeds_of
from ostools.theory.distances import proof_variation

QUANTITIES = ("delta", "own", "total", "kl")
Found = Float[Tensor, "quantity layer head pair"]


@dataclass(frozen=True, eq=False)
class AttentionVariation(Result):
    """One row per seed, length, layer and head.

    Columns: task, seed, length (items of v), tokens (of v), layer (0 ... L-1), head; delta (sum_i |alpha_(n,i) -
    alpha*_(n+1,i)| over the n tokens of v, no factor 1/2), own (alpha*_(n+1,n+1)), total (their sum, at most 2: the proof's
    bound for values of unit norm), kl (KL(alpha_n || alpha*_(n+1)) in nats, alpha_n being 0 at the last token; infinite where
    the repeated token does not see what the last one saw, as behind a sliding window).
    """

    def over_heads(self) -> Frame:
        """The mean over heads and seeds of each quantity, by layer and length."""
        frame: Any = self.frame
        return frame.groupby(["layer", "length"], as_index=False)[list(QUANTITIES)].mean()


def attention_variation(
    model: TransformerBridge,
    task: CollapseTask | str = "figure-5a",
    *,
    lengths: Iterable[int],
    seeds: Sequence[int] = (0,),
    bos: bool = True,
    mitigation: Mitigation | str | None = None,
    progress: Progress | None = None,
) -> AttentionVariation:
    """How far the last token's attention moves when it is repeated, in every layer and head, at every length; in float64.

    Args:
        task: pairs of the theorem, as for `collapse`: `figure-5a` to `figure-5d`, `letters`, `words`, `text`, a
            `tasks.RepeatTask`. Other pairs of a task (figure-5d's) are left out.
        lengths: numbers of sequence items.
        seeds: of a task that draws digits.
        bos: false takes the tokenizer's BOS out of every prompt.
        mitigation: a `mitigations.Mitigation` or its name with options; acts in every pass, verified.
        progress: called as progress(done, total) after each forward pass.

    Raises `InputError` for a task without such pairs (its prompts end in other words: its last tokens' rows are of other
    tokens), under an active edit, which would not reach the copy, for weights that are not finite, and for whatever `collapse`
    refuses of tasks, lengths and seeds. Source: arXiv 2406.04267, Theorem B.3, equation 2, Lemmas B.1 and B.2.
    """
    given, wanted = optional(mitigation), checked_lengths(lengths)
    pairs = as_pairs(model, tasks.repeating(task) if isinstance(task, str) else task, given, False)
    checked = seeds_of(pairs, seeds)
    _check_model(model)
    sets = [PromptSet.build(model, pairs, wanted, seed, bos) for seed in checked]
    _check_pairs(sets[0], pairs.name)
    way = way_of(model, [prompts.tree for prompts in sets])
    apart = way.name == "loop" or changes_pass(given)
    plans = [list(_passes(prompts, apart)) for prompts in sets]
    precision = Precision.named("float64")
    work, done = precision.prepared(model), 0
    tables = []
    for prompts, plan in zip(sets, plans, strict=True):
        for ids, chosen in plan:
            with running(work, given):
                found = _separate(work, prompts, chosen) if apart else _together(work, ids, prompts, chosen)
            done += 1
            tell(progress, done, sum(map(len, plans)))
            tables.append(_table(found, prompts, chosen, pairs.name))
    provenance = Provenance.collect(
        model,
        max((prompts.longest() for prompts in sets), key=len),
        measurement="attention-variation",
        task=pairs.name,
        items=pairs.items,
        bos=bos,
        mitigation=label(given),
        lengths=wanted,
        seeds=checked,
        dtype=precision.name,
        route="v and v* apart" if apart else "v inside the pass of v*",
    )
    whole: Any = pd.concat(tables).sort_values(["seed", "length", "layer", "head"], kind="stable", ignore_index=True)
    return AttentionVariation(whole, provenance)


def _check_model(model: TransformerBridge) -> None:
    if edits := hooks.active_edits(model):
        raise InputError(
            f"attention_variation runs on a float64 copy, which the active edit {edits[0].kind!r} at {edits[0].where} "
            "would not reach: leave the edit's block first"
        )
    if next(model.parameters()).device.type == "mps":
        raise InputError(
            "attention_variation is computed in float64, which mps lacks: load the model with device='cpu'"
        )


def _check_pairs(prompts: PromptSet, name: str) -> None:
    if not any(pair.kind == "theorem" for pair in prompts.pairs):
        raise InputError(
            f"{name}: expected pairs of which v* is v with its last token once more, found prompts with text after their "
            "sequence; 'figure-5a', 'letters' or 'text' have such pairs"
        )


def _passes(prompts: PromptSet, apart: bool) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """The prompts to be run, each with the pairs that are read out of it: their v* begins it, or is it."""
    left = [number for number, pair in enumerate(prompts.pairs) if pair.kind == "theorem"]
    left.sort(key=lambda number: len(prompts.pairs[number].extended), reverse=True)
    while left:
        ids = prompts.pairs[left[0]].extended
        chosen = [n for n in left if not apart and ids[: len(prompts.pairs[n].extended)] == prompts.pairs[n].extended]
        chosen = chosen or left[:1]
        yield ids, chosen
        left = [number for number in left if number not in set(chosen)]


def _together(model: TransformerBridge, ids: Sequence[int], prompts: PromptSet, chosen: Sequence[int]) -> Found:
    """Every chosen pair out of one pass: rows n - 1 and n, counted from 0, of a pattern are v's last and the repeated one."""
    last = torch.tensor([len(prompts.pairs[number].ids) for number in chosen])

    def compared(pattern: Tensor, layer: int | None) -> Tensor:
        rows = last.to(pattern.device)
        heads = len(pattern[0])
        return _compared(pattern[0, :, rows - 1], pattern[0, :, rows], rows.expand(heads, -1))

    return _captured(model, ids, compared)


def _separate(model: TransformerBridge, prompts: PromptSet, chosen: Sequence[int]) -> Found:
    """One pair, each of its prompts in a pass of its own."""
    (pair,) = (prompts.pairs[number] for number in chosen)

    def of_last(pattern: Tensor, layer: int | None) -> Tensor:
        return pattern[0, :, -1:].clone()

    alpha, alpha_star = (_captured(model, ids, of_last, stacked=0) for ids in (pair.ids, pair.extended))
    padded = torch.nn.functional.pad(alpha, (0, 1))
    last = torch.full(alpha.shape[:-1], len(pair.ids), dtype=torch.int64, device=alpha.device)
    return _compared(padded, alpha_star, last)


def _compared(alpha: Tensor, alpha_star: Tensor, last: Int[Tensor, "*batch"]) -> Tensor:
    """[quantity, ...]: in the order of `QUANTITIES`."""
    delta, own, divergence = proof_variation(alpha.double(), alpha_star.double(), last)
    return torch.stack([delta, own, delta + own, divergence])


def _captured(
    model: TransformerBridge, ids: Sequence[int], reduce: Callable[[Tensor, int | None], Tensor], stacked: int = 1
) -> Tensor:
    """What `reduce` makes of each layer's pattern, the layers along the axis `stacked`."""
    device = next(model.parameters()).device
    with torch.no_grad(), true_arithmetic(model), hooks.capture(model, "pattern", reduce=reduce) as record:
        model(torch.tensor([list(ids)], device=device), use_cache=False, logits_to_keep=1)
    return torch.stack([record["pattern"][layer] for layer in sorted(record["pattern"])], dim=stacked)


def _table(found: Found, prompts: PromptSet, chosen: Sequence[int], task: str) -> pd.DataFrame:
    _, layers, heads, _ = found.shape
    values = found.cpu().numpy()
    if not bool(torch.isfinite(found[:3]).all()):
        raise InputError(f"{task}: the attention weights are not finite: the model's weights or its dtype are broken")
    tables = []
    for place, number in enumerate(chosen):
        pair = prompts.pairs[number]
        same = {"task": task, "seed": prompts.seed, "length": pair.length, "tokens": len(pair.ids)}
        numbers = {name: values[row, :, :, place].ravel() for row, name in enumerate(QUANTITIES)}
        names = {"layer": [layer for layer in range(layers) for _ in range(heads)], "head": [*range(heads)] * layers}
        tables.append(pd.DataFrame(same | names | numbers))
    return pd.concat(tables)
