"""The words of a command line that load a model again."""

from __future__ import annotations

from ostools.ground.words import computed_on
from ostools.reporting.page.page import loading
from tests.cli.asking import accepted


def test_the_options_that_load_a_model_again() -> None:
    model = {"dtype": "bfloat16", "device": "cpu"}
    assert loading(model) == ["--load-dtype", "bfloat16", "--device", "cpu"]
    accepted(["report", *loading(model)])
    assert computed_on(model) == "bfloat16 on cpu"
