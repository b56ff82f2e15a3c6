"""The last token's attention is the model's own."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ostools as ost
from ostools import hooks
from ostools.measure.attention.attention import SIDE, attention, bins_of, max_pool
from tests.checkpoints import tiny_model

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
