"""An answer against its question: the final line that it gives, whether it is the right one, and what could be read in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ostools.measure.answers.answers import Answer, score
from ostools.measure.posed import Posed
from ostools.tasks import Task
from ostools.tasks.questions import Question


@dataclass(frozen=True)
class Verdict:
    """What was made of an answer.

    line: the final answer line. correct: it is the right one, exactly. parsable: an answer of the kind that was asked for could
    be read in it, right or wrong. number: the one whole number in it. absolute_error: of a task whose answer is a number.
    """

    line: str
    correct: bool
    parsable: bool
    number: int | None
    absolute_error: int | None


def judge(posed: Posed | Question, answer: Answer) -> Verdict:
    """The answer's final line: its last that is not blank; behind reasoning, from where the line that was asked for begins.

    (The paper's worked examples put reasoning and answer on one line.) Where the answer is a number, a line without one whole
    number is unparsable (`score`); elsewhere one without the form that was asked for. So is reasoning that was cut before its
    end: what it would have come to is not known.
    """
    task = posed.task
    lines = [line.strip() for line in answer.text.splitlines() if line.strip()]
    line = lines[-1] if lines else ""
    opening = _form(task)[0]
    if task.reasons and opening and opening in line:
        line = line[line.rindex(opening) :]
    against = score(replace(answer, text=line), posed.line, posed.key)
    cut = answer.ended == "length"
    if task.numeric:
        number = None if cut and task.reasons else against.number
        error = None if number is None else against.absolute_error
        return Verdict(line, against.correct, number is not None, number, error)
    parsable = not cut and bool(line) and _has_form(task, line)
    return Verdict(line, against.correct, parsable, against.number if parsable else None, None)


def answer_columns(posed: Posed | Question, answer: Answer) -> dict[str, Any]:
    """What every table of answers says of one: its question, what was written, and what was made of it."""
    verdict = judge(posed, answer)
    return {
        "length": posed.length,
        "seed": posed.seed,
        "tokens": posed.tokens,
        "key": posed.key,
        "answer": verdict.line,
        "text": answer.text,
        "ended": answer.ended,
        "correct": verdict.correct,
        "parsable": verdict.parsable,
        "number": verdict.number,
        "absolute_error": verdict.absolute_error,
    }


def _form(task: Task) -> tuple[str, str]:
    """The words of the answer line before the answer and behind it."""
    # Of private use: a character that no format, such as JSON's, writes otherwise.
    before, _, after = task.answer_line("\ue000").partition("\ue000")
    return before.strip(), after.strip()


def _has_form(task: Task, line: str) -> bool:
    before, after = _form(task)
    return line.startswith(before) and line.endswith(after) and len(line) > len(before) + len(after)
