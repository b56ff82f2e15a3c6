"""Advice on a long call names what can be less in this very call."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import pytest

import ostools as ost
from ostools.ground.out_of_memory import in_smaller_chunks, shorter_ways
from ostools.ground.progress import cheaper_ways
from tests.checkpoints import tiny_model


@pytest.mark.parametrize(
    ("arguments", "ways"),
    [
        ({"prompt": "The 11", "method": "sketch"}, ["a shorter prompt"]),
        ({"prompt": "The 11", "method": "auto"}, ["a shorter prompt"]),
        ({"prompt": "The 11", "method": "exact"}, ["a shorter prompt", "method='sketch'"]),
        ({"prompt": "The 11", "method": "estimate"}, ["a shorter prompt", "method='sketch'"]),
        ({"prompt": "The 11", "method": "exact", "logit": "1"}, ["a shorter prompt"]),
        (
            {"prompt": "The 11", "layers": "all", "linearisations": ("full",)},
            ["a shorter prompt", "fewer layers"],
        ),
        (
            {"prompt": "The 11", "linearisations": ("full", "frozen")},
            ["a shorter prompt", "fewer linearisations"],
        ),
    ],
)
def test_only_what_is_several_can_be_fewer(arguments: dict[str, Any], ways: list[str]) -> None:
    sensitivity = inspect.signature(ost.sensitivity).bind(
        None, **{"linearisations": "full", **arguments}
    )
    sensitivity.apply_defaults()
    assert list(cheaper_ways(sensitivity.arguments)) == ways


def test_one_length_and_seed_are_the_fewest() -> None:
    for lengths, ways in (([4], []), (range(4, 9), ["fewer lengths"])):
        bound = inspect.signature(ost.evaluate).bind(None, "count-ones", lengths=lengths)
        bound.apply_defaults()
        assert list(cheaper_ways(bound.arguments)) == [*ways, "a smaller max_new_tokens"]
        assert list(shorter_ways(bound.arguments)) == ["take shorter lengths"]


def test_a_measurement_says_the_advice_of_its_call(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ostools.ground.progress.LONG", 0.0)
    with caplog.at_level(logging.WARNING, "ostools"):
        ost.sensitivity(tiny_model("llama"), "The 11", method="sketch", linearisations=["full"])
    first = caplog.records[0].getMessage()
    assert first.startswith("ostools.sensitivity: ")
    assert first.endswith("; cheaper: a shorter prompt; progress=False silences this")


@pytest.mark.parametrize(("dtype", "said"), [("float32", True), ("bfloat16", False)])
def test_a_model_in_bfloat16_is_not_to_be_loaded_in_bfloat16(dtype: str, said: bool) -> None:
    import torch

    @in_smaller_chunks
    def hungry(model: Any, prompt: str | None = None) -> None:
        raise MemoryError

    model = tiny_model("llama", dtype=getattr(torch, dtype))
    with pytest.raises(ost.InputError) as refused:
        hungry(model, prompt="The 11")
    assert ("load the model in bfloat16" in str(refused.value)) is said
    assert str(refused.value).count("shorten the prompt") == 1
    with pytest.raises(ost.InputError) as refused:
        hungry(model)
    assert "prompt" not in str(refused.value)
