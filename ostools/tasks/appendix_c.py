"""The prompts of the paper's Appendix C.1 and Figure 5, as printed (docs/fidelity.md), with answer
keys.

The paper's own slips are kept: the prompt of the sum ends in "answer..", that of the ones lacks a
quotation mark. `tidy` mends them. A task generates `items` (digits, or words of a sentence), writes
them into the prompt, and knows the answer from the items it generated, never from parsing what it
wrote. A digit stream depends on the seed alone, so that the sequence of n items is the beginning of
the sequence of n + 1 wherever the paper's form allows it. No torch is needed here.

Source: "Transformers need glasses!", arXiv 2406.04267, Section 3, Appendix C.1 and Figure 5. Where
the paper leaves open how a sequence is made (the sentence in which 'car' is counted, the
interleaving), the docstring of `AppendixTask` says what was chosen; docs/fidelity.md has a row for
each prompt.

Of the requests to reason before answering, the opening and the two worked sums are the paper's,
with its line breaks; its first sum stands without its question, which `tidy` adds. Of the other
tasks the paper says "similar strategies": their examples are ours, one of twelve ones and one of
six. The zero-shot request is ours too: the opening without its announcement of examples. So is the
instruction to answer only, which Section 3.2 mentions and C.1 does not print (docs/fidelity.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from random import Random
from typing import Literal, get_args

from ostools.ground import Count, InputError, checked_name, typed_fields, whole_number
from ostools.mitigations import Bar, Hint
from ostools.tasks.base import Task

HINT = f" {Hint().text}"
WORDS = (
    *("apple", "bird", "blue", "boat", "book", "door", "fish", "green"),
    *("house", "lamp", "road", "stone", "table", "tree", "water", "window"),
)
"""The other words of the sentence in which 'car' is counted."""

ZERO_SHOT = " Let's think step by step, showing me your reasoning."
_OPENING = "Let's think step by step, showing me your reasoning. Here are a few examples:"

_COPY_ANSWER = "The answer to your question is: {answer}"
_MATHS_ANSWER = "The final answer to your maths question is: {answer}"
_MATHS_REQUEST = (
    " Please give the answer on the final line exactly as 'The final answer to your maths question "
    "is: xxxx', where 'xxxx' is your answer."
)
_DIGIT_REQUEST = (
    "Consider the following sequence: {{seq}}. What is the {place} digit in this sequence? "
    "Please answer exactly as 'The answer to your question is: <ANSWER>'"
)
_COUNT_PROMPT = "Please count the number of ones in the following sequence:{seq}." + _MATHS_REQUEST
_WORD_PROMPT = (
    "Please count the number of times 'car' appears in the following sentence: '{seq}'."
    + _MATHS_REQUEST
)

_FORMS: dict[str, tuple[str, str]] = {
    "copy-last": (_DIGIT_REQUEST.format(place="last"), _COPY_ANSWER),
    "copy-first": (_DIGIT_REQUEST.format(place="first"), _COPY_ANSWER),
    "copy": ("Can you copy the following number?{seq}", "{answer}"),
    "sum-ones": ("Please perform the following sum: {seq}." + _MATHS_REQUEST, _MATHS_ANSWER),
    "count-ones": (_COUNT_PROMPT, _MATHS_ANSWER),
    "count-ones-bernoulli": (_COUNT_PROMPT, _MATHS_ANSWER),
    "count-ones-figure-5": ("How many ones are in the following sequences?{seq}", "{answer}"),
    "count-word": (_WORD_PROMPT, _MATHS_ANSWER),
}
_SEQUENCES = {
    "sum-ones": (" + ".join("1" * 12), " + ".join("1" * 6)),
    "count-ones": ("1" * 12, "1" * 6),
    "count-ones-bernoulli": ("1101110111101101", "10111011"),
    "count-word": (
        "car tree car car lamp car car car blue car car car door car car car",
        "car road car car car car stone car",
    ),
}
_GROUP = 5
_DIGITS = "0123456789"
_UNCLOSED = ("'xxxx' is", "'xxxx is")
_SLIPS = {
    "sum-ones": ("your answer.", "your answer.."),
    "count-ones": _UNCLOSED,
    "count-ones-bernoulli": _UNCLOSED,
}
"""What stands in C.1 in place of the tidy words."""
NAMES = tuple(_FORMS)

_COPY_NAMES = ("copy-last", "copy-first", "copy")
COUNTING = ("sum-ones", "count-ones", "count-ones-bernoulli", "count-ones-figure-5", "count-word")
"""The tasks whose answer is a count."""
_UNIFORM_NAMES = (*_COPY_NAMES, "count-ones-figure-5")

Mode = Literal["none", "answer-only", "cot-zero-shot", "cot-few-shot"]
MODES: tuple[Mode, ...] = get_args(Mode)
_APPENDED = {"answer-only": " Please output only the answer.", "cot-zero-shot": ZERO_SHOT}
_OPTIONS: dict[str, tuple[Sequence[str], str]] = {
    "hint": (("copy-last", "copy-first"), "true"),
    "separator_every": ((*_UNIFORM_NAMES, "count-ones", "count-ones-bernoulli"), "3"),
    "interleave": ((*_COPY_NAMES, "count-ones"), "true"),
    "uniform": (_UNIFORM_NAMES, "true"),
    "base": (_COPY_NAMES, "2"),
    "p": (("count-ones-bernoulli",), "0.5"),
    "mode": (tuple(_SEQUENCES), "|".join(MODES[1:])),
    "tidy": (tuple(_SLIPS), "true"),
    "corrupt": (("copy-last", "copy-first", "count-ones", "count-ones-bernoulli"), "true"),
}
"""The tasks that have each option, and its values that are not its default."""


def options_of(name: str) -> str:
    """The options of the task of that name, as one would write them."""
    return ", ".join(
        f"{option}={values}" for option, (names, values) in _OPTIONS.items() if name in names
    )


@typed_fields(InputError)
@dataclass(frozen=True)
class AppendixTask(Task):
    """One task of the paper: what is asked, and how its sequence is made.

    name: `copy-last` (1...10), `copy-first` (01...1), `copy` (the whole number; Figure 5 (c)),
        `sum-ones` (1+...+1), `count-ones`, `count-ones-bernoulli` (each digit a one with
        probability `p`, else a zero), `count-ones-figure-5` (the question of Figure 5 (a)),
        `count-word` (each word is 'car' with probability 1/2, else one of `WORDS`).
    hint: append the paper's hint (copying a digit).
    separator_every: a comma after every so many digits, none at the end (tasks on digits). What a
        mitigation inserts does not count.
    interleave: zeros and ones in turn. Where a digit is to be copied it is a zero; `count-ones`
        begins with a one.
    uniform: digits drawn uniformly instead of the paper's ones (copying; `count-ones-figure-5`,
        where the sequence then ends in one or two ones after another digit, as in Figure 5 (b)).
    base: of uniform digits to copy, how many there are: with 2 zeros and ones.
    p: probability of a one (`count-ones-bernoulli`).
    mode: "none" is the prompt of C.1 alone; "answer-only" adds the instruction of which Section 3.2
        speaks and C.1 prints nothing; "cot-zero-shot" and "cot-few-shot" ask for reasoning, with no
        examples or with worked ones before the question (`few_shot`; sums and counts).
    tidy: without the paper's slips of the pen (`sum-ones`, `count-ones`, `count-ones-bernoulli`).
    corrupt: with one digit flipped: the one to copy, or of a count the middle one. A drawn digit d
        becomes d + 1.

    Raises InputError for an unknown name or an option that the task does not have.
    """

    name: str
    hint: bool = False
    separator_every: Count | None = None
    interleave: bool = False
    uniform: bool = False
    base: int = 10
    p: float = 0.7
    mode: Mode = "none"
    tidy: bool = False
    corrupt: bool = False

    @staticmethod
    def takes(name: str, option: str) -> bool:
        """Whether the task of that name has the option."""
        return option not in _OPTIONS or name in _OPTIONS[option][0]

    def __post_init__(self) -> None:
        checked_name("task", self.name, _FORMS)
        for option, (names, _) in _OPTIONS.items():
            if getattr(self, option) != getattr(AppendixTask, option) and self.name not in names:
                raise InputError(
                    f"task {self.name!r} has no option {option!r}; tasks that have it: "
                    f"{', '.join(names)}"
                )
        whole_number("base", self.base, 2, len(_DIGITS))
        if self.interleave and self.uniform:
            raise InputError(
                "interleave and uniform exclude each other: choose one way of making the sequence"
            )
        if not 0 < self.p < 1:
            raise InputError(f"p: expected a probability above 0 and below 1, found {self.p}")
        if self.base != len(_DIGITS) and not self.uniform:
            raise InputError(
                f"base: expected digits that are drawn: write uniform=true,base={self.base}"
            )

    @property
    def random(self) -> bool:
        return self.uniform or self.name in ("count-ones-bernoulli", "count-word")

    @property
    def trained_as(self) -> str | None:
        return self.name if self.mode == "none" else None

    @property
    def numeric(self) -> bool:
        return self.name in COUNTING

    @property
    def example_task(self) -> "AppendixTask":
        """Copying with drawn digits: the paper's own sequences all have the same answer, which
        examples would give away.
        """
        if self.name in _COPY_NAMES:
            return replace(self, corrupt=False, uniform=True, interleave=False)
        return replace(self, corrupt=False)

    @property
    def reasons(self) -> bool:
        return self.mode in ("cot-zero-shot", "cot-few-shot")

    def items(self, length: int, seed: int = 0) -> tuple[str, ...]:
        """The `length` digits (or words) of the sequence, before any separator."""
        items = self._plain_items(length, seed)
        if not self.corrupt:
            return items
        place = {"copy-last": length - 1, "copy-first": 0}.get(self.name, length // 2)
        flipped = (int(items[place]) + 1) % (self.base if self.uniform else 2)
        return (*items[:place], str(flipped), *items[place + 1 :])

    def _plain_items(self, length: int, seed: int) -> tuple[str, ...]:
        whole_number("length", length, 1)
        stream = Random(f"{self.name} {seed}")
        if self.name == "count-word":
            return tuple(
                "car" if stream.random() < 0.5 else stream.choice(WORDS) for _ in range(length)
            )
        if self.name == "count-ones-bernoulli":
            return tuple("1" if stream.random() < self.p else "0" for _ in range(length))
        if self.uniform:
            return self._uniform_items(length, stream)
        zeros = self._zeros(length)
        return tuple("0" if place in zeros else "1" for place in range(length))

    def _zeros(self, length: int) -> Sequence[int]:
        """The places of the zeros in a sequence that is not drawn."""
        if self.interleave:
            starts = {"copy-last": (length - 1) % 2, "count-ones": 1}
            return range(starts.get(self.name, 0), length, 2)
        return {"copy-last": (length - 1,), "copy-first": (0,)}.get(self.name, ())

    def _uniform_items(self, length: int, stream: Random) -> tuple[str, ...]:
        ones = min(length, 1 + (stream.random() < 0.5))
        digits = [stream.choice(_DIGITS[: self.base]) for _ in range(length)]
        if self.name != "count-ones-figure-5":
            return tuple(digits)
        if length > ones and digits[-ones - 1] == "1":  # one one is not two, nor two of them three
            digits[-ones - 1] = stream.choice("023456789")
        return (*digits[: length - ones], *("1",) * ones)

    def sequence(self, pieces: Sequence[str]) -> str:
        """The items as they stand in the prompt: joined, with `+`, spaces or commas where the task
        has them.

        Raises `InputError` for inserted text that would break a sum.
        """
        if self.name == "sum-ones":
            return _as_sum(pieces)
        if self.name == "count-word":
            # A comma stands at the word before it, and a word has a blank of its own before it.
            signs = (piece.rstrip() if isinstance(piece, Bar) else piece for piece in pieces)
            words = (f" {piece}" if piece[:1].isalnum() else piece for piece in signs)
            return "".join(words).removeprefix(" ")
        return _with_commas(pieces, self.separator_every)

    def parts(self, pieces: Sequence[str]) -> tuple[str, str, str]:
        form = _FORMS[self.name][0]
        if not self.tidy and self.name in _SLIPS:
            form = form.replace(*_SLIPS[self.name])
        before, after = form.split("{seq}")
        after += _APPENDED.get(self.mode, "") + (HINT if self.hint else "")
        if self.mode == "cot-few-shot":
            before = f"{few_shot(self.name, self.tidy)}\n{before}"
        return before, self.sequence(pieces), after

    def key(self, pieces: Sequence[str]) -> str:
        """The right answer for these items, as the digits or the number alone; the whole number as
        it stands, commas too.
        """
        if self.name == "copy":
            return self.sequence(pieces)
        if self.name == "sum-ones":
            return str(sum(int(piece) for piece in pieces if piece.isdigit()))
        if self.name in COUNTING:
            return str(list(pieces).count(self._counted_item))
        return pieces[0 if self.name == "copy-first" else -1]

    @property
    def _counted_item(self) -> str:
        return "car" if self.name == "count-word" else "1"

    def carriers(self, items: Sequence[str]) -> tuple[int, ...]:
        last = len(items) - 1
        copied = {"copy-last": (last,), "copy-first": (0,), "copy": tuple(range(last + 1))}
        places = (index for index, item in enumerate(items) if item == self._counted_item)
        return copied[self.name] if self.name in copied else tuple(places)

    def answer_line(self, answer: str) -> str:
        return _FORMS[self.name][1].format(answer=answer)

    def could_answer(self, line: str, pieces: Sequence[str]) -> bool:
        """A copied number has a digit."""
        return any(letter.isdigit() for letter in line)


def _with_commas(pieces: Sequence[str], every: int | None) -> str:
    """The pieces with a comma after every so many digits, none after the last: what a mitigation
    inserted is no digit.
    """
    places = [place for place, piece in enumerate(pieces) if piece.isdigit()]
    marked = set(places[every - 1 : -1 : every]) if every else set()
    return "".join(piece + "," * (place in marked) for place, piece in enumerate(pieces))


def _as_sum(pieces: Sequence[str]) -> str:
    """The numbers with plus signs between them, but for those beside a bar."""
    numbers = [piece for piece in pieces if not isinstance(piece, Bar)]
    if wrong := [piece for piece in numbers if not piece.isdigit()]:
        raise InputError(
            f"sum-ones: expected numbers between the plus signs, found {wrong[0]!r} inserted"
        )
    parts = groupby(pieces, lambda piece: isinstance(piece, Bar))
    return "".join(("" if is_bar else " + ").join(part) for is_bar, part in parts)


@cache
def few_shot(name: str, tidy: bool = False) -> str:
    """The request with the two worked examples of a task. Raises `KeyError` for a task that has
    none.
    """
    first, second = (_example(name, sequence) for sequence in _SEQUENCES[name])
    if name == "sum-ones" and not tidy:
        # As in C.1: the first sum without its question, its terms on the line of the first
        # sentence.
        first = [" ".join(first[1:3]), *first[3:]]
    return "\n".join([_OPENING, *first, *second])


def _example(name: str, sequence: str) -> list[str]:
    """The question, the ones in groups of five, their sum, and the answer line."""
    ones = sequence.split(" ").count("car") if name == "count-word" else sequence.count("1")
    groups, remainder = divmod(ones, _GROUP)
    terms = ["(" + " + ".join("1" * _GROUP) + ")"] * groups + ["1"] * remainder
    return [
        _FORMS[name][0].removesuffix(f".{_MATHS_REQUEST}").format(seq=sequence),
        f"We divide the sum into groups of {_GROUP}.",
        " + ".join(terms),
        f"The answer is then {groups} * {_GROUP} + {remainder} = {ones}",
        _MATHS_ANSWER.format(answer=ones),
    ]
