"""Attention baselines: exact where a network is one sum, and against loops over Hugging Face's own
weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import ostools as ost
from ostools import hooks
from tests.checkpoints import tiny_model
from tests.sets import quick

IDS = [2, 40, 50, 61, 50, 70]
N = len(IDS)


def values(model: Any, name: str) -> np.ndarray:
    frame: Any = ost.measure.attention_baselines(model, ost.Prompt.from_ids(model, IDS)).frame
    return frame[frame["baseline"] == name]["value"].to_numpy()


def test_closed_form_of_one_layer_that_reads_nothing_but_attention() -> None:
    """Uniform attention in one layer: 1/n each; rollout adds the skip; values of 0 leave ALTI to
    the token itself.
    """
    model = tiny_model("llama", n_layers=1, dtype=torch.float64, fresh=True)
    rows = torch.ones(N, N, dtype=torch.float64).tril()
    uniform = (rows / rows.sum(-1, keepdim=True)).expand(1, int(model.cfg.n_heads), N, N)
    itself = np.eye(N)[-1]
    with torch.no_grad():
        model.blocks[0].attn.original_component.v_proj.weight.zero_()
    with hooks.replace_pattern(model, uniform):
        assert values(model, "mean") == pytest.approx(np.full(N, 1 / N), rel=1e-12)
        assert values(model, "rollout") == pytest.approx(
            (np.full(N, 1 / N) + itself) / 2, rel=1e-12
        )
        assert (values(model, "value-weighted") == 0).all()
        assert (values(model, "alti") == itself).all()


def loops(model: Any) -> dict[str, np.ndarray]:
    """The four baselines token by token, from Hugging Face's weights and hidden states."""
    network, heads, layers = model.original_model, int(model.cfg.n_heads), int(model.cfg.n_layers)
    with (
        torch.no_grad(),
        hooks.exact_arithmetic(model),
        hooks.capture(model, "pattern", "residual_pre") as record,
    ):
        model(torch.tensor([IDS]))
    mean, weighted = np.zeros(N), np.zeros(N)
    rollout, alti = np.eye(N), np.eye(N)
    for layer in range(layers):
        block, pattern = network.model.layers[layer], record["pattern"][layer][0]
        stream: Tensor = record["residual_pre"][layer][0]
        attention, gain_offset = (
            block.self_attn,
            1.0 if model.cfg.architecture.startswith("Gemma") else 0.0,
        )
        width = attention.v_proj.weight.shape[0] // (
            groups := attention.v_proj.weight.shape[0] // attention.head_dim
        )
        read = _rms(stream, block.input_layernorm, gain_offset)
        moved = torch.zeros(heads, N, stream.shape[-1], dtype=stream.dtype)
        for head in range(heads):
            group = head * groups // heads
            value = read @ attention.v_proj.weight[group * width : (group + 1) * width].T
            moved[head] = value @ attention.o_proj.weight[:, head * width : (head + 1) * width].T
        raw = torch.einsum("hij,hjd->id", pattern, moved)
        post = torch.ones_like(raw)
        if gain_offset:  # Gemma 3: a norm behind attention
            norm = block.post_attention_layernorm
            scale = (raw.square().mean(-1, keepdim=True) + 1e-6).sqrt()
            post = (gain_offset + norm.weight) / scale
        edges = np.zeros((N, N))
        for query in range(N):
            parts = torch.stack(
                [
                    (pattern[:, query, key, None] * moved[:, key]).sum(0) * post[query]
                    for key in range(N)
                ]
            )
            parts[query] += stream[query]
            z = parts.sum(0)
            shares = [max(0.0, float(z.abs().sum() - (z - part).abs().sum())) for part in parts]
            edges[query] = np.array(shares) / sum(shares)
        mean += pattern[:, -1].mean(0).numpy() / layers
        for head in range(heads):
            weighted += (pattern[head, -1] * (moved[head] * post[-1]).norm(dim=-1)).numpy()
        rollout = (pattern.mean(0).numpy() + np.eye(N)) / 2 @ rollout
        alti = edges @ alti
    return {"mean": mean, "rollout": rollout[-1], "value-weighted": weighted, "alti": alti[-1]}


def _rms(x: Tensor, norm: Any, offset: float) -> Tensor:
    epsilon: Any = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * (offset + norm.weight)


@pytest.mark.parametrize("family", quick(["llama", "gemma3"], "llama", "gemma3"))
def test_equal_to_loops_over_the_weights(family: str) -> None:
    model = tiny_model(family, dtype=torch.float64)
    for name, expected in loops(model).items():
        assert values(model, name) == pytest.approx(expected, rel=1e-7, abs=1e-10), name
