"""Result of `evaluate`: the table of answers, and its summary of every length. And two of them on
the same questions: which is better at answering, by how much, and whether that is decided.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import pandas as pd

from ostools import tasks
from ostools.ground import InputError, title_of
from ostools.measure.answers.reading import CUT_OFF, HAS_ANSWER, SOMETHING_ELSE
from ostools.mitigations.named import NONE
from ostools.results import Chart, Column, Frame, Result, frame_of, of_earlier_version
from ostools.tasks import AppendixTask
from ostools.theory.statistics.answers import Heaping, heaping, mcnemar, paired_difference
from ostools.theory.statistics.intervals import wilson

COLUMNS = (
    dict.fromkeys(("task", "mode", "elicitation", "mitigation", "status"), "str")
    | dict.fromkeys(("length", "seed", "tokens"), "int64")
    | dict.fromkeys(("key", "answer", "text", "ended"), "str")
    | {"kind": "str", "correct": "boolean", "number": "Int64"}
    | {"absolute_error": "Int64", "content": "str", "content_correct": "boolean"}
    | {"log_probability": "float64", "within_training": "boolean"}
)
LEVEL = 0.95
SMALL = 0.05
"""A difference of shares that counts as none: 5 points. To rule out a larger one takes at least 72
questions.
"""
FIRST_BETTER, SECOND_BETTER = "first is better", "second is better"
NO_DIFFERENCE, UNDECIDED = "no measurable difference", "not decided"


@dataclass(frozen=True, eq=False)
class Evaluation(Result):
    """One row per prompt.

    Columns: task, mode (of reasoning), elicitation (chat, few-shot or zero-shot), mitigation,
    status ("none": no mitigation; "active"; "inactive": it changed neither the text nor a logit,
    and its row is no evidence of what it does), length (items), seed, tokens (of the prompt); key
    (the right answer), answer (the answer line, as `reading` finds it; where there is none the last
    line that was read), text (all it wrote), ended (as in `Answer`); kind ("unanswered" where a
    hosted model gave none, and the columns made of an answer are NA), correct, number,
    absolute_error, content and content_correct: see `AnswerVerdict`; log_probability (natural, of
    the right line after the prompt, with its end, of a few-shot prompt of what is left of the line;
    NaN where no end can be written, and where reasoning or thinking comes first), within_training
    (whether the model's card lists training of the task up to this length; NA: not known. That is
    of the task's own text: what a mitigation makes of it may have been in no training at all).

    A row a question: raises `InputError` for several answers to one, and for several tasks.
    """

    key: ClassVar = ("length", "seed")
    of_one: ClassVar = ("task", "mitigation", "elicitation", "mode")

    @property
    def random(self) -> bool:
        """Whether the task draws its questions, so that each is one trial."""
        recorded = self.provenance.parameters.get("random")
        if recorded is None:  # of a file of before, or of a sweep
            try:
                return tasks.task(str(self.frame["task"].iloc[0])).random
            except InputError:  # of a distribution that is not installed here
                return frame_of(self)["seed"].nunique() > 1
        return bool(recorded)

    @property
    def summary(self) -> pd.DataFrame:
        """One row a length, see `summarise`."""
        return summarise(self.frame, self.random)

    @property
    def wrong(self) -> int:
        """Number of answers that were read and are not right. What was cut off, or something else,
        is neither.
        """
        return int(self.summary["wrong"].to_numpy(dtype=int).sum())

    @property
    def wrong_numbers(self) -> Frame:
        """The rows of answers with a wrong number, to a question whose answer is one."""
        rows = frame_of(self)
        return rows[rows["absolute_error"].gt(0).fillna(False)]

    def heaping(self, base: int) -> Heaping | None:
        """Whether wrong numbers are multiples of `base` more often than errors of their sizes would
        be; None without any.

        See `theory.statistics.answers`.
        """
        rows = self.wrong_numbers
        if rows.empty:
            return None
        return heaping(rows["key"].map(int).tolist(), rows["number"].tolist(), base)

    @property
    def read(self) -> int:
        return self.wrong + int(self.summary["right"].to_numpy(dtype=int).sum())

    def chart(self) -> Chart:
        from ostools.reporting.charts.answers import evaluation_chart

        return evaluation_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.answers import evaluation_findings

        return evaluation_findings(self)


def summarise(frame: pd.DataFrame, random: bool) -> pd.DataFrame:
    """One row a length: how many answers were right, with Wilson's interval, and how far and how
    likely.

    Columns: length, prompts, asked (answers), right, wrong (answers that were read and are not
    right), accuracy (right of asked), wilson_low and wilson_high (95%),
    content_right and content_read (answers whose content is right, and that hold a value),
    something_else and cut_off (answers of these kinds: neither right nor an error), unanswered
    (questions that a hosted model has no answer to; they are in no other number but `prompts`),
    mean_absolute_error (of the answers with a number; NaN: none), log_probability and probability
    (of the right line, mean over prompts), active (answers on which the mitigation acted),
    within_training.

    An interval needs something that was drawn: the prompts (`random`), of which each is one trial.
    The greedy answer to the one prompt of a task that draws nothing has none (NaN).
    """
    by_length = cast(Frame, frame).groupby("length")
    summaries = [_summary(int(length), rows, random) for length, rows in by_length]
    return pd.DataFrame(summaries).astype({"within_training": "boolean"})


def _summary(length: int, rows: Frame, random: bool) -> dict[str, object]:
    answers = rows[rows["correct"].notna()]
    log_probability = answers["log_probability"]
    return {
        "length": length,
        "prompts": int(rows["seed"].nunique()),
        **_share(answers["correct"], random),
        "wrong": int((answers["kind"].eq(HAS_ANSWER) & ~answers["correct"]).sum()),
        "content_right": int(answers["content_correct"].sum()),
        "content_read": int(answers["content_correct"].notna().sum()),
        "something_else": int(answers["kind"].eq(SOMETHING_ELSE).sum()),
        "cut_off": int(answers["kind"].eq(CUT_OFF).sum()),
        "unanswered": len(rows) - len(answers),
        "mean_absolute_error": float(answers["absolute_error"].astype(float).mean()),
        "log_probability": float(log_probability.mean(skipna=False)),
        "probability": float(log_probability.map(math.exp).mean(skipna=False)),
        "active": int(answers["status"].eq("active").sum()),
        "within_training": rows["within_training"].iloc[0],
    }


def _share(correct: Column, random: bool) -> dict[str, float | int]:
    """How many of the answers are right, and the share; its interval where each was drawn."""
    answers, right = len(correct), int(correct.sum())
    low, high = wilson(right, answers, LEVEL) if random and answers else (math.nan, math.nan)
    accuracy = right / answers if answers else math.nan
    counts = {"asked": answers, "right": right, "accuracy": accuracy}
    return {**counts, "wilson_low": low, "wilson_high": high}


@dataclass(frozen=True, eq=False)
class AnswerDifference(Result):
    """One row per question that both answered: who is right.

    Columns: length, seed, key (the right answer), first and second (the answer lines),
    first_correct, second_correct.
    """

    key: ClassVar = ("length", "seed", "key")

    def __post_init__(self) -> None:
        super().__post_init__()
        if "left_out" not in self.provenance.parameters:
            raise of_earlier_version(self, "curves of questions that were left out")

    @property
    def summary(self) -> pd.DataFrame:
        """One row: first and second (what tells the two apart: model, dtype, mitigation,
        elicitation, mode, temperature), questions, left_out (that one of the two did not answer, or
        under a mitigation that changed nothing there), first_right, second_right, gained (right in
        the second alone), lost (in the first alone), difference (share of right answers, second -
        first) with its exact paired interval (low, high: 95%), p_value (McNemar's exact test),
        verdict: "second is better" or "first is better" where the interval leaves 0 out; "no
        measurable difference" where all of it is within 5 points; else "not decided". The interval
        counts questions as independent of each other: see `theory.statistics.answers`.
        """
        parameters, rows = self.provenance.parameters, frame_of(self)
        first, second = rows["first_correct"], rows["second_correct"]
        gained, lost = int((~first & second).sum()), int((first & ~second).sum())
        low, high = paired_difference(gained, lost, len(first), LEVEL)
        summary = {
            "first": parameters["names"][0],
            "second": parameters["names"][1],
            "questions": len(first),
            "left_out": parameters["left_out"],
            "first_right": int(first.sum()),
            "second_right": int(second.sum()),
            "gained": gained,
            "lost": lost,
            "difference": (gained - lost) / len(first),
            "low": low,
            "high": high,
            "p_value": mcnemar(gained, lost),
            "verdict": _verdict(low, high),
        }
        return pd.DataFrame([summary])

    @property
    def curves(self) -> pd.DataFrame:
        """Of each of the two, the share of right answers by length, of the questions that count,
        with Wilson's interval where it has one.
        """
        names, random = (self.provenance.parameters[name] for name in ("names", "random"))
        return pd.DataFrame(
            {"length": length, **_share(rows[column], random), "side": name}
            for name, column in zip(names, ("first_correct", "second_correct"), strict=True)
            for length, rows in frame_of(self).groupby("length")
        )

    def chart(self) -> Chart:
        from ostools.reporting.charts.answers import difference_chart

        return difference_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.answers import difference_findings

        return difference_findings(self)


def answer_difference(first: Evaluation, second: Evaluation) -> AnswerDifference:
    """Pair the answers question by question.

    Raises `InputError` where the questions are not the same: another task, length, seed or right
    answer; and where no question is left.
    """
    rows, left_out = _paired(first, second)
    parameters = {
        **first.provenance.parameters,
        "measurement": "answer difference",
        "second": second.provenance.as_dict(),
        "mitigation": [str(result.frame["mitigation"].iloc[0]) for result in (first, second)],
        "names": _names(first, second),
        "random": first.random,
        "left_out": left_out,
    }
    return AnswerDifference(rows, replace(first.provenance, parameters=parameters))


def _paired(first: Evaluation, second: Evaluation) -> tuple[Frame, int]:
    """The questions that count, and how many are left out."""
    labels = [str(result.frame["task"].iloc[0]) for result in (first, second)]
    if _sequences(labels[0]) != _sequences(labels[1]):
        _refuse(f"answers to {labels[0]} and to {labels[1]}: ask both the same task")
    keys, correct = ["length", "seed", "key"], ["first_correct", "second_correct"]
    sides = [
        frame_of(result)[[*keys, "answer", "correct", "status"]].rename(
            columns={"answer": name, "correct": f"{name}_correct", "status": f"{name}_status"}
        )
        for name, result in (("first", first), ("second", second))
    ]
    joined: Frame = sides[0].merge(sides[1], on=keys, how="outer", indicator="side")
    if len(alone := joined[joined["side"] != "both"]):
        row = alone.iloc[0]
        _refuse(
            f"{row['length']} items with seed {row['seed']} and the right answer {row['key']!r} in "
            "one of them: ask both the same lengths and seeds"
        )
    is_inactive = joined[["first_status", "second_status"]].eq("inactive").any(axis=1)
    counts = joined[correct].notna().all(axis=1) & ~is_inactive
    if not counts.any():
        _refuse("none that both answered, with a mitigation that acts where there is one")
    rows: Frame = joined.loc[counts, [*keys, "first", "second", *correct]]
    rows = rows.astype(dict.fromkeys(correct, bool)).reset_index(drop=True)
    return rows, int((~counts).sum())


def _refuse(reason: str) -> None:
    raise InputError(f"compare: expected two evaluations of the same questions, found {reason}")


def _sequences(label: str) -> str:
    """The task without its mode of reasoning, which asks of the same sequences otherwise."""
    try:
        form = tasks.task(label)
    except InputError:  # of a distribution that is not installed here
        return label
    return tasks.label(replace(form, mode="none")) if isinstance(form, AppendixTask) else label


def _names(first: Evaluation, second: Evaluation) -> tuple[str, str]:
    """What tells the two apart, in words; "first" and "second" where nothing that is written down
    does.
    """
    pairs = zip(_words(first), _words(second), strict=True)
    differing = [pair for pair in pairs if pair[0] != pair[1]] or [("first", "second")]
    names = [", ".join(words) for words in zip(*differing, strict=True)]
    return names[0], names[1]


def _words(result: Evaluation) -> list[str]:
    row, provenance = frame_of(result).iloc[0], result.provenance
    temperature = provenance.parameters.get("temperature", 0)
    return [
        title_of(provenance.model),
        str(provenance.model.get("dtype") or "dtype not recorded"),
        "no mitigation" if row["mitigation"] == NONE else str(row["mitigation"]),
        str(row["elicitation"]),
        f"mode {row['mode']}",
        "temperature not recorded" if temperature is None else f"temperature {temperature:g}",
    ]


def _verdict(low: float, high: float) -> str:
    if low > 0:
        return SECOND_BETTER
    if high < 0:
        return FIRST_BETTER
    return NO_DIFFERENCE if low >= -SMALL and high <= SMALL else UNDECIDED
