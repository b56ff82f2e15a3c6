"""`cesaro` on a model: its residual weights from the raw weights, prefixes, and that no pattern is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import hooks
import ostools as ost
from ostools.models import Prompt
from ostools.theory.path_sum.cesaro import cesaro_row
from tests.checkpoints import tiny_model

IDS = [2, 40, 50, 60, 60, 61, 70, 71]


def row_of(model: Any, ids: list[int]) -> np.ndarray:
    return ost.path_sum(model, Prompt.from_ids(model, ids), variants="cesaro").frame["value"].to_numpy()


def test_residual_weights_by_hand() -> None:
    """lambda = 1 / (1 + ||sum_h W_O W_V diag(g)||_F / sqrt(d) mean(1 / r)), from Hugging Face's own weights and streams."""
    model = tiny_model("llama", seed=3, dtype=torch.float64, n_key_value_heads=4)
    with hooks.capture(model, "residual_pre") as record, hooks.exact_arithmetic(model):
        model(torch.tensor([IDS]))
    weights, original = [], model.original_model
    layers: Any = original.model.layers  # pyright: ignore[reportAttributeAccessIssue]
    for layer, block in enumerate(layers):
        attention: Any = block.self_attn.original_component
        gain = block.input_layernorm.weight
        value_map = attention.o_proj.weight @ attention.v_proj.weight * gain  # all heads side by side
        scale = (record["residual_pre"][layer][0].square().mean(-1) + 1e-6).rsqrt().mean()
        weights.append(1.0 / (1.0 + float(value_map.norm() * scale) / 32**0.5))
    assert row_of(model, IDS) == pytest.approx(cesaro_row(weights, len(IDS)).numpy(), rel=1e-9)


@pytest.mark.parametrize("family", ["gemma2", "gpt2", "neox", "olmo2"])
def test_every_prefix_has_its_own_row(family: str) -> None:
    """Post-norms, LayerNorm, parallel blocks, no norm before: what all positions give is what each prefix gives."""
    model = tiny_model(family, seed=3, dtype=torch.float64)
    frame: Any = ost.path_sum(model, Prompt.from_ids(model, IDS), variants="cesaro", positions="all").frame
    for last in (0, 3, 7):
        rows = frame.loc[frame["last"] == last, "value"].to_numpy()
        assert rows == pytest.approx(row_of(model, IDS[: last + 1]), rel=1e-9)
        assert rows.sum() == pytest.approx(1.0, abs=1e-12)


def test_patterns_are_not_read_and_only_the_shape_is_compared() -> None:
    model = tiny_model("llama", seed=3, dtype=torch.float64, n_layers=1)
    plain = row_of(model, IDS)
    with hooks.mask_scores(model, lambda query, key: query - key < 2):
        assert row_of(model, IDS) == pytest.approx(plain, rel=1e-12)
    prompt = Prompt.from_ids(model, IDS)
    found = ost.compare(ost.sensitivity(model, prompt), ost.path_sum(model, prompt, variants="cesaro")).summary.iloc[0]
    assert np.isnan(found["median_log10_looseness"])
    assert -1 <= found["spearman"] <= 1
