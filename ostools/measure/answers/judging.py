"""An answer against its question: what was read in it (`reading`), whether that is right, and the value that it asserts.

Beside the strict reading, which wants the paper's form, stands the value that a free answer asserts, whatever form was asked
for: "The last digit in this sequence is 8." asserts 8. A sentence asserts a value where

1. it names the answer, and a value stands after its verb: "the answer is 12", "\\boxed{12}", "Result: 12";
2. it names what was asked for, in the task's own words (`Wording`): "the number of ones is 12", "there are 12 ones";
3. it is an equation of a sum: "1 + 1 + 1 = 3";
4. it is a line with nothing but a value, all such lines agree, and it is the last line or the text has no other number: "11."

The first of these that occurs decides, by its last sentence. Reading ends with a question after an assertion, and with another
question of the task. A negation, an alternative ("12 or 13"), a range, or a value of something else ("the second digit is 1")
asserts nothing. The right answer is not known to the reader. Of a text that was cut the unfinished sentence is not read.

Cost: linear in the text.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from transformer_lens.model_bridge import TransformerBridge

from ostools.measure.answers.answers import Answer, Stop, text_behind
from ostools.measure.answers.reading import CUT_OFF, HAS_ANSWER, ParsedAnswer, Reader, prefilled_reader, reader
from ostools.measure.answers.values import digits_in, free
from ostools.measure.task_prompt import TaskPrompt
from ostools.tasks import Task
from ostools.tasks.base import Wording
from ostools.tasks.questions import Question

_ANSWER = frozenset({"answer", "result"})
_VERBS = frozenset({"is", "are", "was", "were", "be", "equals", "=", ":", "becomes", "gives"})
_FILLERS = frozenset(
    re.findall(
        r"\w+",
        "then therefore thus so hence simply exactly just only equal to a an the number digit value also indeed about "
        "approximately actually clearly still now and final",
    )
)
_OPERATORS = frozenset("+-*/×÷−–^%")
_NOT_A_COUNT = frozenset({"of", "first", "last", "next", "another", "every", "each"})
_SMALL = re.findall(
    r"\w+",
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen "
    "nineteen",
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_WORDS = {word: value for value, word in enumerate(_SMALL)} | {word: 10 * (2 + at) for at, word in enumerate(_TENS)}
_TOKEN = re.compile(r"\d+(?:[.,]\d+)*[a-z]*|[^\W\d_]+|[=:+\-−–*/×÷^%?]")
_QUOTES = re.compile(r"[*_`$\"'\u201c\u201d\u2018\u2019#<>()\[\]]|\\[()\[\]]")
_BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")
_STYLED = re.compile(r"\\[a-z]+\s*\{|[{}]")
_TIMES = re.compile(r"\\(?:times|cdot)")
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+")
_VALUE = re.compile(r"\d+(?:,\d+)*")


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

    content: the value that the text asserts in whatever words (`asserted`), of an answer in the form the value in it;
    None where it asserts none. content_correct: whether that is the right one; None where there is no `content`.
    """

    line: str
    kind: str
    correct: bool
    number: int | None
    absolute_error: int | None
    content: str | None = None
    content_correct: bool | None = None


def judge(question: Question, answer: Answer) -> AnswerVerdict:
    """Judge an answer to a task's prompt: what was read in it, and whether that is right."""
    reading, task = reader_of(question), question.task
    parsed = reading.read(answer.text, answer.ended)
    verdict = _verdict(parsed, question.key, question.to_write, task.numeric)
    in_form = parsed.kind == HAS_ANSWER and (reading.form is not None or task.wording is None)
    if in_form and task.named_answer(parsed.line, question.pieces) is None:
        content = str(parsed.number) if task.numeric and parsed.number is not None else parsed.answer
    else:
        content = asserted(task, question.pieces, reading, (question.prefill or "") + answer.text, answer.ended)
    if content is None:
        return verdict
    if task.numeric and content.isdecimal() and question.key.isdecimal():
        # As text: Python makes no int of more than 4,300 digits.
        return replace(verdict, content=content, content_correct=content.lstrip("0") == question.key.lstrip("0"))
    return replace(verdict, content=content, content_correct=content == free(question.key))


def judge_prefilled(answer: Answer, key: str) -> AnswerVerdict:
    """Judge an answer after a prompt with a prefilled answer line: the rest of that line, against the number `key`."""
    return _verdict(prefilled_reader(True).read(answer.text, answer.ended), key, key, True)


def reader_of(question: Question) -> Reader:
    """Reader of the answers to a task's prompt; after a prefilled answer line the rest of that line is read."""
    if question.prefill is not None:
        return prefilled_reader(question.task.numeric)
    return reader(question.task, question.pieces, question.asked_text)


def stops_of(questions: Sequence[Question]) -> list[Stop]:
    return [reader_of(question).closed for question in questions]


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


def answer_columns(question: Question, answer: Answer, reasoning: int | None = None) -> dict[str, Any]:
    """Columns of one answer in every table of answers: its question, its text, and the verdict.

    `reasoning`: how many of its tokens are thoughts, where that is known.
    """
    verdict = asdict(judge(question, answer))
    columns = {name: getattr(question, name) for name in ("length", "seed", "tokens", "key")}
    written = {"answer": verdict.pop("line"), "text": answer.text, "ended": answer.ended, "reasoning_tokens": reasoning}
    return columns | written | verdict


@dataclass(frozen=True)
class _Sentence:
    """One sentence: its words, numbers and signs in lower case; whether it asks; whether its line has no other."""

    tokens: list[str]
    asks: bool
    alone: bool


def asserted(task: Task, pieces: Sequence[str], reader: Reader, text: str, ended: str) -> str | None:
    """The value that a text asserts as the answer to a prompt with these pieces; None where it asserts none.

    Digits as they were written, of a number without commas between thousands; of a task that lists its possible answers
    (`Task.named_answer`) the one that is named. None for a task whose `wording` is not known.
    """
    # Of a line that is not finished the last sentence is not read.
    parts = [line if finished else "".join(_with_ends(line)[:-1]) for line, finished in reader.lines(text, ended)]
    lines = [line for line in parts if line]
    wording = task.wording
    if wording is None:
        return next((value for line in lines if (value := task.named_answer(line, pieces)) is not None), None)
    alphabet = {letter for piece in pieces for letter in piece if letter.isdecimal()}
    value = _Assertions(wording, alphabet, task.numeric).decide(_sentences(lines))
    return value.replace(",", "") if value is not None and task.numeric else value


def _with_ends(line: str) -> list[str]:
    ends = [0, *(match.end() for match in _SENTENCE_END.finditer(line)), len(line)]
    return [line[start:end] for start, end in pairwise(ends)]


def _sentences(lines: Sequence[str]) -> Iterator[_Sentence]:
    """A line that ends in a verb ("The answer is:") goes on in the next one."""
    tokens: list[str] = []
    for line in lines:
        parts = _with_ends(line)
        for sentence in parts:
            tokens.extend(_tokens(sentence))
            if tokens and tokens[-1] not in _VERBS:
                yield _Sentence(tokens, sentence.rstrip().endswith("?"), len(parts) == 1)
                tokens = []


def _tokens(sentence: str) -> list[str]:
    plain = _QUOTES.sub("", _STYLED.sub(" ", _TIMES.sub("*", _BOXED.sub(" answer = ", sentence.replace("{,}", ",")))))
    return _TOKEN.findall(plain.lower())


class _Assertions:
    def __init__(self, wording: Wording, alphabet: set[str], numeric: bool) -> None:
        self.wording, self.alphabet, self.numeric = wording, alphabet, numeric
        self.subjects = [tuple(phrase.split()) for phrase in wording.subjects]

    def decide(self, sentences: Iterator[_Sentence]) -> str | None:
        asserted_values: dict[str, list[str]] = {"answer": [], "subject": [], "equation": []}
        bare: set[str] = set()
        numbers: set[str] = set()
        last_is_bare = False
        for sentence in sentences:
            if sentence.asks and (asserted_values["answer"] or asserted_values["subject"]):
                break
            for kind, value in self._in(sentence.tokens):
                asserted_values[kind].append(value)
            value = _leading(sentence.tokens) if sentence.alone else None
            last_is_bare = value is not None and value[1] == len(sentence.tokens)
            if value is not None and last_is_bare:
                bare.add(value[0])
            numbers |= {token for token in sentence.tokens if token[0].isdecimal()}
        if values := next(filter(None, asserted_values.values()), None):
            return values[-1]
        return bare.pop() if len(bare) == 1 and (last_is_bare or len(numbers) <= 1) else None

    def _in(self, tokens: list[str]) -> Iterator[tuple[str, str]]:
        """Assertions of one sentence: `answer`, `subject` or `equation`, and the value."""
        parts = _at_verbs(tokens)
        about = ""
        for subject, part in pairwise(parts):
            # Between two verbs of "the answer is 2 * 5 = 10" stands no new subject.
            about = self._about(subject) or (about if _is_arithmetic(subject) else "")
            value = _leading(part)
            if value is None or not _ends_there(part, value[1]):
                continue
            if about:
                yield about, value[0]
            elif self.wording.equations and self._own_sum(subject):
                yield "equation", value[0]
        values = list(self._with_units(tokens))
        if len(values) == 1:
            yield "subject", values[0]

    def _about(self, words: Sequence[str]) -> str:
        """Whether the words before a verb name the answer, or what was asked for."""
        if not _ANSWER.isdisjoint(words):
            return "answer"
        for phrase in self.subjects:
            for at in range(len(words) - len(phrase) + 1):
                if tuple(words[at : at + len(phrase)]) == phrase and words[at - 1 : at] not in (["to"], ["second"]):
                    later_words = words[at + len(phrase) :]
                    return "subject" if all(self._of_the_sequence(word) for word in later_words) else ""
        return ""

    def _of_the_sequence(self, word: str) -> bool:
        """Whether a word is no number, or one of the sequence's own digits: "the sum of the first 1000 numbers" is another."""
        return not word[0].isdecimal() or set(word) - {","} <= self.alphabet

    def _own_sum(self, words: Sequence[str]) -> bool:
        return "+" in words and _is_arithmetic(words) and all(map(self._of_the_sequence, words))

    def _with_units(self, tokens: list[str]) -> Iterator[str]:
        """Values with a unit behind them: "there are 12 ones"."""
        for at in range(len(tokens) if self.wording.units else 0):
            value = _value(tokens, at)
            if value is None or (at and not self._counts(tokens[max(at - 2, 0) : at])):
                continue
            if any(word in self.wording.units for word in tokens[value[1] : value[1] + 2]):
                yield value[0]

    @staticmethod
    def _counts(before: Sequence[str]) -> bool:
        """Whether a number after these words is a count: not in "groups of 5 ones", but in "a total of 12 ones"."""
        if before[-1] == "of":
            return before[0] == "total"
        return before[-1] not in _NOT_A_COUNT | _OPERATORS | {"not", "or"} and not before[-1][0].isdecimal()


def _at_verbs(tokens: Sequence[str]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for at, token in enumerate(tokens):
        if token not in _VERBS:
            parts[-1].append(token)
        elif at == 0 or tokens[at - 1] not in _VERBS:
            parts.append([])
    return parts


def _is_arithmetic(words: Sequence[str]) -> bool:
    return all(word[0].isdecimal() or word in _OPERATORS or word in _FILLERS for word in words)


def _leading(tokens: Sequence[str]) -> tuple[str, int] | None:
    """The value with which the tokens begin, words without a meaning of their own aside, and where it ends."""
    at = 0
    while at < len(tokens) and tokens[at] in _FILLERS:
        at += 1
    return _value(tokens, at)


def _value(tokens: Sequence[str], at: int) -> tuple[str, int] | None:
    """The whole number at that place, in digits or in words, and where it ends."""
    if at >= len(tokens):
        return None
    token = tokens[at]
    if _VALUE.fullmatch(token):
        return token, at + 1
    if token not in _WORDS:
        return None
    value, end = _WORDS[token], at + 1
    if value >= 20:
        end += tokens[end : end + 1] == ["-"]
        unit = _WORDS.get(tokens[end], 0) if end < len(tokens) else 0
        if 0 < unit < 10:
            return str(value + unit), end + 1
    return str(value), at + 1


def _ends_there(tokens: Sequence[str], end: int) -> bool:
    """Whether nothing after a value makes another one of it: 12 + 1, 12 or 13, 12 to 14, one of the."""
    after = tokens[end : end + 1]
    return not after or not (after[0] in _OPERATORS | {"or", "to", "of"} or after[0][0].isdecimal())
