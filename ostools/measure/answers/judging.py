"""An answer against its question: what was read in it (`reading`), and whether that is right."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from transformer_lens.model_bridge import TransformerBridge

from ostools.measure.answers.answers import Answer, Stop, text_behind
from ostools.measure.answers.content import asserted
from ostools.measure.answers.reading import CUT_OFF, HAS_ANSWER, ParsedAnswer, Reader, prefilled_reader, reader
from ostools.measure.answers.values import digits_in, free
from ostools.measure.task_prompt import TaskPrompt
from ostools.tasks.questions import Question


@dataclass(frozen=True)
class AnswerVerdict:
    """Verdict on one answer.

    line: the answer line as it was written; of something else the last line that was read. kind: "answered", "something else"
    or "cut off". number: the one whole number in the answer. absolute_error: |number - right number|, of a task whose answer is
    a number.

    correct: where there is an absolute_error, it is 0: "12 ones", "012" and "2 * 5 + 2 = 12" are right against 12. Else (a
    digit or a number is copied) the answer is the right one, character by character, whatever the decoration around it:
    "00" is no copy of "0". The paper draws the error of Figure 3 and does not say when an answer is right; error 0 is our
    reading.

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


def judge(question: TaskPrompt | Question, answer: Answer) -> AnswerVerdict:
    """Judge an answer to a task's prompt: what was read in it, and whether that is right."""
    reading, task = reader_of(question), question.task
    parsed = reading.read(answer.text, answer.ended)
    line, prefill = (
        (question.line, "") if isinstance(question, Question) else (question.to_write, question.prefill or "")
    )
    verdict = _verdict(parsed, question.key, line, task.numeric)
    in_form = parsed.kind == HAS_ANSWER and (reading.form is not None or task.wording is None)
    if in_form and task.named_answer(parsed.line, question.pieces) is None:
        content = str(parsed.number) if task.numeric and parsed.number is not None else parsed.answer
    else:
        content = asserted(task, question.pieces, reading, prefill + answer.text, answer.ended)
    if content is None:
        return verdict
    if task.numeric and content.isdecimal() and question.key.isdecimal():
        # As text: Python makes no int of more than 4,300 digits.
        return replace(verdict, content=content, content_correct=content.lstrip("0") == question.key.lstrip("0"))
    return replace(verdict, content=content, content_correct=content == free(question.key))


def judge_prefilled(answer: Answer, key: str) -> AnswerVerdict:
    """Judge an answer after a prompt with a prefilled answer line: the rest of that line, against the number `key`."""
    return _verdict(prefilled_reader(True).read(answer.text, answer.ended), key, key, True)


def reader_of(question: TaskPrompt | Question) -> Reader:
    """Reader of the answers to a task's prompt; after a prefilled answer line the rest of that line is read."""
    if isinstance(question, Question):
        return reader(question.task, question.pieces, question.text)
    if question.prefill is not None:
        return prefilled_reader(question.task.numeric)
    return reader(question.task, question.pieces, question.prompt.text or "")


def stops_of(task_prompts: Sequence[TaskPrompt]) -> list[Stop]:
    return [reader_of(task_prompt).closed for task_prompt in task_prompts]


def _verdict(parsed: ParsedAnswer, key: str, line: str, numeric: bool) -> AnswerVerdict:
    # What is exactly the asked-for line is right, whatever a task's answers look like.
    exact = parsed.line == line.strip() and parsed.kind != CUT_OFF
    same = exact or (parsed.kind == HAS_ANSWER and parsed.answer in (free(key), free(line)))
    has_error = numeric and parsed.number is not None and digits_in(key) is not None
    error = abs(parsed.number - int(key)) if has_error and parsed.number is not None else None
    kind = HAS_ANSWER if exact else parsed.kind
    return AnswerVerdict(parsed.line, kind, same if error is None else error == 0, parsed.number, error)


def reasoning_tokens(model: TransformerBridge, task_prompt: TaskPrompt, answer: Answer) -> int:
    """Number of an answer's tokens that are thoughts, their marks counted; 0 of an answer without."""
    at, prompt = reader_of(task_prompt).answer_start(answer.text), task_prompt.prompt.ids.tolist()
    new_ids = list(answer.ids[: len(answer.ids) - (answer.ended == "eos")])

    def long_enough(count: int) -> bool:
        return len(text_behind(model.tokenizer, prompt, new_ids[:count])) >= at

    return bisect_left(range(len(new_ids)), True, key=long_enough)


def answer_columns(question: TaskPrompt | Question, answer: Answer, reasoning: int | None = None) -> dict[str, Any]:
    """Columns of one answer in every table of answers: its question, its text, and the verdict.

    `reasoning`: how many of its tokens are thoughts, where that is known.
    """
    verdict = asdict(judge(question, answer))
    columns = {name: getattr(question, name) for name in ("length", "seed", "tokens", "key")}
    written = {"answer": verdict.pop("line"), "text": answer.text, "ended": answer.ended, "reasoning_tokens": reasoning}
    return columns | written | verdict
