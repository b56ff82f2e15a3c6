"""How much a report measures: a verdict on answers rests on enough questions, and what does not fit
is left out and said.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

from ostools.models import encode
from ostools.models.shape import Shape
from ostools.reporting.report.report import measure
from ostools.reporting.sections import extent
from ostools.reporting.sections.extent import FULL, LEAST, REDUCED, STUDY_LENGTHS, Extent, extent_of
from tests.checkpoints import tiny_model

POSITION = sys.modules["ostools.reporting.sections.sensitivity"]
MODELS = {
    "embedded": (4, 64, 4, 16, 256, FULL),
    "SmolLM2-135M": (30, 576, 9, 64, 1536, REDUCED),
    "Qwen2.5-Coder-1.5B": (28, 1536, 12, 128, 8960, LEAST),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_larger_model_has_less_of_each_and_quick_is_the_least(name: str) -> None:
    layers, d_model, heads, d_head, d_mlp, expected = MODELS[name]
    sizes = {
        "n_layers": layers,
        "d_model": d_model,
        "n_heads": heads,
        "d_head": d_head,
        "d_mlp": d_mlp,
    }
    shape = replace(Shape.of(tiny_model("llama")), **sizes)
    assert extent_of(shape) == expected
    quick = extent_of(shape, quick=True)
    assert quick.forms == (LEAST.forms if expected == LEAST else REDUCED.forms)
    assert len(quick.lengths(256)) < len(expected.lengths(256))
    assert not quick.untrained
    assert "This report is a quick one" in quick.words(True, True)


@pytest.mark.parametrize("chosen", [FULL, REDUCED, LEAST])
def test_a_verdict_on_answers_rests_on_24_questions(chosen: Extent) -> None:
    assert len(chosen.answer_lengths) * len(chosen.answer_seeds) >= 24
    assert len(STUDY_LENGTHS) * len(chosen.study_seeds) >= 24
    assert len(extent.FAILURE_STAGE_LENGTHS) * len(chosen.stage_seeds) >= 24


def test_where_the_untrained_model_does_not_fit_the_model_is_measured_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        sys.modules["ostools.models.untrained"], "available_memory", lambda device: 0
    )
    monkeypatch.setattr(POSITION, "PASSAGE_TOKENS", 6)
    model = tiny_model("llama")
    found = measure(model, encode(model, "1110"), [1, 2], ["position"])
    position: Any = found.position
    assert position.contrasts["source"].tolist() == ["model"]
    (omission,) = found.left_out
    assert omission.section == "position"
    assert omission.reason.startswith("without the untrained model: untrained model: ")
    monkeypatch.undo()
    monkeypatch.setattr(POSITION, "PASSAGE_TOKENS", 6)
    both: Any = measure(model, encode(model, "1110"), [1, 2], ["position"]).position
    model_rows = both.frame[both.frame["source"] == "model"].reset_index(drop=True)
    assert model_rows.equals(position.frame.reset_index(drop=True))
