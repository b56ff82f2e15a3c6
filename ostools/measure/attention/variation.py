"""The total variation in the proof of Theorem B.3, on a model's own attention: delta(alpha_n, alpha*_(n+1)) + alpha*_(n+1,n+1).

The proof compares what the last token of v attends to with what the repeated token of v* attends to, bounds the difference of
the two attention outputs by that sum ("We assume for simplicity that the values are unit norm"), and lets it go to 0 with n:
delta by Lemma B.2, which needs positional encodings that decay with distance, the own weight by Lemma B.1. The printed delta is
of "alpha_(n,:)" and "alpha*_(n,:n)"; the lines before it say the row n + 1, which is meant here.

The bound is the proof's for layer 0, where v_n = v*_(n+1). At later layers the values differ too, and the sum is one part of
what the induction needs; `collapse(layers="all")` has the distances themselves, and these numbers beside them.

Cost: one forward pass in float64 for each prompt v* that is no beginning of another: one for all lengths of a repeated token.
The row of v's last token is row n of the same pass, as the model is causal; where a family is unknown, where its rotation
depends on the length, or under a mitigation that acts in the pass, v has a pass of its own. Of each layer's pattern only these
numbers are kept. Memory: the weights cast to float64 where they are
read, and one layer's patterns beside a pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from transformer_lens.model_bridge import TransformerBridge

import hooks
from mitigations import Mitigation, label, optional
from ostools import tasks
from ostools.ground.errors import InputError
from ostools.ground.out_of_memory import in_smaller_chunks
from ostools.ground.progress import Progress
from ostools.ground.whole_numbers import checked_lengths
from ostools.measure.collapse.prompt_sets import PromptSet
from ostools.measure.collapse.rendered_pairs import as_pairs
from ostools.measure.collapse.variation import PRECISION, mean_over_heads, variation_of
from ostools.measure.measurement import measurement
from ostools.models import Prompt
from ostools.results import Frame, Provenance, Result
from ostools.tasks import CollapseTask
from ostools.tasks.base import seeds_of


@dataclass(frozen=True, eq=False)
class AttentionVariation(Result):
    """One row per seed, length, layer and head.

    Columns: task, seed, length (items of v), tokens (of v), layer (0 ... L-1), head; delta (sum_i |alpha_(n,i) -
    alpha*_(n+1,i)| over the n tokens of v, no factor 1/2), own (alpha*_(n+1,n+1)), total (their sum, at most 2: the proof's
    bound for values of unit norm), kl (KL(alpha_n || alpha*_(n+1)) in nats, alpha_n being 0 at the last token; infinite where
    the repeated token does not see what the last one saw, as under a sliding window).
    """

    def over_heads(self) -> Frame:
        """The mean over heads and seeds of each quantity, by layer and length."""
        return mean_over_heads(self.frame)


@measurement(
    command="collapse variation",
    examples=("--task figure-5c --lengths 1:200 --out variation.png",),
    defaults={"lengths": "1:128"},
    check="variation",
    pairs=True,
)
@in_smaller_chunks
def attention_variation(
    model: TransformerBridge,
    task: CollapseTask | Prompt | str = "figure-5a",
    *,
    lengths: Iterable[int],
    seeds: Sequence[int] = (0,),
    bos: bool = True,
    mitigation: Mitigation | str | None = None,
    progress: Progress | None = None,
) -> AttentionVariation:
    """Total variation of the last token's attention when it is repeated, in every layer and
    head, at every length; in float64.

    Args:
        task: pairs of the theorem, as in `collapse`: `figure-5a` to `figure-5d`, `letters`, `words`, `text`, a
            `tasks.RepeatTask`, a `Prompt`. A task's other pairs (figure-5d has some) are left out.
        lengths: numbers of items in the sequence.
        seeds: one digit stream for each, if the task draws digits.
        bos: whether the tokenizer's BOS stands before every prompt. False takes it out.
        mitigation: a `mitigations.Mitigation` or its name with options. It acts in every pass, and is verified there.
        progress: called as progress(done, total) after each forward pass.

    Raises `InputError` for a task without such pairs (its prompts end in other words, so the rows of its last tokens are those
    of other tokens); while an edit is active, because it would not reach the view of the model in float64; for weights that
    are not finite; and for whatever `collapse` refuses about tasks, lengths and seeds. Source: arXiv 2406.04267, Theorem B.3,
    equation 2, Lemmas B.1 and B.2.
    """
    mitigation_object, length_list = optional(mitigation), checked_lengths(lengths)
    pairs = as_pairs(model, tasks.repeating(task) if isinstance(task, str) else task, mitigation_object, False)
    checked = seeds_of(pairs, seeds)
    _check_model(model)
    sets = [PromptSet.build(model, pairs, length_list, seed, bos) for seed in checked]
    measured_variation = variation_of(model, sets, pairs.name, mitigation_object, progress)
    provenance = Provenance.collect(
        model,
        max((prompts.longest() for prompts in sets), key=len),
        measurement="attention-variation",
        task=pairs.name,
        items=pairs.items,
        bos=bos,
        mitigation=label(mitigation_object),
        lengths=length_list,
        seeds=checked,
        dtype=PRECISION.name,
        route=measured_variation.route,
    )
    return AttentionVariation(measured_variation.rows, provenance)


def _check_model(model: TransformerBridge) -> None:
    if edits := hooks.active_edits(model):
        raise InputError(
            f"attention_variation runs on a float64 view, which the active edit {edits[0].kind!r} at {edits[0].where} "
            "would not reach: leave the edit's block first"
            "; hooks.clear(model) removes one that an interrupted call left"
        )
    if next(model.parameters()).device.type == "mps":
        raise InputError(
            "attention_variation is computed in float64, which mps lacks: load the model with device='cpu'"
        )
