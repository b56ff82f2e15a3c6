"""Influence by distance: the law of uniform attention in closed form, exact Jacobians of every
pair, and the fit.
"""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import ostools as ost
from ostools import hooks
from ostools.measure.jacobian import distance
from ostools.measure.jacobian.distance import InfluenceByDistance
from ostools.results import Provenance
from tests.checkpoints import refused, tiny_model

TINY: dict[str, Any] = {"d_model": 16, "d_mlp": 24}
IDS = [2, 40, 50, 60, 60, 61, 70, 80, 81, 90, 91, 33]
N = len(IDS)


def test_uniform_attention_has_no_distance_but_the_number_of_tokens() -> None:
    """One block that attends evenly, to one token repeated: d y_j / d v_i = C / (j + 1) for every i
    < j, so that a query's norms are all the same, and those of two queries are as 1 / (j + 1). What
    the token itself adds is no part of it."""
    model = tiny_model("llama", seed=1, n_layers=1, dtype=torch.float64, **TINY)
    with hooks.scale_scores(model, 0.0):
        result = ost.influence_by_distance(
            model,
            ost.Prompt.from_ids(model, [50] * N),
            queries=N,
            linearisation="frozen",
            method="exact",
        )
    pairs: Any = result.frame
    before = pairs[pairs["distance"] > 0]
    assert len(before) == sum(range(N // 2, N))
    assert (before["norm"] * (before["query"] + 1)).to_numpy() == pytest.approx(
        float(before["norm"].iloc[0]) * (before["query"].iloc[0] + 1), rel=1e-10
    )
    # So the median over all j - i = r is that of the middle query: it falls with r though no token
    # is nearer.
    medians: Any = result.by_distance.set_index("distance")
    itself: Any = pairs[pairs["distance"] == 0].set_index("query")["norm"]
    constant = float(before["norm"].iloc[0]) * (before["query"].iloc[0] + 1)
    for r in range(1, N - 1):
        queries = range(max(r + 1, N // 2), N)
        expected = np.median([constant / (j + 1) for j in queries]) / itself.median()
        assert medians.loc[r, "median"] == pytest.approx(expected, rel=1e-10)
        assert medians.loc[r, "pairs"] == len(queries)


def test_every_pair_against_the_jacobian_of_the_whole_text() -> None:
    """Rows of one pass over the whole text, by torch's own autograd: what stands behind j does not
    matter.
    """
    model = tiny_model("gemma3", seed=3, window=4, dtype=torch.float64, **TINY)
    prompt = ost.Prompt.from_ids(model, IDS)
    frame: Any = ost.influence_by_distance(model, prompt, queries=N, method="exact").frame
    found = frame.set_index(["query", "position"])
    embedded = model.input_to_embed(torch.tensor([IDS]))[0].detach()

    def all_y(stream: torch.Tensor) -> torch.Tensor:
        with hooks.capture(model, "final_norm", detach=False) as record:
            model(stream, start_at_layer=0)
        return record["final_norm"][0]

    with hooks.exact_arithmetic(model):
        jacobian: Any = torch.autograd.functional.jacobian(all_y, embedded)
    for (query, position), row in found.iterrows():
        assert row["norm"] == pytest.approx(float(jacobian[query, :, 0, position].norm()), rel=1e-8)
        assert row["distance"] == query - position


def test_a_float64_model_is_shown_its_beginning_in_float64() -> None:
    """The softmax of Hugging Face's code rounds in float32, otherwise for other lengths: "the model
    or an edit reads later tokens".
    """
    model = tiny_model("gemma3", dtype=torch.float64)
    prompt = ost.Prompt.from_ids(model, [2, *(6 + 7 * place for place in range(19))])
    pairs: Any = ost.influence_by_distance(model, prompt, queries=1, method="exact").frame
    alone: Any = ost.sensitivity(
        model, ost.Prompt.from_ids(model, prompt.ids[:11].tolist()), method="exact"
    ).frame
    norms = alone[alone["linearisation"] == "full"].set_index("position")["frobenius_norm"]
    assert set(pairs["query"]) == {10}
    assert pairs.set_index("position")["norm"].to_dict() == norms.to_dict()


def made(
    p: float, texts: int, noise: float, *, gamma: float = 0.0, seed: int = 0
) -> InfluenceByDistance:
    """The result of pairs that follow the law, each text with a rate of its own around p."""
    rng, rows = np.random.default_rng(seed), []
    for text in range(texts):
        rate = p + noise * rng.normal()
        for query in (64, 80, 96, 127):
            r = np.arange(query + 1)
            norm = 3.0 * (gamma + (1 - gamma) * (r + 1.0) ** -rate)
            columns = {
                "prompt": text + 1,
                "source": "text",
                "query": query,
                "position": query - r,
                "distance": r,
            }
            rows.append(pd.DataFrame(columns | {"norm": norm}))
    return InfluenceByDistance.of(pd.concat(rows, ignore_index=True), Provenance.without_model())


def test_pairs_of_the_first_token_a_sink_are_in_no_law() -> None:
    """Of two queries the short one has a distance that it reaches from the first token alone."""
    r = np.concatenate([np.arange(128), np.arange(41)])
    query = np.repeat([127, 40], [128, 41])
    pairs = pd.DataFrame({"prompt": 1, "source": "text", "query": query, "position": query - r})
    pairs = pairs.assign(distance=r, norm=(r + 1.0) ** -0.8)
    for table in (pairs, pairs.assign(norm=pairs["norm"].mask(pairs["position"] == 0, 1e4))):
        laws: Any = InfluenceByDistance.of(table, Provenance.without_model()).laws
        assert laws["p"].to_numpy() == pytest.approx(0.8, rel=1e-6)


@pytest.mark.parametrize("gamma", [0.0, 0.01])
def test_an_exact_law_is_found_with_its_level(gamma: float) -> None:
    laws: Any = made(0.8, 2, 0.0, gamma=gamma).laws
    assert laws["p"].to_numpy() == pytest.approx(0.8, rel=1e-6)
    assert laws["gamma"].to_numpy() == pytest.approx(gamma, abs=1e-8)
    assert laws["beta"].to_numpy() == pytest.approx(1 - gamma, rel=1e-6)
    assert list(laws["distances"]) == [64, 63]


def test_the_interval_is_over_texts_and_missing_of_five(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distance, "_RESAMPLES", 40)
    law: Any = made(0.8, 8, 0.1).laws.iloc[0]
    assert law["texts"] == 8
    assert law["low"] < 0.8 < law["high"]
    assert 0.05 < law["high"] - law["low"] < 0.4
    assert made(0.8, 5, 0.1).laws[["low", "high"]].isna().to_numpy().all()


def test_controls_are_the_measurement_of_the_control_itself() -> None:
    model = tiny_model("llama", seed=2, **TINY)
    prompt = ost.Prompt.from_ids(model, IDS)
    frame: Any = ost.influence_by_distance(
        model, prompt, queries=3, method="exact", controls=["shuffled", "untrained"], seed=5
    ).frame
    shuffled: Any = ost.influence_by_distance(
        model, prompt.shuffled(5), queries=3, method="exact", seed=5
    ).frame
    twin = ost.models.untrained_model(model, "initialised", seed=5)
    untrained: Any = ost.influence_by_distance(
        twin, prompt, queries=3, method="exact", seed=5
    ).frame
    for source, alone in (("shuffled", shuffled), ("untrained", untrained)):
        assert np.array_equal(frame[frame["source"] == source]["norm"], alone["norm"])


def test_shuffled_keeps_what_is_not_the_texts() -> None:
    model = tiny_model("llama", **TINY)
    shuffled = ost.Prompt.from_ids(model, IDS).shuffled(1)
    assert sorted(shuffled.ids.tolist()) == sorted(IDS)
    assert shuffled.ids.tolist() != IDS
    assert shuffled.tokens == ost.Prompt.from_ids(model, shuffled.ids).tokens
    text = ost.encode(model, "the cat sat on the mat and the dog")
    again = text.shuffled(1)
    fixed = [place for place, origin in enumerate(text.origins or ()) if origin != "text"]
    assert fixed
    assert all(text.ids[place] == again.ids[place] for place in fixed)
    assert torch.equal(text.shuffled(1).ids, again.ids)
    assert not torch.equal(text.shuffled(2).ids, again.ids)


def test_refusals() -> None:
    model = tiny_model("llama", **TINY)
    prompt = ost.Prompt.from_ids(model, IDS)
    with pytest.raises(ost.InputError, match="expected texts of at least 4 tokens, found 3"):
        ost.influence_by_distance(model, ost.Prompt.from_ids(model, IDS[:3]))
    wrong: Any = ["shufled"]
    refused("controls", ost.influence_by_distance, model, prompt, controls=wrong)
    with (
        pytest.raises(ost.InputError, match="expected a model without edits"),
        hooks.ablate_heads(model, [(0, 1)]),
    ):
        ost.influence_by_distance(model, prompt, controls="untrained")
    with pytest.raises(
        ost.InputError, match="expected tokens whose order changes, found 4 that stay as they are"
    ):
        ost.influence_by_distance(model, ost.Prompt.from_ids(model, [50] * 4), controls="shuffled")
    result = made(0.8, 3, 0.0)
    with pytest.raises(
        ost.InputError, match="found pairs twice: rows of several texts have one number"
    ):
        type(result).of(pd.concat([result.frame, result.frame]), result.provenance)


@pytest.mark.parametrize("method", ["exact", "sketch"])
def test_an_estimate_is_told_as_one(method: Any) -> None:
    model = tiny_model("llama")
    result = ost.influence_by_distance(model, "The cat sat on the mat", method=method)
    kind = {"exact": "measured", "sketch": "estimated"}[method]
    assert set(result.frame["kind"]) == {kind}
    assert ("estimated" in result.findings()[0]) == (kind == "estimated")
    # A tooltip says what a point is, the median, and not that it was measured.
    assert '"measured"' not in json.dumps(result.plot().to_dict())
