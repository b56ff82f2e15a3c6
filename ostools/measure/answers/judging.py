"""An answer against its question: what was read in it (`reading`), and whether that is right."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
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


def judge(prompt_or_question: TaskPrompt | Question, answer: Answer) -> AnswerVerdict:
    """Judge an answer to a task's prompt: what was read in it, and whether that is right."""
    reading = reader_of(prompt_or_question)
    parsed_answer = reading.read(answer.text, answer.ended)
    line = prompt_or_question.line if isinstance(prompt_or_question, Question) else prompt_or_question.to_write
    verdict = _verdict(parsed_answer, prompt_or_question.key, line, prompt_or_question.task.numeric)
    return _with_content(verdict, prompt_or_question, _content(prompt_or_question, reading, parsed_answer, answer))


def _content(
    prompt_or_question: TaskPrompt | Question, reading: Reader, parsed_answer: ParsedAnswer, answer: Answer
) -> str | None:
    """The value that the answer asserts: in the form, where it is read there, else in whatever words."""
    in_form = parsed_answer.kind == HAS_ANSWER and (reading.form is not None or prompt_or_question.task.wording is None)
    named_item = prompt_or_question.task.named_answer(parsed_answer.line, prompt_or_question.pieces)
    if in_form and named_item is None:
        return (
            parsed_answer.answer
            if parsed_answer.number is None or not prompt_or_question.task.numeric
            else str(parsed_answer.number)
        )
    prefill = "" if isinstance(prompt_or_question, Question) else prompt_or_question.prefill or ""
    return asserted(prompt_or_question.task, prompt_or_question.pieces, reading, prefill + answer.text, answer.ended)


def _with_content(
    verdict: AnswerVerdict, prompt_or_question: TaskPrompt | Question, content: str | None
) -> AnswerVerdict:
    if content is None:
        return verdict
    numeric = prompt_or_question.task.numeric and content.isdecimal() and prompt_or_question.key.isdecimal()
    # As text: Python makes no int of more than 4,300 digits.
    same = (
        content.lstrip("0") == prompt_or_question.key.lstrip("0")
        if numeric
        else content == free(prompt_or_question.key)
    )
    return replace(verdict, content=content, content_correct=same)


def judge_prefilled(answer: Answer, key: str) -> AnswerVerdict:
    """Judge an answer after a prompt with a prefilled answer line: the rest of that line, against the number `key`."""
    return _verdict(prefilled_reader(True).read(answer.text, answer.ended), key, key, True)


def reader_of(prompt_or_question: TaskPrompt | Question) -> Reader:
    """Reader of the answers to a task's prompt; after a prefilled answer line the rest of that line is read."""
    if isinstance(prompt_or_question, TaskPrompt) and prompt_or_question.prefill is not None:
        return prefilled_reader(prompt_or_question.task.numeric)
    text = prompt_or_question.text if isinstance(prompt_or_question, Question) else prompt_or_question.prompt.text
    return reader(prompt_or_question.task, prompt_or_question.pieces, text or "")


def stops_of(task_prompts: Sequence[TaskPrompt]) -> list[Stop]:
    """Stops of the answers, as `answers` takes them, so that generation and reading agree."""
    return [reader_of(task_prompt).closed for task_prompt in task_prompts]


def _verdict(parsed_answer: ParsedAnswer, key: str, line: str, numeric: bool) -> AnswerVerdict:
    # What is exactly the asked-for line is right, whatever a task's answers look like.
    exact = parsed_answer.line == line.strip() and parsed_answer.kind != CUT_OFF
    same = exact or (parsed_answer.kind == HAS_ANSWER and parsed_answer.answer in (free(key), free(line)))
    both_numbers = numeric and parsed_answer.number is not None and digits_in(key) is not None
    error = abs(parsed_answer.number - int(key)) if both_numbers and parsed_answer.number is not None else None
    right = same if error is None else error == 0
    return AnswerVerdict(
        parsed_answer.line, HAS_ANSWER if exact else parsed_answer.kind, right, parsed_answer.number, error
    )


def reasoning_tokens(model: TransformerBridge, task_prompt: TaskPrompt, answer: Answer) -> int:
    """Number of an answer's tokens that are thoughts, their marks counted; 0 of an answer without."""
    at, prompt = reader_of(task_prompt).answer_start(answer.text), task_prompt.prompt.ids.tolist()
    new_ids = list(answer.ids[: len(answer.ids) - (answer.ended == "eos")])

    def long_enough(count: int) -> bool:
        return len(text_behind(model.tokenizer, prompt, new_ids[:count])) >= at

    return bisect_left(range(len(new_ids)), True, key=long_enough)


def answer_columns(
    prompt_or_question: TaskPrompt | Question, answer: Answer, reasoning: int | None = None
) -> dict[str, Any]:
    """Columns of one answer in every table of answers: its question, its text, and the verdict.

    `reasoning`: how many of its tokens are thoughts, where that is known.
    """
    verdict = judge(prompt_or_question, answer)
    return {
        "length": prompt_or_question.length,
        "seed": prompt_or_question.seed,
        "tokens": prompt_or_question.tokens,
        "key": prompt_or_question.key,
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
