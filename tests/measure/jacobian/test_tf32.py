"""TF32 products: only where asked for, put back afterwards, their error measured; with a route that rounds as a GPU would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools.ground.errors import InputError
from ostools.ground.progress import Progress
from ostools.measure.jacobian.routes import Tf32Route
from ostools.measure.passes.arithmetic import tf32_products
from ostools.results import Result
from tests.checkpoints import tiny_model, trained


def asked_for() -> bool:
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


@dataclass
class Rounding:
    """A route of one known matrix whose products are larger by the share `off` where TF32 is allowed."""

    matrix: Tensor
    off: float

    def pull(self, cotangents: Tensor, progress: Progress | None = None) -> Tensor:
        return (cotangents @ self.matrix)[:, None] * (1 + self.off * asked_for())


def test_the_setting_is_put_back_whatever_happens() -> None:
    assert not asked_for()
    with tf32_products():
        assert asked_for()
        with tf32_products():
            assert asked_for()
        assert asked_for()
    assert not asked_for()
    with pytest.raises(ZeroDivisionError), tf32_products():
        raise ZeroDivisionError
    assert not asked_for()


@pytest.mark.parametrize("off", [0.0, 2.0**-10, 2.0**-7])
def test_its_error_is_that_of_a_row_held_against_float32(off: float) -> None:
    inner = Rounding(torch.eye(6), off)  # whole numbers and powers of two: exact but for one rounding
    route = Tf32Route(inner, torch.zeros(3, 6))
    assert route.error == pytest.approx(off, rel=1e-3)
    assert torch.equal(route.pull(torch.eye(6)), (1 + off) * torch.eye(6)[:, None])
    assert not asked_for()
    assert torch.equal(inner.pull(torch.eye(6)), torch.eye(6)[:, None])


@pytest.mark.parametrize("off", [0.02, float("nan"), float("inf")])
def test_rows_that_are_off_by_percents_are_refused(off: float) -> None:
    with pytest.raises(InputError, match=r"expected rows within 0.01 of those in float32, found them .* apart"):
        Tf32Route(Rounding(torch.eye(6), off), torch.zeros(3, 6))


def test_it_is_refused_where_there_is_none() -> None:
    model = tiny_model("gemma")
    with pytest.raises(InputError, match="precision 'tf32': expected a model on cuda, found one on cpu: leave it out"):
        ost.sensitivity(model, "abc", precision="tf32")
    with pytest.raises(InputError, match="unknown precision 'tf23': did you mean 'tf32'"):
        ost.sensitivity(model, "abc", precision="tf23")
    assert ost.sensitivity(model, "abc", linearisations=("frozen",)).provenance.parameters["precision"] is None


@pytest.mark.parametrize("allow", [("fp32_precision", "tf32"), ("allow_tf32", True)])
def test_measurements_are_in_float32_whatever_is_allowed_elsewhere(
    allow: tuple[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By either of torch's settings, which stay as they were."""
    model, seen, setting = tiny_model("gemma"), [], torch.backends.cuda.matmul
    own = torch.nn.functional.softmax
    monkeypatch.setattr(
        torch.nn.functional, "softmax", lambda *args, **kwargs: seen.append(asked_for()) or own(*args, **kwargs)
    )
    before = setting.fp32_precision
    setattr(setting, *allow)
    try:
        for measure in (lambda: ost.sensitivity(model, "11"), lambda: ost.collapse(model, "figure-5a", lengths=[1, 2])):
            seen.clear()
            measure()
            assert seen
            assert not any(seen)
        assert asked_for()
    finally:
        setting.fp32_precision = before


@pytest.mark.parametrize(
    "measure",
    [
        lambda model: ost.sensitivity(model, "1110", linearisations=["full"], method="sketch"),
        lambda model: ost.collapse(model, "figure-5a", lengths=[1, 2, 3], dtypes=["float32"]),
        pytest.param(
            lambda model: ost.path_sum(model, "1110", variants=["local", "edge-full"]), marks=pytest.mark.slow
        ),
    ],
)
def test_a_cpu_rounds_no_products_either(measure: Callable[[TransformerBridge], Result]) -> None:
    """`torch.set_float32_matmul_precision` reaches a CPU's products too: the numbers are those without it, to the bit."""
    model = trained("embedded")
    expected, before = measure(model).frame, torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        found = measure(model).frame
        cpu: Any = torch.backends.mkldnn
        assert cpu.matmul.fp32_precision == "bf16"
    finally:
        torch.set_float32_matmul_precision(before)
    pd.testing.assert_frame_equal(found, expected, check_exact=True)
