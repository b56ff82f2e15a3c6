"""Every measurement of a prompt under a mitigation: it equals, bit for bit, the measurement on the
edited prompt inside the mitigation's hooks; and a mitigation that does not act is refused."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from typing import Any

import pandas as pd
import pytest
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools import hooks
from ostools.mitigations import (
    Hint,
    Mitigation,
    MitigationError,
    RepeatPrompt,
    Separator,
    SlidingWindow,
    compose,
    label,
)
from ostools.results import Result, frame_of
from ostools.tasks.questions import question
from tests.checkpoints import CHAT_TEMPLATE, refused, tiny_model
from tests.sets import quick

TEXT = "the cat in the tin"
SMALL: dict[str, Any] = {
    "d_model": 8,
    "n_heads": 2,
    "n_key_value_heads": 1,
    "d_mlp": 8,
    "context": 256,
}


def model_of() -> TransformerBridge:
    return tiny_model("llama", seed=1, **SMALL)


MEASUREMENTS: dict[str, Callable[..., Result]] = {
    "sensitivity": lambda model, prompt, **under: ost.sensitivity(
        model, prompt, linearisations=["full"], **under
    ),
    "bounds": lambda model, prompt, **under: ost.bounds(
        model, prompt, variants=["local", "proof", "theorem-5.1"], **under
    ),
    "attribution": ost.attribution,
    "head_scores": ost.measure.head_scores,
}
KNOWN = {
    "hint": Hint(" a"),
    "window": SlidingWindow(3),
    "all": compose(
        RepeatPrompt(2), ost.mitigations.AttentionTemperature(factor=2), SlidingWindow(9)
    ),
}


@dataclass(frozen=True)
class Ablated(Mitigation):
    """An edit that no formula of a pattern knows."""

    def hooks(self, model: TransformerBridge) -> AbstractContextManager[None]:
        return hooks.ablate_heads(model, [(0, 1)])


def tables(result: Result) -> dict[str, Any]:
    return {
        one.name: getattr(result, one.name) for one in fields(result) if one.name != "provenance"
    }


def require_equal(found: Result, expected: Result) -> None:
    """Bit for bit, in every table."""
    mine, others = tables(found), tables(expected)
    assert mine.keys() == others.keys()
    for name in mine:
        pd.testing.assert_frame_equal(mine[name], others[name], check_exact=True)


@pytest.mark.parametrize(
    "under",
    [
        pytest.param("hint", marks=pytest.mark.slow),
        pytest.param("window", marks=pytest.mark.slow),
        "all",
    ],
)
@pytest.mark.parametrize("name", MEASUREMENTS)
def test_it_equals_the_edited_prompt_inside_the_hooks(name: str, under: str) -> None:
    model, given, measure = model_of(), KNOWN[under], MEASUREMENTS[name]
    found = measure(model, TEXT, mitigation=given)
    with given.hooks(model):
        by_hand = measure(model, given.prompt(TEXT))
    require_equal(found, by_hand)
    assert found.provenance.parameters["mitigation"] == ost.mitigations.label(given)
    assert found.provenance.token_ids == by_hand.provenance.token_ids
    assert not hooks.active_edits(model)


def test_results_under_different_mitigations_do_not_stand_beside_each_other() -> None:
    model = model_of()
    measured = ost.sensitivity(model, TEXT, linearisations=["frozen"], mitigation=SlidingWindow(3))
    with pytest.raises(ost.InputError, match="under different mitigations"):
        ost.compare(measured, ost.bounds(model, TEXT, variants="local"))


def test_what_no_formula_knows_is_differentiated_and_refused_where_a_formula_is_needed() -> None:
    model, given = model_of(), Ablated()
    frozen: dict[str, Any] = {"linearisations": ["frozen"]}
    found = ost.sensitivity(model, TEXT, mitigation=given, **frozen)
    with given.hooks(model):
        require_equal(found, ost.sensitivity(model, TEXT, **frozen))
    assert ost.attribution(model, TEXT, mitigation=given).provenance.parameters["complete"]
    refused(r"bounds: .* found 'ablate_heads'", ost.bounds, model, TEXT, mitigation=given)
    assert not hooks.active_edits(model)


@dataclass(frozen=True)
class Same(Mitigation):
    """A rewrite that changes nothing."""

    def prompt(self, text: str) -> str:
        return text


@pytest.mark.parametrize("name", ["sensitivity", "bounds", "head_scores"])
def test_one_that_does_not_act_is_refused(name: str) -> None:
    model = model_of()
    for given in (
        SlidingWindow(200),
        Same(),
        Mitigation(),
        compose(Hint(" a"), SlidingWindow(200)),
    ):
        with pytest.raises(
            ost.InputError, match="expected a mitigation that changes this prompt, found that"
        ):
            MEASUREMENTS[name](model, TEXT, mitigation=given)


@pytest.mark.slow
def test_of_several_prompts_the_one_that_is_not_changed_is_named() -> None:
    model, given = model_of(), SlidingWindow(8)
    found = ost.sensitivity(model, [TEXT, TEXT + " a"], mitigation=given)
    for one, text in zip(found, (TEXT, TEXT + " a"), strict=True):
        require_equal(one, ost.sensitivity(model, text, mitigation=given))
    with pytest.raises(
        ost.InputError, match="a mitigation that changes prompt 2 of 2, found that sliding-window"
    ):
        ost.sensitivity(model, [TEXT, "a"], mitigation=given)


def test_a_broken_promise_ends_the_measurement() -> None:
    def verify(self: Mitigation, record: Mapping[str, Any]) -> None:
        raise MitigationError("Broken: never kept")

    broken: Any = [type("Broken", (kind,), {"verify": verify}) for kind in (SlidingWindow, Hint)]
    for given in (broken[0](3), broken[1](" a")):
        for make in (
            ost.sensitivity,
            ost.bounds,
            ost.attribution,
            ost.measure.head_scores,
        ):
            with pytest.raises(MitigationError, match="never kept"):
                make(model_of(), TEXT, mitigation=given)


def test_a_chat_has_its_message_rewritten_and_tokens_alone_are_refused() -> None:
    model = tiny_model("llama", seed=1, fresh=True, **SMALL)
    tokenizer: Any = model.tokenizer
    tokenizer.chat_template = CHAT_TEMPLATE
    found = ost.bounds(model, ost.encode(model, TEXT, chat=True), mitigation=Hint(" a"))
    edited = ost.encode(model, Hint(" a").prompt(TEXT), chat=True)
    require_equal(found, ost.bounds(model, edited))
    assert found.provenance.parameters["chat"] is True
    ids = ost.Prompt.from_ids(model, edited.ids)
    with pytest.raises(
        ost.InputError,
        match="rewrites the prompt, which is not known of this prompt: give the text",
    ):
        ost.bounds(model, ids, mitigation="hint")
    with pytest.raises(
        ost.InputError, match=r"rewrites the sequence, .*: give a task's question: ost.tasks"
    ):
        ost.bounds(model, TEXT, mitigation="separator:every=3")
    with pytest.raises(MitigationError, match="did you mean 'hint'"):
        ost.sensitivity(model, TEXT, mitigation="hnt")


def test_scores_of_a_question_are_those_of_the_question_posed_under_the_mitigation() -> None:
    model = model_of()
    posed = ost.measure.render_prompt(model, ost.tasks.AppendixTask("copy-last"), 4)
    found = ost.measure.head_scores(model, posed, mitigation=SlidingWindow(9))
    assert frame_of(found)["last_to_carriers"].notna().all()
    with SlidingWindow(9).hooks(model):
        require_equal(found, ost.measure.head_scores(model, posed))
    hinted = ost.measure.render_prompt(
        model, ost.tasks.AppendixTask("copy-last"), 4, mitigation=Hint()
    )
    require_equal(
        ost.measure.head_scores(model, posed, mitigation=Hint()),
        ost.measure.head_scores(model, hinted),
    )


def test_the_next_token_is_predicted_under_one_mitigation_not_under_two(embedded) -> None:
    posed = question(ost.tasks.task("count-ones"), 14)
    under: dict[str, Any] = {"mitigation": "attention-temperature:factor=3"}
    with ost.mitigations.mitigation(under["mitigation"]).hooks(embedded):
        expected = ost.attention(embedded, posed, position="prompt-end")
    measured = ost.sensitivity(
        embedded, posed, position="prompt-end", method="sketch", cotangents=2, **under
    )
    next_tokens = (result.provenance.parameters["next_tokens"] for result in (measured, expected))
    assert next(next_tokens) == next(next_tokens)


FORM = "count-ones"
OF_TASKS: dict[str, dict[str, Any]] = {
    "collapse": {"task": FORM, "lengths": [2, 3], "dtypes": ["float16"]},
    "attention_variation": {"task": "figure-5a", "lengths": [2, 3]},
    "evaluate": {"task": FORM, "lengths": [2, 3], "max_new_tokens": 2, "elicitation": "zero-shot"},
    "probe": {"task": FORM, "lengths": range(1, 8), "random_weights": False},
}


@pytest.mark.parametrize("name", quick(OF_TASKS, "collapse", "attention_variation", "evaluate"))
def test_what_acts_on_no_prompt_of_a_task_is_called_inactive(name: str) -> None:
    """A window wider than every prompt, a factor of 1; what acts in one dtype, or on one length, is
    active."""
    model, function = model_of(), getattr(ost.measure, name)
    mitigations: dict[Any, bool] = {
        SlidingWindow(400): False,
        ost.mitigations.AttentionTemperature(1.0): False,
        compose(SlidingWindow(400), ost.mitigations.AttentionTemperature(2.0)): True,
    }
    if name != "attention_variation":
        mitigations[Separator(every=2)] = True  # at 3 items, and at no other
    for mitigation, is_active in mitigations.items():
        found = function(model, **OF_TASKS[name], mitigation=mitigation)
        told = found.provenance.mitigation
        assert told == label(mitigation) + " (inactive)" * (not is_active)
        assert told in repr(found)


def test_a_question_that_was_made_under_a_mitigation_is_measured_under_it() -> None:
    """Also beside one of the pass; of several prompts each has its own."""
    model, window = tiny_model("llama"), "sliding-window:window=8"
    plain, hinted = (
        ost.tasks.questions("copy-last", lengths=[5], mitigation=name)[0] for name in (None, "hint")
    )
    for asked, mitigation, expected in (
        (plain, None, None),
        (plain, "hint", "hint"),
        (hinted, None, "hint"),
        (hinted, "hint", "hint"),
        (hinted, window, f"hint + {window}"),
    ):
        found = ost.measure.attention(model, asked, mitigation=mitigation)
        assert found.provenance.mitigation == expected
    both = ost.sensitivity(model, [plain, hinted], linearisations="full").provenance
    labels = [prompt.get("mitigation") for prompt in both.parameters["prompts"].values()]
    assert (both.mitigation, labels) == (None, [None, "hint"])
