"""Products of float32 matrices are in float32, whatever torch is set to, and the setting is put back afterwards."""

from __future__ import annotations

import pytest
import torch

import ostools as ost
from tests.checkpoints import tiny_model


def allowed() -> bool:
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


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
