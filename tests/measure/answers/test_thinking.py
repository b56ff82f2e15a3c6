"""Answers that begin with thoughts: what stands behind them is the answer, and they are counted
apart.
"""

import math
from typing import Any

import pytest

import ostools as ost
from ostools.measure.answers import evaluate as asking
from ostools.measure.answers.answers import Answer
from ostools.measure.answers.reading import (
    CUT_OFF,
    HAS_ANSWER,
    SOMETHING_ELSE,
    ParsedAnswer,
    reader,
)
from ostools.tasks import task
from tests.models.chat.templates import Template, on_template, with_template

MATHS = "The final answer to your maths question is:"
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
