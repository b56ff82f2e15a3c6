"""Value that a free answer asserts: "The last digit in this sequence is 8." asserts 8, whatever form was asked for.

Beside the strict reading (`reading`), which wants the paper's form. A sentence asserts a value where

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ostools.measure.answers.reading import Reader
from ostools.tasks import Task
from ostools.tasks.base import Wording

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
