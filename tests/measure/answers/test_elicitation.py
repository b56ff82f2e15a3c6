"""How answers are elicited: worked examples for a base model, its template for a chat model; cycles
stop an answer.
"""

from typing import Any

import pytest
import torch

import ostools as ost
from ostools.measure.answers.answers import answer_log_probability, answers
from ostools.measure.position import answer_text
from ostools.measure.task_prompt import (
    EXAMPLES,
    elicit,
    elicitation_for,
    few_shot_text,
    worked_examples,
)
from ostools.tasks import APPENDIX_NAMES, task
from ostools.tasks.questions import question
from tests.checkpoints import refused, tiny_model

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
    with torch.no_grad():
        model.ln_final.weight.zero_()
    prompts = [model.tokenizer.decode([5]) + "a", "b"]
    cut = answers(model, prompts, max_new_tokens=20)
    assert [(one.ended, len(one.ids)) for one in cut] == [("length", 20)] * 2
    found = answers(model, prompts, max_new_tokens=20, cycles=[6, 9])
    assert [(one.ended, len(one.ids)) for one in found] == [("repeats", 7), ("repeats", 10)]
