"""Profiles of untrained models beside the model's own: each is what `sensitivity` gives of that
untrained model.
"""

from __future__ import annotations

from typing import Any

import pytest

import ostools as ost
from ostools import hooks
from ostools.ground.errors import InputError
from ostools.models import Prompt
from tests.checkpoints import tiny_model

IDS = [2, 40, 50, 60, 60, 61, 70, 71]


@pytest.mark.slow
def test_each_profile_is_that_of_the_null_model_itself() -> None:
    model = tiny_model("llama", seed=3)
    prompt = Prompt.from_ids(model, IDS)
    found = ost.measure.untrained_baselines(
        model, prompt, kinds=["shuffled"], seeds=[4, 7], linearisation="frozen"
    )
    table: Any = found.frame
    for source, seed, one in (
        ("model", None, model),
        ("shuffled", 7, ost.models.untrained_model(model, "shuffled", seed=7)),
    ):
        rows = table[
            (table["source"] == source)
            & (table["seed"].isna() if seed is None else table["seed"] == seed)
        ]
        alone = (
            ost.sensitivity(one, prompt, linearisations=["frozen"])
            .frame["operator_norm"]
            .to_numpy()
        )
        assert rows["value"].to_numpy() == pytest.approx(alone, rel=1e-6)
        assert rows["share"].to_numpy() == pytest.approx(alone / alone.sum(), rel=1e-6)
    assert len(table) == 3 * len(IDS)
    summary: Any = found.summary
    assert summary["spearman"].iloc[0] == pytest.approx(1.0)
    assert found.provenance.parameters["seeds"] == [4, 7]
    assert found.provenance.model["null"] is None
    assert summary["weight_hash"].nunique() == 3


def test_what_cannot_be_is_refused_with_the_reason() -> None:
    model = tiny_model("llama", seed=3)
    prompt = Prompt.from_ids(model, IDS)
    measure: Any = ost.measure.untrained_baselines
    for options, words in (
        ({"kinds": "random"}, "kinds: expected .*, found 'random'"),
        ({"linearisation": "half"}, "linearisation: expected .*, found 'half'"),
    ):
        with pytest.raises(InputError, match=words):
            measure(model, prompt, **options)
    with hooks.mask_scores(model, lambda query, key: query - key < 3):
        model(prompt.ids[None])
        with pytest.raises(
            InputError,
            match="untrained_baselines: expected a model without edits, found 'mask_scores'",
        ):
            ost.measure.untrained_baselines(model, prompt)
