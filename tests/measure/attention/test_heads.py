"""Head scores: against loops over the weights of every family."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import ostools as ost
from ostools import hooks
from ostools.measure.attention.heads import SCORES, head_scores, pattern_scores
from tests.checkpoints import TEXT_FAMILIES, Family, refused, tiny_model

IDS = [2, 40, 50, 60, 60, 61, 70, 80]
N = len(IDS)
TINY: dict[str, Any] = {"d_model": 16, "d_mlp": 24, "d_head": 4}


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_every_score_against_loops(family: Family) -> None:
    model = tiny_model(family, seed=3, scale=2.0, window=4, **TINY)
    found = pattern_scores(model, ost.Prompt.from_ids(model, IDS), (1, 3))
    with torch.no_grad(), hooks.capture(model, "pattern") as record:
        model(torch.tensor([IDS]))
    sliding = family in ("gemma2", "gemma3")
    for layer in range(2):
        for head in range(4):
            rows = record["pattern"][layer][0, head].double().tolist()
            entropies, normalised = [], []
            for query in range(1, N):
                entropy = -sum(p * math.log(p) for p in rows[query] if p > 0)
                seen = min(query + 1, 4) if sliding and layer == 0 else query + 1
                entropies.append(entropy)
                normalised.append(entropy / math.log(seen))
            expected = {
                "first_token": np.mean([row[0] for row in rows[1:]]),
                "sink_rate": np.mean([row[0] > 0.3 for row in rows[1:]]),
                "is_sink": np.mean([row[0] for row in rows[1:]]) > 0.3,
                "previous_token": np.mean([rows[query][query - 1] for query in range(1, N)]),
                "entropy": np.mean(entropies),
                "normalised_entropy": np.mean(normalised),
                "last_to_first": rows[-1][0],
                "last_to_itself": rows[-1][-1],
                "last_to_carriers": rows[-1][1] + rows[-1][3],
            }
            assert set(expected) | {"last_to_text"} == set(SCORES)
            # Of ids nobody knows whose they are.
            assert found["last_to_text"][layer].isnan().all()
            for name, value in expected.items():
                assert float(found[name][layer, head]) == pytest.approx(
                    float(value), rel=1e-6, abs=1e-9
                ), name


def test_refusals() -> None:
    model = tiny_model("gemma", **TINY)
    prompt = ost.Prompt.from_ids(model, IDS)
    refused("expected at least one prompt", head_scores, model, [])
    refused("at least two tokens", head_scores, model, ost.Prompt.from_ids(model, [40]))
    with (
        hooks.ablate_edges(model, [(1, 0, 7, 7)]),
        pytest.raises(ost.InputError, match="whose rows sum to 1, found others in layer 1"),
    ):
        head_scores(model, prompt)
