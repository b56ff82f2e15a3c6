"""Figures 3, 4, 6 and 7: how far sums and counts are off, and which numbers are answered how often.

Figure 3 has three panels: the sum 1+...+1, the ones in a sequence of ones, the ones in a Bernoulli(0.7) sequence. Section 3.2
names a fourth task, the word 'car' in a sentence, which is a panel where it is asked for. Three lines: no chain of thought
(CoT), zero-shot (the paper's "CoT-no-shot"), few-shot. An answer from which no one number can be read has no error, and is
counted apart. Figure 4 counts the numbers of the same answers (the paper finds that 100 is a favourite), beside how often each
is the right one. Figures 6 and 7 are Figures 3 and 4 of an open model.

Source: Barbero et al. 2024 (arXiv 2406.04267), Figures 3 and 4 (of Gemini 1.5), 6 and 7 (of Gemma 7B), and appendix C.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Unpack, get_args

import pandas as pd

from ostools.ground.arguments import checked_arguments
from ostools.ground.errors import InputError
from ostools.ground.lens import TransformerBridge
from ostools.ground.names import distinct
from ostools.ground.progress import Progress
from ostools.ground.whole_numbers import checked_lengths, checked_seeds
from ostools.measure.answers.evaluate import evaluate_memory
from ostools.measure.hosted.answer_file import Hosted
from ostools.measure.measurement import measurement
from ostools.measure.unloaded import Unloaded
from ostools.models.tokens import EncodingOptions
from ostools.paper.figures.answering import (
    FIGURE_2_LENGTHS,
    common_deviations,
    figure_2_tasks,
    figure_questions,
    greedy_answers,
    provenance_of,
    title,
    unread_answers,
)
from ostools.results import Chart, Result
from ostools.results.table_head import TableHead
from ostools.tasks import AppendixTask
from ostools.tasks.appendix_c import Mode
from ostools.tasks.questions import Question

LENGTHS = range(5, 151, 5)
SEEDS = tuple(range(5))
PanelTask = Literal["sum-ones", "count-ones", "count-ones-bernoulli", "count-word"]
PANELS: tuple[PanelTask, ...] = ("sum-ones", "count-ones", "count-ones-bernoulli")
"""The figure's panels, from left to right."""
TASKS: tuple[PanelTask, ...] = get_args(PanelTask)
"""The tasks of Section 3.2, (i) to (iv)."""
WAYS: tuple[Mode, ...] = ("none", "cot-zero-shot", "cot-few-shot")
"""The ways of asking of Section 3.2, (1) to (3)."""


@dataclass(frozen=True, eq=False)
class Figure3(Result):
    """`frame`: one row a task, mode (none | cot-zero-shot | cot-few-shot), length and seed (0 alone where nothing is drawn).

    Its columns are those of `ostools.measure.answers.result.Evaluation` but mitigation, status, sample and log_probability;
    absolute_error is NA where the answer held no number.
    """

    tables: ClassVar = (TableHead(columns="correct absolute_error", groups="task mode"),)

    @property
    def title(self) -> str:
        """Caption with the model's name."""
        return title(self, "absolute error of sums and counts")

    @property
    def deviations(self) -> tuple[str, ...]:
        """Differences from the paper's figure, a sentence each."""
        return _deviations(self, self.frame)

    def chart(self) -> Chart:
        from ostools.paper.charts.figures import figure_3_chart

        return figure_3_chart(self)

    def findings(self) -> list[str]:
        from ostools.paper.charts.figures import figure_3_findings

        return [" ".join(figure_3_findings(self)), *self.deviations[:4]]


@dataclass(frozen=True, eq=False)
class Figure4(Result):
    """`frame`: one row a task, mode and number. Columns: task, mode, output (NA: no number to be read), answers (how often it
    was the answer), right (how often it was the right one; 0 for NA). `answers`: the rows of Figure 3 behind them.
    """

    tables: ClassVar = (TableHead(columns="task mode output answers right", greatest="answers"),)

    answers: pd.DataFrame

    @property
    def title(self) -> str:
        """Caption with the model's name."""
        return title(self, "frequency of each answer to sums and counts")

    @property
    def deviations(self) -> tuple[str, ...]:
        """Differences from the paper's figure, a sentence each."""
        return _deviations(self, self.answers)

    def chart(self) -> Chart:
        from ostools.paper.charts.figures import figure_4_chart

        return figure_4_chart(self)

    def findings(self) -> list[str]:
        from ostools.paper.charts.figures import figure_4_findings

        return [" ".join(figure_4_findings(self)), *self.deviations[:4]]


@measurement()
def figure_3(
    model: TransformerBridge | Hosted,
    lengths: Iterable[int] = LENGTHS,
    seeds: Sequence[int] = SEEDS,
    *,
    panels: PanelTask | Sequence[PanelTask] = PANELS,
    number: Literal[3, 6] = 3,
    max_new_tokens: int = 256,
    progress: Progress | None = None,
    **encoding: Unpack[EncodingOptions],
) -> Figure3:
    """Absolute errors of greedy answers to the prompts of Figure 3 (and 6), at every length and
    seed.

    Args:
        model: a loaded model, or the answers of one that runs elsewhere (`ostools.measure.read_answers`).
        lengths: numbers of items.
        seeds: seeds of the panels that draw their sequences.
        panels: tasks, one panel for each: some of `TASKS`.
        number: 6 for the caption of Figure 6. The run is the same.
        max_new_tokens: longest chain of thought of a loaded model, in tokens. What is cut there is
            not an answer, and is counted apart.
        progress: called as progress(done, total) with the number of prompts answered.

    Raises `InputError` for lengths below 1, for an empty list of seeds, for an unknown panel, and for a prompt that leaves no
    room for its answer in the context. Cost: three prompts for each panel, length and seed, two thirds of them with up to
    `max_new_tokens` tokens.
    """
    length_list, seed_list = checked_lengths(lengths), checked_seeds(seeds)
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "progress": progress, **encoding}
    frame, settings = greedy_answers(model, figure_tasks(seed_list, panels), length_list, **options)
    parameters = {"measurement": f"figure-{number}", "number": number, "lengths": length_list, "seeds": seed_list}
    return Figure3(frame.drop(columns="form"), provenance_of(model, **parameters, **settings))


@measurement()
def figure_4(
    model: TransformerBridge | Hosted,
    lengths: Iterable[int] = LENGTHS,
    seeds: Sequence[int] = SEEDS,
    *,
    panels: PanelTask | Sequence[PanelTask] = PANELS,
    number: Literal[4, 7] = 4,
    max_new_tokens: int = 256,
    progress: Progress | None = None,
    **encoding: Unpack[EncodingOptions],
) -> Figure4:
    """Frequencies of each number among the answers to the prompts of Figure 3, and of its being
    right (Figures 4 and 7).

    Arguments, errors and cost are those of `figure_3`. `figure_4_of` makes it from a Figure 3 that you have, at no cost.
    """
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "progress": progress, **encoding}
    return figure_4_of(figure_3(model, lengths, seeds, panels=panels, **options), number)


def figure_4_of(figure: Figure3, number: Literal[4, 7] = 4) -> Figure4:
    """Figure 4 (or 7), made from the answers of Figure 3. Raises `InputError` for another number."""
    if number not in (4, 7):
        raise InputError(f"number: expected 4 or 7, the figures of this form, found {number!r}")
    parameters = {**figure.provenance.parameters, "measurement": f"figure-{number}", "number": number}
    provenance = replace(figure.provenance, parameters=parameters)
    return Figure4(frequencies(figure.frame), provenance, figure.frame)


def frequencies(answers: pd.DataFrame) -> pd.DataFrame:
    """The columns of `Figure4.frame`, out of task, mode, number (the answer, or NA) and key (the right one, as text)."""
    came: Any = answers["correct"].notna().astype(int)  # of a hosted model; what never came is in no frequency
    answer_rows: Any = answers[["task", "mode"]].assign(output=answers["number"].astype("Int64"), answers=came, right=0)
    right: Any = answers[["task", "mode"]].assign(output=answers["key"].astype("Int64"), answers=0, right=came)
    rows: Any = pd.concat([answer_rows, right], ignore_index=True)
    rows = rows[(rows["answers"] + rows["right"] > 0) | rows["output"].isna()]
    counts = rows.groupby(["task", "mode", "output"], sort=False, dropna=False, as_index=False).sum()
    # Tasks and modes in the order in which they were asked, numbers by size.
    order = {name: rank for column in ("task", "mode") for rank, name in enumerate(dict.fromkeys(rows[column]))}
    return counts.sort_values(
        ["task", "mode", "output"],
        key=lambda column: column if column.name == "output" else column.map(order),
        kind="stable",
        ignore_index=True,
    )


def figure_tasks(
    seeds: Sequence[int] = SEEDS, panels: PanelTask | Sequence[PanelTask] = PANELS
) -> dict[AppendixTask, Sequence[int]]:
    """The tasks of the figure's panels, each in three ways of asking, with the seeds of each."""
    names = distinct("panels", panels)
    tasks = [AppendixTask(name, mode=way) for name in TASKS if name in names for way in WAYS]
    return {task: tuple(seeds) if task.random else (0,) for task in tasks}


@checked_arguments(InputError)
def figure_prompts(
    number: Literal[2, 3, 4, 6, 7],
    lengths: Iterable[int] | None = None,
    seeds: Sequence[int] | None = None,
    panels: PanelTask | Sequence[PanelTask] | None = None,
) -> list[Question]:
    """The prompts of Figure 2, 3, 4, 6 or 7 as text. 3, 4, 6 and 7 ask the same prompts: one set of answers serves all four.

    Args:
        lengths: numbers of items; None: those of the figure.
        seeds: of the sequences that are drawn; None: those of the figure. Figure 2 does not draw sequences.
        panels: as in `figure_3`; Figure 2 has none to choose.

    Raises `InputError` for another figure, for lengths below 1, and for seeds or panels with Figure 2.
    """
    if number == 2 and (seeds is not None or panels is not None):
        raise InputError("figure 2 draws nothing and is whole, so it has no seeds and no panels: leave them out")
    if number == 2:
        seeds_by_task, default_lengths = figure_2_tasks(), FIGURE_2_LENGTHS
    else:
        seed_list = SEEDS if seeds is None else checked_seeds(seeds)
        seeds_by_task, default_lengths = figure_tasks(seed_list, PANELS if panels is None else panels), LENGTHS
    return figure_questions(seeds_by_task, checked_lengths(default_lengths if lengths is None else lengths))


def _deviations(result: Result, answers: pd.DataFrame) -> tuple[str, ...]:
    """Differences of Figures 3, 4, 6 and 7 from the paper's, a sentence each."""
    sentences = common_deviations(result)
    if set(PANELS) <= set(result.provenance.model.get("trained_lengths") or {}):
        sentences.append("This model was trained on these prompts without CoT. It was not trained on CoT.")
    if "count-word" in set(answers["task"]):
        word = "The paper's figure has no panel for the word 'car', the fourth task of its Section 3.2."
    else:
        word = "The fourth task of Section 3.2, counting a word, has no panel in the paper's figure."
    sentences += [
        "The worked examples of the sum are the paper's. Those of the other tasks are ours. They stand before the question.",
        "The zero-shot request is the opening of the paper's few-shot one. The paper does not name seeds.",
        word,
        "Without CoT the prompt is C.1's alone. In Section 3.2 the model is told to output the answer only.",
    ]
    return (*sentences, *unread_answers(result, answers))


def figure_3_memory(
    model: Unloaded,
    *,
    lengths: Sequence[int] = LENGTHS,
    seeds: Sequence[int] = SEEDS,
    panels: PanelTask | Sequence[PanelTask] = PANELS,
    max_new_tokens: int = 256,
) -> int:
    """Bytes of the answers to the longest prompt of the panels."""
    return max(
        evaluate_memory(model, task, lengths, seeds=task_seeds, max_new_tokens=max_new_tokens)
        for task, task_seeds in figure_tasks(seeds, panels).items()
    )
