"""Judge an answer to its question: strictly, as the prompt's form demands, and by the value that is
read in the text.

Strict (`correct`): the answer stands in the form that was asked for (`reading`). Read (`content`):
the answer in the form, else the last number of the text, or the last answer that the task lists.
Sentences are not understood: of "12 of the 20 digits" 20 is read. The table shows what was read,
and `grade=` of `evaluate` judges by any other rule.

Cost: linear in the text.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from ostools.ground import InputError, short_repr
from ostools.measure.answers.answers import Answer
from ostools.measure.answers.reading import (
    CUT_OFF,
    HAS_ANSWER,
    ParsedAnswer,
    digits_in,
    free,
    reader_of,
    without_thousands,
)
from ostools.tasks import Question

Grade = Callable[[Question, str], bool]
"""Return whether a text answers its question, by whatever rule."""
_NUMBER = re.compile(r"(?<![\w.,\u2212\u2013-])\d+(?!\w|[.,\u2212\u2013-]\d)")
"""A whole number that is no part of a word, of 1.5, of 1,00, of -7 or of 6-7."""
_SIGN = re.compile(r"(?<=\S)([ \t]+[-\u2212\u2013])[ \t]+(?=\d)")
"""A sign apart from its number, as the strict reading takes it too; at the start of a line it is a
bullet.
"""


@dataclass(frozen=True)
class AnswerVerdict:
    """Verdict on one answer.

    line: the answer line as it was written; of something else the last line that was read. kind:
    "answered", "something else" or "cut off". number: the one whole number in the answer.
    absolute_error: |number - right number|, of a task whose answer is a number.

    correct: where there is an absolute_error, it is 0: "12 ones", "012" and "2 * 5 + 2 = 12" are
    right against 12. Else (a digit or a number is copied) the answer is the right one, character by
    character, whatever the decoration around it: "00" is no copy of "0". The paper draws the error
    of Figure 3 and does not say when an answer is right; error 0 is our reading.

    content: the value that was read in the text (`_read_value`); None where there is none.
    content_correct: whether that is the right one, or what `grade` says; None where neither is
        there.
    """

    line: str
    kind: str
    correct: bool
    number: int | None
    absolute_error: int | None
    content: str | None
    content_correct: bool | None


def judge(question: Question, answer: Answer, grade: Grade | None = None) -> AnswerVerdict:
    """Judge an answer to a task's prompt, strictly and by the value that is read in it.

    Raises `InputError` where `grade` returns no bool.
    """
    parsed = reader_of(question).read(answer.text, answer.ended)
    key, line = question.key, question.to_write
    # What is exactly the asked-for line is right, whatever a task's answers look like.
    exact = parsed.line == line.strip() and parsed.kind != CUT_OFF
    same = exact or (parsed.kind == HAS_ANSWER and parsed.answer in (free(key), free(line)))
    error = None
    if question.task.numeric and parsed.number is not None and digits_in(key) is not None:
        error = abs(parsed.number - int(key))
    content = _read_value(question, parsed)
    return AnswerVerdict(
        line=parsed.line,
        kind=HAS_ANSWER if exact else parsed.kind,
        correct=same if error is None else error == 0,
        number=parsed.number,
        absolute_error=error,
        content=content,
        content_correct=_is_right(question, answer.text, content, grade),
    )


def _is_right(
    question: Question, text: str, content: str | None, grade: Grade | None
) -> bool | None:
    """What `grade` says of a text, else whether its value is the right one."""
    if grade is not None:
        is_right = grade(question, text)
        if type(is_right) is not bool:
            raise InputError(f"grade: expected True or False, found {short_repr(is_right)}")
        return is_right
    key = question.key
    if content is not None and question.task.numeric and content.isdecimal() and key.isdecimal():
        # As text: Python makes no int of more than 4,300 digits.
        return content.lstrip("0") == key.lstrip("0")
    return None if content is None else content == free(key)


def _read_value(question: Question, parsed: ParsedAnswer) -> str | None:
    """Return the answer in the form, else the last number, or the last answer that the task lists.

    Digits as they were written, without commas between thousands. None where the text has none or
    ends with the question's own sequence, of a text that was cut off before its answer, and for a
    task whose answers are neither digits nor listed (`Task.named_answer`).
    """
    if parsed.kind == CUT_OFF:
        return None  # its last number is only where it was cut
    task, in_form = question.task, parsed.kind == HAS_ANSWER
    lines = [parsed.line] if in_form else parsed.lines
    named_values = [task.named_answer(line, question.pieces) for line in lines]
    if values := [value for value in named_values if value is not None]:
        return values[-1]
    asks_for_form = reader_of(question).form is not None
    if in_form and (asks_for_form or not question.key.isdecimal()):
        return str(parsed.number) if task.numeric and parsed.number is not None else parsed.answer
    return _last_number("\n".join(lines), question.pieces) if question.key.isdecimal() else None


def _last_number(text: str, pieces: Sequence[str]) -> str | None:
    """Return the last whole number of a text; None where its last digits are no whole number (7.5,
    -7, 3rd: an earlier one is not the answer), and where it ends with the question's own items:
    the last digit of "1 1 1 0" is right for copy-last by itself, and says nothing.
    """
    plain = _SIGN.sub(r"\1", without_thousands(text))
    matches = list(_NUMBER.finditer(plain))
    if not matches or re.search(r"\d", plain[matches[-1].end() :]):
        return None
    numbers = [match[0] for match in matches]
    is_echo = len(pieces) > 1 and numbers[-len(pieces) :] == list(pieces)
    return None if is_echo else numbers[-1]


def grade_name(grade: Grade) -> str:
    """Name of a rule, for a provenance: its module and its own name."""
    return f"{grade.__module__}.{getattr(grade, '__qualname__', type(grade).__qualname__)}"


def answer_columns(
    question: Question, answer: Answer, grade: Grade | None = None
) -> dict[str, object]:
    """Columns of one answer in every table of answers: its question, its text, and the verdict."""
    verdict = asdict(judge(question, answer, grade))
    columns = {name: getattr(question, name) for name in ("length", "seed", "key")}
    text_columns = {"answer": verdict.pop("line"), "text": answer.text, "ended": answer.ended}
    return columns | text_columns | verdict
