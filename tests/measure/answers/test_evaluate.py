"""Rows of `evaluate`, what its intervals are of, when a mitigation acted, and what is refused; how
answers are elicited: worked examples for a base model, its template for a chat model.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pytest

import ostools as ost
from ostools import hooks
from ostools.measure.answers.answers import answer_log_probability, answers
from ostools.measure.answers.result import COLUMNS, Evaluation, summarise
from ostools.measure.position import answer_text
from ostools.measure.task_prompt import (
    EXAMPLES,
    elicit,
    elicitation_for,
    few_shot_text,
    render_prompt,
    worked_examples,
)
from ostools.mitigations import Mitigation, MitigationError, SlidingWindow
from ostools.tasks import APPENDIX_NAMES, task
from ostools.tasks.questions import question
from ostools.theory.statistics.intervals import wilson
from tests.checkpoints import refused, tiny_model
from tests.measure.steps import without_ends


@pytest.fixture(scope="module")
def counted(embedded) -> Evaluation:
    return ost.evaluate(embedded, "count-ones", lengths=(12, 3, 140, 12))


@pytest.fixture(scope="module")
def drawn(embedded) -> Evaluation:
    return ost.evaluate(embedded, "count-ones-bernoulli", lengths=(6, 40), seeds=range(6))


BARE = task("count-ones-figure-5")
"""A question short enough for a tiny model's context."""
YES, NO = [True], [False]


def test_the_table(counted: Evaluation) -> None:
    frame: Any = counted.frame
    assert {name: str(frame[name].dtype) for name in frame} == COLUMNS
    columns = ["length", "key", "within_training", "correct"]
    assert frame[columns].to_numpy().tolist() == [
        [3, "3", *YES * 2],
        [12, "12", *YES * 2],
        [140, "140", *NO * 2],
    ]
    assert frame[["task", "mitigation", "status", "mode"]].iloc[0].tolist() == [
        "count-ones",
        "none",
        "none",
        "none",
    ]
    assert frame["answer"].tolist()[:2] == [
        task("count-ones").answer_line(key) for key in ("3", "12")
    ]
    assert ((frame["number"] - frame["length"]).abs() == frame["absolute_error"]).all()


def test_the_numbers_are_those_of_answers_and_of_the_probability(
    embedded, counted: Evaluation
) -> None:
    posed = [render_prompt(embedded, task("count-ones"), n) for n in (3, 12, 140)]
    prompts = [one.prompt for one in posed]
    room = counted.provenance.parameters["max_new_tokens"]
    assert counted.frame["text"].tolist() == [
        a.text for a in answers(embedded, prompts, max_new_tokens=room)
    ]
    assert counted.frame["tokens"].tolist() == [len(prompt.ids) for prompt in prompts]
    likely = answer_log_probability(embedded, prompts, [answer_text(one) for one in posed])
    assert counted.frame["log_probability"].tolist() == pytest.approx(likely, rel=1e-5)
    # What is answered greedily and right is likely; what is answered wrongly is not the right line.
    assert likely[0] > math.log(0.5) > likely[2]


def test_prompts_that_were_drawn_are_the_trials(drawn: Evaluation) -> None:
    frame: Any = drawn.frame
    summary: Any = drawn.summary
    assert frame["seed"].tolist() == [0, 1, 2, 3, 4, 5] * 2
    for _, row in summary.iterrows():
        here = frame[frame["length"] == row["length"]]
        assert row["right"] == here["correct"].sum()
        assert (row["prompts"], row["asked"]) == (6, 6)
        assert (row["wilson_low"], row["wilson_high"]) == wilson(int(row["right"]), 6)
        assert row["mean_absolute_error"] == pytest.approx(here["absolute_error"].mean())


def made(right: Sequence[bool], kind: str = "answered") -> pd.DataFrame:
    """A table of one length: a prompt a seed."""
    rows = [
        {"length": 4, "seed": seed, "correct": good, "kind": kind, "status": "none"}
        for seed, good in enumerate(right)
    ]
    table: Any = pd.DataFrame(rows).assign(
        absolute_error=pd.NA, log_probability=math.log(0.5), within_training=pd.NA
    )
    table = table.assign(content_correct=table["correct"])
    return table.astype({name: COLUMNS[name] for name in table if name in COLUMNS})


def test_an_interval_needs_prompts_that_were_drawn() -> None:
    (row,) = summarise(made([True]), random=False).to_dict("records")
    assert math.isnan(row["wilson_low"])


@pytest.mark.parametrize(
    ("kind", "counts"), [("something else", (2, 0)), ("cut off", (0, 2)), ("answered", (0, 0))]
)
def test_what_is_no_answer_is_neither_right_nor_an_error(
    kind: str, counts: tuple[int, int]
) -> None:
    (row,) = summarise(made([False, False], kind), random=True).to_dict("records")
    assert (row["something_else"], row["cut_off"], row["right"]) == (*counts, 0)
    assert row["wrong"] == 2 - sum(counts)
    assert math.isnan(row["mean_absolute_error"])


def test_a_window_that_only_the_answer_outgrows_is_active() -> None:
    model = tiny_model("gemma", seed=3, fresh=True)
    without_ends(model)
    tokens = len(render_prompt(model, BARE, 3).prompt.ids)
    options: Any = {"lengths": (3,), "max_new_tokens": 9}
    assert ost.evaluate(model, BARE, **options).frame["ended"].tolist() == ["length"]
    for window, status in ((tokens, "active"), (tokens + 7, "active"), (tokens + 8, "inactive")):
        found = ost.evaluate(model, BARE, mitigation=SlidingWindow(window), **options)
        assert found.frame["status"].tolist() == [status]


def test_every_step_is_verified() -> None:
    shapes: list[tuple[int, ...]] = []

    @dataclass(frozen=True)
    class Watched(Mitigation):
        @contextmanager
        def hooks(self, model) -> Iterator[None]:
            with hooks.mask_scores(model, lambda query, key: query - key < 3):
                yield

        def verify(self, record: Mapping[str, Any]) -> None:
            shapes.extend(tuple(pattern.shape[-2:]) for pattern in record["pattern"].values())
            if len(shapes) > 4:
                raise MitigationError("Watched: broken")

    model = tiny_model("gemma", seed=3)
    tokens = len(render_prompt(model, BARE, 3).prompt.ids)
    with pytest.raises(MitigationError, match="Watched: broken"):
        ost.evaluate(model, BARE, mitigation=Watched(), lengths=(3,), max_new_tokens=4)
    assert shapes[:4] == [(tokens, tokens)] * 2 + [(1, tokens + 1)] * 2


def test_reasoning_has_room_and_no_probability(embedded) -> None:
    found = ost.evaluate(embedded, "count-ones:mode=cot-zero-shot", lengths=(3,))
    parameters = found.provenance.parameters
    plain = ost.evaluate(embedded, "count-ones", lengths=(3,)).provenance.parameters
    assert parameters["max_new_tokens"] == plain["max_new_tokens"] + 256
    assert (parameters["probability"], plain["probability"]) == (False, True)
    assert found.frame["mode"].tolist() == ["cot-zero-shot"]
    assert bool(found.frame["log_probability"].isna().all())
    assert bool(found.frame["within_training"].isna().all())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lengths": (0,)}, "whole numbers of at least 1, found 0"),
        ({"seeds": (0, 1)}, r"count-ones draws nothing at random, found seeds \[0, 1\]"),
        ({"elicitation": "chat"}, "chat template, found none"),
        ({"lengths": (8140,)}, "do not fit the model's context of 8192"),
    ],
)
def test_refuses(embedded, options: dict, words: str) -> None:
    refused(words, ost.evaluate, embedded, **({"task": "count-ones", "lengths": (3,)} | options))


CHAT_TOKENIZER = type("Tokenizer", (), {"chat_template": "{{ messages }}"})()
BASE_TOKENIZER = type("Tokenizer", (), {"chat_template": None})()


def test_the_default_goes_by_the_kind_of_model() -> None:
    form, reasoning = task("count-ones"), task("count-ones:mode=cot-few-shot")
    assert elicitation_for(form, CHAT_TOKENIZER, None, None, None) == "chat"
    assert elicitation_for(form, BASE_TOKENIZER, None, None, None) == "few-shot"
    assert elicitation_for(form, BASE_TOKENIZER, {"count-ones": 8}, None, None) == "zero-shot"
    assert elicitation_for(reasoning, BASE_TOKENIZER, None, None, None) == "zero-shot"
    assert elicitation_for(form, CHAT_TOKENIZER, None, "few-shot", None) == "few-shot"
    assert elicitation_for(form, CHAT_TOKENIZER, None, None, False) == "zero-shot"
    refused("leave chat out", elicitation_for, form, CHAT_TOKENIZER, None, "zero-shot", True)
    with pytest.raises(ost.InputError, match="asks for reasoning"):
        elicitation_for(reasoning, BASE_TOKENIZER, None, "few-shot", None)


@pytest.mark.parametrize("name", [*APPENDIX_NAMES, "retrieve-at-position"])
def test_examples_are_the_same_task_with_other_sequences(name: str) -> None:
    for length in (5, 3, 9):
        asked = question(task(name), length)
        examples = worked_examples(asked, None)
        sequences = [one.task.items(one.length, one.seed) for one in examples]
        assert len(examples) == EXAMPLES
        assert len({*sequences, asked.task.items(length)}) == EXAMPLES + 1
        if length == 9:
            # A copy's answer must not be the same in every example.
            assert len({one.key for one in examples}) > 1
        prompt, prefill = few_shot_text(asked, None)
        assert prompt.endswith(asked.text + asked.task.lead)
        assert asked.line.startswith(prefill)
        assert all(f"{one.text}{asked.task.lead}{one.line}\n\n" in prompt for one in examples)


def test_a_mitigation_rewrites_the_examples_too() -> None:
    from ostools.mitigations import Hint, Separator

    form = task("count-ones")
    for mitigation, mark in ((Separator(every=2), "11,1"), (Hint(), Hint().text)):
        asked = question(form, 4, mitigation=mitigation)
        assert few_shot_text(asked, mitigation)[0].count(mark) >= 1 + EXAMPLES


def test_a_few_shot_answer_is_the_rest_of_the_line_and_so_is_what_is_scored() -> None:
    model = tiny_model("llama", context=1024)
    form = task("count-ones")
    posed = elicit(model, form, 4, "few-shot")
    assert posed.prefill is not None
    assert posed.prompt.text is not None
    assert posed.prompt.text.endswith(posed.prefill)
    assert posed.prefill + answer_text(posed) == posed.line
    (score,) = answer_log_probability(model, [posed.prompt], [answer_text(posed)])
    found = ost.evaluate(model, form, lengths=[4, 6], elicitation="few-shot", max_new_tokens=4)
    frame: Any = found.frame
    assert frame["elicitation"].tolist() == ["few-shot"] * 2
    assert frame["log_probability"].iloc[0] == pytest.approx(score)
    assert found.provenance.parameters["examples"] == EXAMPLES
    bare: Any = ost.evaluate(
        model, form, lengths=[4], elicitation="zero-shot", max_new_tokens=4
    ).frame
    assert bare["tokens"].iloc[0] < frame["tokens"].iloc[0]


def test_an_exact_cycle_stops_an_answer_and_is_named() -> None:
    """A model with a last layer norm of zero writes the same token for ever."""
    model = tiny_model("llama", fresh=True)
    model.ln_final.weight.zero_()
    prompts = [model.tokenizer.decode([5]) + "a", "b"]
    cut = answers(model, prompts, max_new_tokens=20)
    assert [(one.ended, len(one.ids)) for one in cut] == [("length", 20)] * 2
    found = answers(model, prompts, max_new_tokens=20, cycles=[6, 9])
    assert [(one.ended, len(one.ids)) for one in found] == [("repeats", 7), ("repeats", 10)]
