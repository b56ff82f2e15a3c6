"""The table of `evaluate` out of answers that were made elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from hooks.errors import checked_arguments
from ostools import tasks
from ostools.ground.errors import InputError
from ostools.measure.answers.answers import Answer
from ostools.measure.answers.evaluate import COLUMNS, LEVEL, Evaluation, summarise
from ostools.measure.answers.judging import answer_columns
from ostools.measure.answers.reading import UNANSWERED
from ostools.measure.hosted.answer_file import Hosted, HostedAnswer
from ostools.tasks.questions import Question


@checked_arguments(InputError)
def hosted_evaluation(hosted: Hosted) -> Evaluation:
    """Table, summary and chart of `ostools.evaluate` for the answers of a model that runs elsewhere to one task's questions.

    Every question has a row. One without an answer has `kind` "unanswered" and nothing else known: it is counted in the
    summary's `unanswered`, and in no share, error or interval. `tokens` are the server's count, NA where it gave none. `status`
    says whether the mitigation changed the text.

    Raises `InputError` for questions of several tasks or mitigations.
    """
    kinds = {(tasks.label(question.task), question.mitigation) for question in hosted.questions}
    if len(kinds) != 1:
        raise InputError(
            f"expected questions of one task and one mitigation, found {sorted(kinds)}: read them one by one"
        )
    form = hosted.questions[0].task
    names = dict(zip(("task", "mitigation"), next(iter(kinds)), strict=True))
    frame: Any = hosted_rows(hosted, hosted.questions).assign(
        **names, mode=str(getattr(form, "mode", "none")), elicitation="chat"
    )
    frame = frame[list(COLUMNS)].astype(COLUMNS | {"tokens": "Int64"})
    provenance = hosted.provenance(
        measurement="evaluate",
        **names,
        lengths=sorted({question.length for question in hosted.questions}),
        seeds=sorted({question.seed for question in hosted.questions}),
        samples=1,
        chat=None,
        max_new_tokens=hosted.settings.get("max_tokens"),
        probability=False,
        rewritten=any(question.rewritten for question in hosted.questions),
        trained_length=None,
        level=LEVEL,
    )
    sampled = bool(hosted.settings.get("temperature"))
    return Evaluation(frame, provenance, summarise(frame, random=form.random, sampled=sampled))


def hosted_rows(hosted: Hosted, question_list: Sequence[Question]) -> pd.DataFrame:
    """A row a question, with the columns of `Evaluation` but task, mode and mitigation."""
    return pd.DataFrame([_row(question, hosted.answer_by_id.get(question.id)) for question in question_list])


def _row(question: Question, hosted_answer: HostedAnswer | None) -> dict[str, Any]:
    answer = hosted_answer or HostedAnswer("", "length")
    common_columns = {
        "status": "none" if question.mitigation == "none" else "active" if question.rewritten else "inactive",
        "sample": 0,
        "tokens": answer.tokens,
        "log_probability": math.nan,
        "rank": None,
        "seconds": answer.seconds,
        "within_training": None,
    }
    columns = answer_columns(question, Answer((), answer.text, answer.ended))
    if hosted_answer is None:
        key_columns = {name: columns[name] for name in ("length", "seed", "key")}
        columns = dict.fromkeys(columns) | key_columns | {"kind": UNANSWERED, "ended": UNANSWERED}
    return columns | common_columns
