"""Representational collapse (Theorem 4.2 / B.3): how far v and v* = v with its last token repeated
still are apart.

Floors stand beside every distance. The machine line is one representable step in every coordinate.
The noise is what rounding while running did to v itself, ||y(v) - y_float64(v)||, both with the
same stored weights. `pair_noise` is what it did to the difference y - y*, and decides: a pair is
hidden where its float64 distance is below it (`verdicts`). Rounding the weights is no noise by this
definition: it moves v and v* alike, by `weight_shift`.

Cost: one forward pass per precision and seed for all lengths, the same in float64 once for each way
in which the weights are stored, and in each a shorter pass to check it (in 16 bits five, and one
for every prompt at the end of a range); O(N) tokens for N lengths, where a loop reads O(N^2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Unpack, overload

from ostools.ground.errors import InputError
from ostools.ground.lens import TransformerBridge
from ostools.ground.names import Position
from ostools.ground.progress import Progress, part_of
from ostools.ground.whole_numbers import checked_lengths
from ostools.measure.collapse.prompt_sets import PromptSet, RenderedPairs, as_pairs
from ostools.measure.collapse.result import Collapse, as_rows, from_rows
from ostools.measure.collapse.run import CollapseRun, Views
from ostools.measure.collapse.variation import require_float64_views
from ostools.measure.measurement import measurement
from ostools.measure.passes.precisions import checked_precisions
from ostools.measure.position import reading
from ostools.measure.prompts import checked_layers
from ostools.measure.swept import READ_POSITION, Swept
from ostools.mitigations import Mitigation, label, optional
from ostools.mitigations.passes import own_windows
from ostools.models import Prompt, context_length
from ostools.models.tokens import EncodingOptions
from ostools.results import Provenance
from ostools.tasks import CollapseTask, RepeatTask, Task
from ostools.tasks.base import seeds_of
from ostools.tasks.repeats import TaskOfIds


@overload
def collapse(
    model: TransformerBridge,
    task: CollapseTask | Task | Prompt | str | None = ...,
    *,
    lengths: Iterable[int],
    prompt: str | Prompt | None = ...,
    dtypes: Sequence[str] = ...,
    seeds: Sequence[int] = ...,
    layers: Literal["all"] | Iterable[int] | None = ...,
    mitigation: Mitigation | str | None = ...,
    position: Position | None = ...,
    progress: Progress | None = ...,
    **encoding: Unpack[EncodingOptions],
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
    mitigation: Mitigation | str | None = ...,
    position: Position | None = ...,
    progress: Progress | None = ...,
    **encoding: Unpack[EncodingOptions],
) -> list[Collapse]: ...


@measurement(memory=["logits"], sweep=lambda: SWEPT, in_chunks=True)
def collapse(
    model: TransformerBridge,
    task: CollapseTask
    | Task
    | Prompt
    | str
    | Sequence[CollapseTask | Task | Prompt | str]
    | None = None,
    *,
    lengths: Iterable[int],
    prompt: str | Prompt | None = None,
    dtypes: Sequence[str] = ("float32", "bfloat16"),
    seeds: Sequence[int] = (0,),
    layers: Literal["all"] | Iterable[int] | None = None,
    mitigation: Mitigation | str | None = None,
    position: Position | None = None,
    progress: Progress | None = None,
    **encoding: Unpack[EncodingOptions],
) -> Collapse | list[Collapse]:
    """Distances between the last-token representations of a task's pairs, at every length and in
    every dtype.

    Args:
        task: pairs such as `tasks.figure_5a()`, a `tasks.Task` with text after its sequence, or the
            name of one. Or a `Prompt`, whose last token is repeated, or token ids:
            `tasks.RepeatedIds(...)`, `tasks.PairsOfIds(...)`. A list of these gives a list of
            results.
        prompt: in place of a task, a text of your own, whose last token is repeated. To repeat an
            item of your own after it, give the task `tasks.RepeatTask("mine", prompt, item)`.
        lengths: numbers of items in the sequence. Length n compares the prompt of n items with the
            same prompt, its last token repeated.
        dtypes: precisions that are compared with float64: a dtype casts the whole model;
            "<format>-<part>" is float32 arithmetic with that part alone (weights, residual, kv)
            stored in the format.
        seeds: one digit stream for each, if the task draws digits.
        layers: blocks after which v^(l) is compared too: "all", or numbers from 0 (the embedding)
            to L, the last block, which is always there.
        mitigation: a `mitigations.Mitigation` or its name with options. The pairs are those that it
            rewrites. Its hooks act in every dtype and in float64; with hooks, prompts go one by
            one.
        position: where a task's prompts are read: "answer", the token from which the answer is
            predicted, with the answer line begun (the default); "prompt-end", the paper's y_n;
            "last-item", the last token of the sequence.
        progress: called as progress(done, total) after each forward pass.

    How prompts are encoded: `EncodingOptions`; pairs whose last token is repeated are in no chat
    template.

    The rows of a dtype that overflows (float16, float8) hold no number. Raises `InputError` for a
    tokenizer that merges the repeated item, lengths beyond the context, other numbers that are not
    finite, and active edits. Source: arXiv 2406.04267, Theorem 4.2 / B.3 and Figure 5.
    """
    acting, tasks_given = optional(mitigation), _given(task, prompt)
    is_one = isinstance(tasks_given, str) or not isinstance(tasks_given, Sequence)
    task_list: list[Any] = [tasks_given] if is_one else list(tasks_given)
    pairs = [
        as_pairs(model, task_or_prompt, acting, position, encoding) for task_or_prompt in task_list
    ]
    bos, chat = encoding.get("bos"), encoding.get("chat")
    runs = _checked_runs(
        model, pairs, lengths, dtypes, seeds, layers=layers, bos=bos, mitigation=acting
    )
    how_encoded: dict[str, Any] = {"bos": bos, "chat": chat} | _of_text(tasks_given)
    described = Provenance.collect(model, measurement="collapse", **how_encoded)
    results = []
    for index, (run, task_arguments) in enumerate(runs):
        task_progress = (
            progress if is_one else part_of(progress, index, index + 1, len(runs), units=100)
        )
        results.append(_measured(run, described, task_arguments, task_progress))
    return results[0] if is_one else results


def _given(task: Any, prompt: str | Prompt | None) -> Any:
    """The task as it was given, or of a prompt the pairs of its last token. Raises `InputError` for
    both or neither.
    """
    if (task is None) == (prompt is None):
        raise InputError(
            "collapse: expected a task, such as 'figure-5a', or prompt=, whose last token is repeated, found "
            f"{'neither' if task is None else 'both'}"
        )
    # The last token of a text is repeated by its id: its text could become another token beside a
    # copy.
    return (
        RepeatTask("prompt", prompt, None, "ids")
        if isinstance(prompt, str)
        else task
        if prompt is None
        else prompt
    )


def _of_text(task: object) -> dict[str, Any]:
    """Provenance entries of the text whose last token is repeated: how it was encoded."""
    return task.provenance if isinstance(task, Prompt) else {}


def _checked_runs(
    model: TransformerBridge,
    pairs: Sequence[CollapseTask],
    lengths: Iterable[int],
    dtypes: Sequence[str],
    seeds: Sequence[int],
    *,
    layers: Literal["all"] | Iterable[int] | None,
    bos: bool | None,
    mitigation: Mitigation | None,
) -> list[tuple[CollapseRun, dict[str, Any]]]:
    """A run for each task, with what its provenance says of the task; all prompts are built: what
    does not fit is refused before the first pass."""
    if not pairs:
        raise InputError("expected a task or a list of them, found an empty list")
    length_list, precisions = checked_lengths(lengths), checked_precisions(dtypes)
    seeds_by_task = [seeds_of(collapse_task, seeds) for collapse_task in pairs]
    require_float64_views("collapse", model)
    layer_indices, views = () if layers is None else checked_layers(model, layers), Views(model)
    runs = []
    for collapse_task, task_seeds in zip(pairs, seeds_by_task, strict=True):
        prompts = [
            PromptSet.build(model, collapse_task, length_list, seed, bos) for seed in task_seeds
        ]
        task_arguments = {"items": collapse_task.items, "lengths": length_list, "seeds": task_seeds}
        task_arguments |= (
            collapse_task.provenance_columns() if isinstance(collapse_task, TaskOfIds) else {}
        )
        if isinstance(collapse_task, RenderedPairs):
            read = collapse_task.prompts((length_list[0], length_list[-1]), task_seeds[0])
            task_arguments["read_at"] = reading(model, list(read.values()))
        run = CollapseRun(views, collapse_task.name, prompts, precisions, mitigation, layer_indices)
        runs.append((run, task_arguments))
    return runs


def _measured(
    run: CollapseRun,
    described: Provenance,
    task_arguments: Mapping[str, Any],
    progress: Progress | None,
) -> Collapse:
    """Result of one task. `described`: the model, and what all tasks have in common;
    `task_arguments`: the task's own arguments."""
    (frame, reference, about), model = run.tables(progress), run.views.model
    windows = sorted(set(own_windows(model).values()))
    parameters = {
        **described.parameters,
        "task": run.task,
        **task_arguments,
        "mitigation": label(run.mitigation),
        "dtypes": [precision.name for precision in run.precisions],
        "layers": run.layers,
        **about,
        "limits": {"sliding_windows": windows, "context": context_length(model)},
    }
    longest = max((prompts.longest() for prompts in run.sets), key=len)
    return Collapse(frame, replace(described, parameters=parameters, token_ids=longest), reference)


SWEPT = Swept(
    read=from_rows,
    options={"bos": None, "layers": None, "chat": None, **READ_POSITION},
    rows=lambda result, cell: as_rows(result),
    casts=True,
)
