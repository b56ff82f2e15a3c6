"""Answers behind the paper's figures of behaviour: every prompt of a figure, in as few batches as there can be; and Figure 2.

Figure 2: is the last digit of 1...10, or the first of 01...1, copied?

(a) as it stands; (b) with the paper's hint; (c) with zeros and ones in turn. The right answer is always 0, in (a) by the
paper's words: the figure cannot tell a model that looks from one that always says 0 (`AppendixTask(..., uniform=True)` can).

Source: Barbero et al. 2024 (arXiv 2406.04267), Figure 2 (there of Gemini 1.5), section 3.1 and appendix C.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Unpack

import pandas as pd

from ostools.ground.errors import InputError
from ostools.ground.lens import TransformerBridge
from ostools.ground.progress import Progress, part_of
from ostools.ground.whole_numbers import checked_lengths
from ostools.ground.words import title_of
from ostools.measure.answers.answers import Answer, answers, how_read
from ostools.measure.answers.evaluate import evaluate_memory
from ostools.measure.answers.judging import answer_columns, reasoning_tokens, stops_of
from ostools.measure.answers.probability import answer_room
from ostools.measure.answers.reading import CUT_OFF, SOMETHING_ELSE, STOP
from ostools.measure.hosted.answer_file import Hosted, asked_elsewhere, hosted_rows, unanswered
from ostools.measure.measurement import measurement
from ostools.measure.task_prompt import TaskPrompt, render_prompt
from ostools.measure.unloaded import Unloaded
from ostools.models.describe import metadata_of
from ostools.models.tokens import EncodingOptions
from ostools.results import Chart, Provenance, Result
from ostools.results.table_head import TableHead
from ostools.tasks import AppendixTask
from ostools.tasks.questions import Question, question

PAPERS = {2: "Gemini 1.5", 3: "Gemini 1.5", 4: "Gemini 1.5", 6: "Gemma 7B", 7: "Gemma 7B"}
"""The paper's model of each figure."""
_INTEGER_COLUMNS = ("number", "absolute_error", "reasoning_tokens")


def greedy_answers(
    model: TransformerBridge | Hosted,
    seeds_by_task: Mapping[AppendixTask, Sequence[int]],
    lengths: Sequence[int],
    *,
    max_new_tokens: int = 256,
    progress: Progress | None = None,
    **encoding: Unpack[EncodingOptions],
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Greedy answers to every task at every length and each of its seeds, and the settings for the provenance.

    Column `form` is the task itself, for the caller to name. Tasks without reasoning are answered first, then those with it:
    `max_new_tokens` of the settings is by mode of reasoning, as the two have different ones.
    """
    if isinstance(model, Hosted):
        return _hosted_answers(model, seeds_by_task, lengths, encoding)
    task_prompts = [
        render_prompt(model, task, n, seed=seed, **encoding)
        for n in lengths
        for task, seeds in seeds_by_task.items()
        for seed in seeds
    ]
    answer_by_index: dict[int, Answer] = {}
    limits: dict[str, int] = {}
    for reasons in (False, True):
        indices = [index for index, task_prompt in enumerate(task_prompts) if task_prompt.task.reasons is reasons]
        if not indices:
            continue
        batch = [task_prompts[index] for index in indices]
        thinks = any(task_prompt.thinks for task_prompt in batch)
        limit = max_new_tokens if reasons else answer_room(model, batch, thinks)
        limits |= dict.fromkeys((task.mode for task in seeds_by_task if task.reasons is reasons), limit)
        batch_answers = answers(
            model,
            [task_prompt.prompt for task_prompt in batch],
            max_new_tokens=limit,
            stops=stops_of(batch),
            progress=part_of(progress, len(answer_by_index), len(answer_by_index) + len(batch), len(task_prompts)),
        )
        answer_by_index |= zip(indices, batch_answers, strict=True)
    trained = metadata_of(model).trained_lengths or {}
    frame = pd.DataFrame(
        [_row(model, task_prompt, answer_by_index[index], trained) for index, task_prompt in enumerate(task_prompts)]
    )
    table = frame.astype(dict.fromkeys(_INTEGER_COLUMNS, "Int64") | {"within_training": "boolean"})
    settings = {"chat": any(task_prompt.chat for task_prompt in task_prompts), **task_prompts[0].prompt.provenance}
    settings |= {"temperature": 0.0, "max_new_tokens": limits, "stop": STOP}
    return table, settings | how_read(model)


def _row(
    model: TransformerBridge, task_prompt: TaskPrompt, answer: Answer, trained: Mapping[str, int]
) -> dict[str, Any]:
    task = task_prompt.task
    longest = trained.get(task.trained_as or "")
    columns = {"form": task, "task": task.name, "mode": getattr(task, "mode", "none")}
    within = None if longest is None else task_prompt.length <= longest
    answer_values = answer_columns(task_prompt, answer, reasoning_tokens(model, task_prompt, answer))
    return columns | answer_values | {"within_training": within, "seconds": answer.seconds}


def _hosted_answers(
    hosted: Hosted,
    seeds_by_task: Mapping[AppendixTask, Sequence[int]],
    lengths: Sequence[int],
    encoding: EncodingOptions,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The table of `greedy_answers` out of a hosted model's answers."""
    if encoding:
        name = next(iter(encoding))
        raise InputError(
            f"{name}: how a hosted model's prompts were wrapped was decided where it was asked: leave it out"
        )
    question_list = hosted.only(figure_questions(seeds_by_task, lengths))
    frame: Any = hosted_rows(hosted, question_list).drop(columns=["status", "sample", "log_probability"])
    forms = [prompt.task for prompt in question_list]
    frame.insert(0, "form", forms)
    frame.insert(1, "task", [form.name for form in forms])
    frame.insert(2, "mode", [getattr(form, "mode", "none") for form in forms])
    kinds = dict.fromkeys(("tokens", *_INTEGER_COLUMNS), "Int64")
    kinds |= dict.fromkeys(("correct", "within_training"), "boolean")
    limits = dict.fromkeys(frame["mode"], hosted.settings.get("max_tokens"))
    return frame.astype(kinds), {"chat": None, "max_new_tokens": limits, "stop": None}


def figure_questions(seeds_by_task: Mapping[AppendixTask, Sequence[int]], lengths: Sequence[int]) -> list[Question]:
    """A figure's prompts as text, in the order of `greedy_answers`."""
    return [question(task, n, seed=seed) for n in lengths for task, seeds in seeds_by_task.items() for seed in seeds]


def provenance_of(model: TransformerBridge | Hosted, **parameters: Any) -> Provenance:
    """Provenance of answers of a model here or elsewhere."""
    collect = model.provenance if isinstance(model, Hosted) else partial(Provenance.collect, model)
    return collect(**parameters)


def title(result: Result, subject: str) -> str:
    """A figure's caption in one line."""
    number = int(result.provenance.parameters["number"])
    return f"Figure {number} on {title_of(result.provenance.model)}: {subject}"


def common_deviations(result: Result) -> list[str]:
    """Sentences on the model and the settings in which every figure of behaviour differs from the paper's."""
    parameters = result.provenance.parameters
    lengths = parameters["lengths"]
    first = (
        f"length {lengths[0]}" if len(lengths) == 1 else f"{len(lengths)} lengths from {lengths[0]} to {lengths[-1]}"
    )
    papers = f"The paper's is of {PAPERS[int(parameters['number'])]}. Here: {first}"
    if parameters.get("hosted"):
        return [f"{papers}, answers {asked_elsewhere(result)}.", *unanswered(result)]
    prompts = "prompts in the chat template" if parameters["chat"] else "prompts as plain text"
    return [f"{papers}, greedy decoding, {prompts}."]


def unread_answers(result: Result, answers: pd.DataFrame) -> list[str]:
    """Sentence on the answers without a number: those that were cut, and those that came to another end; none where none is."""
    rows: Any = answers
    limits: Any = result.provenance.parameters.get("max_new_tokens")
    counts, many_modes = [], rows["mode"].nunique() > 1
    for mode, cut_rows in rows[rows["kind"].eq(CUT_OFF)].groupby("mode", sort=False):
        where = "by the server" if limits[mode] is None else f"at {limits[mode]} tokens"
        counts.append(f"{len(cut_rows)} {f'of {mode} ' if many_modes else ''}cut off {where} before an answer")
    if other_count := int(rows["kind"].eq(SOMETHING_ELSE).sum()):
        counts.append(f"{other_count} that wrote something else than was asked for")
    return [f"These have no answer, so they are not in the errors: {'; '.join(counts)}."] if counts else []


FIGURE_2_LENGTHS = range(20, 601, 20)
"""Twice as far as the 300 elements at which the paper's model "starts to output 'one'"."""
FIGURE_2_PANELS = {
    "a": (AppendixTask("copy-last"), AppendixTask("copy-first")),
    "b": (AppendixTask("copy-last", hint=True), AppendixTask("copy-first", hint=True)),
    "c": (AppendixTask("copy-last", interleave=True), AppendixTask("copy-first", interleave=True)),
}


@dataclass(frozen=True, eq=False)
class Figure2(Result):
    """`frame`: one row a panel (a to c), task and length.

    Its other columns are those of `ostools.measure.Evaluation` but mitigation, status, sample and log_probability.
    """

    tables: ClassVar = (TableHead(columns="correct", groups="panel task"),)

    @property
    def title(self) -> str:
        """Caption with the model's name."""
        return title(self, "copying the last and the first digit of a sequence")

    @property
    def deviations(self) -> tuple[str, ...]:
        """Differences from the paper's figure, a sentence each."""
        return (
            *common_deviations(self),
            "The right answer is always 0, in (a) by the paper's words. A model that always says 0 would be right everywhere.",
            "The first digit is asked of 01…1, as in the paper's caption. The paper's Section 3.1 says 1…10 there too.",
        )

    def chart(self) -> Chart:
        from ostools.paper.charts.figures import figure_2_chart

        return figure_2_chart(self)

    def findings(self) -> list[str]:
        from ostools.paper.charts.figures import figure_2_findings

        return [" ".join(figure_2_findings(self)), *self.deviations[:4]]


@measurement()
def figure_2(
    model: TransformerBridge | Hosted,
    lengths: Iterable[int] = FIGURE_2_LENGTHS,
    *,
    progress: Progress | None = None,
    **encoding: Unpack[EncodingOptions],
) -> Figure2:
    """Greedy answers to the six prompts of Figure 2 at every length.

    Args:
        model: a loaded model, or the answers of one that runs elsewhere (`ostools.measure.read_answers`).
        lengths: numbers of digits.
        progress: called as progress(done, total) with the number of prompts answered.

    Raises `InputError` for lengths below 1 and for a prompt longer than the context. Cost: six prompts for each length, some 20
    tokens each.
    """
    length_list = checked_lengths(lengths)
    frame, settings = greedy_answers(model, figure_2_tasks(), length_list, progress=progress, **encoding)
    panels = pd.Series({task: panel for panel, panel_tasks in FIGURE_2_PANELS.items() for task in panel_tasks})
    frame.insert(0, "panel", frame.pop("form").map(panels))
    provenance = provenance_of(model, measurement="figure-2", number=2, lengths=length_list, **settings)
    return Figure2(frame, provenance)


def figure_2_tasks() -> dict[AppendixTask, Sequence[int]]:
    """The six tasks of the figure, with the seeds of each."""
    return dict.fromkeys((task for panel in FIGURE_2_PANELS.values() for task in panel), (0,))


def figure_2_memory(model: Unloaded, *, lengths: Sequence[int] = FIGURE_2_LENGTHS) -> int:
    """Bytes of the answers to the longest of the six prompts."""
    return max(evaluate_memory(model, task, lengths, seeds=seeds) for task, seeds in figure_2_tasks().items())
