"""Sentences on answers: how many are right, what could not be read, and which of two is better."""

from __future__ import annotations

from ostools.ground.words import number
from ostools.measure import AnswerDifference, Evaluation
from ostools.measure.answers.paired import FIRST_BETTER, SECOND_BETTER
from ostools.measure.hosted.answer_file import asked_elsewhere, unanswered
from ostools.reporting.findings import present
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
    prompts, asked, something_else, cut, right, content_right = (
        int(totals[name]) for name in names
    )
    how = f"greedy, {_ELICITED[settings['elicitation']]}" if not settings.get("hosted") else ""
    is_drawn = summary["wilson_low"].notna().any()
    grade = settings.get("grade")
    by = "In the form or else by the last number" if grade is None else f"By {theme.inert(grade)}"
    inactive = int((frame_of(result)["status"] == "inactive").sum())
    interval = (
        "Intervals: Wilson's, 95%, over prompts."
        if is_drawn
        else "Nothing was drawn, so there is no interval."
    )
    return present(
        f"{asked} answers to {prompts} prompts, {how or asked_elsewhere(result)}. {interval}",
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
    frequent = counts[counts > 1].head(_FAVOURITES)
    words = ", ".join(f"{number} ({count} times)" for number, count in frequent.items())
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
    return (
        f"Fewest right at {int(worst['length'])} items: {int(worst['right'])} of "
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
