"""Tokens taken out: each way by an independent route, exact where positions do not matter."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import log_softmax, rel_entr
from scipy.stats import spearmanr
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools import hooks
from ostools.ground.errors import InputError
from ostools.measure import Faithfulness
from ostools.models import Prompt
from ostools.theory.statistics.intervals import spearman_interval
from tests.checkpoints import tiny_model
from tests.reporting.every import EVERY

IDS = [2, 40, 50, 60, 60, 61, 70, 71]


def used(model: TransformerBridge, ids: list[int] = IDS, **options: Any) -> Faithfulness:
    paths = ost.bounds(model, Prompt.from_ids(model, ids), variants="local")
    return ost.measure.faithfulness(model, paths, logit=17, **options)


def log_probs(
    model: TransformerBridge, ids: list[int], mask: list[int] | None = None
) -> np.ndarray:
    """By Hugging Face's own model."""
    seen = None if mask is None else torch.tensor([mask])
    with torch.no_grad():
        logits = model.original_model(torch.tensor([ids]), attention_mask=seen).logits  # pyright: ignore
    return log_softmax(logits[0, -1].double().numpy())


def rows(found: Faithfulness, way: str) -> Any:
    table: Any = found.frame
    return table[table["way"] == way].set_index("position")


def test_where_positions_do_not_matter_masked_is_removed() -> None:
    """A GPT-2 whose learned positions are zero."""
    model = tiny_model("gpt2", seed=3, dtype=torch.float64, fresh=True)
    model.original_model.transformer.wpe.weight.zero_()  # pyright: ignore
    found = used(model, ways=["removed", "masked"])
    removed, masked = rows(found, "removed"), rows(found, "masked")
    for effect in ("y_change", "log_prob_drop", "kl"):
        assert masked[effect].to_numpy() == pytest.approx(
            removed[effect].to_numpy(), rel=1e-9, abs=1e-13
        )


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_each_way_is_hugging_faces_model_on_the_other_prompt(family: Any) -> None:
    """Removed: a shorter prompt. Masked: an attention mask with a hole."""
    model = tiny_model(family, seed=3, dtype=torch.float64)
    found, whole = used(model), log_probs(model, IDS)
    # Norms and softmax of the plain model are in float32 here and there.
    close: Any = partial(pytest.approx, rel=1e-3, abs=1e-5)
    for place in (1, 4, 6):
        hole = [int(index != place) for index in range(len(IDS))]
        removed = log_probs(model, [*IDS[:place], *IDS[place + 1 :]])
        for way, after in (("removed", removed), ("masked", log_probs(model, IDS, hole))):
            mine = rows(found, way).loc[place]
            assert mine["log_prob_drop"] == close(whole[17] - after[17])
            assert mine["kl"] == close(rel_entr(np.exp(whole), np.exp(after)).sum())


def test_a_contrast_is_the_difference_of_the_two_answers() -> None:
    model = tiny_model("llama", seed=3, dtype=torch.float64)
    paths = ost.bounds(model, Prompt.from_ids(model, IDS), variants="local")
    contrast, first, second = (
        ost.measure.faithfulness(model, paths, logit=logit, ways="removed")
        for logit in ((17, 23), 17, 23)
    )
    expected = first.frame["log_prob_drop"] - second.frame["log_prob_drop"]
    assert contrast.frame["log_prob_drop"].to_numpy() == pytest.approx(
        expected.to_numpy(), abs=1e-12
    )
    for column in ("y_change", "kl"):
        assert contrast.frame[column].to_numpy() == pytest.approx(
            first.frame[column].to_numpy(), rel=1e-12
        )
    values = [result.provenance.parameters["log_prob"] for result in (contrast, first, second)]
    assert values[0] == pytest.approx(values[1] - values[2], rel=1e-12)


def test_an_attribution_is_held_against_its_own_answer() -> None:
    model = tiny_model("llama", seed=3)
    prompt = Prompt.from_ids(model, IDS)
    one, other = (ost.attribution(model, prompt, logit=logit) for logit in (17, (17, 23)))
    for parts, logit in ((one, 17), (other, (17, 23))):
        found, asked = (
            ost.measure.faithfulness(model, parts, logit=given, ways="removed")
            for given in (None, logit)
        )
        assert found.provenance.parameters["logit"] == logit
        pd.testing.assert_frame_equal(found.correlations, asked.correlations)
    for profiles, logit in ((one, 23), (other, 17)):
        with pytest.raises(ost.InputError, match="expected an attribution of the answer"):
            ost.measure.faithfulness(model, profiles, logit=logit, ways="removed")


def test_rank_correlations_are_scipys_with_the_interval_of_the_formula() -> None:
    found: Any = EVERY["Faithfulness"]()
    norms = (
        EVERY["Sensitivity"]()
        .frame.query("linearisation == 'frozen' and layer == 0")["operator_norm"]
        .to_numpy()
    )
    asked = "way == 'masked' and effect == 'kl' and profile == 'frozen' and kept == 'without the first and the last'"
    row = found.correlations.query(asked).iloc[0]
    kl = rows(found, "masked")["kl"].to_numpy()
    assert row["spearman"] == pytest.approx(float(np.asarray(spearmanr(kl[1:], norms[1:-1]))[0]))
    assert (row["low"], row["high"]) == spearman_interval(row["spearman"], 5)


def test_what_cannot_be_is_refused_with_the_reason() -> None:
    model, other = tiny_model("llama", seed=3), tiny_model("llama", seed=4)
    profile, shorter, two = (
        ost.bounds(model, Prompt.from_ids(model, ids), variants="local")
        for ids in (IDS, IDS[:5], IDS[:2])
    )
    measure: Any = ost.measure.faithfulness
    for asked, profiles, options, words in (
        (other, profile, {}, "the profile and the model are of different models"),
        (model, [], {}, "expected at least one profile"),
        (model, [profile, 1], {}, "profiles: expected results of sensitivity, .* found 1"),
        (model, [profile, profile], {}, "found two of 'local'"),
        (model, [profile, shorter], {}, "of different prompts"),
        (
            model,
            profile,
            {"ways": "remove"},
            "ways: expected .*, found 'remove': did you mean 'removed'",
        ),
        (model, two, {}, "at least three tokens, found 2"),
    ):
        with pytest.raises(InputError, match=words):
            measure(asked, profiles, **options)
    with hooks.scale_scores(model, 2.0):
        model(torch.tensor([IDS]))
        with pytest.raises(
            InputError, match="expected a model without edits, found 'scale_scores'"
        ):
            ost.measure.faithfulness(model, profile)
