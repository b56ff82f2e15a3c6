"""The spread of the last token's attention."""

from __future__ import annotations

import numpy as np
import pytest

import ostools as ost
from tests.checkpoints import tiny_model


def test_even_attention_spreads_over_all_tokens_and_cut_attention_over_one() -> None:
    """Exact: scores times 0 are even; with every other edge cut the last token sees itself."""
    model = tiny_model("llama")
    prompt = ost.Prompt.from_ids(model, [1, 2, 3, 4, 5])
    with ost.hooks.scale_scores(model, 0.0):
        even = ost.measure.attention_entropy(model, prompt)
    assert even.frame["effective_tokens"].to_numpy() == pytest.approx(
        np.full(len(even.frame), 5.0), abs=1e-5
    )
    with ost.hooks.mask_scores(model, lambda query, key: query == key):
        alone = ost.measure.attention_entropy(model, prompt)
    assert (alone.frame["entropy"] == 0).all()
