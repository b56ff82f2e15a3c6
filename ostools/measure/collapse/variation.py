"""The total variation in the proof of Theorem B.3, on a model's own attention: delta(alpha_n,
alpha*_(n+1)) + alpha*_(n+1,n+1), by `theory.distances.proof_variation`.

The proof compares what the last token of v attends to with what the repeated token of v* attends
to, bounds the difference of the two attention outputs by that sum ("We assume for simplicity that
the values are unit norm"), and lets it go to 0 with n: delta by Lemma B.2, which needs positional
encodings that decay with distance, the own weight by Lemma B.1. The printed delta is of
"alpha_(n,:)" and "alpha*_(n,:n)"; the lines before it say the row n + 1, which is meant here. The
bound is the proof's for layer 0, where v_n = v*_(n+1). At later layers the values differ too, and
the sum is one part of what the induction needs.

Cost: one forward pass in float64 for each prompt v* that is no beginning of another: one for all
lengths of a repeated token. The row of v's last token is row n of the same pass, as the model is
causal; where a family is unknown, where its rotation depends on the length, or under a mitigation
that acts in the pass, v has a pass of its own. Memory: the weights cast to float64 where they are
read, and one layer's patterns beside a pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from ostools import tasks
from ostools.ground import InputError, Lengths, Progress, TransformerBridge, checked_lengths, tell
from ostools.measure.collapse.prompt_sets import PromptSet, as_pairs
from ostools.measure.measurement import measurement
from ostools.measure.mitigated_prompts import effect_entry
from ostools.measure.passes.batches import batching_of
from ostools.measure.passes.contexts import captured_pass, require_float64_views
from ostools.measure.passes.precisions import Precision
from ostools.measure.position import PROMPT_END
from ostools.mitigations import Mitigation, changes_pass, label, optional, running
from ostools.models import Prompt
from ostools.results import Chart, Frame, Provenance, Result, TableHead
from ostools.tasks import CollapseTask, Pair
from ostools.tasks.base import seeds_of
from ostools.theory.distances import proof_variation

QUANTITIES = ("delta", "own", "total", "kl")
PRECISION = Precision.of_name("float64")
VariationTensor = Float[Tensor, "quantity layer head pair"]


def _variation_of(
    model: TransformerBridge,
    sets: Sequence[PromptSet],
    mitigation: Mitigation | None,
    progress: Progress | None,
) -> tuple[pd.DataFrame, str]:
    """The rows of `AttentionVariation` of every pair of the theorem in these sets; and whether v
    was read out of v*'s pass.
    """
    if not any(pair.kind == "theorem" for pair in sets[0].pairs):
        raise InputError(
            f"{sets[0].task}: expected pairs of which v* is v with its last token once more, found "
            "prompts with text after their sequence; 'figure-5a', 'letters' or 'text' have such "
            "pairs"
        )
    batching = batching_of(model, is_chain=all(prompts.tree.is_chain for prompts in sets))
    separate = batching.name == "loop" or changes_pass(mitigation)
    passes = [
        (prompts, ids, pairs)
        for prompts in sets
        for ids, pairs in _passes(prompts.pairs, separate).items()
    ]
    work, tables = PRECISION.prepared(model), []
    for prompts, ids, pairs in passes:
        with running(work, mitigation):
            numbers = _compared(work, ids, pairs, separate)
        tables.append(_table(numbers, prompts, pairs))
        tell(progress, len(tables), len(passes))
    table: Frame = pd.concat(tables).sort_values(
        ["seed", "length", "layer", "head"], kind="stable", ignore_index=True
    )
    return table, "v and v* apart" if separate else "v inside the pass of v*"


def _passes(pairs: Sequence[Pair], separate: bool) -> dict[tuple[int, ...], list[Pair]]:
    """The prompts v* to be run, each with the pairs of the theorem that are read out of it: their
    v* begins it (unless each has a pass of its own: `separate`), or is it.
    """
    passes: dict[tuple[int, ...], list[Pair]] = {}
    theorems = [pair for pair in pairs if pair.kind == "theorem"]
    for pair in sorted(theorems, key=lambda pair: len(pair.extended), reverse=True):
        extended = pair.extended
        longer = (ids for ids in passes if not separate and ids[: len(extended)] == extended)
        passes.setdefault(next(longer, extended), []).append(pair)
    return passes


def _compared(
    model: TransformerBridge, ids: Sequence[int], pairs: Sequence[Pair], separate: bool
) -> VariationTensor:
    """The numbers of these pairs out of the pass of v*, in the order of `QUANTITIES`: rows n - 1
    and n, counted from 0, of a pattern are v's last and the repeated one. Apart, the row of v is
    that of its own pass.
    """
    alone: Mapping[int | None, Tensor] = {}
    if separate:
        (pair,) = pairs
        record, _ = captured_pass(
            model, [pair.ids], "pattern", reduce=lambda pattern, _: pattern[0, :, -1:].clone()
        )
        alone = record["pattern"]

    def compared(pattern: Tensor, layer: int | None) -> Tensor:
        rows = torch.tensor([len(pair.ids) for pair in pairs], device=pattern.device)
        alpha = pad(alone[layer], (0, 1)) if separate else pattern[0, :, rows - 1]
        alpha_star = pattern[0, :, rows].double()
        last = rows.expand(len(alpha_star), -1)
        delta, self_weight, divergence = proof_variation(alpha.double(), alpha_star, last)
        return torch.stack([delta, self_weight, delta + self_weight, divergence])

    patterns = captured_pass(model, [ids], "pattern", reduce=compared)[0]["pattern"]
    return torch.stack([patterns[layer] for layer in sorted(patterns)], dim=1)


def _table(variations: VariationTensor, prompts: PromptSet, pairs: Sequence[Pair]) -> pd.DataFrame:
    if not bool(torch.isfinite(variations[:3]).all()):
        raise InputError(
            f"{prompts.task}: the attention weights are not finite: the model's weights or its "
            "dtype are broken"
        )
    layer, head, place = np.indices(variations.shape[1:]).reshape(3, -1)
    numbers = variations.flatten(1).cpu().numpy()
    return pd.DataFrame(
        {
            "task": prompts.task,
            "seed": prompts.seed,
            "length": np.array([pair.length for pair in pairs])[place],
            "tokens": np.array([len(pair.ids) for pair in pairs])[place],
            "layer": layer,
            "head": head,
            **dict(zip(QUANTITIES, numbers, strict=True)),
        }
    )


@dataclass(frozen=True, eq=False)
class AttentionVariation(Result):
    """One row per seed, length, layer and head.

    Columns: task, seed, length (items of v), tokens (of v), layer (0 ... L-1), head; delta (sum_i
    |alpha_(n,i) - alpha*_(n+1,i)| over the n tokens of v, no factor 1/2), own (alpha*_(n+1,n+1)),
    total (their sum, at most 2: the proof's bound for values of unit norm), kl (KL(alpha_n ||
    alpha*_(n+1)) in nats, alpha_n being 0 at the last token; infinite where the repeated token does
    not see what the last one saw, as under a sliding window).
    """

    tables: ClassVar = (TableHead("over_heads"),)
    key: ClassVar = ("task", "seed", "length", "layer", "head")

    def over_heads(self) -> Frame:
        table: Frame = self.frame
        return table.groupby(["layer", "length"], as_index=False)[list(QUANTITIES)].mean()

    def chart(self) -> Chart:
        from ostools.reporting.charts.all_tokens import attention_variation_chart

        return attention_variation_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.profiles import attention_variation_findings

        return attention_variation_findings(self)


@measurement(
    command="collapse variation",
    examples=("--task figure-5c --lengths 1:200 --out variation.png",),
    defaults={"lengths": "1:128"},
    memory=["logits"],
    in_chunks=True,
)
def attention_variation(
    model: TransformerBridge,
    task: CollapseTask | Prompt | str = "figure-5a",
    *,
    lengths: Lengths,
    seeds: Sequence[int] = (0,),
    bos: bool | None = None,
    mitigation: Mitigation | str | None = None,
    progress: Progress | None = None,
) -> AttentionVariation:
    """Total variation of the last token's attention when it is repeated, in every layer and
    head, at every length; in float64.

    Args:
        task: pairs of the theorem, as in `collapse`: `figure-5a` to `figure-5d`, `letters`, a
            `tasks.RepeatTask`, a `Prompt`. A task's other pairs (figure-5d has some) are left out.
        lengths: numbers of items in the sequence.
        seeds: one digit stream for each, if the task draws digits.
        bos: whether the tokenizer's BOS stands before every prompt; None: as the tokenizer does by
            itself.
        mitigation: a `mitigations.Mitigation` or its name with options. It acts in every pass, and
            is verified there.
        progress: called as progress(done, total) after each forward pass.

    Raises `InputError` for a task without such pairs (its prompts end in other words, so the rows
    of its last tokens are those of other tokens), for weights that are not finite, and for whatever
    `collapse` refuses. Source: arXiv 2406.04267, Theorem B.3, equation 2, Lemmas B.1 and B.2.
    """
    mitigation_object, length_list = optional(mitigation), checked_lengths(lengths)
    repeating = tasks.task(task, CollapseTask) if isinstance(task, str) else task
    pairs = as_pairs(model, repeating, mitigation_object, PROMPT_END, {"bos": bos, "chat": False})
    checked = seeds_of(pairs, seeds)
    require_float64_views("attention_variation", model)
    sets = [PromptSet.build(model, pairs, length_list, seed, bos) for seed in checked]
    rows, route = _variation_of(model, sets, mitigation_object, progress)
    prompt_ids = [ids for prompts in sets for ids in prompts.prompts]
    provenance = Provenance.collect(
        model,
        max((prompts.longest() for prompts in sets), key=len),
        measurement="attention-variation",
        task=pairs.name,
        items=pairs.items,
        bos=bos,
        mitigation=label(mitigation_object),
        **effect_entry(model, mitigation_object, (PRECISION,), prompt_ids, rewritten=False),
        lengths=length_list,
        seeds=checked,
        dtype=PRECISION.name,
        route=route,
    )
    return AttentionVariation(rows, provenance)
