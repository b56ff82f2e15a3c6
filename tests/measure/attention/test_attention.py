"""The last token's attention is the model's own. Baselines: exact where a network is one sum, and
against loops over the oracle's blocks.
"""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import ostools as ost
from ostools import hooks
from ostools.measure.attention.attention import SIDE, attention, bins_of, max_pool
from tests.checkpoints import make_model, tiny_model
from tests.oracle.decoder import decoder

LONG = "Consider the following sequence: 1111111111111111111111111111111110. What is the last digit in this sequence?"


@given(st.integers(1, 3000), st.integers(2, 64))
def test_bins_cover_every_position_once_and_keep_the_last_alone(length: int, most: int) -> None:
    bins = bins_of(length, most)
    assert len(bins) <= most
    assert [place for start, end in bins for place in range(start, end)] == list(range(length))
    assert bins[-1] == (length - 1, length)


@pytest.mark.parametrize("family", ["gemma", "gemma3", "gpt2"])
def test_the_last_row_is_the_models_own(family: Any) -> None:
    model = tiny_model(family)
    prompt = ost.encode(model, LONG)
    found = attention(model, prompt)
    with torch.no_grad(), hooks.capture(model, "pattern") as record:
        model(prompt.ids[None])
    assert len(prompt.ids) > SIDE
    # Exact: read out of one pass over the same ids, and the greatest of some numbers is one of
    # them.
    for layer, pattern in record["pattern"].items():
        assert torch.equal(found.last[layer], pattern[0, :, -1])
        # The last row of a square is the last token's own, pooled over keys alone.
        assert torch.equal(found.squares[layer][:, -1], max_pool(pattern[0, :, -1], found.bins))
    assert found.last.sum(-1).allclose(torch.ones(()), atol=1e-5)
    row: Any = found.frame.iloc[len(prompt.ids) + 5]
    assert (row["layer"], row["head"], row["position"]) == (0, 1, 5)
    assert (row["token"], row["token_id"]) == (prompt.tokens[5], int(prompt.ids[5]))
    assert row["weight"] == float(record["pattern"][0][0, 1, -1, 5])
    assert found.tokens == prompt.tokens


def test_a_mitigation_acts_on_what_is_captured_or_is_refused() -> None:
    model = tiny_model("llama")
    seen = attention(model, "12345678", mitigation=ost.mitigations.SlidingWindow(3))
    assert (seen.last[..., :-3] == 0).all()
    with pytest.raises(ost.InputError, match="expected a mitigation that changes this prompt"):
        attention(model, "12345678", mitigation="sliding-window:window=500")
    plain = attention(model, "12345678")
    assert len(attention(model, "12345678", mitigation="repeat-prompt").tokens) > len(plain.tokens)


def test_a_mitigation_of_a_sequence_needs_a_question() -> None:
    with pytest.raises(ost.InputError, match=r"rewrites the sequence, .*: give a task's question"):
        attention(tiny_model("llama"), "1", mitigation="separator:every=3")


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
