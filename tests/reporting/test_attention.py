"""The last token's attention: reduced by a rule that keeps its row, handed to circuitsvis without a way out."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hooks
from ostools.models import encode
from ostools.reporting import charts
from ostools.reporting.attention import (
    HEADS,
    SIDE,
    Attention,
    attention_findings,
    attention_frame,
    bins_of,
    interactive_view,
    last_token_attention,
    max_pool,
    pooling_rule,
)
from tests.checkpoints import tiny_model
from tests.reporting.made import HOSTILE, tokens_of


def made(tokens: list[str], layers: int = 2, heads: int = 3, seed: int = 0) -> Attention:
    """Random causal patterns over these tokens."""
    count = len(tokens)
    scores = torch.randn(layers, heads, count, count, generator=torch.Generator().manual_seed(seed))
    pattern = scores.masked_fill(torch.ones(count, count).triu(1).bool(), float("-inf")).softmax(-1)
    bins = bins_of(count, SIDE)
    return Attention(tuple(tokens), pattern[:, :, -1], max_pool(max_pool(pattern, bins), bins, dim=-2), bins)


@given(st.integers(1, 3000), st.integers(2, 64))
def test_bins_cover_every_position_once_and_keep_the_last_alone(length: int, most: int) -> None:
    bins = bins_of(length, most)
    assert len(bins) <= most
    assert [place for start, end in bins for place in range(start, end)] == list(range(length))
    assert bins[-1] == (length - 1, length)


def test_a_short_prompt_is_not_reduced() -> None:
    assert bins_of(SIDE, SIDE) == tuple((place, place + 1) for place in range(SIDE))
    assert pooling_rule(SIDE, SIDE) == ""


def test_a_long_prompt_says_how_it_was_reduced() -> None:
    assert pooling_rule(100, 48) == "100 positions are max-pooled to 34: 3 neighbours in one, the last token alone"


def test_pooling_keeps_the_greatest_of_each_bin() -> None:
    values = torch.tensor([[1.0, 5.0, 2.0, 9.0]])
    assert max_pool(values, ((0, 2), (2, 4))).tolist() == [[5.0, 9.0]]
    assert max_pool(values.T, ((0, 2), (2, 4)), dim=-2).tolist() == [[5.0], [9.0]]


@pytest.mark.parametrize("family", ["gemma", "gemma3", "gpt2"])
def test_the_last_row_is_the_models_own(family) -> None:
    model = tiny_model(family)
    prompt = encode(model, "Consider the following sequence: 1111111111111111111111111111110. What?")
    found = last_token_attention(model, prompt)
    with torch.no_grad(), hooks.capture(model, "pattern") as record:
        model(prompt.ids[None])
    for layer, pattern in record["pattern"].items():
        assert torch.equal(found.last[layer], pattern[0, :, -1])
        # The last row of a square is the last token's own, pooled over keys alone.
        assert torch.equal(found.squares[layer][:, -1], max_pool(pattern[0, :, -1], found.bins))
    assert found.last.sum(-1).allclose(torch.ones(()), atol=1e-5)


def test_findings_name_the_sharpest_head_and_a_sink() -> None:
    attention = made(tokens_of(10, ["<bos>"]))
    last = torch.full((2, 3, 10), 0.01)
    last[..., 0] = 0.91
    last[1, 2] = 0.0
    last[1, 2, 7] = 1.0
    sink = " ".join(attention_findings(Attention(attention.tokens, last, attention.squares, attention.bins)))
    assert "layer 1, head 2: 100% on token 7 “t7”" in sink
    assert "attention sink" in sink
    even = torch.full((2, 3, 10), 0.1)
    none = " ".join(attention_findings(Attention(attention.tokens, even, attention.squares, attention.bins)))
    assert "10.0% of its attention on the first token and 10.0% on itself" in none
    assert "10.0 tokens in the median" in none
    assert "sink" not in none


def test_the_heat_map_holds_every_weight() -> None:
    attention = made(tokens_of(20))
    frame = attention_frame(attention)
    assert len(frame) == 2 * 3 * 20
    row = frame[(frame["head"] == "1.2") & (frame["start"] == 4)]
    assert row["weight"].item() == pytest.approx(float(attention.last[1, 2, 4]))
    charts.attention_chart(attention).to_dict()


def test_all_heads_or_the_most_concentrated() -> None:
    _, words = interactive_view(made(tokens_of(5)), "heads")
    assert words.startswith("All 6 heads of 2 layers")
    source, words = interactive_view(made(tokens_of(5), layers=10, heads=8), "heads")
    assert words.startswith(f"The {HEADS} heads of 80 whose last row is the most concentrated")
    assert len(_handed_over(source)["attentionHeadNames"]) == HEADS


def test_hostile_tokens_cannot_leave_the_script() -> None:
    tokens = [*HOSTILE, 'CircuitsVis.render(\n      "circuits-vis-0"', "</script><script>alert(1)</script>"]
    source, _ = interactive_view(made(list(tokens)), "heads")
    data = source[source.rindex("CircuitsVis.AttentionHeads") :]
    assert "</script" not in source.lower()
    assert "<" not in data
    handed = _handed_over(source)
    assert len(handed["tokens"]) == len(tokens)
    assert any("</script>" in token for token in handed["tokens"])


def _handed_over(source: str) -> dict:
    """The properties that circuitsvis is called with, as its JavaScript reads them."""
    call = source.rindex('CircuitsVis.render(\n      "heads"')
    start = source.index("{", call)
    return json.JSONDecoder().raw_decode(source[start:])[0]
