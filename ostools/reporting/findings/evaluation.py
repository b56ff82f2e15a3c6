"""What behaviour shows, in sentences: what was asked, what the intervals are of, and what the numbers do not say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ostools.measure.answers.evaluate import NOT_SAMPLED, PROMPTS, Evaluation
from ostools.measure.answers.reading import CUT_OFF, SOMETHING_ELSE
from ostools.measure.hosted.answer_file import asked_elsewhere, unanswered
from ostools.reporting.style import theme
from ostools.results import Frame, frame_of

_ELICITED = {
    "chat": "in the chat template",
    "few-shot": "few-shot: after worked examples, with the answer line begun",
    "zero-shot": "zero-shot: the prompt alone",
}
_SHOWN, _CHARACTERS = 3, 80


def evaluation_notes(result: Evaluation) -> list[str]:
    """What was asked, what the intervals are of, what could not be read, and where a mitigation did nothing."""
    frame: Frame = frame_of(result)
    summary: Frame = result.summary
    how = result.provenance.parameters
    asked = f"{int(summary['asked'].sum())} answers to {int(summary['prompts'].sum())} prompts, "
    if how.get("hosted"):
        asked += asked_elsewhere(result)
    else:
        asked += "greedy" if how["temperature"] == 0 else f"drawn at temperature {how['temperature']:g}"
        asked += f", {_ELICITED[how['elicitation']]}"
    notes = [f"{asked}. {_intervals(summary)}", *unanswered(result)]
    without = [(name, int(summary[name].sum())) for name in ("something_else", "cut_off")]
    if any(count for _, count in without):
        notes.append(
            f"{_without(without, how['max_new_tokens'])}. These do not count as right, and their error cannot be measured."
        )
    notes += _by_content(summary)
    likely = float(frame.drop_duplicates(["length", "seed"])["log_probability"].mean())
    if math.isfinite(likely):
        notes.append(f"The right line has a log probability of {likely:.3g} nats in the mean over prompts.")
    thought = frame["reasoning_tokens"].dropna() if "reasoning_tokens" in frame else frame["seed"].iloc[:0]
    if (thought > 0).any():
        notes.append(
            f"{int((thought > 0).sum())} answers begin with thoughts, of {int(thought[thought > 0].median())} tokens in the "
            "median. What stands after the thoughts is the answer."
        )
    if inactive := int((frame["status"] == "inactive").sum()):
        notes.append(f"Hollow marks: the mitigation did not change the prompt or the logits ({inactive} answers).")
    return notes


def _without(counts: Sequence[tuple[str, int]], limit: int | None) -> str:
    where = "by the server" if limit is None else f"at {limit} tokens"
    words = {
        "something_else": "wrote something that is not an answer",
        "cut_off": f"cut off {where} before an answer",
    }
    return ", ".join(f"{count} {words[name]}" for name, count in counts if count)


def _by_content(summary: Frame) -> list[str]:
    """The content reading, where it differs from the strict one."""
    strict, right, read = (int(summary[name].sum()) for name in ("right", "content_right", "content_read"))
    if (right, read) == (strict, strict + int(summary["wrong"].sum())):
        return []
    return [f"By their content, in whatever words, {read} answers assert a value, and {right} of them the right one."]


def unread_texts(result: Evaluation) -> list[str]:
    """Examples of texts that hold something else or were cut off, as they were written."""
    frame: Frame = frame_of(result)
    rows = frame[frame["kind"].isin([SOMETHING_ELSE, CUT_OFF])].drop_duplicates(subset="text").head(_SHOWN)
    return [
        f"Written at {row['length']} items ({row['kind']}): {theme.short_word(row['text'], _CHARACTERS)}"
        for row in rows.to_dict("records")
    ]


def _intervals(summary: Frame) -> str:
    kinds = set(summary["interval_of"]) - {NOT_SAMPLED}
    if not kinds:
        return "Nothing was drawn, so there is no interval."
    return f"Intervals: Wilson's, 95%, over {'prompts' if PROMPTS in kinds else 'the samples of the one prompt'}."


def evaluation_findings(result: Evaluation) -> list[str]:
    """The same for a terminal, with how many were right within the lengths of training and beyond.

    Those are the task's own: where a mitigation rewrote the text, of the task without it.
    """
    frame = frame_of(result)
    frame = frame[frame["correct"].notna()]
    said = [_right(frame, "All lengths")]
    known = frame["within_training"].dropna()
    if not known.empty and known.any() and not known.all():
        within = frame["within_training"].fillna(False).astype(bool)
        of = " of the task without the mitigation" if result.provenance.parameters["rewritten"] else ""
        said += [
            _right(frame[within], f"Within the lengths of training{of}"),
            _right(frame[~within], "Beyond these lengths"),
        ]
        said.append(
            f"Errors beyond say little about over-squashing, because such lengths{of or ' of this task'} were never trained."
        )
    notes = [note.replace("Hollow: the", "The") for note in evaluation_notes(result)]
    return [*said, *notes]


def _right(rows: Frame, where: str) -> str:
    return f"{where}: {int(rows['correct'].sum())} of {len(rows)} answers are right."


def answered(result: Evaluation) -> str:
    """Of all lengths, and of the length that went worst, where they differ."""
    frame: Frame = frame_of(result)
    summary: Frame = result.summary
    task = str(frame["task"].iloc[0])
    right, asked = int(summary["right"].sum()), int(summary["asked"].sum())
    lengths = summary["length"].tolist()
    span = f"{lengths[0]} to {lengths[-1]} items" if len(lengths) > 1 else f"{lengths[0]} items"
    said = f"Measured on {task}, {right} of {asked} answers are right ({span})"
    unread = asked - result.read
    if unread:
        said += f"; {unread} could not be read, and are neither right nor wrong"
    if summary["accuracy"].nunique() == 1:
        return f"{said}."
    worst = summary.loc[summary["accuracy"].idxmin()]
    low, high = float(worst["wilson_low"]), float(worst["wilson_high"])
    interval = "" if low != low else f", Wilson 95% {low:.0%} to {high:.0%}"
    within = worst["within_training"]
    where = "" if pd.isna(within) or bool(within) else ", a length never trained"
    return f"{said}; fewest at {int(worst['length'])} items{where}: {int(worst['right'])} of {int(worst['asked'])}{interval}."


def card_findings(accuracy: Sequence[Mapping[str, Any]]) -> list[str]:
    """Accuracies measured for a model's card, within its trained lengths and beyond them, never in one number."""
    said = []
    for within, words in ((True, "Inside the trained lengths"), (False, "Beyond the trained lengths")):
        shares = [float(row["accuracy"]) for row in accuracy if bool(row["within_training"]) is within]
        if not shares:
            continue
        right, wrong = sum(share >= 0.99 for share in shares), sum(share <= 0.01 for share in shares)
        said.append(
            f"{words}: of {len(shares)} measured combinations of task and length, {right} are answered exactly (99% of the "
            f"prompts or more), {wrong} never (1% or fewer); the median is {float(np.median(shares)):.0%}."
        )
    if any(not bool(row["within_training"]) for row in accuracy):
        said.append(
            "Longer lengths of these tasks were never trained. Failures at those lengths say little about over-squashing."
        )
    return said
