"""Result of `evaluate`: the table of answers, and its summary of every length."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import pandas as pd

from ostools import tasks
from ostools.ground import InputError
from ostools.measure.answers.reading import CUT_OFF, HAS_ANSWER, SOMETHING_ELSE
from ostools.results import Chart, Frame, Provenance, Result, frame_of
from ostools.theory.statistics.answers import Heaping, heaping
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

    `summary`: one row a length, see `summarise`.
    """

    summary: pd.DataFrame

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
    right, log_probability = int(answers["correct"].sum()), answers["log_probability"]
    is_drawn = random and len(answers) > 0
    low, high = wilson(right, len(answers), LEVEL) if is_drawn else (math.nan, math.nan)
    return {
        "length": length,
        "prompts": int(rows["seed"].nunique()),
        "asked": len(answers),
        "right": right,
        "wrong": int((answers["kind"].eq(HAS_ANSWER) & ~answers["correct"]).sum()),
        "content_right": int(answers["content_correct"].sum()),
        "content_read": int(answers["content_correct"].notna().sum()),
        "accuracy": right / len(answers) if len(answers) else math.nan,
        "wilson_low": low,
        "wilson_high": high,
        "something_else": int(answers["kind"].eq(SOMETHING_ELSE).sum()),
        "cut_off": int(answers["kind"].eq(CUT_OFF).sum()),
        "unanswered": len(rows) - len(answers),
        "mean_absolute_error": float(answers["absolute_error"].astype(float).mean()),
        "log_probability": float(log_probability.mean(skipna=False)),
        "probability": float(log_probability.map(math.exp).mean(skipna=False)),
        "active": int(answers["status"].eq("active").sum()),
        "within_training": rows["within_training"].iloc[0],
    }


def from_rows(rows: Frame, provenance: Provenance) -> Evaluation:
    if rows.duplicated(["length", "seed"]).any():
        raise InputError(
            "expected one answer to each prompt, found several: they are not several trials"
        )
    try:
        random = tasks.task(str(rows["task"].iloc[0])).random
    except InputError:  # of a distribution that is not installed here
        random = rows["seed"].nunique() > 1
    return Evaluation(rows, provenance, summarise(rows, random))
