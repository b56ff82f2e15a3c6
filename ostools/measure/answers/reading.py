"""What was answered, read in a text as models write it: the answer line, the answer in it, and one of three kinds of outcome.

The paper's prompts ask for "the answer on the final line", in a form of words (Appendix C.1). How a text is read the paper does
not say. Here, from its beginning:

- An answer line holds the form's words and an answer after them. It may stand after other words of its line. Capitals,
  blanks, Markdown and LaTeX do not matter. The form with nothing behind it goes on in the next line. The form with the
  prompt's own placeholder (xxxx, <ANSWER>) is a quotation of the prompt, and no answer line.
- What stands before the first answer line is passed over: a preamble, or reasoning.
- The answer is that of the last answer line; other text after a finished one ends the reading. A model that corrects itself
  in the next line is read by its correction. "I hope this helps!" and whatever follows it are not read.
- Another question ends the reading, before an answer line too: what is answered after it is not this prompt's answer. It is
  known by the words with which the task opens its question. The prompt's own question with its own sequence may be repeated
  before the answer.
- Of text that opens with thoughts (<think>, [THINK], or another channel than the final one) what stands after them is read
  (</think>, [/THINK], the final channel). Thoughts that do not end before the text is cut are "cut off".

Tasks that ask for no form (`copy`, `count-ones-figure-5`, retrieval) are answered by the FIRST line that could be an answer,
right or wrong: by one with one whole number where a number is asked for, else by one of which `Task.could_answer` says so. A
model that continues its prompt answers at once; a preamble ("Sure! Here it is:") is passed over.

A line is finished by a line's end, by another question, or by the end of the text, unless that was cut at max_new_tokens.
`closed` says when nothing that may follow changes what is read: generation stops there, so that both agree on every text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from ostools.measure.posed import OPENED
from ostools.tasks import Task

ANSWERED, SOMETHING_ELSE, CUT_OFF = "answered", "something else", "cut off"
KINDS = (ANSWERED, SOMETHING_ELSE, CUT_OFF)
UNANSWERED = "unanswered"
"""The kind of a question to which a hosted model's answer never came; no text is of it."""
STOP = "the end of the answer"
"""What a provenance calls a stop by `Reader.closed`."""

_LONGEST_NUMBER = 18  # digits: what an int64 holds
_QUESTION_WORDS = 3  # that a line has at least which opens a question
_BREAK = re.compile(r"\r\n|\r|\n")
_PLACEHOLDER = re.compile(r"\W*(?:x{2,}\b|<answer>\W*\Z)", re.IGNORECASE)
_TAG = re.compile(r"\A</?answer>|</?answer>\Z", re.IGNORECASE)
_WRAPPED = re.compile(
    r"\\(?:boxed|fbox|text|textbf|mathbf|mathrm)\s*\{(.*)\}|\\\((.*)\\\)|\\\[(.*)\\\]|<(.*)>|\((.*)\)|\[(.*)\]|\{(.*)\}",
    re.DOTALL,
)
_OPENED = re.compile(r"\A\\(?:boxed|fbox|text|textbf|mathbf|mathrm)\s*(?=\{)")
_MARKS = " \t\r\n*_`$\"'\u201c\u201d\u2018\u2019\u00ab\u00bb"
_BRACKETS = {"}": "{", ")": "(", "]": "[", ">": "<"}
_THOUGHTS = {OPENED: "</think>", "[THINK]": "[/THINK]", "<|channel|>": "<|channel|>final<|message|>"}
"""How a text opens that begins with thoughts, and how they end: tags, and the channels of harmony's format."""


@dataclass(frozen=True)
class Found:
    """What was read in a text.

    kind: one of `KINDS`. "answered": an answer in a finished line; where a number is asked for, with one whole number in it.
    "cut off": none before the text was cut. "something else": none in a text that came to its end.
    line: the answer line as it was written, from the form on; of another kind the last line that was read. answer: what stands
    in it after the form, freed of its decoration; empty where the kind is another. number: the one whole number in that.
    """

    kind: str
    line: str
    answer: str
    number: int | None


@dataclass(frozen=True)
class Reader:
    """How the answers to one prompt are read.

    before, behind: the form's words around the answer; both empty where no form is asked for. question: the words with which
    the task opens a question; own: the same with the prompt's own sequence. numeric: whether a number is asked for.
    could_answer: whether a line could be the answer, where no form is asked for. thinking: whether the prompt has opened a
    <think> that the model closes.
    """

    before: str
    behind: str
    question: str
    own: str
    numeric: bool
    could_answer: Callable[[str], bool]
    thinking: bool = False

    def read(self, text: str, ended: str) -> Found:
        """What was read in a text that `ended` by its own end ("eos"), by a stop ("stop"), or was cut ("length")."""
        scan = _Scan(self, text, ended != "length")
        if scan.answers:
            line, answer = scan.answers[-1]
            number = number_in(answer, self.numeric)
            if not self.numeric or number is not None:
                return Found(ANSWERED, line, answer, number)
            return Found(SOMETHING_ELSE, line, "", None)
        cut = ended == "length" and not scan.closed
        return Found(CUT_OFF if cut else SOMETHING_ELSE, scan.last, "", None)

    def closed(self, text: str) -> bool:
        """Whether nothing that may be written after `text` changes what is read in it."""
        return _Scan(self, text, False).closed

    def answer_start(self, text: str) -> int:
        """Where the text begins that is no thought: after the mark that ends them; at the text's end where none does."""
        close = self._closing(text)
        end = text.find(close)
        return len(text) if end < 0 else end + len(close)

    def still_thinking(self, text: str) -> bool:
        """Whether the thoughts with which the text begins do not end in it."""
        return self._closing(text) not in text

    def _closing(self, text: str) -> str:
        """The mark that ends the thoughts with which the text begins; empty where it begins with none."""
        opened = OPENED if self.thinking else next((mark for mark in _THOUGHTS if text.lstrip().startswith(mark)), "")
        return _THOUGHTS.get(opened, "")

    @cached_property
    def form(self) -> re.Pattern[str] | None:
        """Finds the form in a line, with what stands in the answer's place; None where no form is asked for."""
        before, behind = self.before.strip(_MARKS), self.behind.strip(_MARKS)
        if not before and not behind:
            return None
        first = rf"{_loose(before)}[\s:*_`]*" if before else r"\A"
        last = rf"{_loose(behind)}\W*\Z" if behind else r"\Z"
        return re.compile(rf"{first}(.*?){last}", re.IGNORECASE | re.DOTALL)

    @cached_property
    def opening(self) -> re.Pattern[str] | None:
        """Finds where a question begins; None for a task whose question has no words of its own before the sequence."""
        # With one sign after it: until that is written, the last word may be a longer one.
        return re.compile(rf"{_loose(self.question)}(?=\W)", re.IGNORECASE) if self.question else None


def reader(task: Task, pieces: tuple[str, ...], prompt: str = "") -> Reader:
    """How the answers to a task's prompt with these pieces are read; `prompt`: its whole text as the model gets it."""
    # Of private use: a character that no format, such as JSON's, writes otherwise.
    before, _, behind = task.answer_line("\ue000").partition("\ue000")
    words, sequence, _ = task.parts(pieces)
    question = _question(words)

    def could_answer(line: str) -> bool:
        return number_in(free(line), True) is not None if task.numeric else task.could_answer(line, pieces)

    return Reader(
        before.strip(),
        behind.strip(),
        re.split(_BREAK, question)[0].strip(),
        f"{question} {sequence}",
        task.numeric,
        could_answer,
        prompt.rstrip().endswith(OPENED),
    )


def begun(numeric: bool) -> Reader:
    """Behind a prompt that has begun the answer line: the answer is the rest of that line."""
    return Reader("", "", "", "", numeric, lambda line: True)


def _question(words: str) -> str:
    """From the last line before the sequence that is long enough to open a question; empty where none is."""
    lines = words.splitlines(keepends=True)
    for index in range(len(lines) - 1, -1, -1):
        if len(re.findall(r"\w+", lines[index])) >= _QUESTION_WORDS:
            return "".join(lines[index:])
    return ""


def _loose(words: str) -> str:
    """A pattern of the words whatever stands between them; of signs as they are where there are no words."""
    found = re.findall(r"\w+", words)
    if not found:
        return re.escape(words)
    joined = r"[\W_]+".join(map(re.escape, found))
    return rf"(?<!\w){joined}(?!\w)"


class _Scan:
    """One reading of a text. `answers`: the lines with an answer and these, in order; `last`: the last line that was read;
    `closed`: whether the reading ended before the text did, or could not go on.
    """

    def __init__(self, reader: Reader, text: str, complete: bool) -> None:
        self.reader = reader
        self.answers: list[tuple[str, str]] = []
        self.closed = False
        self.last = ""
        self._open = ""  # a line with the form and nothing behind it
        for line, finished in self._lines(text, complete):
            self._take(line, finished)
            if self.closed:
                return

    def _lines(self, text: str, complete: bool) -> Iterator[tuple[str, bool]]:
        """The lines that are read, and whether each is finished; `closed` is set where another question ends them."""
        at = self.reader.answer_start(text)
        opening = self.reader.opening
        for match in opening.finditer(text, at) if opening else ():
            if match.start() < at:
                continue
            yield from _split(text[at : match.start()], True)
            end = None if self.answers else _repeats(text, match.start(), self.reader.own)
            if end is None:
                self.closed = True
                return
            at = end
        yield from _split(text[at:], complete)

    def _take(self, line: str, finished: bool) -> None:
        if self.reader.form is None:
            if free(line) and self.reader.could_answer(line):
                self._answered(line, line, finished)
                self.closed = finished
            self.last = line or self.last
            return
        match = _last(self.reader.form, line)
        if match is not None and not _PLACEHOLDER.match(match[1]):
            self.last = line[match.start() :].strip()
            if free(match[1]):
                self._answered(self.last, _sentence(match[1]), finished)
            else:
                self._open = self.last
        elif free(line):
            self.last = line
            if self._open and match is None:
                self._answered(f"{self._open} {line}", _sentence(line), finished)
            else:
                self.closed = finished and bool(self.answers)

    def _answered(self, line: str, answer: str, finished: bool) -> None:
        if finished:
            answer = free(answer)
            self.answers.append((line, _without_thousands(answer) if self.reader.numeric else answer))
            self._open = ""


def _split(text: str, complete: bool) -> Iterator[tuple[str, bool]]:
    *lines, rest = re.split(_BREAK, text)
    yield from ((line.strip(), True) for line in lines)
    yield rest.strip(), complete


def _last(form: re.Pattern[str], line: str) -> re.Match[str] | None:
    """The last place in a line where the form begins."""
    found, match = None, form.search(line)
    while match is not None:
        found, match = match, form.search(line, max(match.start(1), match.start() + 1))
    return found


def _repeats(text: str, at: int, own: str) -> int | None:
    """Where the prompt's own question ends that is repeated at `at`, or the text if it may yet be; None: it is another.

    Blanks and capitals aside; a line's end may stand where `own` has a blank.
    """
    for letter in own.lower():
        while at < len(text) and (text[at] in " \t" or (letter.isspace() and text[at].isspace())):
            at += 1
        if letter.isspace():
            continue
        if at == len(text):
            return at
        if text[at].lower() != letter:
            return None
        at += 1
    longer = r"[ \t]*[+,]?[ \t]*\d" if own[-1:].isdigit() else r"[ \t]*\w"
    return None if re.match(longer, text[at:]) else at


def free(text: str) -> str:
    """A text without its decoration: Markdown, LaTeX, quotation marks, brackets around it, the full stop after it."""
    while True:
        shorter = _freer(text)
        if shorter == text:
            return text
        text = shorter


def _freer(text: str) -> str:
    text = _TAG.sub("", text.strip(_MARKS)).rstrip(".,;:!\\").lstrip("#>").strip(_MARKS)
    if match := _WRAPPED.fullmatch(text):
        return next(group for group in match.groups() if group is not None)
    text = re.sub(r"\A\\(?=[(\[])", "", _OPENED.sub("", text))
    for close, opened in _BRACKETS.items():
        # Of a pair around the whole line one is left here.
        if text.endswith(close) and text.count(close) > text.count(opened):
            text = text[:-1]
        if text.startswith(close) or (text.startswith(opened) and text.count(opened) > text.count(close)):
            text = text[1:]
    return text


def _sentence(text: str) -> str:
    """The first sentence, where it is a number and no other follows: "12. I hope this helps!"."""
    first, *others = re.split(r"(?<=[.!;])[*_`$\"']*\s+", text.strip(), maxsplit=1)
    alone = digits_in(first) == free(first) and not any(re.search(r"\d", other) for other in others)
    return first if alone else text


def digits_in(text: str) -> str | None:
    """The digits of the one whole number in a text, as they are written; None where it holds none, several, or another kind."""
    words = re.findall(r"[^\s:=]*\d[^\s:=]*", text)
    bare = free(words[0]).strip(".,;!?'\"()*") if len(words) == 1 else ""
    negative = re.search(r"[-\u2212\u2013]\s*\d", text)
    return bare if bare.isascii() and bare.isdigit() and not negative else None


def number_in(text: str, numeric: bool) -> int | None:
    """The one whole number in an answer; None where it holds none, several, or another kind (-3, 1.5), or over 18 digits.

    numeric: whether a number was asked for. Then an equation counts by its right side, and a thousand may be written 1,000.
    """
    digits = digits_in(_without_thousands(text).rpartition("=")[2] if numeric else text)
    return None if digits is None or len(digits) > _LONGEST_NUMBER else int(digits)


def _without_thousands(text: str) -> str:
    """1,000 as 1000; LaTeX writes the comma as {,} or as a thin space too."""
    text = re.sub(r"\{,\}|\\,", ",", text)
    return re.sub(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,]|\.\d)", lambda found: found[0].replace(",", ""), text)
