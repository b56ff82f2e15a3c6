"""Attention baselines: exact where a network is one sum, and against loops over the oracle's blocks."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import ostools as ost
from ostools import hooks
from tests.checkpoints import make_model, tiny_model
from tests.oracle.decoder import decoder

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
    model.blocks[0].attn.original_component.v_proj.weight.zero_()
    with hooks.replace_pattern(model, uniform):
        assert values(model, "mean") == pytest.approx(np.full(N, 1 / N), rel=1e-12)
        assert values(model, "rollout") == pytest.approx(
            (np.full(N, 1 / N) + itself) / 2, rel=1e-12
        )
        assert (values(model, "value-weighted") == 0).all()
        assert (values(model, "alti") == itself).all()


def loops(family: Any) -> dict[str, Tensor]:
    """The four baselines token by token, on the oracle's blocks."""
    bare = make_model(family, seed=7, dtype=torch.float64)
    oracle = decoder(bare.config.to_dict(), bare.state_dict())
    stream, itself = oracle.embedded(IDS), torch.eye(N, dtype=torch.float64)
    mean, weighted, rollout, alti = torch.zeros(N), torch.zeros(N), itself, itself
    for block in oracle.blocks:
        after = block(stream, held=True)
        pattern, scale = block.seen["pattern"], block.seen["rp1"]
        moved = torch.einsum("hde,hef,nf->hnd", block.o, block.v, block.norm1(stream, held=True))
        moved = moved if block.post1 is None else block.post1.gain * moved
        edges = torch.zeros_like(itself)
        for query in range(N):
            parts = torch.einsum("hk,hkd->kd", pattern[:, query], moved) / scale[query]
            parts[query] += stream[query]
            z = parts.sum(0)
            closer = [max(0.0, float(z.abs().sum() - (z - part).abs().sum())) for part in parts]
            edges[query] = torch.tensor(closer, dtype=torch.float64) / sum(closer)
        mean = mean + pattern[:, -1].mean(0) / len(oracle.blocks)
        weighted = weighted + (pattern[:, -1] * (moved / scale[-1]).norm(dim=-1)).sum(0)
        rollout, alti = (pattern.mean(0) + itself) / 2 @ rollout, edges @ alti
        stream = after
    return {"mean": mean, "rollout": rollout[-1], "value-weighted": weighted, "alti": alti[-1]}


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_equal_to_loops_over_the_oracles_blocks(family: Any) -> None:
    model = tiny_model(family, seed=7, dtype=torch.float64)
    for name, expected in loops(family).items():
        assert values(model, name) == pytest.approx(expected.numpy(), rel=1e-7, abs=1e-10), name
