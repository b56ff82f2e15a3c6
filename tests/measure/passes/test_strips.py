"""When a prompt is long, and in how large strips it then goes: in bytes that were counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import hooks
from ostools.ground.errors import InputError
from ostools.measure.passes import contexts as strips
from ostools.models.shape import Shape
from tests.checkpoints import tiny_model


def _shape(heads: int, element: int) -> Shape:
    return replace(Shape.of(tiny_model("gemma")), n_heads=heads, element=element)


@pytest.mark.parametrize(
    ("heads", "element", "longest"),
    [(4, 4, 2048), (16, 4, 1024), (4, 1, 4096), (16, 8, 724)],  # heads * longest^2 * element <= 64 MiB
)
def test_a_pattern_of_64_mib_is_made_as_a_whole_and_one_token_more_is_not(
    heads: int, element: int, longest: int
) -> None:
    assert (
        heads * longest**2 * element <= strips.WHOLE_PATTERN_BYTES == 64 * 2**20 < heads * (longest + 1) ** 2 * element
    )
    assert strips.strip_size(_shape(heads, element), longest) is None
    size = strips.strip_size(_shape(heads, element), longest + 1)
    assert size == 32 * 2**20 // (heads * (longest + 1) * element)


def test_a_row_that_is_larger_than_a_strip_goes_alone() -> None:
    row = 4 * 2**21 * 4
    assert row == strips.STRIP
    assert strips.strip_size(_shape(4, 4), 2**21) == strips.strip_size(_shape(4, 4), 2**22) == 1


def test_ten_whole_patterns_have_to_fit_where_strips_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    model, pos = tiny_model("gemma"), 11
    shape = Shape.of(model)
    whole = 10 * shape.n_heads * pos**2 * shape.element
    monkeypatch.setattr(strips, "WHOLE_PATTERN_BYTES", 0)
    with hooks.replace_pattern(model, lambda pattern, layer: pattern):
        monkeypatch.setattr(strips, "available_memory", lambda device: whole)
        with strips.strips_where_long(model, pos):
            assert hooks.active_strips(model) is None
            model(torch.tensor([[2] * pos]))
        monkeypatch.setattr(strips, "available_memory", lambda device: whole - 1)
        with pytest.raises(InputError, match=r"11 tokens need 0\.0 GiB"), strips.strips_where_long(model, pos):
            pass
