"""Products of float32 matrices are in float32, whatever torch is set to, and the setting is put back afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools.models.precision.torch_state import float32_products
from ostools.results import Result
from tests.checkpoints import tiny_model, trained


def allowed() -> bool:
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


def test_the_setting_is_put_back_whatever_happens() -> None:
    setting = torch.backends.cuda.matmul
    before, setting.fp32_precision = setting.fp32_precision, "tf32"
    try:
        with float32_products():
            assert not allowed()
            with float32_products():
                assert not allowed()
            assert not allowed()
        assert allowed()
        with pytest.raises(ZeroDivisionError), float32_products():
            raise ZeroDivisionError
        assert allowed()
    finally:
        setting.fp32_precision = before


@pytest.mark.parametrize("allow", [("fp32_precision", "tf32"), ("allow_tf32", True)])
def test_measurements_are_in_float32_whatever_is_allowed_elsewhere(
    allow: tuple[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By either of torch's settings, which stay as they were."""
    model, seen, setting = tiny_model("gemma"), [], torch.backends.cuda.matmul
    own = torch.nn.functional.softmax
    monkeypatch.setattr(
        torch.nn.functional, "softmax", lambda *args, **kwargs: seen.append(allowed()) or own(*args, **kwargs)
    )
    before = setting.fp32_precision
    setattr(setting, *allow)
    try:
        for measure in (lambda: ost.sensitivity(model, "11"), lambda: ost.collapse(model, "figure-5a", lengths=[1, 2])):
            seen.clear()
            measure()
            assert seen
            assert not any(seen)
        assert allowed()
    finally:
        setting.fp32_precision = before


@pytest.mark.parametrize(
    "measure",
    [
        lambda model: ost.sensitivity(model, "1110", linearisations=["full"], method="sketch"),
        lambda model: ost.collapse(model, "figure-5a", lengths=[1, 2, 3], dtypes=["float32"]),
        pytest.param(lambda model: ost.bounds(model, "1110"), marks=pytest.mark.slow),
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
