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
  prompt's own question with its own sequence may be repeated, as it was, before the answer.
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

Cost: linear in the text.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from ostools.measure.task_prompt import PLACE, THINKING_MARK
from ostools.tasks import Question, Task

HAS_ANSWER, SOMETHING_ELSE, CUT_OFF = "answered", "something else", "cut off"
UNFINISHED = ("length", "repeats")
"""How a text ended that the model would have continued: at max_new_tokens, or while it repeated
itself.
"""
UNANSWERED = "unanswered"
"""The kind of a question to which a hosted model's answer never came; no text is of it."""
STOP = "the end of the answer"
"""What a provenance calls a stop by `Reader.closed`."""

_QUESTION_WORDS = 3  # that a line has at least which opens a question
_LONGEST_NUMBER = 18  # digits: what an int64 holds
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
_MARKS = " \t\r\n*_`$\"'\u201c\u201d\u2018\u2019\u00ab\u00bb"
_TAG = re.compile(r"</?answer>", re.IGNORECASE)
_OPENING_MARKS = re.compile(
    rf"\A(?:[{_MARKS}#>(<\[{{]|\\(?:boxed|fbox|text|textbf|mathbf|mathrm)\s*(?={{)|\\(?=[(\[]))+"
)
_CLOSING_MARKS = _MARKS + ".,;:!\\)>]}"
_NUMBER_ALONE = re.compile(r"(\W*\d+)[*_`$)\]}\"']*[.!;][*_`$\"']*\s\D*")
_GOES_ON = {True: re.compile(r"[ \t]*[+,]?[ \t]*\d"), False: re.compile(r"[ \t]*\w")}
"""What makes a sequence that ends with a digit, or with another sign, a longer one."""


@dataclass(frozen=True)
class ParsedAnswer:
    """Answer parsed from a text.

    kind: "answered": an answer in a finished line; where a number is asked for, with one whole
    number in it. "cut off": none before the text was cut. "something else": none in a text that
    came to its end.
    line: the answer line as it was written, from the form on; of another kind the last line that
    was read. answer: what stands in it after the form, freed of its decoration; empty where the
    kind is another. number: the one whole number in that. lines: all lines that were read, but the
    blank ones.
    """

    kind: str
    line: str
    answer: str
    number: int | None
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Reader:
    """Rules by which the answers to one prompt are read; without a form and a question those after
    a begun answer line, of which the rest is the answer.

    numeric: whether a number is asked for. could_answer: whether a line could be the answer, where
    no form is asked for. form: finds the `line` from the form on, and its `answer`; None where no
    form is asked for. opening: finds where a question begins. own_question: the prompt's own, with
    its sequence. thinking: whether the prompt has opened a <think> that the model closes.
    """

    numeric: bool
    could_answer: Callable[[str], bool] = lambda line: True
    form: re.Pattern[str] | None = None
    opening: re.Pattern[str] | None = None
    own_question: str = ""
    thinking: bool = False

    def read(self, text: str, ended: str) -> ParsedAnswer:
        """Parse a text that `ended` by its own end ("eos"), by a stop ("stop"), or was cut
        (`UNFINISHED`).
        """
        cut = ended in UNFINISHED
        scan = _Scan(self, text, not cut)
        lines = tuple(scan.lines)
        if not scan.answers:
            kind = CUT_OFF if cut and not scan.closed else SOMETHING_ELSE
            return ParsedAnswer(kind, scan.last, "", None, lines)
        line, answer = scan.answers[-1]
        number = number_in(answer, self.numeric)
        if self.numeric and number is None:
            return ParsedAnswer(SOMETHING_ELSE, line, "", None, lines)
        return ParsedAnswer(HAS_ANSWER, line, answer, number, lines)

    def closed(self, text: str) -> bool:
        return _Scan(self, text, False).closed

    def answer_start(self, text: str) -> int:
        """Start of the text that is no thought: after the mark that ends those with which it
        begins; at the text's end where none does.
        """
        mark = next((mark for mark in _THOUGHTS if text.lstrip().startswith(mark)), "")
        close = _THOUGHTS.get(THINKING_MARK if self.thinking else mark, "")
        end = text.find(close)
        return len(text) if end < 0 else end + len(close)

    def own_question_end(self, text: str, start: int) -> int | None:
        """End of the prompt's own question that is repeated at `start`, or of the text if it may
        yet be; None: it is another, or the beginning of a longer one.
        """
        end = start + len(self.own_question)
        if self.own_question.startswith(text[start:end]) and end >= len(text):
            return len(text)
        goes_on = _GOES_ON[self.own_question[-1:].isdigit()]
        repeated = text.startswith(self.own_question, start) and not goes_on.match(text, end)
        return end if repeated else None


def reader(task: Task, pieces: tuple[str, ...], prompt: str = "") -> Reader:
    """Reader of the answers to a task's prompt with these pieces; `prompt`: its whole text as the
    model gets it.
    """
    before, _, suffix = (words.strip(_MARKS) for words in task.answer_line(PLACE).partition(PLACE))
    form = None
    if before or suffix:
        start = rf".*(?P<line>{_loose(before)}[\s:*_`]*" if before else "(?P<line>"
        # No word may stand after the form.
        end = rf"(?P<answer>.*?){_loose(suffix)}\W*\Z)" if suffix else "(?P<answer>.*))"
        form = re.compile(start + end, re.IGNORECASE)
    words, sequence, _ = task.parts(pieces)
    lines = words.splitlines(keepends=True)
    openings = [
        index
        for index, line in enumerate(lines)
        if len(re.findall(r"\w+", line)) >= _QUESTION_WORDS
    ]
    question = "".join(lines[openings[-1] :]) if openings else ""
    # With one sign after it: until that is written, the last word may be a longer one.
    opening = rf"{_loose(question.splitlines()[0])}(?=\W)" if question else None

    def could_answer(line: str) -> bool:
        if task.numeric:
            return number_in(free(line), True) is not None
        return task.could_answer(line, pieces)

    return Reader(
        task.numeric,
        could_answer,
        form,
        None if opening is None else re.compile(opening, re.IGNORECASE),
        re.sub(r"\A\W+", "", question) + sequence,
        prompt.rstrip().endswith(THINKING_MARK),
    )


def reader_of(question: Question) -> Reader:
    """Reader of the answers to a task's prompt; after a prefilled answer line the rest of that line
    is read.
    """
    if question.prefill is not None:
        return Reader(question.task.numeric)
    return reader(question.task, question.pieces, question.asked_text)


def _loose(words: str) -> str:
    """A pattern of the words whatever stands between them; of signs as they are where there are no
    words.
    """
    pattern = r"[\W_]+".join(re.findall(r"\w+", words))
    return rf"(?<!\w){pattern}(?!\w)" if pattern else re.escape(words)


class _Scan:
    """One reading of a text. `lines`: those that were read; `answers`: those with an answer, and
    the answers, in order; `last`: the last line that was read; `closed`: whether the reading ended
    before the text did."""

    def __init__(self, reader: Reader, text: str, complete: bool) -> None:
        self.reader = reader
        self.lines: list[str] = []
        self.answers: list[tuple[str, str]] = []
        self.last = ""
        self.closed = False
        self._open = ""  # a line with the form and nothing behind it
        start = reader.answer_start(text)
        while reader.opening and (match := reader.opening.search(text, start)) and not self.closed:
            self._take_lines(text[start : match.start()], True)
            end = None if self.answers else reader.own_question_end(text, match.start())
            self.closed |= end is None
            start = end or 0
        if not self.closed:
            self._take_lines(text[start:], complete)

    def _take_lines(self, text: str, complete: bool) -> None:
        *lines, last_line = _BREAK.split(text)
        for line, finished in (*((line, True) for line in lines), (last_line, complete)):
            if line.strip() and not self.closed:
                self.lines.append(line.strip())
                self._take(line.strip(), finished)

    def _take(self, line: str, finished: bool) -> None:
        form = self.reader.form
        if form is None:
            self.last = line
            if free(line) and self.reader.could_answer(line):
                self._set_answer(line, line, finished)
                self.closed = finished
            return
        match = form.match(line)
        if match is not None and not _PLACEHOLDER.match(match["answer"]):
            self.last = line[match.start("line") :].strip()
            if free(match["answer"]):
                self._set_answer(self.last, leading_number(match["answer"]), finished)
            else:
                self._open = self.last
        elif free(line):
            self.last = line
            if self._open and match is None:
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


def free(text: str) -> str:
    """A text without its decoration: Markdown, LaTeX, quotation marks, brackets around it, the full
    stop after it."""
    return _OPENING_MARKS.sub("", _TAG.sub(" ", text)).rstrip(_CLOSING_MARKS)


def leading_number(text: str) -> str:
    """The first sentence, where it is a number and no other follows: "12. I hope this helps!"."""
    match = _NUMBER_ALONE.fullmatch(text.strip())
    return match[1] if match else text


def number_in(text: str, numeric: bool) -> int | None:
    """The one whole number in an answer; None where it holds none, several, or another kind (-3,
    1.5), or over 18 digits.

    numeric: whether a number was asked for. Then an equation counts by its right side, and a
        thousand may be written 1,000.
    """
    digits = digits_in(without_thousands(text).rpartition("=")[2] if numeric else text)
    return None if digits is None or len(digits) > _LONGEST_NUMBER else int(digits)


def digits_in(text: str) -> str | None:
    """The digits of the one whole number in a text, as they are written; None where it holds none,
    several, or another kind.
    """
    words = [word for word in re.split(r"[\s:=]+", text) if re.search(r"\d", word)]
    bare = free(words[0]).strip(".,;!?'\"()*") if len(words) == 1 else ""
    negative = re.search(r"[-\u2212\u2013]\s*\d", text)
    return bare if bare.isascii() and bare.isdigit() and not negative else None


def without_thousands(text: str) -> str:
    """1,000 as 1000; LaTeX writes the comma as {,} or as a thin space too."""
    text = re.sub(r"\{,\}|\\,", ",", text)
    thousands = r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,]|\.\d)"
    return re.sub(thousands, lambda match: match[0].replace(",", ""), text)
