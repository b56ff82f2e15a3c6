"""Parse an answer out of a text as models write it: the answer line, the answer in it, and one of
three kinds of outcome.

The paper's prompts ask for "the answer on the final line", in a form of words (Appendix C.1). How a
text is read the paper does not say. Here, from its beginning:

- An answer line holds the form's words and an answer after them. It may stand after other words of
  its line. Capitals, blanks, Markdown and LaTeX do not matter. The form with nothing behind it goes
  on in the next line. The form with the prompt's own placeholder (xxxx, <ANSWER>) is a quotation of
  the prompt, and no answer line.
- What stands before the first answer line is passed over: a preamble, or reasoning.
- The answer is that of the last answer line; other text after a finished one ends the reading. A
  model that corrects itself in the next line is read by its correction. "I hope this helps!" and
  whatever follows it are not read.
- Another question ends the reading, before an answer line too: what is answered after it is not
  this prompt's answer. It is known by the words with which the task opens its question. The
  prompt's own question with its own sequence may be repeated before the answer.
- Of text that opens with thoughts (<think>, [THINK], or another channel than the final one) what
  stands after them is read (</think>, [/THINK], the final channel). Thoughts that do not end before
  the text is cut are "cut off".

Tasks that ask for no form (`copy`, `count-ones-figure-5`, retrieval) are answered by the FIRST line
that could be an answer, right or wrong: by one with one whole number where a number is asked for,
else by one of which `Task.could_answer` says so. A model that continues its prompt answers at once;
a preamble ("Sure! Here it is:") is passed over.

A line is finished by a line's end, by another question, or by the end of the text, unless that was
cut at max_new_tokens or where the model repeated itself. Generation stops where `closed` says that
nothing that may follow changes what is read.

Cost: linear in the text, of which the first `LONGEST` characters are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from ostools.measure.answers.values import MARKS, free, leading_number, number_in, without_thousands
from ostools.measure.task_prompt import THINKING_MARK
from ostools.tasks import Task

HAS_ANSWER, SOMETHING_ELSE, CUT_OFF = "answered", "something else", "cut off"
UNFINISHED = ("length", "repeats")
"""How a text ended that the model would have continued: at max_new_tokens, or while it repeated
itself.
"""
UNANSWERED = "unanswered"
"""The kind of a question to which a hosted model's answer never came; no text is of it."""
STOP = "the end of the answer"
"""What a provenance calls a stop by `Reader.closed`."""

LONGEST = 100_000
"""Characters of a text that are read. A longer one is read as if it had been cut there."""
_QUESTION_WORDS = 3  # that a line has at least which opens a question
_BREAK = re.compile(r"\r\n|\r|\n")
_PLACEHOLDER = re.compile(r"\W*(?:x{2,}\b|<answer>\W*\Z)", re.IGNORECASE)
_THOUGHTS = {
    THINKING_MARK: "</think>",
    "[THINK]": "[/THINK]",
    "<|channel|>": "<|channel|>final<|message|>",
}
"""How a text opens that begins with thoughts, and how they end: tags, and the channels of harmony's
format.
"""


@dataclass(frozen=True)
class ParsedAnswer:
    """Answer parsed from a text.

    kind: "answered": an answer in a finished line; where a number is asked for, with one whole
    number in it. "cut off": none before the text was cut. "something else": none in a text that
    came to its end.
    line: the answer line as it was written, from the form on; of another kind the last line that
    was read. answer: what stands in it after the form, freed of its decoration; empty where the
    kind is another. number: the one whole number in that.
    """

    kind: str
    line: str
    answer: str
    number: int | None


@dataclass(frozen=True)
class Form:
    """The words around the answer in its line, as patterns; None where there are none on that side."""

    before: re.Pattern[str] | None
    suffix: re.Pattern[str] | None

    def last_in(self, line: str) -> tuple[int, int, str] | None:
        """Last place of the form in a line, start of the answer's place, and the text there."""
        start = place_start = 0
        if self.before is not None:
            places = [match.span() for match in self.before.finditer(line)]
            if not places:
                return None
            start, place_start = places[-1]
        if self.suffix is None:
            return start, place_start, line[place_start:]
        # No word may stand after the form.
        last_word = (
            max((match.end() for match in re.finditer(r"\w+", line[place_start:])), default=0)
            + place_start
        )
        ends = (
            match.start()
            for match in self.suffix.finditer(line, place_start)
            if match.end() >= last_word
        )
        end = next(ends, None)
        return None if end is None else (start, place_start, line[place_start:end])


@dataclass(frozen=True)
class Reader:
    """Rules by which the answers to one prompt are read.

    before, suffix: the form's words before and after the answer; both empty where no form is asked
    for. question: the words with which the task opens a question; own_sequence: the same with the
    prompt's own sequence. numeric: whether a number is asked for. could_answer: whether a line
    could be the answer, where no form is asked for. thinking: whether the prompt has opened a
    <think> that the model closes.
    """

    before: str
    suffix: str
    question: str
    own_sequence: str
    numeric: bool
    could_answer: Callable[[str], bool]
    thinking: bool = False

    def read(self, text: str, ended: str) -> ParsedAnswer:
        """Parse a text that `ended` by its own end ("eos"), by a stop ("stop"), or was cut
        (`UNFINISHED`).
        """
        cut = self._cut(text, ended)
        scan = _Scan(self, text[:LONGEST], not cut)
        if scan.answers:
            line, answer = scan.answers[-1]
            number = number_in(answer, self.numeric)
            if not self.numeric or number is not None:
                return ParsedAnswer(HAS_ANSWER, line, answer, number)
            return ParsedAnswer(SOMETHING_ELSE, line, "", None)
        return ParsedAnswer(
            CUT_OFF if cut and not scan.closed else SOMETHING_ELSE, scan.last, "", None
        )

    def closed(self, text: str) -> bool:
        return len(text) > LONGEST or _Scan(self, text, False).closed

    def lines(self, text: str, ended: str) -> list[tuple[str, bool]]:
        """The lines that are read, up to where the reading is closed, and whether each is finished."""
        return _Scan(self, text[:LONGEST], not self._cut(text, ended)).taken

    @staticmethod
    def _cut(text: str, ended: str) -> bool:
        return ended in UNFINISHED or len(text) > LONGEST

    def answer_start(self, text: str) -> int:
        """Start of the text that is no thought: after the mark that ends them; at the text's end
        where none does.
        """
        close = self._closing(text)
        end = text.find(close)
        return len(text) if end < 0 else end + len(close)

    def still_thinking(self, text: str) -> bool:
        """Whether the thoughts with which the text begins do not end in it."""
        return self._closing(text) not in text

    def _closing(self, text: str) -> str:
        """The mark that ends the thoughts with which the text begins; empty where it begins with
        none.
        """
        written = next((mark for mark in _THOUGHTS if text.lstrip().startswith(mark)), "")
        return _THOUGHTS.get(THINKING_MARK if self.thinking else written, "")

    @cached_property
    def form(self) -> Form | None:
        """Finds the form in a line; None where no form is asked for."""
        before, suffix = self.before.strip(MARKS), self.suffix.strip(MARKS)
        if not before and not suffix:
            return None
        before_pattern = (
            re.compile(rf"{_loose(before)}[\s:*_`]*", re.IGNORECASE) if before else None
        )
        return Form(before_pattern, re.compile(_loose(suffix), re.IGNORECASE) if suffix else None)

    @cached_property
    def opening(self) -> re.Pattern[str] | None:
        """Finds where a question begins; None for a task whose question has no words of its own
        before the sequence.
        """
        # With one sign after it: until that is written, the last word may be a longer one.
        return (
            re.compile(rf"{_loose(self.question)}(?=\W)", re.IGNORECASE) if self.question else None
        )


def reader(task: Task, pieces: tuple[str, ...], prompt: str = "") -> Reader:
    """Reader of the answers to a task's prompt with these pieces; `prompt`: its whole text as the
    model gets it.
    """
    # Of private use: a character that no format, such as JSON's, writes otherwise.
    before, _, suffix = task.answer_line("\ue000").partition("\ue000")
    words_before, sequence, _ = task.parts(pieces)
    question = _question(words_before)

    def could_answer(line: str) -> bool:
        return (
            number_in(free(line), True) is not None
            if task.numeric
            else task.could_answer(line, pieces)
        )

    return Reader(
        before.strip(),
        suffix.strip(),
        re.split(_BREAK, question)[0].strip(),
        f"{question} {sequence}",
        task.numeric,
        could_answer,
        prompt.rstrip().endswith(THINKING_MARK),
    )


def prefilled_reader(numeric: bool) -> Reader:
    """Reader after a prompt with a prefilled answer line: the answer is the rest of that line."""
    return Reader("", "", "", "", numeric, lambda line: True)


def _question(words: str) -> str:
    """Words of the question from the last line before the sequence that is long enough to open one;
    empty where none is.
    """
    lines = words.splitlines(keepends=True)
    for index in range(len(lines) - 1, -1, -1):
        if len(re.findall(r"\w+", lines[index])) >= _QUESTION_WORDS:
            return "".join(lines[index:])
    return ""


def _loose(words: str) -> str:
    """A pattern of the words whatever stands between them; of signs as they are where there are no
    words.
    """
    parts = re.findall(r"\w+", words)
    if not parts:
        return re.escape(words)
    pattern = r"[\W_]+".join(map(re.escape, parts))
    return rf"(?<!\w){pattern}(?!\w)"


class _Scan:
    """One reading of a text. `taken`: the lines that were read, and whether each is finished;
    `answers`: those with an answer, and the answers, in order; `last`: the last line that was read;
    `closed`: whether the reading ended before the text did."""

    def __init__(self, reader: Reader, text: str, complete: bool) -> None:
        self.reader = reader
        self.answers: list[tuple[str, str]] = []
        self.taken: list[tuple[str, bool]] = []
        self.closed = False
        self.last = ""
        self._open = ""  # a line with the form and nothing behind it
        for line, finished in self._lines(text, complete):
            self.taken.append((line, finished))
            if line:
                self._take(line, finished)
            if self.closed:
                return

    def _lines(self, text: str, complete: bool) -> Iterator[tuple[str, bool]]:
        """The lines that are read, and whether each is finished; `closed` is set where another
        question ends them.
        """
        at = self.reader.answer_start(text)
        opening = self.reader.opening
        for match in opening.finditer(text, at) if opening else ():
            if match.start() < at:
                continue
            yield from _split(text[at : match.start()], True)
            end = None if self.answers else _repeats(text, match.start(), self.reader.own_sequence)
            if end is None:
                self.closed = True
                return
            at = end
        yield from _split(text[at:], complete)

    def _take(self, line: str, finished: bool) -> None:
        form = self.reader.form
        if form is None:
            self.last = line
            if free(line) and self.reader.could_answer(line):
                self._set_answer(line, line, finished)
                self.closed = finished
            return
        place = form.last_in(line)
        if place is not None and not _PLACEHOLDER.match(place[2]):
            self.last = line[place[0] :].strip()
            if free(place[2]):
                self._set_answer(self.last, leading_number(place[2]), finished)
            else:
                self._open = self.last
        elif free(line):
            self.last = line
            if self._open and place is None:
                self._set_answer(f"{self._open} {line}", leading_number(line), finished)
            else:
                self.closed = finished and bool(self.answers)

    def _set_answer(self, line: str, answer: str, finished: bool) -> None:
        if finished:
            answer = free(answer)
            self.answers.append(
                (line, without_thousands(answer) if self.reader.numeric else answer)
            )
            self._open = ""


def _split(text: str, complete: bool) -> Iterator[tuple[str, bool]]:
    *lines, last_line = re.split(_BREAK, text)
    yield from ((line.strip(), True) for line in lines)
    yield last_line.strip(), complete


_BLANKS, _SPACE = re.compile(r"[ \t]*"), re.compile(r"\s*")
_MORE_DIGITS, _MORE_WORDS = re.compile(r"[ \t]*+[+,]?[ \t]*+\d"), re.compile(r"[ \t]*+\w")


def _repeats(text: str, at: int, own_sequence: str) -> int | None:
    """End of the prompt's own question that is repeated at `at`, or of the text if it may yet be;
    None: it is another, or the beginning of a longer one.

    Blanks and capitals aside; a line's end may stand where `own_sequence` has a blank.
    """
    for letter in own_sequence.lower():
        gap = (_SPACE if letter.isspace() else _BLANKS).match(text, at)
        at = gap.end() if gap else at
        if letter.isspace():
            continue
        if text[at : at + 1].lower() != letter:
            return at if at == len(text) else None
        at += 1
    more = _MORE_DIGITS if own_sequence[-1:].isdigit() else _MORE_WORDS
    return None if more.match(text, at) else at
