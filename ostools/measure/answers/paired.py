"""Two evaluations of the same questions: which is better at answering, by how much, and whether
that is decided.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd

from ostools import tasks
from ostools.ground import InputError
from ostools.ground.words import title_of
from ostools.measure.answers.result import LEVEL, Evaluation
from ostools.mitigations.named import NONE
from ostools.results import Chart, Frame, Result, frame_of
from ostools.tasks import AppendixTask
from ostools.theory.statistics.answers import mcnemar, paired_difference

SMALL = 0.05
"""A difference of shares that counts as none: 5 points. To rule out a larger one takes at least 72
questions.
"""
FIRST_BETTER, SECOND_BETTER = "first is better", "second is better"
NO_DIFFERENCE, UNDECIDED = "no measurable difference", "not decided"


@dataclass(frozen=True, eq=False)
class AnswerDifference(Result):
    """One row per question that both answered: who is right.

    Columns: length, seed, key (the right answer), first and second (the answer lines),
    first_correct, second_correct.

    `summary`, one row: first and second (what tells the two apart: model, dtype, mitigation,
    elicitation, mode, temperature), questions, left_out (that one of the two did not answer, or
    under a mitigation that changed nothing there), first_right, second_right, gained (right in the
    second alone), lost (in the first alone), difference (share of right answers, second - first)
    with its exact paired interval (low, high: 95%), p_value (McNemar's exact test), verdict:
    "second is better" or "first is better" where the interval leaves 0 out; "no measurable
    difference" where all of it is within 5 points; else "not decided". The interval counts
    questions as independent of each other: see `theory.statistics.answers`.

    `curves`: of each of the two, the share of right answers by length, with Wilson's interval where
        it has one.
    """

    summary: pd.DataFrame
    curves: pd.DataFrame

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
    first_correct, second_correct = rows["first_correct"], rows["second_correct"]
    gained = int((~first_correct & second_correct).sum())
    lost = int((first_correct & ~second_correct).sum())
    low, high = paired_difference(gained, lost, len(rows), LEVEL)
    names = _names(first, second)
    summary = {
        "first": names[0],
        "second": names[1],
        "questions": len(rows),
        "left_out": left_out,
        "first_right": int(first_correct.sum()),
        "second_right": int(second_correct.sum()),
        "gained": gained,
        "lost": lost,
        "difference": (gained - lost) / len(rows),
        "low": low,
        "high": high,
        "p_value": mcnemar(gained, lost),
        "verdict": _verdict(low, high),
    }
    columns = ["length", "right", "asked", "accuracy", "wilson_low", "wilson_high"]
    curves = [
        result.summary[columns].assign(side=name)
        for result, name in zip((first, second), names, strict=True)
    ]
    parameters = {
        **first.provenance.parameters,
        "measurement": "answer difference",
        "second": second.provenance.as_dict(),
        "mitigation": [str(result.frame["mitigation"].iloc[0]) for result in (first, second)],
    }
    provenance = replace(first.provenance, parameters=parameters)
    return AnswerDifference(
        rows, provenance, pd.DataFrame([summary]), pd.concat(curves, ignore_index=True)
    )


def _paired(first: Evaluation, second: Evaluation) -> tuple[Frame, int]:
    """The questions that count, and how many are left out."""
    labels = [str(result.frame["task"].iloc[0]) for result in (first, second)]
    if _sequences(labels[0]) != _sequences(labels[1]):
        _refuse(f"answers to {labels[0]} and to {labels[1]}: ask both the same task")
    keys, columns = ["length", "seed", "key"], ["answer", "correct", "status"]
    sides = [frame_of(result)[[*keys, *columns]] for result in (first, second)]
    if any(side.duplicated(keys).any() for side in sides):
        _refuse("several answers to a prompt: they are not several questions")
    joined: Frame = sides[0].merge(
        sides[1], on=keys, how="outer", suffixes=("_1", "_2"), indicator="side"
    )
    if len(alone := joined[joined["side"] != "both"]):
        row = alone.iloc[0]
        _refuse(
            f"{row['length']} items with seed {row['seed']} and the right answer {row['key']!r} in "
            "one of them: ask both "
            "the same lengths and seeds"
        )
    counts = joined["correct_1"].notna() & joined["correct_2"].notna()
    counts &= (joined["status_1"] != "inactive") & (joined["status_2"] != "inactive")
    if not counts.any():
        _refuse("none that both answered, with a mitigation that acts where there is one")
    names = {"answer_1": "first", "answer_2": "second"}
    names |= {"correct_1": "first_correct", "correct_2": "second_correct"}
    rows = joined[counts].rename(columns=names)[[*keys, *names.values()]]
    rows = rows.astype({"first_correct": bool, "second_correct": bool}).reset_index(drop=True)
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
    return [
        title_of(provenance.model),
        str(provenance.model.get("dtype")),
        "no mitigation" if row["mitigation"] == NONE else row["mitigation"],
        row["elicitation"],
        f"mode {row['mode']}",
        f"temperature {provenance.parameters.get('temperature', 0):g}",
    ]


def _verdict(low: float, high: float) -> str:
    if low > 0:
        return SECOND_BETTER
    if high < 0:
        return FIRST_BETTER
    return NO_DIFFERENCE if low >= -SMALL and high <= SMALL else UNDECIDED
