"""Read an answer out of a text as models write it, and judge it: strictly, and by the value in it.

The paper's prompts ask for "the answer on the final line", in a form of words (Appendix C.1). How a
text is read the paper does not say. Strict (`correct`), from the text's beginning:

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
  prompt's own question with its own sequence may be repeated as it was, and is passed over.
- Of text that opens with thoughts (<think>, [THINK], or another channel than the final one) what
  stands after them is read. Thoughts that do not end before the text is cut are "cut off".

Tasks that ask for no form (`copy`, `count-ones-figure-5`, retrieval) are answered by the FIRST line
that could be an answer, right or wrong: by one with one whole number where a number is asked for,
else by one of which `Task.could_answer` says so. A model that continues its prompt answers at once;
a preamble ("Sure! Here it is:") is passed over.

A line is finished by a line's end, by another question, or by the end of the text, unless that was
cut at max_new_tokens or where the model repeated itself. Generation stops where `Reader.closed`
says that nothing that may follow changes what is read.

Read (`content`): the answer in the form, else the last number of the text, or the last answer that
the task lists. Sentences are not understood: of "12 of the 20 digits" 20 is read. The table shows
what was read, and `grade=` of `evaluate` judges by any other rule.

Cost: linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from ostools.ground import InputError, short_repr
from ostools.measure.answers.answers import Answer
from ostools.measure.task_prompt import PLACE, THINKING_MARK
from ostools.tasks import Question

Grade = Callable[[Question, str], bool]
"""Return whether a text answers its question, by whatever rule."""
HAS_ANSWER, SOMETHING_ELSE, CUT_OFF = "answered", "something else", "cut off"
UNANSWERED = "unanswered"
"""The kind of a question to which a hosted model's answer never came; no text is of it."""

_LONGEST_NUMBER = 18  # digits: what an int64 holds
_OPENING = re.compile(r"\w+(?:\W+\w+){2}")  # a line that opens a question has three words
_BREAK = re.compile(r"\r\n|\r|\n")
_PLACEHOLDER = re.compile(r"\W*(?:x{2,}\b|<answer>\W*\Z)", re.IGNORECASE)
_THOUGHTS = re.compile(
    r"\A\s*(?:<think>.*?(?:</think>|\Z)|\[THINK\].*?(?:\[/THINK\]|\Z)"
    r"|(?=<\|channel\|>).*?(?:<\|channel\|>final<\|message\|>|\Z))",
    re.DOTALL,
)
"""Thoughts at a text's beginning: in tags, or in the channels of harmony's format."""
_MARKS = " \t\r\n*_`$\"'\u201c\u201d\u2018\u2019\u00ab\u00bb"
_TAG = re.compile(r"</?answer>", re.IGNORECASE)
_OPENING_MARKS = re.compile(
    rf"\A(?:[{_MARKS}#>(<\[{{]|\\(?:boxed|fbox|text|textbf|mathbf|mathrm)\s*(?={{)|\\(?=[(\[]))+"
)
_CLOSING_MARKS = _MARKS + ".,;:!\\)>]}"
_NUMBER_ALONE = re.compile(r"(\W*\d+)[*_`$)\]}\"']*[.!;][*_`$\"']*\s\D*")
"""A sentence that is a number, before others without one: "12. I hope this helps!"."""
_NUMBER = re.compile(r"(?<![\w.,\u2212\u2013-])(\d+)(?!\w|[.,\u2212\u2013-]\d)|\d")
"""A whole number; or a digit of what is none: part of a word, of 1.5, of 1,00, of -7 or of 6-7."""
_SIGN = re.compile(r"(?<=\S)([ \t]+[-\u2212\u2013])[ \t]+(?=\d)")
"""A sign apart from its number, as the strict reading takes it too; at the start of a line it is a
bullet.
"""


class Reader:
    """Rules by which the answers to one question are read; after a prefilled answer line the rest
    of that line is the answer.

    form: finds the `line` from the form on, and its `answer`; None where no form is asked for.
    """

    def __init__(self, question: Question) -> None:
        task, self.question = question.task, question
        self.form = self._begun = self._opening = None
        self._thought = (
            THINKING_MARK if question.asked_text.rstrip().endswith(THINKING_MARK) else ""
        )
        if question.prefill is not None:
            return
        before, _, after = (part.strip(_MARKS) for part in task.answer_line(PLACE).partition(PLACE))
        if before:
            start = rf"{_loose(before)}[:*_`]*"
            self._begun = re.compile(rf"({start})(?:[ \t*_`$\"'\\\[({{]*[\r\n])+", re.IGNORECASE)
        if before or after:
            start = rf".*(?P<line>{_loose(before)}[\s:*_`]*" if before else "(?P<line>"
            # No word may stand after the form.
            end = rf"(?P<answer>.*?){_loose(after)}\W*\Z)" if after else "(?P<answer>.*))"
            self.form = re.compile(start + end, re.IGNORECASE)
        words, sequence, _ = task.parts(question.pieces)
        openings = [line for line in words.splitlines() if _OPENING.search(line)]
        if openings:
            # With one sign after it: until that is written, the last word may be a longer one.
            self._opening = re.compile(rf"{_loose(openings[-1])}(?=\W)", re.IGNORECASE)
            self._own = words[words.rindex(openings[-1].lstrip()) :] + sequence
            longer = r"[+,]?[ \t]*\d" if self._own[-1].isdigit() else r"\w"
            self._repeated = re.compile(rf"{re.escape(self._own)}(?![ \t]*{longer})")

    def closed(self, text: str) -> bool:
        """Whether nothing that may follow this text changes what is read in it."""
        return self.read(text, complete=False)[2]

    def read(self, text: str, complete: bool) -> tuple[list[str], list[tuple[str, str]], bool]:
        """The lines that were read and hold more than decoration; the answer lines, from the form
        on, each with what stands after the form; and whether the reading ended before the text did.

        complete: whether the text's last line is finished.
        """
        text, is_closed = self._passage(text)
        *finished_lines, last_line = _BREAK.split(text)
        lines: list[str] = []
        answers: list[tuple[str, str]] = []
        for line, finished in (*((line, True) for line in finished_lines), (last_line, complete)):
            match = self.form.match(line) if self.form else None
            if match and free(match["answer"]) and not _PLACEHOLDER.match(match["answer"]):
                lines.append(line[match.start("line") :].strip())
                answers += [(lines[-1], match["answer"])] * finished
            elif free(line):
                lines.append(line.strip())
                if self.form is None and finished and self._could_answer(line):
                    return lines, [(lines[-1], lines[-1])], True
                if finished and answers:
                    return lines, answers, True
        return lines, answers, is_closed

    def _passage(self, text: str) -> tuple[str, bool]:
        """What is read of a text: what stands after its thoughts, up to another question; and
        whether there is one."""
        text, is_closed = _THOUGHTS.sub("", self._thought + text, count=1), False
        if self._opening is not None:
            text = self._repeated.sub("\n", text)
            if another := self._opening.search(text):
                is_closed = not self._own.startswith(text[another.start() :])
                text = text[: another.start()] + "\n"
        if self._begun is not None:
            text = self._begun.sub(r"\1 ", text)
        return text, is_closed

    def _could_answer(self, line: str) -> bool:
        task = self.question.task
        if self.question.prefill is not None:
            return True
        if task.numeric:
            return number_in(free(line), True) is not None
        return task.could_answer(line.strip(), self.question.pieces)


def _loose(words: str) -> str:
    """A pattern of the words whatever stands between them; of signs as they are where there are no
    words.
    """
    pattern = r"[\W_]+".join(re.findall(r"\w+", words))
    return rf"(?<!\w){pattern}(?!\w)" if pattern else re.escape(words)


def free(text: str) -> str:
    """A text without its decoration: Markdown, LaTeX, quotation marks, brackets around it, the full
    stop after it."""
    return _OPENING_MARKS.sub("", _TAG.sub(" ", text)).rstrip(_CLOSING_MARKS)


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


@dataclass(frozen=True)
class AnswerVerdict:
    """Verdict on one answer.

    line: the answer line as it was written, from the form on; of something else the last line that
    was read. kind: "answered": an answer in a finished line; where a number is asked for, with one
    whole number in it. "cut off": none before the text was cut. "something else": none in a text
    that came to its end. number: the one whole number in the answer.
    absolute_error: |number - right number|, of a task whose answer is a number.

    correct: where there is an absolute_error, it is 0: "12 ones", "012" and "2 * 5 + 2 = 12" are
    right against 12. Else (a digit or a number is copied) the answer is the right one, character by
    character, whatever the decoration around it: "00" is no copy of "0". The paper draws the error
    of Figure 3 and does not say when an answer is right; error 0 is our reading.

    content: the value that was read in the text; None where there is none.
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
    reader, numeric, key = Reader(question), question.task.numeric, question.key
    is_cut = answer.ended in ("length", "repeats")  # the model would have written on
    lines, answers, closed = reader.read(answer.text, complete=not is_cut)
    line, after_form = answers[-1] if answers else (lines[-1] if lines else "", "")
    alone = _NUMBER_ALONE.fullmatch(after_form.strip())
    value = free(alone[1] if alone else after_form)
    number = number_in(value, numeric)
    kind = _kind(bool(answers), numeric, number, is_cut, closed)
    value = without_thousands(value) if numeric else value
    content = _content(reader, lines, line, value, kind)
    # What is exactly the asked-for line is right, whatever a task's answers look like.
    exact = line == question.to_write.strip() and kind != CUT_OFF
    same = exact or (kind == HAS_ANSWER and value in (free(key), free(question.to_write)))
    error = None
    if numeric and number is not None and digits_in(key) is not None:
        error = abs(number - int(key))
    return AnswerVerdict(
        line=line,
        kind=HAS_ANSWER if exact else kind,
        correct=same if error is None else error == 0,
        number=number,
        absolute_error=error,
        content=content,
        content_correct=_content_right(question, content, answer.text, grade),
    )


def _kind(has_line: bool, numeric: bool, number: int | None, is_cut: bool, closed: bool) -> str:
    """`AnswerVerdict.kind` of a text with or without an answer line, and with that number in it."""
    if has_line and (number is not None or not numeric):
        return HAS_ANSWER
    return CUT_OFF if is_cut and not closed and not has_line else SOMETHING_ELSE


def _content(reader: Reader, lines: Sequence[str], line: str, value: str, kind: str) -> str | None:
    """Return the answer in the form, else the last number, or the last answer that the task lists.

    Digits as they were written, without commas between thousands. None where the text has none or
    ends with the question's own sequence, and for a task whose answers are neither digits nor
    listed (`Task.named_answer`).
    """
    question, in_form = reader.question, kind == HAS_ANSWER
    # Of a text that was cut off the last number is only where it was cut.
    lines = {HAS_ANSWER: [line], CUT_OFF: []}.get(kind, lines)
    values = [question.task.named_answer(line, question.pieces) for line in lines]
    if listed_values := [named_value for named_value in values if named_value is not None]:
        return listed_values[-1]
    if in_form and (reader.form or not question.key.isdecimal()):
        return str(number_in(value, True)) if question.task.numeric else value
    return _last_number("\n".join(lines), question.pieces) if question.key.isdecimal() else None


def _last_number(text: str, pieces: Sequence[str]) -> str | None:
    """Return the last whole number of a text; None where its last digits are no whole number (7.5,
    -7, 3rd: an earlier one is not the answer), and where it ends with the question's own items:
    the last digit of "1 1 1 0" is right for copy-last by itself, and says nothing.
    """
    plain = _SIGN.sub(r"\1", without_thousands(text))
    numbers = [match[1] for match in _NUMBER.finditer(plain)]
    is_echo = len(pieces) > 1 and numbers[-len(pieces) :] == list(pieces)
    return numbers[-1] if numbers and not is_echo else None


def _content_right(
    question: Question, content: str | None, text: str, grade: Grade | None
) -> bool | None:
    if grade is not None:
        is_right = grade(question, text)
        if type(is_right) is not bool:
            raise InputError(f"grade: expected True or False, found {short_repr(is_right)}")
        return is_right
    if content is None:
        return None
    if question.task.numeric and content.isdecimal() and question.key.isdecimal():
        # As text: Python makes no int of more than 4,300 digits.
        return content.lstrip("0") == question.key.lstrip("0")
    return content == free(question.key)


def grade_name(grade: Grade) -> str:
    """Name of a rule, for a provenance: its module and its own name."""
    return f"{grade.__module__}.{getattr(grade, '__qualname__', type(grade).__qualname__)}"


def answer_columns(
    question: Question, answer: Answer, grade: Grade | None = None
) -> dict[str, object]:
    """Columns of one answer in every table of answers: its question, its text, and the verdict."""
    verdict = asdict(judge(question, answer, grade))
    columns = {name: getattr(question, name) for name in ("length", "seed", "tokens", "key")}
    text_columns = {"answer": verdict.pop("line"), "text": answer.text, "ended": answer.ended}
    return columns | text_columns | verdict
