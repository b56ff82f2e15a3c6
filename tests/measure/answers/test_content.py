"""The value that a free answer asserts, on texts of real models and texts typical of chat models (answers.jsonl)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ostools.measure.answers.answers import line_written
from ostools.measure.answers.judging import asserted, judge, stops_of
from ostools.measure.answers.reading import CUT_OFF, LONGEST, reader
from ostools.measure.hosted.answer_file import without_stop_tokens
from ostools.tasks import task
from tests.measure.answers.test_reading import answer, posed
from tests.sets import quick

TEXTS = [
    json.loads(line) for line in Path(__file__).with_name("answers.jsonl").read_text(encoding="utf-8").splitlines()
]
"""Texts with the value that each asserts, judged by a person. 66 are answers of real models to the paper's tasks."""
MISSED = {"12. I hope this helps!", "It ends with a zero.", "Zero is the last digit."}
"""Known misses: each asserts a value, and is read as asserting none."""


def read(row: dict) -> str | None:
    form = task(row["task"])
    pieces = form.items(row["length"])
    return asserted(form, pieces, reader(form, pieces, form.prompt(row["length"])), row["text"], row["ended"])


def test_every_text_is_read_as_a_person_reads_it_or_is_a_known_miss() -> None:
    assert sum(row["source"] != "written by hand" for row in TEXTS) >= 60
    wrong = {row["text"]: read(row) for row in TEXTS if read(row) != row["content"]}
    assert wrong == dict.fromkeys(MISSED)


def test_the_strict_reading_and_the_content_stand_beside_each_other() -> None:
    for text, kind, correct, content, content_correct in (
        ("The last digit in this sequence is 0.", "something else", False, "0", True),
        ("The last digit in this sequence is 8.", "something else", False, "8", False),
        ("The answer to your question is: 0", "answered", True, "0", True),
        ("I do not know.", "something else", False, None, None),
    ):
        found = judge(posed("copy-last"), answer(text))
        assert (found.kind, found.correct) == (kind, correct)
        assert (found.content, found.content_correct) == (content, content_correct)
    retrieved = judge(posed("retrieve-at-position:records=words", 5), answer("The value is nothing."))
    assert retrieved.content is None


MATHS = "The final answer to your maths question is:"
LONG: dict[str, Callable[[int], str]] = {
    "letters": lambda size: "x" * size,
    "digits": lambda size: "1" * size,
    "line ends": lambda size: "\n" * size,
    "blanks": lambda size: "Please count the number of ones in the following sequence:" + "1" * 12 + " " * size + "x",
    "own question": lambda size: (
        "Please count the number of ones in the following sequence:111111111111\n" * (size // 72)
    ),
    "stop tokens": lambda size: "</s> " * (size // 5) + "x",
    "less than": lambda size: "<" * size,
    "boxed": lambda size: "\\boxed{" * (size // 7),
    "boxed and closed": lambda size: "\\boxed{" * (size // 8) + "1" + "}" * (size // 8),
    "forms": lambda size: f"{MATHS} " * (size // 45),
    "placeholders": lambda size: f"{MATHS} {'<' * size}",
    "stars": lambda size: "." + "*" * size + "x",
    "thousands": lambda size: "111," * (size // 4),
    "sums": lambda size: "1 + " * (size // 4),
    "verbs": lambda size: "is " * (size // 3),
    "lines that go on": lambda size: "is\n" * (size // 3),
    "totals": lambda size: "total " * (size // 6) + "is",
    "thoughts": lambda size: "<think>" * (size // 7),
}
_READ: tuple[Callable[[str], object], ...] = (
    lambda text: judge(posed("count-ones"), answer(text)),
    lambda text: judge(posed("count-ones-figure-5"), answer(text, "length")),
    lambda text: stops_of([posed("sum-ones")])[0](text),
    line_written,
    without_stop_tokens,
)


def seconds(text: str) -> float:
    """CPU seconds of this thread: others on the machine do not count."""
    spent = []
    for _ in range(2):
        start = time.thread_time()
        for work in _READ:
            work(text)
        spent.append(time.thread_time() - start)
    return min(spent)


@pytest.mark.parametrize("name", quick(LONG, "own question", "forms", "thoughts", "stop tokens"))
def test_ten_times_the_text_takes_about_ten_times_as_long(name: str) -> None:
    """A quadratic reader takes a hundred times as long: 30 is far from both."""
    short, long = seconds(LONG[name](4_000)), seconds(LONG[name](40_000))
    assert long < 30 * max(short, 1e-3)


def test_what_stands_behind_the_limit_of_length_is_not_read() -> None:
    late = judge(posed("count-ones"), answer("x" * LONGEST + f"\n{MATHS} 12"))
    assert (late.kind, late.correct, late.content) == (CUT_OFF, False, None)
    early = judge(posed("count-ones"), answer(f"{MATHS} 12\n" + "x" * LONGEST))
    assert (early.correct, early.content_correct) == (True, True)
    assert stops_of([posed("count-ones")])[0]("\n" * (LONGEST + 1))
