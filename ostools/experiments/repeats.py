"""Theorem 4.2 on a trained model beyond ones: letters, words, any text, with the sink's token and without it; and before
training, on untrained models.

The theorem speaks of every sequence that goes on repeating its last token. Does a trained model collapse on all of them, by
which law, and does it need the BOS, the token that attention sinks into?
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from transformer_lens.model_bridge import TransformerBridge

import hooks
from ostools import tasks
from ostools.experiments.decay import fits
from ostools.ground.errors import InputError
from ostools.ground.names import checked_list, checked_names
from ostools.ground.progress import Progress, part_of, tell
from ostools.ground.whole_numbers import checked_lengths, checked_seeds
from ostools.measure.collapse.collapse import collapse
from ostools.measure.collapse.distances import collapse_memory
from ostools.measure.collapse.prompt_sets import ModelEncoder, PromptSet
from ostools.measure.collapse.result import FITTED_FROM, SAME_IN_FLOAT64, Collapse, exact_from, float64_rounding
from ostools.measure.collapse.verdicts import TOP_TOKEN
from ostools.measure.measurement import measurement
from ostools.measure.passes.contexts import require_no_edits
from ostools.measure.profiles.untrained import TRAINED
from ostools.measure.unloaded import Unloaded
from ostools.models import untrained_model
from ostools.models.tokens import frame, token_text
from ostools.models.untrained import KINDS
from ostools.results import Frame, Provenance, Result
from ostools.tasks import CollapseTask
from ostools.tasks.pairs import MergedItemError
from ostools.tasks.repeats import TaskOfIds

PRESENT, ABSENT = "present", "absent"
TASKS = ("figure-5a", "letters", "words", "text")
SITE = "y"


@dataclass(frozen=True, eq=False)
class Repeats(Result, chart="experiments.decay:repeats_chart"):
    """The float64 distance ||y - y*||_2 by prompt, sink and length.

    `frame`: source ("model", or a kind of untrained model), draw (the seed of that; NA of the model), task, sink (the BOS is
    present or absent), length, distance, relative (to ||v||), rounding (a distance up to it is float64's rounding, and was not
    measured). `band`, a row a kind of null, prompt, sink and length: low, median, high of the distance over the draws: the
    range of those drawn, and no confidence interval.

    `summary`, a row for each source, draw, prompt and sink: items ("text"; "ids" where the item was put in by its token),
    first_token (what stands first and can serve as a sink),
    first_token_share (of the last token's attention on the longest prompt, the mean over heads and layers), exact_from (from
    here on the distance is float64's rounding; NA: nowhere), the fit of the decay (verdict, law, rate with its 95% interval low
    to high; `theory.fits`), and for every dtype where the first hidden range begins at y, of the logits, and of the top token
    (NA: there is none), in words in `status`.
    """

    summary: pd.DataFrame

    @property
    def band(self) -> Frame:
        """Range of the distance over the draws of each untrained model: columns low, median, high."""
        table: Any = self.frame
        by = ["source", "task", "sink", "length"]
        grouped = table[table["source"] != TRAINED].groupby(by, sort=False)["distance"]
        return grouped.agg(low="min", median="median", high="max").reset_index()


@measurement(
    command="collapse repeats",
    examples=("--lengths 1:128 --out repeats.png", "--task figure-5a --untrained initialised --out before.png"),
    renamed={"prompts": "task"},
    check="repeats",
    memory="experiments.repeats:repeats_memory",
)
def repeats(
    model: TransformerBridge,
    prompts: Sequence[CollapseTask | str] = TASKS,
    *,
    lengths: Iterable[int] = range(1, 257),
    dtypes: Sequence[str] = ("float32", "bfloat16"),
    fitted_from: int = FITTED_FROM,
    untrained: str | Sequence[str] = (),
    seeds: Iterable[int] = range(3),
    progress: Progress | None = None,
) -> Repeats:
    """Collapse on every prompt, with the tokenizer's BOS and without it, and the law by which each curve falls.

    Args:
        prompts: tasks that end in a repeated token, or their names. They are `tasks.RepeatTask`,
            `tasks.figure_5a()`, ... Of a name whose item the tokenizer merges with its copy, the
            item is put in by its own token (`items` says which).
        lengths: numbers of items in the sequence.
        dtypes: precisions that are compared with float64, as in `collapse`.
        fitted_from: the shortest length that is fitted. At shorter ones the copies are few, and the law is about many.
        untrained: kinds of untrained models measured beside the model, as `ost.untrained_model` makes them.
            Was the fall there before training?
        seeds: seeds of the untrained models of each kind.

    A tokenizer without BOS gives only the rows without it. Token ids (`tasks.RepeatedIds`) are taken as they are. Raises
    `InputError` before any measurement for whatever `collapse` refuses of a prompt, for a task with pairs of which the theorem
    does not speak, for unknown kinds of untrained models, and for untrained models of a model with active edits, because an
    untrained model would not have them. Cost: one `collapse` or two for each prompt, for the model and for every untrained
    model, one of which is in memory at a time. Source: arXiv 2406.04267, Theorem 4.2.
    """
    length_list = checked_lengths(lengths)
    task_list = _checked_prompts(model, prompts, length_list)
    kinds = () if untrained == () else checked_names("kind of untrained model", untrained, KINDS)
    seed_list = checked_seeds(seeds)
    sources: list[tuple[str, int | None]] = [(TRAINED, None)]
    sources += [(kind, seed) for kind in kinds for seed in seed_list]
    if kinds:
        require_no_edits("repeats", model, "untrained= measures models that would not have it")
    parts = []
    for index, (source, seed) in enumerate(sources):
        subject = model if seed is None else untrained_model(model, source, seed=seed)
        part_progress = part_of(progress, index, index + 1, len(sources), units=100)
        parts.append(_curves(subject, task_list, length_list, dtypes, fitted_from, part_progress))
        for table in (parts[-1].frame, parts[-1].summary):
            table.insert(0, "draw", pd.array([pd.NA if seed is None else seed] * len(table), dtype="Int64"))
            table.insert(0, "source", source)
    provenance = Provenance.collect(
        model,
        None,
        measurement="repeats",
        prompts={task.name: task.example for task in task_list},
        items={task.name: task.items for task in task_list},
        lengths=length_list,
        dtypes=list(dtypes),
        fitted_from=fitted_from,
        untrained=[source if seed is None else f"{source} {seed}" for source, seed in sources[1:]],
        difference_at_probed_lengths=parts[0].differences,
    )
    frame, summary = (
        pd.concat([getattr(part, name) for part in parts], ignore_index=True) for name in ("frame", "summary")
    )
    starts = [name for name in summary if name.endswith((f"_{SITE}", "_logits", "_top_token"))]
    return Repeats(frame, provenance, summary.astype(dict.fromkeys(starts, "Int64")))


@dataclass(frozen=True)
class _Curves:
    """Rows of one model, and how far its prompts' passes were from separate ones."""

    frame: pd.DataFrame
    summary: pd.DataFrame
    differences: dict[str, Any]


def _curves(
    model: TransformerBridge,
    task_list: Sequence[CollapseTask],
    length_list: Sequence[int],
    dtypes: Sequence[str],
    fitted_from: int,
    progress: Progress | None,
) -> _Curves:
    has_bos = _adds_bos(model)
    runs: list[tuple[CollapseTask, bool]] = []
    for task in task_list:
        if isinstance(task, TaskOfIds):
            runs.append((task, _begins_with_bos(model, task, length_list[0])))
        else:
            runs += [(task, bos) for bos in ((True, False) if has_bos else (False,))]
    for task, bos in runs:  # what one of them refuses is refused before any is measured
        PromptSet.build(model, task, list(length_list), 0, _keeps_bos(task, bos, has_bos))
    curves: list[Any] = []
    rows: list[dict[str, Any]] = []
    differences: dict[str, Any] = {}
    for index, (task, bos) in enumerate(runs):
        tell(progress, index, len(runs))
        result = collapse(model, task, lengths=length_list, dtypes=dtypes, bos=_keeps_bos(task, bos, has_bos))
        if "theorem" not in set(result.frame["pair"]):
            raise InputError(
                f"repeats: {task.name} makes no theorem pairs: give a prompt that ends in what is repeated"
            )
        key = {"task": task.name, "sink": PRESENT if bos else ABSENT}
        curve = result.reference_curve("theorem", SITE)
        curves.append(curve.reset_index().assign(**key))
        exact = exact_from(curve)
        row = key | {"items": task.items} | _first_token(model, result) | _hidden(result)
        rows.append(row | {"exact_from": pd.NA if exact is None else exact})
        differences[f"{task.name}, BOS {key['sink']}"] = result.provenance.parameters["difference_at_probed_lengths"]
    table: Any = pd.concat(curves, ignore_index=True)[["task", "sink", "length", "distance", "relative"]]
    table = table.assign(rounding=float64_rounding(table))
    # Below the floor the float64 run's own rounding would be fitted.
    floor = SAME_IN_FLOAT64 * float((table["distance"] / table["relative"]).max())
    laws = fits(table, ["distance"], fitted_from, ["task", "sink"], floor).drop(columns="quantity")
    tell(progress, len(runs), len(runs))
    summary = pd.DataFrame(rows).merge(laws, on=["task", "sink"], validate="one_to_one")
    return _Curves(table, summary, differences)


def _keeps_bos(task: CollapseTask, bos: bool, has_bos: bool) -> bool:
    """True if nothing is taken out of the prompt: it is to have its BOS, or has none of the tokenizer's."""
    return bos or not has_bos or isinstance(task, TaskOfIds)


def _checked_prompts(
    model: TransformerBridge, prompts: Sequence[CollapseTask | str], lengths: list[int]
) -> list[CollapseTask]:
    """The tasks; each name with items that this tokenizer keeps apart."""
    if isinstance(prompts, (str, CollapseTask)):
        prompts = [prompts]
    task_list = [
        _kept_apart(model, prompt, lengths) if isinstance(prompt, str) else tasks.task(prompt, CollapseTask)
        for prompt in checked_list("prompts", prompts, "['figure-5a', 'text']")
    ]
    names = [task.name for task in task_list]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"repeats: found {twice!r} twice: give each prompt once, and a name of its own")
    return task_list


def _kept_apart(model: TransformerBridge, name: str, lengths: list[int]) -> CollapseTask:
    """The task of that name, its items put in by their ids where the tokenizer merges them as text."""
    task = tasks.task(name, CollapseTask)
    try:
        PromptSet.build(model, task, lengths, 0)
    except MergedItemError:
        return tasks.task(f"{name}{',' if ':' in name else ':'}items=ids", CollapseTask)
    return task


def _adds_bos(model: TransformerBridge) -> bool:
    tokenizer: Any = model.tokenizer
    if tokenizer is None or tokenizer.bos_token_id is None:
        return False
    return frame(tokenizer)[0][:1] == [tokenizer.bos_token_id]


def _begins_with_bos(model: TransformerBridge, task: TaskOfIds, length: int) -> bool:
    """True if the user put the tokenizer's BOS before the ids, to which nothing is added."""
    first = next(iter(task.pairs(ModelEncoder(model), [length]))).ids[0]
    return first == getattr(model.tokenizer, "bos_token_id", None)


def _first_token(model: TransformerBridge, result: Collapse) -> dict[str, Any]:
    """First token of the longest prompt, and its share of the last token's attention there."""
    ids = result.provenance.token_ids
    if not ids:
        raise InputError("repeats: the collapse has no prompt to look at")
    device = next(model.parameters()).device
    with (
        torch.no_grad(),
        hooks.capture(model, "pattern", reduce=lambda pattern, _: pattern[0, :, -1, 0].clone()) as record,
    ):
        model(torch.tensor([ids], device=device), use_cache=False)
    share = torch.stack([value.double().cpu() for value in record["pattern"].values()]).mean()
    tokenizer: Any = model.tokenizer
    first = token_text(None, ids[0]) if tokenizer is None else str(tokenizer.convert_ids_to_tokens(ids[0]))
    return {"first_token": first, "first_token_share": float(share)}


def _hidden(result: Collapse) -> dict[str, Any]:
    """Start of the first hidden range by dtype, at y, of the logits and of the top token; the verdicts at y in words."""
    verdicts = {
        (dtype, site): v for (kind, dtype, site, _), v in result.verdicts_over_seeds().items() if kind == "theorem"
    }
    columns = {
        f"{dtype}_{site.replace('-', '_')}": verdict.ranges[0].first if verdict.ranges else pd.NA
        for (dtype, site), verdict in verdicts.items()
        if site in (SITE, "logits", TOP_TOKEN)
    }
    sentences = [f"{dtype} {verdict.words}" for (dtype, site), verdict in verdicts.items() if site == SITE]
    return columns | {"status": "; ".join(sentences)}


def repeats_memory(
    model: Unloaded, prompts: Sequence[str], lengths: Sequence[int], *, dtypes: Sequence[str], untrained: Any = None
) -> int:
    """Bytes of the pairs, and of an untrained model beside the model."""
    largest = max(collapse_memory(model, name, lengths, dtypes=dtypes) for name in prompts)
    return largest + (model.copy_bytes if untrained else 0)
