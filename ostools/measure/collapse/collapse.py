"""Representational collapse (Theorem 4.2 / B.3): how far v and v* = v with its last token repeated still are apart.

Two floors stand beside every distance. The machine line is one representable step in every coordinate; the noise is what
rounding while running did to v itself, ||y(v) - y_float64(v)||, both with the same stored weights. A distance below it is
smaller than the error of what it is a distance of; what is left of the difference itself is `pair_noise`. Rounding the weights
is no noise by this definition: it moves v and v* alike, by `weight_shift`.

Cost: one forward pass per precision and seed for all lengths, the same in float64 once for each way in which the weights
are stored, and in each a shorter pass to check it (in 16 bits five, and one for every prompt that decides a collapse length);
O(N) tokens for N lengths, where a loop reads O(N^2). With `layers` the attention total variation adds passes in float64, with
the attention weights: one for all lengths of a repeated token and one for each prompt of drawn digits, or two a pair where
every prompt goes through a pass of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, overload

import pandas as pd
from transformer_lens.model_bridge import TransformerBridge

import hooks
from mitigations import Mitigation, label, optional
from ostools.ground.errors import InputError
from ostools.ground.out_of_memory import in_smaller_chunks
from ostools.ground.progress import Progress, part_of
from ostools.ground.whole_numbers import checked_lengths
from ostools.measure.collapse.posed_pairs import as_pairs, repeating
from ostools.measure.collapse.prompt_sets import PromptSet
from ostools.measure.collapse.readings import VECTOR, Reading
from ostools.measure.collapse.run import COLUMNS as COLUMNS
from ostools.measure.collapse.run import REFERENCE, Run, Views
from ostools.measure.collapse.starts import ONE_CURVE, hidden_curves
from ostools.measure.collapse.variation import variation_of
from ostools.measure.measurement import measurement
from ostools.measure.passes.precisions import checked_precisions
from ostools.measure.prompts import checked_layers
from ostools.models import Prompt
from ostools.results import Column, Provenance, Result, frame_of
from ostools.tasks import CollapseTask, Task
from ostools.tasks.base import seeds_of
from ostools.tasks.repeats import TaskOfIds
from ostools.theory.distances import collapse_start

FITTED_FROM = 8
"""Shorter lengths are left out of the fit of a curve: few copies are not yet many."""
SAME_IN_FLOAT64 = 1e-6
"""A float64 distance that small relative to ||v|| is rounding: rotary angles are float32, whatever the model is cast to."""


@dataclass(frozen=True, eq=False)
class Collapse(Result):
    """One row per pair, length, dtype, site, reading and norm.

    Columns: task, pair (theorem | one-more-digit | task), seed, length (items of v), tokens (of v), dtype (a precision by
    name), weights (how they are stored: "given" where nothing was rounded), site (residual: v^(l), y, logits, attention: the
    last block's heads), layer (l, the number of blocks before the site; 0 is the embedding, L for all but residual), per
    (vector | head-chunk | head-output), norm (l1 | l2 | linf | cosine); mean, minimum, maximum of the distance over the
    pieces (all the same for a vector); relative (to the same norm of v), ulps (distance / machine line), float64_distance
    (with the same stored weights), noise, pair_noise (of y - y*), machine_line, weight_shift, each the mean over the pieces;
    and, on `logits` rows, total_variation (sum |p - p*|, no factor 1/2), same_top_token, identical_logits (bit for bit). NA
    where a column has no meaning. Head chunks are left out where the number of heads does not divide d_model.

    In 16 bits kernels may round otherwise at another length of the pass. So the lengths that decide a collapse length of whole
    vectors in L2 (the last one that is not hidden, and the next) have the rows of passes of their prompts' own, and
    `provenance.parameters["lengths_in_passes_of_their_own"]` names them. The rows of all other lengths are of the shared pass;
    `provenance.parameters["difference_at_probed_lengths"]` is how far that is at most from passes of their own at the lengths
    where both were run.

    `reference`: the float64 L2 distances (task, pair, seed, weights, length, site, distance, relative to ||v||): of the weights
    as given, and of every other way in which a precision stores them.

    `reading`: what its chart draws, where that is to be something else than whole vectors in L2.

    `variation`: with `layers`, the total variation of the proof's attention, delta(alpha_n, alpha*_(n+1)) + alpha*_(n+1,n+1),
    by seed, length, layer and head, in float64, with the columns of `AttentionVariation`. Layer l is the attention that reads
    v^(l) and writes v^(l+1). None where it was not asked for, not stored, or could not be had; then
    `provenance.parameters["variation"]` says why.

    Where a sentence or a chart names no site it means y in L2. The paper's theorem and its Figure 5 speak of v^(L), before the
    final norm, and `experiments.figure_5` draws that. But "the next-token prediction usually depends purely on y_n" (section
    2): what a model can tell apart is what differs at y, and the norm takes out of v^(L) what no answer reads.
    """

    reference: pd.DataFrame
    reading: Reading | None = None
    variation: pd.DataFrame | None = None

    def reference_curve(self, pair: str, site: str = "y") -> pd.DataFrame:
        """The float64 distance and relative of that pair, weights as given, by length; the mean over seeds."""
        table: Any = self.reference
        chosen = table[(table["pair"] == pair) & (table["site"] == site) & (table["weights"] == "given")]
        return chosen.groupby("length")[["distance", "relative"]].mean().sort_index()

    def hidden(self, per: str = VECTOR, norm: str = "l2") -> pd.DataFrame:
        """At which lengths the pair is hidden, of each (task, pair, seed, dtype, site, layer): what `collapse_lengths` reads.

        One more column than these and length: `hidden`, the distance in float64 is below the rounding noise, or the two are the
        same numbers.
        """
        curves = hidden_curves(frame_of(self), REFERENCE.name, per, norm)
        rows = [(*curve.key, n, below) for curve in curves for n, below in zip(curve.lengths, curve.below, strict=True)]
        return pd.DataFrame(rows, columns=[*ONE_CURVE, "length", "hidden"])

    def collapse_lengths(self, per: str = VECTOR, norm: str = "l2") -> pd.DataFrame:
        """The collapse length of each (task, pair, seed, dtype, site, layer): measured, not extrapolated.

        The smallest n0 such that at every n >= n0, on consecutive lengths up to n_max >= max(2 n0, n0 + 32), the distance
        in float64, with the same stored weights, is below the rounding noise of running in that dtype, or the two vectors are
        the same numbers there (every site that has this `per`; of pieces by head the mean of the distances against the mean of
        the noises); the top token is the same ("top-token"); or the logits are the same
        bit for bit ("identical-logits"). Otherwise NA. `pair_collapse_length` has the noise of the difference y - y* in
        place of the noise: it comes later where v and v* are rounded alike, as by a coarse key/value cache, and can be told
        apart below the noise of either. Columns: task, pair, seed, dtype, site, layer, collapse_length, n_max,
        status (in words), pair_collapse_length.
        float64 is the reference, and has no row; neither have rows that were stored without their float64 distance.
        """
        rows = []
        for curve in hidden_curves(frame_of(self), REFERENCE.name, per, norm):
            of_pair = None if curve.below_of_pair is None else collapse_start(curve.below_of_pair, curve.lengths)
            rows.append((*curve.key, *_verdict(curve.below, curve.lengths), of_pair))
        names = [*ONE_CURVE, "collapse_length", "n_max", "status", "pair_collapse_length"]
        return pd.DataFrame(rows, columns=names).astype({name: "Int64" for name in names if "collapse" in name})


def reference_at_y(reference: pd.DataFrame) -> pd.DataFrame:
    """The float64 distances at y of the weights as given, out of `Collapse.reference`, each with its `rounding`.

    Below it two vectors are the same to float64's own rounding.
    """
    table: Any = reference[(reference["site"] == "y") & (reference["weights"] == "given")]
    return table.assign(rounding=float64_rounding(table))


def float64_rounding(table: pd.DataFrame) -> Column:
    """Up to which size each `distance` of the table is float64's rounding, from its `relative`; of a 0, any size will do."""
    columns: Any = table
    size = (columns["distance"] / columns["relative"]).where(columns["relative"] > 0, 1.0)
    return SAME_IN_FLOAT64 * size


def exact_from(curve: pd.DataFrame) -> int | None:
    """From which length of a `reference_curve` on the two are the same to float64's own rounding; None: not at the longest."""
    relative: Any = curve["relative"]
    apart = relative[relative > SAME_IN_FLOAT64].index
    later = relative.index[relative.index > (apart.max() if len(apart) else 0)]
    return int(later.min()) if len(later) else None


def _verdict(below: list[bool], lengths: list[int]) -> tuple[int | None, int, str]:
    """The collapse length (None: not shown), n_max, and the finding in words."""
    start = collapse_start(below, lengths)
    n_max = lengths[-1]
    if start is None:
        return None, n_max, f"not reached by {n_max}"
    return start, n_max, f"reached at {start}" + (", the shortest measured" if start == lengths[0] else "")


@overload
def collapse(
    model: TransformerBridge,
    task: CollapseTask | Task | Prompt | str,
    *,
    lengths: Iterable[int],
    dtypes: Sequence[str] = ...,
    seeds: Sequence[int] = ...,
    layers: Literal["all"] | Iterable[int] | None = ...,
    bos: bool = ...,
    variation: bool = ...,
    mitigation: Mitigation | str | None = ...,
    chat: bool | None = ...,
    progress: Progress | None = ...,
) -> Collapse: ...


@overload
def collapse(
    model: TransformerBridge,
    *,
    prompt: str | Prompt,
    item: str | None = ...,
    lengths: Iterable[int],
    dtypes: Sequence[str] = ...,
    layers: Literal["all"] | Iterable[int] | None = ...,
    bos: bool = ...,
    variation: bool = ...,
    mitigation: Mitigation | str | None = ...,
    progress: Progress | None = ...,
) -> Collapse: ...


@overload
def collapse(
    model: TransformerBridge,
    task: Sequence[CollapseTask | Task | Prompt | str],
    *,
    lengths: Iterable[int],
    dtypes: Sequence[str] = ...,
    seeds: Sequence[int] = ...,
    layers: Literal["all"] | Iterable[int] | None = ...,
    bos: bool = ...,
    variation: bool = ...,
    mitigation: Mitigation | str | None = ...,
    chat: bool | None = ...,
    progress: Progress | None = ...,
) -> list[Collapse]: ...


@measurement
@in_smaller_chunks
def collapse(
    model: TransformerBridge,
    task: CollapseTask | Task | Prompt | str | Sequence[CollapseTask | Task | Prompt | str] | None = None,
    *,
    lengths: Iterable[int],
    prompt: str | Prompt | None = None,
    item: str | None = None,
    dtypes: Sequence[str] = ("float32", "bfloat16"),
    seeds: Sequence[int] = (0,),
    layers: Literal["all"] | Iterable[int] | None = None,
    bos: bool = True,
    variation: bool = True,
    mitigation: Mitigation | str | None = None,
    chat: bool | None = False,
    progress: Progress | None = None,
) -> Collapse | list[Collapse]:
    """Distances between the last-token representations of a task's pairs, at every length and in every dtype.

    Args:
        task: `tasks.figure_5a()` to `tasks.figure_5d()`, `tasks.RepeatTask(...)`, `tasks.task_pairs(...)`, a `tasks.Task` with
            text after its sequence, or the name of one. Or a `Prompt`, whose last token is repeated. Or token ids:
            `tasks.RepeatedIds(...)`, `tasks.PairsOfIds(...)`. A list of these gives a list of results in the same order, each
            with the numbers that its task has alone. The model is then cast once for all, which saves most of the time of
            short prompts.
        prompt, item: in place of a task, a text of your own and what is repeated after it, such as " and" (the space belongs to
            the item). Without an item the last token of the prompt is repeated. If the tokenizer merges the item with its copy,
            give the task `tasks.RepeatTask("mine", prompt, item, items="ids")`.
        lengths: numbers of sequence items. Length n compares the prompt of n items with the same prompt, its last token
            repeated.
        dtypes: float32, bfloat16, float16 and float64 cast the model. "<format>-<part>", such as "int8-weights",
            "bfloat16-residual" or "float8_e4m3fn-kv", is float32 arithmetic with that part alone stored in the format.
            "int8-dynamic" is products of int8 weights and activations (`measure.passes.precisions`). Numbers are rounded as
            they are read; the model itself stays as it is.
        seeds: one digit stream for each, if the task draws digits.
        layers: the blocks after which v^(l) is compared too, from the same passes: "all", or numbers from 0 to L. 0 is the
            embedding. L is the last block, which is always there. This follows the induction over layers in the proof of B.3.
        variation: whether, with `layers`, the total variation of attention stands beside the distances. A sweep keeps rows of
            distances, and leaves it out. Pairs of which the theorem does not speak have distances alone; the provenance says
            so.
        bos: False takes the tokenizer's BOS, into which attention sinks, out of every prompt.
        mitigation: a `mitigations.Mitigation` or its name with options. The pairs are those that it rewrites. Its hooks act in
            every dtype and in float64, and are verified on every forward pass. With hooks, prompts go through the model one by
            one. The theorem does not speak of prompts that a mitigation rewrites.
        chat: whether a task's prompts are put in the tokenizer's chat template; None: if it has one.
        progress: called as progress(done, total) after each forward pass.

    Raises `InputError` for a task together with a prompt, and for neither; for an empty list of tasks, lengths below 1 or
    beyond the context, an unknown task or dtype, and a tokenizer that merges the repeated item; for numbers that are not
    finite (it names dtype, site and length) or beyond a format's range; and while an edit of the forward pass is active,
    because it would not reach the views of the model in other dtypes. Raises `MitigationError` for a mitigation that breaks
    its invariant. Memory: the model's own weights, which are cast to a precision where they are read (`models.view_in`).

    Source: arXiv 2406.04267, Theorem 4.2 / B.3 and Figure 5.
    """
    given = optional(mitigation)
    given_as: Any = repeating(task, prompt, item)
    is_one = isinstance(given_as, str) or not isinstance(given_as, Sequence)
    several: list[Any] = [given_as] if is_one else list(given_as)
    if not several:
        raise InputError("expected a task or a list of them, found an empty list")
    pairs = [as_pairs(model, each, given, chat) for each in several]
    wanted, precisions = checked_lengths(lengths), checked_precisions(dtypes)
    drawn = [seeds_of(each, seeds) for each in pairs]
    _check_model(model)
    kept = () if layers is None else checked_layers(model, layers)
    # All prompts of all tasks before the first pass: what does not fit is refused at once.
    sets = [
        [PromptSet.build(model, each, wanted, seed, bos) for seed in own]
        for each, own in zip(pairs, drawn, strict=True)
    ]
    views, described = Views(model), Provenance.collect(model, measurement="collapse")
    results = []
    for index, (each, own, prompts) in enumerate(zip(pairs, drawn, sets, strict=True)):
        told = progress if is_one else part_of(progress, index, index + 1, len(pairs), units=100)
        run = Run(views, each.name, prompts, precisions, given, kept)
        asked = {"items": each.items, "bos": bos, "chat": chat, "lengths": wanted, "seeds": own}
        asked |= each.told() if isinstance(each, TaskOfIds) else {}
        results.append(_measured(run, layers is not None and variation, described, asked, told))
    return results[0] if is_one else results


def _measured(
    run: Run, beside: bool, described: Provenance, asked: Mapping[str, Any], progress: Progress | None
) -> Collapse:
    """One task's result. `beside`: with the attention's total variation; `described`: the model, `asked`: the arguments."""
    found = run.found(part_of(progress, 0, 1, 2, 100) if beside else progress)
    moved, told = None, {}
    if beside:
        last = part_of(progress, 1, 2, 2, 100)
        moved, words = _variation(run.views.model, run.sets, run.task, run.mitigation, last)
        told = {"variation": words}
    parameters = {
        **described.parameters,
        "task": run.task,
        **asked,
        "mitigation": label(run.mitigation),
        "dtypes": [precision.name for precision in run.precisions],
        "layers": run.layers,
        "route": found.way.name,
        "route_reason": found.way.reason,
        "difference_at_probed_lengths": found.differences,
        "lengths_in_passes_of_their_own": found.own,
        **told,
    }
    longest = max((prompts.longest() for prompts in run.sets), key=len)
    provenance = replace(described, parameters=parameters, token_ids=longest)
    frame, reference = pd.concat(found.tables, ignore_index=True), pd.concat(found.curves, ignore_index=True)
    return Collapse(frame, provenance, reference, variation=moved)


def _variation(
    model: TransformerBridge,
    sets: Sequence[PromptSet],
    task: str,
    mitigation: Mitigation | None,
    progress: Progress | None,
) -> tuple[pd.DataFrame | None, str]:
    """Its rows and by which passes; or None and why there is none, which is no reason to lose the distances."""
    try:
        found = variation_of(model, sets, task, mitigation, progress)
    except (InputError, hooks.HookError) as error:
        return None, f"left out: {error}"
    return found.rows, found.route


def _check_model(model: TransformerBridge) -> None:
    edits = hooks.active_edits(model)
    if edits:
        raise InputError(
            f"collapse reads the model in other dtypes, which the active edit {edits[0].kind!r} at "
            f"{edits[0].where} would not reach: leave the edit's block first"
        )
    device = next(model.parameters()).device
    if device.type == "mps":
        raise InputError("collapse needs float64 as its reference, which mps lacks: load the model with device='cpu'")
