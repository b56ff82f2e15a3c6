"""Sentences on answers: how many are right, what could not be read, counting, and what mitigations
change.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from ostools.measure.answers.counting import Counting
from ostools.measure.answers.paired import (
    FIRST_BETTER,
    NO_DIFFERENCE,
    SECOND_BETTER,
    SMALL,
    AnswerDifference,
)
from ostools.measure.answers.reading import CUT_OFF, SOMETHING_ELSE
from ostools.measure.answers.result import NOT_SAMPLED, PROMPTS, Evaluation
from ostools.measure.hosted.answer_file import asked_elsewhere, unanswered
from ostools.reporting.findings import MOST, first_few
from ostools.reporting.style import theme
from ostools.results import Frame, Result, Row, frame_of

_ELICITED = {
    "chat": "in the chat template",
    "few-shot": "few-shot: after worked examples, with the answer line begun",
    "zero-shot": "zero-shot: the prompt alone",
}
_EXAMPLES, _CHARACTERS = 3, 80
_FAVOURITES, _FEWEST_WRONG = 3, 6


# --- behaviour


def evaluation_notes(result: Evaluation) -> list[str]:
    """The prompts, what the intervals are of, what could not be read, where a mitigation did
    nothing.
    """
    frame: Frame = frame_of(result)
    summary: Frame = result.summary
    settings = result.provenance.parameters
    prompts = f"{int(summary['asked'].sum())} answers to {int(summary['prompts'].sum())} prompts, "
    if settings.get("hosted"):
        prompts += asked_elsewhere(result)
    else:
        temperature = settings["temperature"]
        prompts += "greedy" if temperature == 0 else f"drawn at temperature {temperature:g}"
        prompts += f", {_ELICITED[settings['elicitation']]}"
    intervals = "Nothing was drawn, so there is no interval."
    if kinds := set(summary["interval_of"]) - {NOT_SAMPLED}:
        intervals = f"Intervals: Wilson's, 95%, over {'prompts' if PROMPTS in kinds else 'the samples of the one prompt'}."
    notes = [
        f"{prompts}. {intervals}",
        *unanswered(result),
        *_unread_notes(summary, settings["max_new_tokens"], settings.get("grade")),
    ]
    notes += _right_line(frame)
    thoughts = (
        frame["reasoning_tokens"].dropna()
        if "reasoning_tokens" in frame
        else frame["seed"].iloc[:0]
    )
    if (thoughts > 0).any():
        notes.append(
            f"{int((thoughts > 0).sum())} answers begin with thoughts, of {int(thoughts[thoughts > 0].median())} tokens in "
            "the median. What stands after the thoughts is the answer."
        )
    if inactive := int((frame["status"] == "inactive").sum()):
        notes.append(
            f"Hollow marks: the mitigation did not change the prompt or the logits ({inactive} answers)."
        )
    return notes


def _right_line(frame: Frame) -> list[str]:
    """log p of the right answer line: its mean, its range, and at how many prompts it is above log
    1/2.
    """
    lines = frame.drop_duplicates(["length", "seed"]).dropna(subset="log_probability")
    values = lines["log_probability"].to_numpy(dtype=float)
    if not len(values):
        return []
    low, high = (
        f"{values[place]:.3g} ({lines['length'].iloc[place]} items)"
        for place in (values.argmin(), values.argmax())
    )
    likely = int((values > math.log(0.5)).sum())
    return [
        f"log p of the right answer line: mean {values.mean():.3g} nats, from {low} to {high}; above log 1/2 at {likely} of "
        f"{len(values)} prompts."
    ]


def _unread_notes(summary: Frame, limit: int | None, grade: str | None) -> list[str]:
    """How many texts hold no answer line, and the content reading where it differs from the strict
    one.
    """
    words = {
        "something_else": "wrote something that is not an answer",
        "cut_off": f"cut off {'by the server' if limit is None else f'at {limit} tokens'} before an answer",
    }
    parts = [
        f"{count} {text}" for name, text in words.items() if (count := int(summary[name].sum()))
    ]
    text = f"{', '.join(parts)}. These do not count as right, and their error cannot be measured."
    notes = [text] if parts else []
    strict, right, read = (
        int(summary[name].sum()) for name in ("right", "content_right", "content_read")
    )
    if grade is not None:
        notes.append(f"Of {read} answers {right} are right by the rule {theme.inert(grade)}.")
    elif (right, read) != (strict, strict + int(summary["wrong"].sum())):
        notes.append(
            f"In the form or else by the last number, {read} answers hold a value, {right} of them the right one."
        )
    return notes


def unread_texts(result: Evaluation) -> list[str]:
    """Examples of texts that hold something else or were cut off, as they were written."""
    frame: Frame = frame_of(result)
    rows = frame[frame["kind"].isin([SOMETHING_ELSE, CUT_OFF])].drop_duplicates(subset="text")
    return [
        f"Written at {row['length']} items ({row['kind']}): {theme.short_word(row['text'], _CHARACTERS)}"
        for row in rows.head(_EXAMPLES).to_dict("records")
    ]


def evaluation_findings(result: Evaluation) -> list[str]:
    """How many answers are right, the worst length, lengths of training and beyond, wrong numbers,
    and how it was asked.
    """
    right, total = answer_counts(result)
    task = theme.inert(task_of(result))
    first = f"The model answers {right} of {total} prompts of {task} right ({_span(result)})."
    if not result.read:
        first = f"None of {total} texts holds an answer in the form that {task} asks for."
    wrong_numbers = " ".join([*favourite_numbers(result), *heaping_sentences(result)])
    how_asked = " ".join([*evaluation_notes(result), *unread_texts(result)])
    sentences = [first, answers_sentence(result), _training_words(result), wrong_numbers, how_asked]
    return [sentence for sentence in sentences if sentence]


def _training_words(result: Evaluation) -> str:
    """How many are right within the lengths of training and beyond: the task's, of the text without
    a mitigation.
    """
    frame = frame_of(result)
    frame = frame[frame["correct"].notna()]
    known_lengths = frame["within_training"].dropna()
    if known_lengths.empty or not known_lengths.any() or known_lengths.all():
        return ""
    within = frame["within_training"].fillna(False).astype(bool)
    unmitigated = (
        " of the task without the mitigation" if result.provenance.parameters["rewritten"] else ""
    )
    return (
        f"{_right(frame[within], f'Within the lengths of training{unmitigated}')} {_right(frame[~within], 'Beyond')} Errors "
        "beyond say little about over-squashing, because such lengths were never trained."
    )


def favourite_numbers(result: Evaluation) -> list[str]:
    """The wrong numbers that were answered most often, and how often; none where no wrong number
    came twice.
    """
    counts = result.wrong_numbers["number"].value_counts()
    most = [(number, count) for number, count in counts.items() if count > 1][:_FAVOURITES]
    if not most:
        return []
    (first, count), *less_frequent = most
    also = "".join(f", {number} for {count}" for number, count in less_frequent)
    return [
        f"Favourite wrong numbers: {first} for {count} of {int(counts.sum())} wrong answers{also}."
    ]


def heaping_sentences(result: Evaluation) -> list[str]:
    """Whether wrong numbers heap at multiples of 5 and of 10, each against permuted errors; none of
    few wrong numbers.
    """
    tests = [
        test
        for base in (5, 10)
        if (test := result.heaping(base)) is not None and test.wrong >= _FEWEST_WRONG
    ]
    if not tests:
        return []
    parts = [
        f"{test.multiples} are multiples of {test.base} (expected {test.expected:.3g}, p {test.p_value:.2g})"
        for test in tests
    ]
    return [
        f"Of {tests[0].wrong} wrong numbers {' and '.join(parts)}. Expected: with the errors exchanged among the questions of "
        "the same ten; one-sided, exact."
    ]


def _right(rows: Frame, where: str) -> str:
    return f"{where}: {int(rows['correct'].sum())} of {len(rows)} answers are right."


def task_of(result: Result) -> str:
    """The name of a result's task."""
    return str(frame_of(result)["task"].iloc[0])


def answer_counts(result: Evaluation) -> tuple[int, int]:
    """Number of right answers, and of all answers."""
    summary: Frame = result.summary
    return int(summary["right"].to_numpy(dtype=int).sum()), int(
        summary["asked"].to_numpy(dtype=int).sum()
    )


def constant_answer(result: Evaluation) -> tuple[str, int, int]:
    """The answer that is right on most prompts, on how many, and of how many: what a model reaches
    that does not read.
    """
    keys = frame_of(result).drop_duplicates(["length", "seed"])["key"]
    counts = keys.value_counts()
    return str(counts.index[0]), int(counts.iloc[0]), len(keys)


def constant_words(result: Evaluation) -> str:
    """The best constant answer, and on how many prompts it is right; empty for one prompt."""
    answer, right, prompts = constant_answer(result)
    return (
        ""
        if prompts == 1
        else f"best constant answer, {theme.short_word(answer)}: right on {right} of {prompts} prompts."
    )


def _span(result: Evaluation) -> str:
    lengths = result.summary["length"].tolist()
    return f"{lengths[0]} to {lengths[-1]} items" if len(lengths) > 1 else f"{lengths[0]} items"


def answers_sentence(result: Evaluation) -> str:
    """How many answers could not be read, how many are right at the worst length, where lengths
    differ, and by one answer to all."""
    summary: Frame = result.summary
    sentences = []
    if unread_count := answer_counts(result)[1] - result.read:
        sentences.append(f"{unread_count} could not be read, and are neither right nor wrong.")
    if summary["accuracy"].nunique() > 1:
        worst = summary.loc[summary["accuracy"].idxmin()]
        low, high, within = (
            float(worst["wilson_low"]),
            float(worst["wilson_high"]),
            worst["within_training"],
        )
        interval = "" if low != low else f", Wilson 95% {low:.0%} to {high:.0%}"
        where = "" if pd.isna(within) or bool(within) else ", a length never trained"
        sentences.append(
            f"Fewest right at {int(worst['length'])} items{where}: {int(worst['right'])} of {int(worst['asked'])}{interval}."
        )
    if words := constant_words(result):
        sentences.append(f"B{words[1:]}")
    return " ".join(sentences)


def difference_findings(result: AnswerDifference) -> list[str]:
    """Which of the two answers more questions right, by how much, and what was left out."""
    row: Any = result.summary.iloc[0]
    name = {SECOND_BETTER: row["second"], FIRST_BETTER: row["first"]}.get(row["verdict"])
    verdict = (
        f"{row['verdict'][0].upper()}{row['verdict'][1:]}" if name is None else f"{name} is better"
    )
    difference, low, high = (f"{100 * row[end]:+.1f}" for end in ("difference", "low", "high"))
    sentences = [
        f"{verdict}: {row['second_right']} of {row['questions']} right under {row['second']}, {row['first_right']} under "
        f"{row['first']}; {difference} points [{low}, {high}].",
        f"{row['gained']} questions are right under the second alone, {row['lost']} under the first alone (McNemar's exact "
        f"test: p {row['p_value']:.2g}). The interval is exact for independent questions.",
    ]
    if row["verdict"] == NO_DIFFERENCE:
        sentences.append(f"The whole interval is within {100 * SMALL:g} points.")
    if row["left_out"]:
        sentences.append(
            f"{row['left_out']} questions are left out: one of the two has no answer there, or its mitigation changed nothing."
        )
    return sentences


# --- counting

SCOPE = (
    "Predicted and measured are about the answer's first token, after the answer line is begun. The corollary is one-sided: it "
    "does not speak of errors at other counts, nor of errors in later tokens."
)


def counting_findings(result: Counting) -> list[str]:
    """Corollary 6.2's prediction and the answers, a sentence a dtype; what it does not speak of."""
    return [
        *first_few([counting_words(row) for _, row in result.summary.iterrows()], MOST - 1),
        SCOPE,
    ]


def counting_words(row: Row) -> str:
    """The counts that are predicted impossible, those that were answered wrong, and whether the two
    agree.
    """
    n_unread = row["something_else"] + row["cut_off"]
    right = row["counts"] - row["errors"] - n_unread
    first = "none" if pd.isna(row["first_error"]) else f"n = {row['first_error']}"
    text = (
        f"{row['dtype']}: predicted impossible where the pair is hidden: {row['impossible_status']}. Measured: {right} of "
        f"{row['counts']} answers right, {n_unread} without a number; first wrong number: {first}."
    )
    if row["pairs_hidden"]:
        text += (
            f" Of {row['pairs_hidden']} hidden pairs the answers' first tokens are the same at "
            f"{row['pairs_hidden'] - row['differ_hidden']}; of {row['tested_pairs']} whose right first tokens differ the model "
            f"gives both at {row['right_twice']}, one at {row['right_once']}."
        )
    return f"{text} Prediction: {row['verdict']}."
