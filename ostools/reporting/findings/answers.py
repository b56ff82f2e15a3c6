"""Sentences on answers: how many are right, what could not be read, and what mitigations change."""

from __future__ import annotations

import math

from ostools.ground.words import number
from ostools.measure import AnswerDifference, Evaluation
from ostools.measure.answers.paired import FIRST_BETTER, NO_DIFFERENCE, SECOND_BETTER, SMALL
from ostools.measure.answers.reading import CUT_OFF, SOMETHING_ELSE
from ostools.measure.hosted.answer_file import asked_elsewhere, unanswered
from ostools.reporting.findings import as_one_finding, present
from ostools.reporting.style import theme
from ostools.results import Frame, Result, Row, frame_of

_ELICITED = {
    "chat": "in the chat template",
    "few-shot": "few-shot: after worked examples, with the answer line begun",
    "zero-shot": "zero-shot: the prompt alone",
}
_WILSON = "Intervals: Wilson's, 95%, over prompts."
_NOT_DRAWN = "Nothing was drawn, so there is no interval."
_EXAMPLES, _CHARACTERS = 3, 80
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
        answers_sentence(result),
        _training_words(result),
        as_one_finding([_favourite_numbers(result), _heaping_sentence(result)]),
        as_one_finding([*evaluation_notes(result), *_unread_texts(result)]),
    )


def evaluation_notes(result: Evaluation) -> list[str]:
    """The prompts, what could not be read, the right line, and where a mitigation did nothing."""
    frame, settings = frame_of(result), result.provenance.parameters
    summary: Frame = result.summary
    how = f"greedy, {_ELICITED[settings['elicitation']]}" if not settings.get("hosted") else ""
    is_drawn = summary["wilson_low"].notna().any()
    inactive = int((frame["status"] == "inactive").sum())
    return present(
        f"{int(summary['asked'].sum())} answers to {int(summary['prompts'].sum())} prompts, "
        f"{how or asked_elsewhere(result)}. {_WILSON if is_drawn else _NOT_DRAWN}",
        *unanswered(result),
        *_unread_notes(summary, settings.get("grade")),
        _right_line(frame),
        f"The mitigation did not change the prompt or the logits of {inactive} answers."
        if inactive
        else "",
    )


def _right_line(frame: Frame) -> str:
    """log p of the right answer line: its mean, its range, and at how many prompts it is above log
    1/2.
    """
    lines = frame.drop_duplicates(["length", "seed"]).dropna(subset="log_probability")
    values = lines["log_probability"].astype(float)
    if values.empty:
        return ""
    return (
        f"log p of the right answer line: mean {values.mean():.3g} nats, from {values.min():.3g} "
        f"to {values.max():.3g}; above log 1/2 at {int((values > math.log(0.5)).sum())} of "
        f"{len(values)} prompts."
    )


def _unread_notes(summary: Frame, grade: str | None) -> list[str]:
    """How many texts hold no answer line, and the content reading where it differs from the strict
    one.
    """
    names = ["something_else", "cut_off", "right", "content_right", "content_read"]
    something_else, cut, right, content_right, read = map(int, summary[names].sum())
    by = "In the form or else by the last number" if grade is None else f"By {theme.inert(grade)}"
    return present(
        f"{something_else} wrote something that is not an answer, {cut} were cut off before one. "
        "These do not count as right, and their error cannot be measured."
        if something_else + cut
        else "",
        f"{by}, {content_right} of {read} answers that hold a value are right."
        if content_right != right
        else "",
    )


def _unread_texts(result: Evaluation) -> list[str]:
    """Examples of texts that hold something else or were cut off, as they were written."""
    frame = frame_of(result)
    rows = frame[frame["kind"].isin([SOMETHING_ELSE, CUT_OFF])].drop_duplicates(subset="text")
    return [
        (
            f"Written at {row['length']} items ({row['kind']}): "
            f"{theme.short_word(row['text'], _CHARACTERS)}"
        )
        for row in rows.head(_EXAMPLES).to_dict("records")
    ]


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
        f"right, beyond {right.loc[False]} of {prompts.loc[False]}. Errors beyond say little about "
        "over-squashing, because such lengths were never trained."
    )


def _favourite_numbers(result: Evaluation) -> str:
    """The wrong numbers that were answered most often; empty where no wrong number came twice."""
    counts = result.wrong_numbers["number"].value_counts()
    frequent = counts[counts > 1].head(_FAVOURITES)
    words = ", ".join(f"{number} ({count} times)" for number, count in frequent.items())
    return f"Favourites of {counts.sum()} wrong numbers: {words}." if words else ""


def _heaping_sentence(result: Evaluation) -> str:
    """Whether wrong numbers heap at multiples of 5 and of 10, each against permuted errors; empty
    for few wrong numbers.
    """
    tests = [test for base in (5, 10) if (test := result.heaping(base)) is not None]
    if not tests or tests[0].wrong < _FEWEST_WRONG:
        return ""
    parts = " and ".join(
        (
            f"{test.multiples} are multiples of {test.base} (expected {test.expected:.3g}, p "
            f"{test.p_value:.2g})"
        )
        for test in tests
    )
    return (
        f"Of {tests[0].wrong} wrong numbers {parts}. Expected: with the errors exchanged among "
        "the questions of the same ten; one-sided, exact."
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


def answers_sentence(result: Evaluation) -> str:
    """How many answers could not be read, how many are right at the worst length, where lengths
    differ, and by one answer to all."""
    summary: Frame = result.summary
    unread_count = answer_counts(result)[1] - result.read
    unread_words = f"{unread_count} could not be read, and are neither right nor wrong."
    fewest = ""
    if summary["accuracy"].nunique() > 1 and summary["asked"].max() > 1:
        worst: Row = summary.loc[summary["accuracy"].idxmin()]
        fewest = (
            f"Fewest right at {int(worst['length'])} items: {int(worst['right'])} of "
            f"{int(worst['asked'])}, Wilson 95% {number(worst['wilson_low'])} to "
            f"{number(worst['wilson_high'])}."
        )
    return as_one_finding([unread_words * (unread_count > 0), fewest, constant_words(result)])


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
        f"The whole interval is within {100 * SMALL:g} points." if verdict == NO_DIFFERENCE else "",
        (
            f"{row['left_out']} questions are left out: one of the two has no answer there, or "
            "its mitigation changed nothing."
        )
        if row["left_out"]
        else "",
    )
