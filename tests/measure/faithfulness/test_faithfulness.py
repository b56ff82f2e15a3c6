"""Tokens taken out: each way by an independent route, exact where positions do not matter.
The linear range: closed forms of the error along a line, and the derivative against differences.
"""

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
from ostools import hooks, mitigations
from ostools.hooks.freeze import HeldParts
from ostools.measure.faithfulness.linear_range import SCALES, _ranges
from ostools.measure.jacobian.certificate import moved_prompts
from ostools.measure.jacobian.linearise import Linearised
from ostools.theory.statistics.intervals import spearman_interval
from tests.checkpoints import tiny_model
from tests.reporting.every import EVERY

IDS = [2, 40, 50, 60, 60, 61, 70, 71]


def used(
    model: TransformerBridge, ids: list[int] = IDS, **options: Any
) -> ost.measure.Faithfulness:
    paths = ost.bounds(model, ost.Prompt.from_ids(model, ids), variants="local")
    return ost.measure.faithfulness(model, paths, logit=17, **options)


def log_probs(
    model: TransformerBridge, ids: list[int], mask: list[int] | None = None
) -> np.ndarray:
    """By Hugging Face's own model."""
    seen = None if mask is None else torch.tensor([mask])
    with torch.no_grad():
        logits = model.original_model(torch.tensor([ids]), attention_mask=seen).logits  # pyright: ignore
    return log_softmax(logits[0, -1].double().numpy())


def rows(found: ost.measure.Faithfulness, way: str) -> Any:
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
    paths = ost.bounds(model, ost.Prompt.from_ids(model, IDS), variants="local")
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
    prompt = ost.Prompt.from_ids(model, IDS)
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


@pytest.mark.parametrize(
    "mitigation", ["sliding-window:window=4", "attention-temperature:factor=2"]
)
def test_under_a_mitigation_the_answer_is_the_one_that_is_given(mitigation: str) -> None:
    """Of a known answer no pass ran within the mitigation's block, which was refused for it."""
    model = tiny_model("llama", seed=3)
    prompt = ost.Prompt.from_ids(model, IDS)
    norms = ost.sensitivity(model, prompt, mitigation=mitigation)
    first: Any = ost.measure.faithfulness(model, norms, mitigation=mitigation, ways="removed")
    logit = first.provenance.parameters["logit"]
    with mitigations.mitigation(mitigation).hooks(model):
        assert logit == int(model(prompt.ids[None])[0, -1].argmax())
    given: Any = ost.measure.faithfulness(
        model, norms, mitigation=mitigation, ways="removed", logit=logit
    )
    parts = ost.attribution(model, prompt, logit=logit, mitigation=mitigation)
    of_parts: Any = ost.measure.faithfulness(model, parts, mitigation=mitigation, ways="removed")
    pd.testing.assert_frame_equal(first.correlations, given.correlations)
    for other in (given, of_parts):
        pd.testing.assert_frame_equal(first.frame, other.frame, check_dtype=False)


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


@pytest.mark.parametrize("length", [12, 50])
def test_tokens_that_do_not_reach_y_are_no_evidence(length: int) -> None:
    """Out of reach of both windows of 5 rounding alone is left of an effect, and no profile."""
    model = tiny_model("mistral", seed=1)
    reach = 2 * (5 - 1)
    ids = np.random.default_rng(length).integers(6, 260, length).tolist()
    measured = ost.sensitivity(model, ost.Prompt.from_ids(model, ids))
    found: Any = ost.measure.faithfulness(model, measured)
    norms: Any = ost.profile(measured).frame.set_index(["linearisation", "position"])["value"]
    for row in found.correlations.to_dict("records"):
        first = max(length - 1 - reach, row["kept"] != "without the last")
        effects = rows(found, row["way"])[row["effect"]].abs().iloc[first:]
        values = norms[row["profile"]].iloc[first:-1]
        assert (norms[row["profile"]].iloc[: length - 1 - reach] == 0).all()
        assert row["tokens"] == len(effects) == length - 1 - first
        expected = float(np.asarray(spearmanr(effects, values))[0])
        assert row["spearman"] == pytest.approx(expected)
        assert (row["low"], row["high"]) == spearman_interval(row["spearman"], row["tokens"])


def test_an_effect_on_a_token_without_a_derivative_counts_against_the_profile() -> None:
    """Removing any token moves those behind it to other learned positions."""
    model = tiny_model("gpt2", seed=3)
    window = "sliding-window:window=3"
    norms = ost.sensitivity(model, ost.Prompt.from_ids(model, IDS), mitigation=window)
    found: Any = ost.measure.faithfulness(model, norms, mitigation=window)
    tokens = found.correlations.query("kept == 'without the last'").groupby("way")["tokens"]
    assert tokens.unique().map(list).to_dict() == {"removed": [len(IDS) - 1], "masked": [4]}


def test_what_cannot_be_is_refused_with_the_reason() -> None:
    model, other = tiny_model("llama", seed=3), tiny_model("llama", seed=4)
    profile, shorter, two = (
        ost.bounds(model, ost.Prompt.from_ids(model, ids), variants="local")
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
        with pytest.raises(ost.InputError, match=words):
            measure(asked, profiles, **options)
    with hooks.scale_scores(model, 2.0):
        model(torch.tensor([IDS]))
        with pytest.raises(
            ost.InputError, match="expected a model without edits, found 'scale_scores'"
        ):
            ost.measure.faithfulness(model, profile)


PROMPT_IDS = [40, 50, 61, 50, 70]


T = torch.tensor(SCALES, dtype=torch.float64)[:, None]


@pytest.mark.parametrize(
    ("curvature", "largest"), [(0.0, 1.0), (0.05, 1.0), (0.4, 0.25), (6.4, 2**-6), (1e4, 0.0)]
)
def test_the_range_of_a_parabola(curvature: float, largest: float) -> None:
    """y(t) = t + c t^2: the prediction t is off by c t of its size, so it holds within 0.1 up to t
    = 0.1 / c.
    """
    assert float(_ranges(curvature * T**2 * (1 - 1e-9), torch.zeros(1), torch.ones(1))) == largest


def test_what_rounding_hides_is_missing_and_a_prediction_that_fails_later_is_not_taken_up_again() -> (
    None
):
    size, noise = torch.tensor([1e-9, 1.0, 1.0]), torch.tensor([1e-6, 0.0, 0.019 * 2**-6])
    later = torch.where(T == 0.25, 0.5 * T, 0.0)
    off = torch.cat([torch.full_like(T, 1e-6), later, 0.5 * T], dim=1)
    hidden, later, fails_where_it_is_first_seen = _ranges(off, noise, size).tolist()
    assert np.isnan(hidden)
    assert later == SCALES[SCALES.index(0.25) - 1]
    assert np.isnan(fails_where_it_is_first_seen)


def test_small_scales_that_rounding_hides_are_no_failures() -> None:
    noise = torch.full((9,), 1e-2)
    assert _ranges(noise.expand(len(SCALES), 9), noise, torch.ones(9)).tolist() == [1.0] * 9


@pytest.mark.parametrize("family", ["llama", "gemma3", "neox"])
def test_the_predicted_change_is_a_finite_difference_and_the_change_that_of_a_replaced_token(
    family: str,
) -> None:
    model = tiny_model(family, dtype=torch.float64)
    frame: Any = ost.measure.linear_range(model, ost.Prompt.from_ids(model, PROMPT_IDS)).frame
    assert len(frame) == len(PROMPT_IDS)
    assert not set(frame["other_id"]) & set(PROMPT_IDS)
    assert frame["linear_range"].between(0, 1).all()
    for row in frame.itertuples():
        ids = torch.tensor(
            [
                PROMPT_IDS,
                [*PROMPT_IDS[: row.position], row.other_id, *PROMPT_IDS[row.position + 1 :]],
            ]
        )
        whole, replaced = model.input_to_embed(ids)[0].detach()
        step = 1e-6 * (replaced - whole)
        streams = torch.stack([whole, whole + step, whole - step, replaced])
        with hooks.exact_arithmetic(model):
            linear, held = Linearised(model, whole), [HeldParts()] * len(streams)
            y, up, down, y_replaced = moved_prompts(linear, streams, held)[0]
        assert row.predicted_change == pytest.approx(float((up - down).norm()) / 2e-6, rel=1e-5)
        assert row.change == pytest.approx(float((y_replaced - y).norm()), rel=1e-9)


def test_the_rank_correlation_is_of_the_tokens_that_reach_y() -> None:
    """Two layers that see three tokens each: ten of 15 tokens are 0 on both sides."""
    layers = ["sliding_attention"] * 2
    model = tiny_model("gemma2", window=3, d_model=16, d_mlp=24, layer_types=layers)
    result = ost.measure.linear_range(model, ost.Prompt.from_ids(model, [2, *range(40, 54)]))
    columns = result.frame[["predicted_change", "change"]].to_numpy(float)
    assert (columns[:10] == 0).all()
    in_reach: Any = spearmanr(*columns[10:].T)
    assert result.spearman == pytest.approx(in_reach.statistic)


def test_a_token_that_has_no_embedding_is_never_drawn() -> None:
    model: Any = tiny_model("llama", fresh=True)
    model.tokenizer.add_tokens([f"zq{index}" for index in range(400)])
    frame: Any = ost.measure.linear_range(model, ost.Prompt.from_ids(model, PROMPT_IDS)).frame
    assert frame["other_id"].max() < len(model.W_E) < len(model.tokenizer)
