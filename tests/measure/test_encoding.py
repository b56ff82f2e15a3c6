"""`bos=`, `chat=`, `system=` and `thinking=`: one meaning in every measurement of a text and of a
task, by its signature.
"""

import inspect
from typing import Any

import pytest
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools import measure, tasks
from ostools.measure.position import read_at
from ostools.results import frame_of
from tests.checkpoints import refused, tiny_model

TEXT = "count 1 1 0"
OF_A_TEXT: dict[Any, dict[str, Any]] = {
    ost.sensitivity: {"method": "sketch", "linearisations": "full"},
    ost.bounds: {"variants": "local"},
    ost.measure.hops: {"cotangents": 2, "most": 1},
    ost.attribution: {},
    ost.attention: {},
    ost.measure.attention_baselines: {},
    measure.head_scores: {},
    ost.measure.linear_range: {},
}
OF_A_QUESTION = [
    function
    for function in OF_A_TEXT
    if function not in (measure.head_scores, ost.measure.linear_range)
]
"""Head scores are of the whole prompt, whose carriers a question knows; a question has many tokens
to move.
"""
FORM = "count-ones"
OF_A_TASK = (ost.evaluate, ost.collapse, ost.probe, ost.measure.failure_stage, ost.ablation)


@pytest.fixture(scope="module")
def model() -> TransformerBridge:
    return tiny_model("llama", seed=1, scale=1.5, context=512)


def test_every_measurement_of_a_text_or_a_task_takes_all_options() -> None:
    """Those that ask in no chat have `bos` alone."""
    functions = [
        record.function
        for record in ost.measure.RECORDS.values()
        if not record.function.__module__.startswith("ostools.reporting")
    ]
    takes = {
        function.__name__: set(inspect.signature(function).parameters) for function in functions
    }
    asked = {name for name, names in takes.items() if names & {"prompt", "prompts", "task"}}
    missing = {
        name for name in asked if not set(ost.models.EncodingOptions.__annotations__) <= takes[name]
    }
    assert missing == {"attention_variation"}
    assert all("bos" in takes[name] for name in missing)
    assert {function.__name__ for function in (*OF_A_TEXT, *OF_A_TASK)} <= asked - missing


@pytest.mark.parametrize("measurement", OF_A_TEXT, ids=lambda measurement: measurement.__name__)
def test_a_text_without_its_bos_is_measured_as_its_tokens(
    model: TransformerBridge, measurement: Any
) -> None:
    prompt = ost.encode(model, TEXT, bos=False)
    assert prompt.ids.tolist() == ost.encode(model, TEXT).ids.tolist()[1:]
    options = OF_A_TEXT[measurement]
    found, expected = (
        measurement(model, TEXT, bos=False, **options),
        measurement(model, prompt, **options),
    )
    assert frame_of(found).equals(frame_of(expected))
    assert found.provenance.token_ids == tuple(prompt.ids.tolist())
    assert found.provenance.parameters["bos"] is False


@pytest.mark.parametrize("measurement", OF_A_QUESTION, ids=lambda measurement: measurement.__name__)
def test_a_question_is_measured_at_the_answers_token(
    model: TransformerBridge, measurement: Any
) -> None:
    (question,) = tasks.questions(FORM, lengths=[3])
    read = read_at(
        model, ost.measure.render_prompt(model, tasks.task(FORM), 3, chat=False, bos=False)
    )
    found = measurement(model, question, chat=False, bos=False, **OF_A_TEXT[measurement])
    expected = measurement(model, ost.Prompt.from_ids(model, read.ids), **OF_A_TEXT[measurement])
    # A question knows the origin of its tokens, ids do not.
    left, right = (
        frame_of(result).drop(columns="origin", errors="ignore") for result in (found, expected)
    )
    assert left.equals(right)
    assert found.provenance.token_ids == read.ids
    parameters = found.provenance.parameters
    assert (parameters["bos"], parameters["read_at"]["position"]) == (False, "answer")
    assert [length for length, _, _ in parameters["next_tokens"]] == [3]


def test_a_mitigation_rewrites_a_question_before_it_is_encoded(model: TransformerBridge) -> None:
    (plain,) = tasks.questions(FORM, lengths=[4])
    (made,) = tasks.questions(FORM, lengths=[4], mitigation="separator:every=2")
    encodings: list[dict[str, Any]] = [{"chat": False, "bos": False}, {}]
    for options in encodings:
        found = ost.bounds(
            model, plain, variants="local", mitigation="separator:every=2", **options
        )
        assert found.frame.equals(ost.bounds(model, made, variants="local", **options).frame)
        assert found.provenance.mitigation == "separator:every=2"
    with pytest.raises(
        ost.InputError,
        match=r"bounds: expected a mitigation that changes this prompt, found that separator",
    ):
        ost.bounds(model, plain, variants="local", mitigation="separator:every=9")


REFUSED = {
    "bos: expected a text, found a Prompt, which is in tokens already: leave bos out": (
        ost.sensitivity,
        {"prompt": "a Prompt", "bos": True},
    ),
    "bos: expected plain text, found a chat, whose template writes its special tokens: leave bos out, or ask without": (
        ost.evaluate,
        {"task": FORM, "lengths": [3], "bos": True},
    ),
    "system: expected a chat, found plain text": (
        ost.measure.hops,
        {"prompt": TEXT, "system": "Be short."},
    ),
    "chat: expected a task, found figure-5a, whose last token is repeated: leave chat out": (
        ost.collapse,
        {"task": "figure-5a", "lengths": [2], "chat": True},
    ),
    "bos: expected True or False or None, found 'no'": (
        ost.attention,
        {"prompt": TEXT, "bos": "no"},
    ),
    "unexpected keyword argument 'boss'; did you mean 'bos'": (
        ost.attention,
        {"prompt": TEXT, "boss": False},
    ),
    "chat: expected a text, found a Prompt": (ost.ablation, {"prompt": "a Prompt", "chat": False}),
}


@pytest.mark.parametrize("words", REFUSED)
def test_options_that_cannot_act_are_refused(model: TransformerBridge, words: str) -> None:
    measurement, given = REFUSED[words]
    arguments = {
        name: ost.encode(model, TEXT) if value == "a Prompt" else value
        for name, value in given.items()
    }
    refused(words, measurement, model, **arguments)
