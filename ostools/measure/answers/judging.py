"""An answer against its question: what was read in it (`reading`), and whether that is right."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformer_lens.model_bridge import TransformerBridge

from ostools.measure.answers.answers import Answer, Stop, text_behind
from ostools.measure.answers.content import asserted
from ostools.measure.answers.reading import ANSWERED, CUT_OFF, Found, Reader, begun, reader
from ostools.measure.answers.values import digits_in, free
from ostools.measure.posed import Posed
from ostools.tasks.questions import Question


@dataclass(frozen=True)
class Verdict:
    """What was made of an answer.

    line: the answer line as it was written; of something else the last line that was read. kind: "answered", "something else"
    or "cut off". number: the one whole number in the answer. absolute_error: |number - right number|, of a task whose answer is
    a number.

    correct: of a task whose answer is a number, absolute_error is 0: the number counts, and "12 ones", "012" and "2 * 5 + 2 =
    12" are right against 12. Where there is no absolute_error (a digit or a number is copied), the answer that was read is
    the right one, character by character, whatever the decoration around it (Markdown, LaTeX, quotation marks, brackets, a
    full stop): "00" is no copy of "0".

    The paper draws the error of Figure 3 and does not say when an answer is right; error 0 is our reading.

    content: the value that the text asserts in whatever words (`content.asserted`), of an answer in the form the value in it;
    None where it asserts none. content_correct: whether that is the right one; None where there is no `content`.
    """

    line: str
    kind: str
    correct: bool
    number: int | None
    absolute_error: int | None
    content: str | None = None
    content_correct: bool | None = None


def judge(posed: Posed | Question, answer: Answer) -> Verdict:
    """What was read in an answer to a posed question, and whether it is right."""
    reading = reader_of(posed)
    found = reading.read(answer.text, answer.ended)
    line = posed.line if isinstance(posed, Question) else posed.to_write
    verdict = _verdict(found, posed.key, line, posed.task.numeric)
    return _with_content(verdict, posed, _content(posed, reading, found, answer))


def _content(posed: Posed | Question, reading: Reader, found: Found, answer: Answer) -> str | None:
    """The value that the answer asserts: in the form, where it is read there, else in whatever words."""
    in_form = found.kind == ANSWERED and (reading.form is not None or posed.task.wording is None)
    named = posed.task.named(found.line, posed.pieces)
    if in_form and named is None:
        return found.answer if found.number is None or not posed.task.numeric else str(found.number)
    prefill = "" if isinstance(posed, Question) else posed.prefill or ""
    return asserted(posed.task, posed.pieces, reading, prefill + answer.text, answer.ended)


def _with_content(verdict: Verdict, posed: Posed | Question, content: str | None) -> Verdict:
    if content is None:
        return verdict
    numeric = posed.task.numeric and content.isdecimal() and posed.key.isdecimal()
    # As text: Python makes no int of more than 4,300 digits.
    same = content.lstrip("0") == posed.key.lstrip("0") if numeric else content == free(posed.key)
    return replace(verdict, content=content, content_correct=same)


def judge_begun(answer: Answer, key: str) -> Verdict:
    """Of an answer after a prompt that has begun the answer line: the rest of that line, against the number `key`."""
    return _verdict(begun(True).read(answer.text, answer.ended), key, key, True)


def reader_of(posed: Posed | Question) -> Reader:
    """How the answers to a posed question are read: after a prompt that has begun the answer line, as the rest of it."""
    if isinstance(posed, Posed) and posed.prefill is not None:
        return begun(posed.task.numeric)
    text = posed.text if isinstance(posed, Question) else posed.prompt.text
    return reader(posed.task, posed.pieces, text or "")


def stops_of(posed: Sequence[Posed]) -> list[Stop]:
    """When each answer is at its end: what `answers` takes, so that generation and reading agree."""
    return [reader_of(one).closed for one in posed]


def _verdict(found: Found, key: str, line: str, numeric: bool) -> Verdict:
    # What is exactly the asked-for line is right, whatever a task's answers look like.
    exact = found.line == line.strip() and found.kind != CUT_OFF
    same = exact or (found.kind == ANSWERED and found.answer in (free(key), free(line)))
    known = numeric and found.number is not None and digits_in(key) is not None
    error = abs(found.number - int(key)) if known and found.number is not None else None
    right = same if error is None else error == 0
    return Verdict(found.line, ANSWERED if exact else found.kind, right, found.number, error)


def reasoning_tokens(model: TransformerBridge, posed: Posed, answer: Answer) -> int:
    """How many of an answer's tokens are thoughts, their marks counted; 0 of an answer without."""
    at, prompt = reader_of(posed).answer_start(answer.text), posed.prompt.ids.tolist()
    written = list(answer.ids[: len(answer.ids) - (answer.ended == "eos")])

    def long_enough(count: int) -> bool:
        return len(text_behind(model.tokenizer, prompt, written[:count])) >= at

    return bisect_left(range(len(written)), True, key=long_enough)


def answer_columns(posed: Posed | Question, answer: Answer, reasoning: int | None = None) -> dict[str, Any]:
    """What every table of answers says of one: its question, what was written, and what was made of it; `reasoning`: how many
    tokens of it are thoughts, where that is known."""
    verdict = judge(posed, answer)
    return {
        "length": posed.length,
        "seed": posed.seed,
        "tokens": posed.tokens,
        "key": posed.key,
        "answer": verdict.line,
        "text": answer.text,
        "ended": answer.ended,
        "reasoning_tokens": reasoning,
        "kind": verdict.kind,
        "correct": verdict.correct,
        "number": verdict.number,
        "absolute_error": verdict.absolute_error,
        "content": verdict.content,
        "content_correct": verdict.content_correct,
    }
