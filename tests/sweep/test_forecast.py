"""What a cell is forecast to take: read off files, near what a process then takes, and never a
reason to stop.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

import ostools as ost
from ostools.measure.unloaded import LIBRARIES, Forecast, Unloaded
from ostools.models.files.sources import EMBEDDED_DIRECTORIES, locate
from ostools.models.shape import Shape
from ostools.sweep.cells import measure
from ostools.sweep.executor import forecast
from ostools.sweep.sweep_file import cells_of
from tests.checkpoints import Family, write_checkpoint

SMALL: dict[str, Any] = {"tasks": "count-ones", "lengths": [4, 9, 30], "device": "cpu"}
KINDS = ["evaluate", "collapse", "sensitivity", "bounds"]
"""Asked of one prompt a length. Probes want five lengths and a task whose answers differ: a test of
their own, below.
"""


def forecast_of(**asked: Any) -> Forecast:
    (cell,) = cells_of(ost.sweep.sweep_of({**SMALL, **asked}))
    return forecast(cell, "cpu")


@pytest.mark.parametrize("family", ["gemma3", "gpt2"])
def test_the_shape_of_files_is_that_of_the_loaded_model(family: Family, tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / family, family)
    model = ost.load_model(directory, device="cpu")
    found = Unloaded(locate(str(directory), None), torch.float32, "cpu").shape
    assert found == Shape.of(model)
    numbers = Unloaded(locate(directory, None), torch.float32, "cpu")._weights[0]
    if family != "gpt2":  # whose bridge has queries, keys and values apart, and together
        assert numbers == sum(weight.numel() for weight in model.original_model.parameters())
    assert found.n_layers * found.block_parameters < numbers


@pytest.mark.parametrize(
    ("mitigation", "chat", "elicitation"),
    [("none", True, None), ("separator:every=2", False, None)],  # a base model: few-shot
)
def test_tokens_are_counted_as_they_will_be_measured(
    directory: str, tmp_path: Path, mitigation: str, chat: bool, elicitation: Any
) -> None:
    bare: Any = {"chat_template": None, "max_position_embeddings": 2048}
    name = directory if chat else str(write_checkpoint(tmp_path / "plain", "gemma", **bare))
    short = {"name": "evaluate", "max_new_tokens": 1, "elicitation": elicitation}
    (cell,) = cells_of(
        ost.sweep.sweep_of(
            {**SMALL, "models": name, "mitigations": mitigation, "measurements": short}
        )
    )
    rows, _ = measure(ost.load_model(name, device="cpu"), cell)
    unloaded = Unloaded(locate(name, None), torch.float32, "cpu")
    asked = unloaded.elicitation(cell.task, elicitation)
    how: dict[str, Any] = {"mitigation": cell.mitigated, "seed": cell.seed, "elicitation": asked}
    assert unloaded.longest(cell.task, cell.lengths, **how).tokens == rows["tokens"].iloc[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_longer_prompts_hold_more(kind: str) -> None:
    small, long = (forecast_of(measurements=kind, **change) for change in ({}, {"lengths": 900}))
    assert LIBRARIES < small.memory < long.memory
    assert small.work is not None
    assert long.work is not None
    assert 0 < small.work < long.work


def test_what_cannot_be_measured_is_no_reason_to_stop(tmp_path: Path) -> None:
    broken = write_checkpoint(tmp_path / "broken", "gemma")
    (broken / "config.json").write_text("{}")
    assert forecast_of(models=str(broken), measurements="evaluate") == Forecast(LIBRARIES)


def test_no_weights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ostools.models.load.load_model", lambda *_, **__: pytest.fail("loaded the model")
    )
    stored = sum(
        file.stat().st_size for file in EMBEDDED_DIRECTORIES["embedded"].glob("*.safetensors")
    )
    assert (
        0 <= stored - 4 * Unloaded(locate(None, None), torch.float32, "cpu")._weights[0] < 1 << 16
    )
