"""The value that is read in a free answer, on texts of real models and texts typical of chat models
(answers.jsonl), and behind thoughts, which are counted apart.
"""

import json
import math
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ostools as ost
from ostools.measure.answers import evaluate as asking
from ostools.measure.answers.answers import Answer, line_written
from ostools.measure.answers.judging import AnswerVerdict, judge
from ostools.measure.answers.reading import (
    CUT_OFF,
    HAS_ANSWER,
    SOMETHING_ELSE,
    ParsedAnswer,
    reader,
    reader_of,
)
from ostools.measure.hosted.answer_file import without_stop_tokens
from ostools.tasks import task
from ostools.tasks.questions import question
from tests.measure.answers.test_reading import answer, posed
from tests.models.chat.templates import Template, on_template, with_template
from tests.sets import quick

TEXTS = [
    json.loads(line)
    for line in Path(__file__).with_name("answers.jsonl").read_text(encoding="utf-8").splitlines()
]
"""Texts with the value that a person reads in each. 66 are answers of real models to the paper's
tasks.
"""


def read(row: dict) -> AnswerVerdict:
    return judge(
        question(ost.tasks.task(row["task"]), row["length"]), answer(row["text"], row["ended"])
    )


def test_no_answer_of_a_real_model_is_read_as_right_in_which_a_person_reads_none() -> None:
    real = [row for row in TEXTS if row["source"] != "written by hand"]
    counts = Counter((row["content"] is None, read(row).content == row["content"]) for row in real)
    # 3 of the 24 values stand in texts that were cut; 6 of 42 texts without a value hold a copy of
    # the sequence.
    assert counts == {(False, True): 21, (False, False): 3, (True, True): 36, (True, False): 6}
    assert not any(read(row).content_correct for row in real if row["content"] is None)


@pytest.mark.parametrize(
    ("spec", "text", "content"),
    [
        ("copy-last", "The last digit in this sequence is 8.", "8"),
        ("copy-last", "The last digit is zero.", None),
        ("copy-last", "1 1 1 1 1 1 1 1 1 1 1 0", None),  # the sequence again
        ("copy-last", "The sequence is 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0", None),
        ("copy-last", "1 1 1 1 1 1 1 1 1 1 1 0, so 0", "0"),
        ("count-ones", "- 12", "12"),  # a bullet
        ("count-ones", "Step 1: there are 12 ones.\n---\n13", "13"),
        ("count-ones", "12 ones - 13th in all", None),  # never an earlier number than the last
        ("count-ones", "There are 12 ones.", "12"),
        ("count-ones", "There are **1,012** ones", "1012"),
        ("count-ones", "11 or 12 of the 20 digits", "20"),  # sentences are not understood
        ("count-ones", "12.5, item3, -7, 6-7 and 3rd", None),
        ("count-ones", "The final answer to your maths question is: 12\nThat is 6 + 6.", "12"),
        ("count-ones-figure-5", "I count 12 ones.", "12"),
        ("copy", "The number is 111111111111.", "111111111111"),
        ("copy:separator_every=6", "111111,111111", "111111,111111"),
    ],
)
def test_the_form_that_was_asked_for_else_the_last_number(
    spec: str, text: str, content: str | None
) -> None:
    assert judge(posed(spec), answer(text)).content == content


def test_of_a_text_that_was_cut_before_its_answer_nothing_is_read() -> None:
    assert judge(posed("count-ones"), answer("I count 12", "length")).content is None
    assert judge(posed("count-ones"), answer("I count 12", "eos")).content == "12"


def test_a_grade_judges_by_its_own_rule_and_the_strict_column_stays() -> None:
    in_words = answer("There are twelve.")
    graded = judge(posed("count-ones"), in_words, lambda _, text: "twelve" in text)
    assert (graded.correct, graded.content, graded.content_correct) == (False, None, True)
    with pytest.raises(ost.InputError, match="grade: expected True or False, found 1"):
        judge(posed("count-ones"), in_words, lambda _, text: 1)  # pyright: ignore[reportArgumentType]


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
    retrieved = judge(
        posed("retrieve-at-position:records=words", 5), answer("The value is nothing.")
    )
    assert retrieved.content is None


MATHS = "The final answer to your maths question is:"
LONG: dict[str, Callable[[int], str]] = {
    "letters": lambda size: "x" * size,
    "digits": lambda size: "1" * size,
    "line ends": lambda size: "\n" * size,
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
    lambda text: reader_of(posed("sum-ones")).closed(text),
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


HARMONY = "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>{}"
THOUGHTS = {
    "tags": "<think>\nOne: {} 7\n</think>\n\n{}",
    "tags in brackets": "[THINK]{} 7[/THINK]{}",
    "channels": HARMONY,
}


def _read(text: str, ended: str = "eos", prompt: str = "") -> ParsedAnswer:
    form = task("count-ones")
    return reader(form, form.items(5), prompt).read(text, ended)


@pytest.mark.parametrize("name", THOUGHTS)
def test_the_answer_stands_behind_the_thoughts(name: str) -> None:
    text = THOUGHTS[name].format(MATHS, f"{MATHS} 5")
    found = _read(text)
    assert (found.kind, found.number) == (HAS_ANSWER, 5)
    form = task("count-ones")
    assert text[reader(form, form.items(5)).answer_start(text) :].strip() == f"{MATHS} 5"


@pytest.mark.parametrize("name", THOUGHTS)
def test_thoughts_that_never_end_are_cut_off_whatever_they_say(name: str) -> None:
    thought = THOUGHTS[name].format(f"{MATHS} 5\n", "").rsplit("<|end|>", 1)[0]
    for close in ("</think>", "[/THINK]"):
        thought = thought.replace(close, "")
    form = task("count-ones")
    reading = reader(form, form.items(5))
    assert _read(thought, "length").kind == CUT_OFF
    assert _read(thought).kind == SOMETHING_ELSE
    assert not reading.closed(thought)  # generation goes on


def _said(monkeypatch: pytest.MonkeyPatch, text: str, ended: str) -> None:
    def answers(model: Any, prompts: Any, **options: Any) -> list[Answer]:
        ids = tuple(model.tokenizer(text, add_special_tokens=False).input_ids)
        return [Answer(ids, text, ended) for _ in prompts]  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(asking, "answers", answers)


def test_a_model_that_thinks_has_no_probability_of_the_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer does not stand right behind the prompt."""
    text = f"<think>\nfive, é\n</think>{MATHS} 5\n"
    _said(monkeypatch, text, "stop")
    found = ost.evaluate(
        on_template("qwen-3"), "count-ones", lengths=[5], thinking=True, system="Be short."
    )
    row: Any = found.frame.iloc[0]
    assert (row["kind"], row["text"], math.isnan(row["log_probability"])) == (
        HAS_ANSWER,
        text,
        True,
    )
    asked = found.provenance.parameters
    assert (asked["chat"], asked["system"], asked["thinking"]) == (True, "Be short.", "on")


def test_what_needs_the_answer_right_behind_the_prompt_is_refused() -> None:
    source = "{{ '<|u|>' + messages[-1]['content'] + '<|a|><think>\n' }}"
    model = with_template(Template(source, ("<|u|>", "<|a|>")))
    with pytest.raises(
        ost.InputError, match="with which the model thinks first: ask without it, chat=False"
    ):
        ost.ablation(model, task="copy-first", lengths=[3], what="layers")
