"""Representational collapse (Theorem 4.2 / B.3): how far v and v* = v with its last token repeated still are apart.

Floors stand beside every distance. The machine line is one representable step in every coordinate. The noise is what
rounding while running did to v itself, ||y(v) - y_float64(v)||, both with the same stored weights. `pair_noise` is what it did
to the difference y - y*, and decides: a pair is hidden where its float64 distance is below it (`verdicts`). Rounding the
weights is no noise by this definition: it moves v and v* alike, by `weight_shift`.

Cost: one forward pass per precision and seed for all lengths, the same in float64 once for each way in which the weights
are stored, and in each a shorter pass to check it (in 16 bits five, and one for every prompt at the end of a range);
O(N) tokens for N lengths, where a loop reads O(N^2). With `layers` the attention total variation adds passes in float64, with
the attention weights: one for all lengths of a repeated token and one for each prompt of drawn digits, or two a pair where
every prompt goes through a pass of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, overload

import pandas as pd
from transformer_lens.model_bridge import TransformerBridge

import hooks
from mitigations import Mitigation, label, optional
from mitigations.window import own_windows
from ostools.ground.errors import InputError
from ostools.ground.out_of_memory import in_smaller_chunks
from ostools.ground.progress import Progress, part_of
from ostools.ground.whole_numbers import checked_lengths
from ostools.measure.collapse.distances import collapse_bytes
from ostools.measure.collapse.prompt_sets import PromptSet, as_pairs, repeating
from ostools.measure.collapse.result import Collapse, as_rows, from_rows
from ostools.measure.collapse.run import CollapseRun, Views
from ostools.measure.collapse.variation import require_float64_views, variation_of
from ostools.measure.measurement import measurement
from ostools.measure.passes.batches import LongestPrompt
from ostools.measure.passes.precisions import checked_precisions
from ostools.measure.prompts import checked_layers
from ostools.measure.swept import Cell, Swept
from ostools.models import Prompt, context_length
from ostools.models.shape import Shape
from ostools.results import Provenance
from ostools.tasks import CollapseTask, Task
from ostools.tasks.base import seeds_of
from ostools.tasks.repeats import TaskOfIds


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


@measurement(sweep="measure.collapse.collapse:SWEPT")
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
        task: pairs such as `tasks.figure_5a()` or `tasks.RepeatTask(...)`, a `tasks.Task` with text
            after its sequence, or the name of one. Or a `Prompt`, whose last token is repeated, or
            token ids: `tasks.RepeatedIds(...)`, `tasks.PairsOfIds(...)`. A list of these gives a
            list of results, each with the numbers of its task alone; the model is cast once.
        prompt: in place of a task, a text of your own.
        item: what is repeated after a prompt, such as " and" (the space belongs to the item).
            Without an item the last token of the prompt is repeated. If the tokenizer merges the
            item with its copy, give the task `tasks.RepeatTask("mine", prompt, item, items="ids")`.
        lengths: numbers of items in the sequence. Length n compares the prompt of n items with the
            same prompt, its last token repeated.
        dtypes: precisions that are compared with float64: a dtype, or one part stored in few bits
            such as int8-kv. A dtype casts the whole model. "<format>-<part>" is float32 arithmetic
            with that part alone (weights, residual, kv) stored in the format. "int8-dynamic" is
            products of int8 weights and activations (`measure.passes.precisions`).
        seeds: one digit stream for each, if the task draws digits.
        layers: blocks after which v^(l) is compared too, from the same passes: "all", or numbers
            from 0 (the embedding) to L, the last block, which is always there. This follows the
            induction over layers in the proof of B.3.
        variation: whether, with `layers`, the total variation of attention stands beside the
            distances, of pairs of which the theorem speaks.
        bos: whether the tokenizer's BOS, into which attention sinks, stands before every prompt.
            False takes it out.
        mitigation: a `mitigations.Mitigation` or its name with options. The pairs are those that it
            rewrites. Its hooks act in every dtype and in float64; with hooks, prompts go one by one.
        chat: whether a task's prompts are put in the tokenizer's chat template; None: if it has one.
        progress: called as progress(done, total) after each forward pass.

    A dtype of smaller range than float32's (float16, float8) may overflow. Its rows then hold no
    number, and their `status` is "not finite". Raises `InputError` for what cannot be measured: a
    tokenizer that merges the repeated item, lengths beyond the context, numbers that are not finite
    in another dtype, and active edits, which would not reach the model in other dtypes. Weights are
    cast where they are read. Source: arXiv 2406.04267, Theorem 4.2 / B.3 and Figure 5.
    """
    mitigation_object = optional(mitigation)
    given_as: Any = repeating(task, prompt, item)
    is_one = isinstance(given_as, str) or not isinstance(given_as, Sequence)
    task_list: list[Any] = [given_as] if is_one else list(given_as)
    if not task_list:
        raise InputError("expected a task or a list of them, found an empty list")
    pairs = [as_pairs(model, pair_task, mitigation_object, chat) for pair_task in task_list]
    length_list, precisions = checked_lengths(lengths), checked_precisions(dtypes)
    seeds_by_task = [seeds_of(collapse_task, seeds) for collapse_task in pairs]
    require_float64_views("collapse", model)
    layer_indices = () if layers is None else checked_layers(model, layers)
    # All prompts of all tasks before the first pass: what does not fit is refused at once.
    sets = [
        [PromptSet.build(model, collapse_task, length_list, seed, bos) for seed in task_seeds]
        for collapse_task, task_seeds in zip(pairs, seeds_by_task, strict=True)
    ]
    views, described = Views(model), Provenance.collect(model, measurement="collapse")
    results = []
    for index, (collapse_task, task_seeds, prompts) in enumerate(zip(pairs, seeds_by_task, sets, strict=True)):
        task_progress = progress if is_one else part_of(progress, index, index + 1, len(pairs), units=100)
        run = CollapseRun(views, collapse_task.name, prompts, precisions, mitigation_object, layer_indices)
        call_parameters = {"items": collapse_task.items, "bos": bos, "chat": chat}
        call_parameters |= {"lengths": length_list, "seeds": task_seeds}
        call_parameters |= collapse_task.provenance_columns() if isinstance(collapse_task, TaskOfIds) else {}
        results.append(_measured(run, layers is not None and variation, described, call_parameters, task_progress))
    return results[0] if is_one else results


def _measured(
    run: CollapseRun,
    with_variation: bool,
    described: Provenance,
    call_parameters: Mapping[str, Any],
    progress: Progress | None,
) -> Collapse:
    """Result of one task.

    `with_variation`: with the attention's total variation; `described`: the model; `call_parameters`: the arguments.
    """
    run_tables = run.tables(part_of(progress, 0, 1, 2, 100) if with_variation else progress)
    variation_rows, variation_parameters = None, {}
    if with_variation:
        last = part_of(progress, 1, 2, 2, 100)
        variation_rows, variation_note = _variation(run.views.model, run.sets, run.task, run.mitigation, last)
        variation_parameters = {"variation": variation_note}
    parameters = {
        **described.parameters,
        "task": run.task,
        **call_parameters,
        "mitigation": label(run.mitigation),
        "dtypes": [precision.name for precision in run.precisions],
        "layers": run.layers,
        "route": run_tables.batching.name,
        "route_reason": run_tables.batching.reason,
        "difference_at_probed_lengths": run_tables.differences,
        "lengths_in_passes_of_their_own": run_tables.own_pass_lengths,
        "not_finite": run_tables.not_finite,
        "limits": {
            "sliding_windows": sorted(set(own_windows(run.views.model).values())),
            "context": context_length(run.views.model),
        },
        **variation_parameters,
    }
    longest = max((prompts.longest() for prompts in run.sets), key=len)
    provenance = replace(described, parameters=parameters, token_ids=longest)
    frame, reference = (
        pd.concat(run_tables.tables.values(), ignore_index=True),
        pd.concat(run_tables.curves, ignore_index=True),
    )
    return Collapse(frame, provenance, reference, variation=variation_rows)


def _variation(
    model: TransformerBridge,
    sets: Sequence[PromptSet],
    task: str,
    mitigation: Mitigation | None,
    progress: Progress | None,
) -> tuple[pd.DataFrame | None, str]:
    """Rows of the variation and their route; or None and the reason, which is no reason to lose the distances."""
    try:
        measured_variation = variation_of(model, sets, task, mitigation, progress)
    except (InputError, hooks.HookError) as error:
        return None, f"left out: {error}"
    return measured_variation.rows, measured_variation.route


def _swept_bytes(shape: Shape, cell: Cell, longest: LongestPrompt) -> int:
    layers = cell.arguments["layers"]
    layer_count = shape.n_layers + 1 if layers == "all" else 1 + len(layers or ())
    return collapse_bytes(shape, longest.tokens, len(cell.lengths), [cell.dtype], layers=layer_count)


SWEPT = Swept(
    memory=_swept_bytes,
    read=from_rows,
    options={"bos": None, "layers": None},
    fixed={"variation": False},
    rows=lambda result, cell: as_rows(result),
    pairs=True,
    casts=True,
)
