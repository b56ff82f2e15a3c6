"""Precisions by name: what is run, what it is held against, and what one step of it is."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from ostools import hooks
from ostools.hooks.rounding import FLOATS, FORMATS, INTEGERS
from ostools.measure.passes.precisions import PRECISIONS, Precision
from ostools.models.describe import named_weights
from ostools.theory.distances import DTYPES, spacing
from tests.checkpoints import TEXT_FAMILIES, Family, tiny_model

IDS = torch.randint(6, 262, (1, 20), generator=torch.Generator().manual_seed(3))


def weights_of(model: TransformerBridge) -> dict[str, Tensor]:
    return {name: weight.double() for name, weight in named_weights(model)}


def run(precision: Precision, model: TransformerBridge) -> Tensor:
    prepared = precision.prepared(model)
    with precision.running(prepared, IDS[0].tolist()):
        return prepared(IDS)[0, -1].double()


KINDS = (
    "float32",
    "bfloat16",
    "float64",
    "bfloat16-weights",
    "float8_e5m2-weights",
    "int8-weights",
    "int4-kv",
)


@pytest.mark.parametrize(
    ("family", "given"),
    [
        ("gemma3", torch.float32),
        ("gpt2", torch.bfloat16),
        pytest.param("gemma3", torch.bfloat16, marks=pytest.mark.slow),
        *(
            pytest.param(family, torch.float32, marks=pytest.mark.slow)
            for family in TEXT_FAMILIES
            if family != "gemma3"
        ),
    ],
)
def test_exact_has_the_weights_that_run_and_keys_say_so(family: Family, given: torch.dtype) -> None:
    model = tiny_model(family, dtype=given)
    logits, by_key = model(IDS), {}
    for precision in map(Precision.of_name, KINDS):
        prepared = precision.prepared(model)
        exact = PRECISIONS["float64"].prepared(prepared)
        assert {parameter.dtype for parameter in exact.parameters()} == {torch.float64}
        assert {parameter.dtype for parameter in prepared.parameters()} == {precision.dtype}
        here = weights_of(exact)
        assert all(torch.equal(weight, here[name]) for name, weight in weights_of(prepared).items())
        same = by_key.setdefault(precision.weights_key(model), here)
        assert all(torch.equal(weight, here[name]) for name, weight in same.items()), precision.name
    own = weights_of(model)
    assert all(torch.equal(weight, by_key["given"][name]) for name, weight in own.items())
    assert ("bfloat16" in by_key) == (given == torch.float32)
    changed = [
        key
        for key, value in by_key.items()
        if any(not torch.equal(value[name], own[name]) for name in own)
    ]
    assert set(changed) == set(by_key) - {"given"}
    assert torch.equal(model(IDS), logits)


@pytest.mark.parametrize("part", ["residual", "kv"])
def test_running_is_the_rounding_of_that_part(part: Any) -> None:
    model = tiny_model("gemma2")
    for format in FORMATS:
        with hooks.rounded(model, part, format, calibration=IDS if format in INTEGERS else None):
            expected = model(IDS)[0, -1].double()
        # Exact: the same pass under the same hooks.
        assert torch.equal(run(PRECISIONS[f"{format}-{part}"], model), expected)
    assert hooks.active_edits(model) == ()


def test_a_step_is_the_spacing_of_the_format() -> None:
    """Where y is a number of the format: y + u is the next one, and y + u / 2 a tie."""
    y = torch.tensor([1.0, 1.5, -3.0, 200.0, 0.01, 0.0])
    for name, dtype in {
        **DTYPES,
        **{f"{format}-kv": dtype for format, dtype in FLOATS.items()},
    }.items():
        low = y.double().to(torch.float32).to(dtype).double()
        found = PRECISIONS[name].steps(low, torch.zeros_like(low))
        torch.testing.assert_close(found, spacing(low, dtype), rtol=0, atol=0)
        if dtype not in (torch.float64,):
            up = (low.abs() + found).to(torch.float32)
            assert torch.equal(up.to(dtype).to(torch.float32), up)
            assert torch.equal(PRECISIONS[name].steps(torch.zeros_like(low), low), found)


def test_an_integer_step_is_that_of_the_vectors_own_range() -> None:
    y, y_star = (
        torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.0, 7.0]]),
        torch.tensor([[12.7, 0.0, 0.0], [0.0, 0.0, 0.0]]),
    )
    torch.testing.assert_close(
        PRECISIONS["int8-residual"].steps(y, y_star),
        torch.tensor([[0.1] * 3, [7 / 127] * 3]).double(),
    )
    torch.testing.assert_close(PRECISIONS["int4-residual"].steps(y, y)[1], torch.ones(3).double())
