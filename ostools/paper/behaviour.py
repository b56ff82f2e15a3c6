"""Figures 2, 3, 4, 6 and 7: what a model answers to the paper's prompts.

Figure 2: is the last digit of 1...10, or the first of 01...1, copied? (a) as it stands; (b) with
the paper's hint; (c) with zeros and ones in turn. The right answer is always 0, in (a) by the
paper's words: the figure cannot tell a model that looks from one that always says 0
(`AppendixTask(..., uniform=True)` can).

Figure 3: absolute errors of the sum 1+...+1, of the ones in a sequence of ones, and of the ones in
a Bernoulli(0.7) sequence. Section 3.2 names a fourth task, the word 'car' in a sentence, which is a
panel where it is asked for. Three lines: no chain of thought (CoT), zero-shot (the paper's
"CoT-no-shot"), few-shot. An answer from which no one number can be read has no error, and is
counted apart. Figure 4 counts the numbers of the same answers (the paper finds that 100 is a
favourite), beside how often each is the right one. Figures 6 and 7 are Figures 3 and 4 of an open
model.

Every answer is one of `ost.evaluate`. Cost: a prompt for each task, length and seed. Source:
Barbero et al. 2024 (arXiv 2406.04267), Figures 2, 3 and 4 (of Gemini 1.5), 6 and 7 (of Gemma 7B),
appendix C.1.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Unpack, get_args

import pandas as pd

import ostools as ost
from ostools.ground import (
    InputError,
    Lengths,
    Progress,
    TransformerBridge,
    checked_arguments,
    checked_lengths,
    checked_seeds,
    distinct,
    part_of,
    title_of,
)
from ostools.measure import Evaluation, Hosted
from ostools.models import EncodingOptions
from ostools.paper.drawn_result import PaperResult
from ostools.results import Frame, Provenance, TableHead
from ostools.tasks import AppendixTask, Question
from ostools.tasks.appendix_c import Mode
from ostools.tasks.questions import question

PAPERS = {2: "Gemini 1.5", 3: "Gemini 1.5", 4: "Gemini 1.5", 6: "Gemma 7B", 7: "Gemma 7B"}
"""The paper's model of each figure."""
FIGURE_2_LENGTHS = range(20, 601, 20)
"""Twice as far as the 300 elements at which the paper's model "starts to output 'one'"."""
FIGURE_2_PANELS = {
    "a": (AppendixTask("copy-last"), AppendixTask("copy-first")),
    "b": (AppendixTask("copy-last", hint=True), AppendixTask("copy-first", hint=True)),
    "c": (AppendixTask("copy-last", interleave=True), AppendixTask("copy-first", interleave=True)),
}
LENGTHS = range(5, 151, 5)
SEEDS = tuple(range(5))
PanelTask = Literal["sum-ones", "count-ones", "count-ones-bernoulli", "count-word"]
PANELS: tuple[PanelTask, ...] = ("sum-ones", "count-ones", "count-ones-bernoulli")
"""The panels of Figure 3, from left to right."""
TASKS: tuple[PanelTask, ...] = get_args(PanelTask)
"""The tasks of Section 3.2, (i) to (iv)."""
WAYS: tuple[Mode, ...] = ("none", "cot-zero-shot", "cot-few-shot")
"""The ways of asking of Section 3.2, (1) to (3)."""
CUT_OFF, SOMETHING_ELSE = "cut off", "something else"
"""Kinds of a text in which there is no answer."""
_OF_EVALUATE = ["elicitation", "mitigation", "status", "log_probability"]
"""Columns of `ost.evaluate` that are the same for every row of a figure, or not in it."""
_OF_ONE_TASK = (
    "task",
    "mitigation",
    "elicitation",
    "seeds",
    "random",
    "trained_length",
    "examples",
    "max_new_tokens",
)


class _AnswersFigure(PaperResult):
    """Caption and differences from the paper, of a result that is made of answers."""

    subject: ClassVar[str]

    @property
    def title(self) -> str:
        """Caption with the model's name."""
        number, model = self.provenance.parameters["number"], self.provenance.model
        return f"Figure {number} on {title_of(model)}: {self.subject}"

    @property
    def deviations(self) -> list[str]:
        """Model and settings beside the paper's, and the answers that are in no number. What of the
        paper's prompts is ours stands in docs/fidelity.md.
        """
        parameters = self.provenance.parameters
        # The rows of Figure 4 are numbers: the answers stand beside them.
        answers: Frame = getattr(self, "answers", self.frame)
        lengths, kinds = sorted(answers["length"].unique()), answers["kind"].value_counts()
        how = (
            "greedy decoding, prompts "
            f"{'in the chat template' if parameters['chat'] else 'as text'}"
        )
        if parameters.get("hosted"):
            temperature = parameters.get("temperature")
            degrees = "that is not recorded" if temperature is None else f"of {temperature:g}"
            how = f"answers of a hosted model at a temperature {degrees}"
        return [
            f"The paper's is of {PAPERS[int(parameters['number'])]}. Here: {len(lengths)} lengths "
            f"from {lengths[0]} to {lengths[-1]}, {how}.",
            f"In no share and no error: {int(answers['correct'].isna().sum())} prompts without an "
            f"answer. In no error: {kinds.get(CUT_OFF, 0)} answers that were cut off, "
            f"{kinds.get(SOMETHING_ELSE, 0)} that wrote something else than was asked for.",
        ]


@dataclass(frozen=True, eq=False)
class Figure2(_AnswersFigure):
    """`frame`: one row a panel (a to c), task and length.

    Its other columns are those of `ostools.measure.Evaluation` but elicitation, mitigation, status
    and log_probability. The right answer is always 0: a model that always says 0 would
    be right everywhere. The first digit is asked of 01...1, as in the paper's caption; its Section
    3.1 says 1...10 there too.
    """

    tables: ClassVar = (TableHead(columns="correct", groups="panel task"),)
    key: ClassVar = ("panel", "task", "mode", "length", "seed")
    subject = "copying the last and the first digit of a sequence"


@dataclass(frozen=True, eq=False)
class Figure3(_AnswersFigure):
    """`frame`: one row a task, mode (none | cot-zero-shot | cot-few-shot), length and seed (0 alone
    where nothing is drawn).

    Its columns are those of `Figure2` but panel; absolute_error is NA where the answer held no
    number. The worked examples of the sum are the paper's, those of the other tasks ours, and they
    stand before the question; the zero-shot request is the opening of the few-shot one. Without CoT
    the prompt is C.1's alone, where Section 3.2 tells the model to output the answer only.
    """

    tables: ClassVar = (TableHead(columns="correct absolute_error", groups="task mode"),)
    key: ClassVar = ("task", "mode", "length", "seed")
    subject = "absolute error of sums and counts"


@dataclass(frozen=True, eq=False)
class Figure4(_AnswersFigure):
    """`frame`: one row a task, mode and number. Columns: task, mode, output (NA: no number to be
    read), answers (how often it was the answer), right (how often it was the right one; 0 for NA).
    `answers`: the rows of Figure 3 behind them.
    """

    tables: ClassVar = (TableHead(columns="task mode output answers right", greatest="answers"),)
    subject = "frequency of each answer to sums and counts"
    answers: pd.DataFrame


@ost.measure.measurement()
def figure_2(
    model: TransformerBridge | Hosted,
    lengths: Lengths = FIGURE_2_LENGTHS,
    *,
    progress: Progress | None = None,
    **encoding: Unpack[EncodingOptions],
) -> Figure2:
    """Greedy answers to the six prompts of Figure 2 at every length.

    Args:
        model: a loaded model, or the answers of one that runs elsewhere
            (`ostools.measure.read_answers`).
        lengths: numbers of digits.
        progress: called as progress(done, total), in percent of each task.

    Raises `InputError` for lengths below 1 and for a prompt longer than the context. Cost: six
    prompts for each length, some 20 tokens each.
    """
    frame, provenance = answered_tasks(model, figure_2_tasks(), lengths, 2, 256, progress, encoding)
    panels = {task: panel for panel, tasks in FIGURE_2_PANELS.items() for task in tasks}
    frame.insert(0, "panel", frame.pop("form").map(panels))
    return Figure2(frame, provenance)


@ost.measure.measurement()
def figure_3(
    model: TransformerBridge | Hosted,
    lengths: Lengths = LENGTHS,
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
        model: a loaded model, or the answers of one that runs elsewhere
            (`ostools.measure.read_answers`).
        lengths: numbers of items.
        seeds: seeds of the panels that draw their sequences.
        panels: tasks, one panel for each: some of `TASKS`.
        number: 6 for the caption of Figure 6. The run is the same.
        max_new_tokens: longest chain of thought of a loaded model, in tokens. What is cut there is
            not an answer, and is counted apart.
        progress: called as progress(done, total), in percent of each task.

    Raises `InputError` for lengths below 1, for an empty list of seeds, for an unknown panel, and
    for a prompt that leaves no room for its answer in the context. Cost: three prompts for each
    panel, length and seed, two thirds of them with up to `max_new_tokens` tokens.
    """
    seed_list = checked_seeds(seeds)
    frame, provenance = answered_tasks(
        model,
        figure_tasks(seed_list, panels),
        lengths,
        number,
        max_new_tokens,
        progress,
        encoding,
    )
    parameters = {**provenance.parameters, "seeds": seed_list}
    return Figure3(frame.drop(columns="form"), replace(provenance, parameters=parameters))


@ost.measure.measurement()
def figure_4(
    model: TransformerBridge | Hosted,
    lengths: Lengths = LENGTHS,
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

    Arguments, errors and cost are those of `figure_3`. `figure_4_of` makes it from a Figure 3 that
    you have, at no cost.
    """
    answers = figure_3(
        model,
        lengths,
        seeds,
        panels=panels,
        max_new_tokens=max_new_tokens,
        progress=progress,
        **encoding,
    )
    return figure_4_of(answers, number)


@checked_arguments(InputError)
def figure_4_of(figure: Figure3, number: Literal[4, 7] = 4) -> Figure4:
    """Figure 4 (or 7), made from the answers of Figure 3. Raises `InputError` for
    another number.
    """
    about = {"measurement": f"figure-{number}", "number": number}
    parameters = {**figure.provenance.parameters, **about}
    provenance = replace(figure.provenance, parameters=parameters)
    return Figure4(frequencies(figure.frame), provenance, figure.frame)


def frequencies(answers: Frame) -> pd.DataFrame:
    """The columns of `Figure4.frame`, out of task, mode, number (the answer, or NA) and key (the
    right one, as text).
    """
    # Of a hosted model; what never came is in no frequency.
    came = answers["correct"].notna().astype(int)
    numbers = {"output": answers["number"].astype("Int64"), "answers": came, "right": 0}
    keys = {"output": answers["key"].astype("Int64"), "answers": 0, "right": came}
    rows: Frame = pd.concat(
        [answers[["task", "mode"]].assign(**columns) for columns in (numbers, keys)],
        ignore_index=True,
    )
    rows = rows.loc[(rows["answers"] + rows["right"] > 0) | rows["output"].isna()]
    # Tasks and modes in the order in which they were asked, numbers by size.
    order = {
        name: rank for rank, name in enumerate([*rows["task"].unique(), *rows["mode"].unique()])
    }
    counts = rows.groupby(["task", "mode", "output"], sort=False, dropna=False, as_index=False)
    return counts.sum().sort_values(
        ["task", "mode", "output"],
        key=lambda column: column if column.name == "output" else column.map(order),
        kind="stable",
        ignore_index=True,
    )


def answered_tasks(
    model: TransformerBridge | Hosted,
    seeds_by_task: Mapping[AppendixTask, Sequence[int]],
    lengths: Iterable[int],
    number: int,
    max_new_tokens: int,
    progress: Progress | None,
    encoding: EncodingOptions,
) -> tuple[pd.DataFrame, Provenance]:
    """Greedy answers to every task at every length and each of its seeds, and the provenance of
    Figure `number`.

    Column `form` is the task itself. max_new_tokens: of a task with reasoning; others have the room
    that `ost.evaluate` gives.
    """
    length_list = checked_lengths(lengths)
    evaluations = evaluated(model, seeds_by_task, length_list, max_new_tokens, progress, encoding)
    tables = [
        evaluation.frame.assign(task=task.name, form=[task] * len(evaluation.frame))
        for task, evaluation in evaluations.items()
    ]
    frame = (
        pd.concat(tables)
        .drop(columns=_OF_EVALUATE)
        .sort_values("length", kind="stable", ignore_index=True)
    )
    described = {task: evaluation.provenance.parameters for task, evaluation in evaluations.items()}
    first = next(iter(described.values()))
    how = {name: value for name, value in first.items() if name not in _OF_ONE_TASK}
    how |= {
        "measurement": f"figure-{number}",
        "number": number,
        "lengths": length_list,
        "max_new_tokens": {
            task.mode: settings["max_new_tokens"] for task, settings in described.items()
        },
    }
    return frame, provenance_of(model, **how)


def evaluated(
    model: TransformerBridge | Hosted,
    seeds_by_task: Mapping[AppendixTask, Sequence[int]],
    lengths: Sequence[int],
    max_new_tokens: int,
    progress: Progress | None,
    encoding: EncodingOptions,
) -> dict[AppendixTask, Evaluation]:
    """`ost.evaluate` of each task, asked in the chat template or as it stands, never after worked
    examples.
    """
    if isinstance(model, Hosted):
        if encoding:
            raise InputError(
                f"{next(iter(encoding))}: how a hosted model's prompts were wrapped was decided "
                "where it was asked: leave it out"
            )
        model.only(figure_questions(seeds_by_task, lengths))
        return {
            task: ost.measure.hosted_evaluation(
                model.part([item for item in model.questions if item.task == task])
            )
            for task in seeds_by_task
        }
    chat = encoding.get("chat")
    in_chat = bool(getattr(model.tokenizer, "chat_template", None)) if chat is None else chat
    return {
        task: ost.evaluate(
            model,
            task,
            lengths=lengths,
            seeds=seeds,
            elicitation="chat" if in_chat else "zero-shot",
            max_new_tokens=max_new_tokens if task.reasons else None,
            progress=part_of(progress, index, index + 1, len(seeds_by_task)),
            **encoding,
        )
        for index, (task, seeds) in enumerate(seeds_by_task.items())
    }


def provenance_of(model: TransformerBridge | Hosted, **parameters: object) -> Provenance:
    """Provenance of answers of a model here or elsewhere."""
    if isinstance(model, Hosted):
        recorded = {*model.settings, "hosted", "unanswered"}
        return model.provenance(
            **{name: value for name, value in parameters.items() if name not in recorded}
        )
    return Provenance.collect(model, None, **parameters)


def figure_2_tasks() -> dict[AppendixTask, Sequence[int]]:
    """The six tasks of Figure 2, with the seeds of each."""
    return dict.fromkeys((task for panel in FIGURE_2_PANELS.values() for task in panel), (0,))


def figure_tasks(
    seeds: Sequence[int] = SEEDS,
    panels: PanelTask | Sequence[PanelTask] = PANELS,
    ways: Sequence[Mode] = WAYS,
) -> dict[AppendixTask, Sequence[int]]:
    """The tasks of the panels of Figure 3, each in these ways of asking, with the seeds of each."""
    names = distinct("panels", panels)
    tasks = [AppendixTask(name, mode=way) for name in TASKS if name in names for way in ways]
    return {task: tuple(seeds) if task.random else (0,) for task in tasks}


def figure_questions(
    seeds_by_task: Mapping[AppendixTask, Sequence[int]], lengths: Sequence[int]
) -> list[Question]:
    """A figure's prompts as text."""
    return [
        question(task, n, seed=seed)
        for n in lengths
        for task, seeds in seeds_by_task.items()
        for seed in seeds
    ]


@checked_arguments(InputError)
def figure_prompts(
    number: Literal[2, 3, 4, 6, 7],
    lengths: Iterable[int] | None = None,
    seeds: Sequence[int] | None = None,
    panels: PanelTask | Sequence[PanelTask] | None = None,
) -> list[Question]:
    """The prompts of Figure 2, 3, 4, 6 or 7 as text. 3, 4, 6 and 7 ask the same prompts: one set of
    answers serves all four.

    Args:
        lengths: numbers of items; None: those of the figure.
        seeds: of the sequences that are drawn; None: those of the figure. Figure 2 does not draw
            sequences.
        panels: as in `figure_3`; Figure 2 has none to choose.

    Raises `InputError` for another figure, for lengths below 1, and for seeds or panels with Figure
    2.
    """
    if number == 2 and not (seeds is None and panels is None):
        raise InputError(
            "figure 2 draws nothing and is whole, so it has no seeds and no panels: leave them out"
        )
    usual = FIGURE_2_LENGTHS if number == 2 else LENGTHS
    seed_list = SEEDS if seeds is None else checked_seeds(seeds)
    panel_tasks = figure_tasks(seed_list, PANELS if panels is None else panels)
    return figure_questions(
        figure_2_tasks() if number == 2 else panel_tasks,
        checked_lengths(usual if lengths is None else lengths),
    )
