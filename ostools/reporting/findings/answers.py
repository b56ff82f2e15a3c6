"""Sentences on answers: how many are right, what could not be read, which of two is better, where
they are lost, and what probes decode.
"""

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd

from ostools.ground import number, runs
from ostools.measure import AnswerDifference, Decodability, Evaluation, FailureStage
from ostools.measure.answers.result import FIRST_BETTER, SECOND_BETTER
from ostools.measure.hosted.answer_file import asked_elsewhere, unanswered
from ostools.measure.probes.failure_stage import VERDICTS, best_probe, untrained_as_good
from ostools.measure.probes.scores import DECODABLE, TESTS
from ostools.measure.probes.wrong_answers import ErrorVerdict, explain_errors
from ostools.reporting.findings import MOST, present, where_read, which_token
from ostools.reporting.style import theme
from ostools.results import Frame, Result, Row, frame_of

_ELICITED = {
    "chat": "in the chat template",
    "few-shot": "few-shot: after worked examples, with the answer line begun",
    "zero-shot": "zero-shot: the prompt alone",
}
_FAVOURITES, _FEWEST_WRONG = 3, 6


def evaluation_findings(result: Evaluation) -> list[str]:
    """How many answers are right, the worst length, lengths of training and beyond, wrong numbers,
    and how it was asked.
    """
    right, total = answer_counts(result)
    task, lengths = theme.inert(task_of(result)), result.summary["length"]
    span = " to ".join(map(str, dict.fromkeys((lengths.iloc[0], lengths.iloc[-1]))))
    return present(
        f"The model answers {right} of {total} prompts of {task} right ({span} items)."
        if result.read
        else f"None of {total} texts holds an answer in the form that {task} asks for.",
        " ".join(present(_fewest_right(result), constant_words(result))),
        _training_words(result),
        _wrong_numbers(result),
        " ".join(evaluation_notes(result)),
    )


def evaluation_notes(result: Evaluation) -> list[str]:
    """The prompts, what could not be read, the content reading where it differs from the strict
    one, and where a mitigation did nothing.
    """
    summary: Frame = result.summary
    settings, totals = result.provenance.parameters, summary.sum(numeric_only=True).to_dict()
    names = ["prompts", "asked", "something_else", "cut_off", "right", "content_right"]
    prompts, answers, something_else, cut, right, content_right = (
        int(totals[name]) for name in names
    )
    how = f"greedy, {_ELICITED[settings['elicitation']]}" if not settings.get("hosted") else ""
    grade = settings.get("grade")
    by = "In the form or else by the last number" if grade is None else f"By {theme.inert(grade)}"
    inactive = int((frame_of(result)["status"] == "inactive").sum())
    interval = " Nothing was drawn, so there is no interval."
    if result.random:
        interval = " Intervals: Wilson's, 95%, over prompts." * bool(answers)
    return present(
        f"{answers} answers to {prompts} prompts, {how or asked_elsewhere(result)}.{interval}",
        *unanswered(result),
        f"{something_else} wrote something that is not an answer, {cut} were cut off before one: "
        "neither right nor wrong."
        if something_else + cut
        else "",
        f"{by}, {content_right} of {totals['content_read']:.0f} answers that hold a value "
        "are right."
        if content_right != right
        else "",
        f"The mitigation did not change the prompt or the logits of {inactive} answers."
        if inactive
        else "",
    )


def _training_words(result: Evaluation) -> str:
    """How many are right within the lengths of training and beyond: the task's, of the text without
    a mitigation.
    """
    frame = frame_of(result).dropna(subset=["correct", "within_training"])
    groups = frame.groupby("within_training")["correct"]
    right, prompts = groups.sum(), groups.size()
    if len(prompts) < 2:
        return ""
    return (
        f"Within the lengths of training {right.loc[True]} of {prompts.loc[True]} answers are "
        f"right, beyond {right.loc[False]} of {prompts.loc[False]}."
    )


def _wrong_numbers(result: Evaluation) -> str:
    """The wrong numbers that were answered most often; and whether they heap at multiples of 5 and
    of 10, each against permuted errors.
    """
    counts = result.wrong_numbers["number"].value_counts()
    repeated = counts[counts > 1]
    frequent = repeated.head(_FAVOURITES)
    words = ", ".join(f"{number} ({count} times)" for number, count in frequent.items())
    if as_often := int((repeated[_FAVOURITES:] == frequent.min()).sum()):
        words += f", and {as_often} more as often as the last"
    tests = [test for base in (5, 10) if (test := result.heaping(base)) is not None]
    heaped = [
        f"{test.multiples} of {test.wrong} are multiples of {test.base} (expected "
        f"{test.expected:.3g}, p {test.p_value:.2g})"
        for test in tests
        if test.wrong >= _FEWEST_WRONG
    ]
    return " ".join(
        present(
            f"Favourites of {counts.sum()} wrong numbers: {words}." if words else "",
            f"{', '.join(heaped)}: one-sided, exact, against errors exchanged among the questions "
            "of the same ten."
            if heaped
            else "",
        )
    )


def task_of(result: Result) -> str:
    """The name of a result's task."""
    return str(frame_of(result)["task"].iloc[0])


def answer_counts(result: Evaluation) -> tuple[int, int]:
    """Number of right answers, and of all answers."""
    summary: Frame = result.summary
    return int(summary["right"].sum()), int(summary["asked"].sum())


def constant_answer(result: Evaluation) -> tuple[str, int, int]:
    """The answer that is right on most prompts, on how many, and of how many: what a model reaches
    that does not read.
    """
    keys = frame_of(result).drop_duplicates(["length", "seed"])["key"]
    counts = keys.value_counts()
    return str(counts.index[0]), int(counts.iloc[0]), len(keys)


def constant_words(result: Evaluation) -> str:
    """The best constant answer, and on how many prompts it is right; empty where none is right on
    two.
    """
    answer, right, prompts = constant_answer(result)
    words = (
        f"Best constant answer, {theme.short_word(answer)}: right on {right} of {prompts} prompts."
    )
    return words * (right > 1)


def _fewest_right(result: Evaluation) -> str:
    """How many are right at the worst length, with the interval, where lengths differ."""
    summary: Frame = result.summary
    if summary["accuracy"].nunique() < 2 or summary["asked"].max() < 2:
        return ""
    worst: Row = summary.loc[summary["accuracy"].idxmin()]
    ties = int((summary["accuracy"] == worst["accuracy"]).sum()) - 1
    elsewhere = f", as at {ties} other length{'s' * (ties > 1)}" if ties else ""
    return (
        f"Fewest right at {int(worst['length'])} items{elsewhere}: {int(worst['right'])} of "
        f"{int(worst['asked'])}, Wilson 95% {number(worst['wilson_low'])} to "
        f"{number(worst['wilson_high'])}."
    )


def difference_findings(result: AnswerDifference) -> list[str]:
    """Which of the two answers more questions right, by how much, and what was left out."""
    row: Row = result.summary.iloc[0]
    verdict = str(row["verdict"])
    better = {
        SECOND_BETTER: f"{row['second']} is better",
        FIRST_BETTER: f"{row['first']} is better",
    }
    difference, low, high = (f"{100 * row[end]:+.1f}" for end in ("difference", "low", "high"))
    return present(
        f"{better.get(verdict, verdict[0].upper() + verdict[1:])}: {row['second_right']} of "
        f"{row['questions']} right under {row['second']}, {row['first_right']} under "
        f"{row['first']}; {difference} points [{low}, {high}].",
        f"Right under the second alone: {row['gained']}; under the first alone: {row['lost']} "
        f"(McNemar's exact test: p {row['p_value']:.2g}). The interval is exact for independent "
        "questions.",
        f"{row['left_out']} questions are left out: one of the two has no answer there, or its "
        "mitigation changed nothing."
        if row["left_out"]
        else "",
    )


# --- where the answer is lost


def error_verdict(result: FailureStage) -> ErrorVerdict:
    """Where wrong answers fall, in the first dtype."""
    dtype = str(result.provenance.parameters["dtypes"][0])
    stages, answers = (_of(table, dtype) for table in (frame_of(result), result.answers))
    right = answers.groupby("length")["correct"].sum()
    wrong = answers.groupby("length")["correct"].count() - right
    hidden = stages.set_index("length")["indistinguishable"].astype(bool)
    reads = _reads(result.probes, dtype, stages[stages["indistinguishable"].astype(bool)])
    return explain_errors(right.to_dict(), wrong.to_dict(), hidden.to_dict(), reads)


def _of(table: Frame, dtype: str) -> Frame:
    return table[table["dtype"] == dtype]


def _reads(probes: Decodability, dtype: str, rows: Frame) -> bool | None:
    """Whether a probe says most right answers at these lengths, by more than its controls; None
    where none was tested.
    """
    tested = int(rows["prompts"].sum())
    if not tested:
        return None
    best, _ = best_probe(probes, dtype)
    by_more = best["finding"] == DECODABLE and not untrained_as_good(probes, best)
    return by_more and float((rows["decoded"] * rows["prompts"]).sum()) > tested / 2


def failure_stage_findings(result: FailureStage) -> list[str]:
    """Whether answers are wrong where the last token still tells n from n + 1, and how it was asked
    (a sweep has no answers); then verdicts, and the probe of the first dtype."""
    frame, dtype = frame_of(result), str(result.provenance.parameters["dtypes"][0])
    verdicts = [
        f"{name}, mitigation {mitigation}: {_verdicts(group)}."
        for (mitigation, name), group in frame.groupby(["mitigation", "dtype"], sort=False)
    ]
    answers = len(result.answers) > 0
    return [
        *([error_verdict(result).sentence, _answer_counts(result, dtype)] if answers else []),
        " ".join(verdicts),
        *([] if result.probes.frame.empty else [_probe_words(result.probes, dtype)]),
    ]


def _answer_counts(result: FailureStage, dtype: str) -> str:
    """How many answers in a dtype are right, how many a probe says, the task, and the token that
    was read.
    """
    parameters = result.provenance.parameters
    answers, frame = (_of(table, dtype) for table in (result.answers, frame_of(result)))
    tested, decoded = frame["prompts"].sum(), (frame["decoded"] * frame["prompts"]).sum()
    read_at = parameters.get("read_at")
    return (
        f"{int(answers['correct'].sum())} of {len(answers)} answers are right; a linear probe says "
        f"{decoded:.0f} of {tested} right. Asked in {dtype}: {parameters['task']}, "
        f"{frame['length'].min()} to {frame['length'].max()} items. "
        f"{which_token(read_at) if read_at else ''}"
    ).strip()


def _verdicts(rows: Frame) -> str:
    """Each verdict with its lengths, and its reason where it has one."""
    return "; ".join(
        f"{name} at n = {runs(group['length'].tolist())}{f' ({reason})' if reason else ''}"
        for name in VERDICTS
        for reason, group in rows[rows["verdict"] == name].groupby("reason", sort=False)
    )


# --- probes


def probe_findings(result: Decodability) -> list[str]:
    """Where the prompt was read; for each dtype the best place and its controls."""
    dtypes = [str(name) for name in frame_of(result)["dtype"].unique() if name != "none"]
    places = [_probe_words(result, dtype) for dtype in dtypes]
    return present(where_read(result.provenance.parameters), *places)[:MOST]


def _probe_words(probes: Decodability, dtype: str) -> str:
    """The place where the probe is right most often, its share right by test, and those of its
    controls, each with its interval.
    """
    best, _ = best_probe(probes, dtype)
    frame = frame_of(probes)
    alone = frame["site"] == "length"
    at_best = frame[["site", "layer", "dtype"]].eq([best["site"], best["layer"], dtype]).all(axis=1)
    names = frame["control"].replace("none", "probe").mask(alone, "length alone")
    rows = frame.assign(name=names)[at_best | alone]
    tests = [
        f"{test}: {', '.join(map(_right, of_test.to_dict('records')))}"
        for test in TESTS
        if len(of_test := rows[rows["test"] == test])
    ]
    return (
        f"{dtype}: {best['finding']}. The probe is right most often at {best['site']}, layer "
        f"{best['layer']}. {'; '.join(tests)}."
    )


def _right(row: Mapping[Hashable, Any]) -> str:
    interval = "(no interval)" if pd.isna(row["low"]) else f"[{row['low']:.0%}, {row['high']:.0%}]"
    return f"{row['name']} {row['accuracy']:.0%} {interval}"
