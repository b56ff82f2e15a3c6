"""Many prompts in one call: every one as it is alone, in its place, checked; and what is refused."""

from __future__ import annotations

import random
from typing import Any

import pandas as pd
import pytest
import torch

import ostools as ost
from ostools.models import prompt_from_ids
from tests.checkpoints import TWO_FAMILIES, Family, tiny_model

two_families = pytest.mark.parametrize("family", TWO_FAMILIES)


def drawn(seed: int) -> list[list[int]]:
    """Lengths in disorder: equal prompts, prompts of one token, some whose length nobody shares."""
    source = random.Random(seed)
    prompts = [[source.randrange(20, 80) for _ in range(length)] for length in (5, 1, 7, 5)]
    return [*prompts, prompts[0], prompts[1]]


@two_families
@pytest.mark.parametrize(
    ("method", "dtype"), [("exact", torch.float32), ("exact", torch.float64), ("estimate", torch.float64)]
)
def test_every_prompt_has_the_numbers_that_it_has_alone(family: Family, method: str, dtype: torch.dtype) -> None:
    model = tiny_model(family, seed=3, dtype=dtype)
    prompts = [prompt_from_ids(model, ids) for ids in drawn(1)]
    settings: Any = {"linearisations": ["full", "frozen-norm"], "layers": [0, 1], "method": method}
    together = ost.sensitivity(model, prompts, **settings)
    assert len(together) == len(prompts)
    for prompt, found in zip(prompts, together, strict=True):
        alone = ost.sensitivity(model, prompt, **settings)
        assert found.provenance.token_ids == alone.provenance.token_ids == tuple(prompt.ids.tolist())
        rel = 1e-6 if dtype == torch.float32 else 1e-12
        pd.testing.assert_frame_equal(found.frame, alone.frame, rtol=rel, atol=0)
