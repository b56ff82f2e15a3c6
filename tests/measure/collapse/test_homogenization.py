"""Collapse of all tokens: exact on constructed states and patterns, and against a plain loop on
transformers.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import ostools as ost
from ostools import hooks
from ostools.theory.distances import likeness
from tests.checkpoints import TEXT_FAMILIES, Family, make_model, tiny_model

IDS = [2, 40, 50, 60, 60, 61, 70, 80, 81, 90]
N = len(IDS)
TINY: dict[str, Any] = {"d_model": 16, "d_mlp": 24}


@pytest.mark.parametrize(("weight", "rate"), [(0.29, 0.0), (0.31, 1.0)])
def test_the_sink_rate_of_a_constructed_pattern(weight: float, rate: float) -> None:
    """Every later query gives the first token `weight`, and the rest to itself."""
    model = tiny_model("llama", **TINY)
    pattern = torch.eye(N) * (1 - weight)
    pattern[:, 0] += weight
    with hooks.replace_pattern(model, pattern.expand(1, 4, N, N)):
        frame: Any = ost.token_homogenization(
            model, ost.Prompt.from_ids(model, IDS), contexts=[N]
        ).frame
    blocks = frame[frame["layer"] < 2]
    assert blocks["first_weight"].to_numpy() == pytest.approx(weight, abs=1e-7)
    assert (blocks["sink_rate"] == rate).all()
    assert frame[frame["layer"] == 2]["sink_rate"].isna().all()


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_against_a_plain_loop_on_transformers(family: Family) -> None:
    model = tiny_model(family, seed=3, scale=2.0, **TINY)
    frame: Any = ost.token_homogenization(
        model, ost.Prompt.from_ids(model, IDS), contexts=[4, N]
    ).frame
    found = frame.set_index(["tokens", "layer"])
    # The bridge's own model hands back no patterns; this one has eager attention.
    plain: Any = make_model(family, seed=3, scale=2.0, **TINY)
    out = plain(torch.tensor([IDS]), output_hidden_states=True, output_attentions=True)
    # transformers' last hidden state is behind the final norm: v^(L) is the bridge's own, of
    # the last block.
    with hooks.capture(model, "residual_post") as record:
        model(torch.tensor([IDS]))
    assert len(out.attentions) == 2
    for size in (4, N):
        for layer, states in enumerate([*out.hidden_states[:-1], record["residual_post"][1]]):
            rows, row = states[0, :size].double(), found.loc[(size, layer)]
            for name, value in likeness(rows)._asdict().items():
                assert row[name] == pytest.approx(value, rel=1e-4, abs=1e-6), (size, layer, name)
            for name, value in likeness(rows[1:])._asdict().items():
                assert row[f"rest_{name}"] == pytest.approx(value, rel=1e-4, abs=1e-6), (
                    size,
                    layer,
                    name,
                )
            assert row["first_norm"] == pytest.approx(float(rows[0].norm()), rel=1e-5)
            assert row["rest_norm"] == pytest.approx(np.median(rows[1:].norm(dim=1)), rel=1e-5)
            if layer < len(out.attentions):
                weights = out.attentions[layer][0, :, 1:size, 0].double().mean(-1)
                assert row["first_weight"] == pytest.approx(float(weights.mean()), rel=1e-5)
                assert row["sink_rate"] == float((weights > 0.3).double().mean())


def test_a_shorter_context_is_the_text_cut_there_and_the_twin_is_an_untrained_model() -> None:
    model = tiny_model("gemma3", seed=4, window=4, **TINY)
    prompt = ost.Prompt.from_ids(model, IDS)
    frame: Any = ost.token_homogenization(
        model, prompt, contexts=[5, N], untrained=True, seed=1
    ).frame
    cut: Any = ost.token_homogenization(
        model, ost.Prompt.from_ids(model, IDS[:5]), contexts=[5]
    ).frame
    twin: Any = ost.token_homogenization(
        ost.models.untrained_model(model, "initialised", seed=1), prompt, contexts=[5, N]
    ).frame
    numbers = cut.columns.drop("source")
    part = frame[(frame["source"] == "model") & (frame["tokens"] == 5)]
    assert part[numbers].to_numpy(float) == pytest.approx(
        cut[numbers].to_numpy(float), rel=1e-4, abs=1e-6, nan_ok=True
    )
    untrained = frame[frame["source"] == "untrained"]
    assert np.array_equal(
        untrained[numbers].to_numpy(float), twin[numbers].to_numpy(float), equal_nan=True
    )


def test_contexts_double_from_eight_to_the_text() -> None:
    model = tiny_model("llama", **TINY)
    frame: Any = ost.token_homogenization(
        model, ost.Prompt.from_ids(model, list(range(2, 22)))
    ).frame
    assert list(dict.fromkeys(frame["tokens"])) == [8, 16, 20]


def test_refusals() -> None:
    model = tiny_model("llama", **TINY)
    prompt = ost.Prompt.from_ids(model, IDS)
    for tokens, contexts, message in (
        (IDS, [4, 11], "contexts: expected from 3 to the 10 tokens of the text, found 11"),
        (IDS, [2], "contexts: expected whole numbers of at least 3, found 2"),
        ([2, 40], None, "expected from 3 to the 2 tokens of the text, found 2"),
    ):
        with pytest.raises(ost.InputError, match=message):
            ost.token_homogenization(model, ost.Prompt.from_ids(model, tokens), contexts=contexts)
    with (
        pytest.raises(ost.InputError, match="expected a model without edits"),
        hooks.ablate_heads(model, [(0, 1)]),
    ):
        ost.token_homogenization(model, prompt, untrained=True)


def test_a_context_whose_states_depend_on_what_follows_is_refused() -> None:
    """Long rotations beyond 16 tokens (longrope): the first 8 of 40 tokens are others alone. An
    edit may do the same.
    """
    rotation = {
        "rope_type": "longrope",
        "factor": 4.0,
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 16,
    }
    rotation |= {"short_factor": [1.0] * 4, "long_factor": [8.0] * 4}
    limits = {"context": 64, "original_max_position_embeddings": 16, "rope_parameters": rotation}
    model = tiny_model("phi3", fresh=True, **limits)
    with pytest.raises(
        ost.InputError, match="expected the states of the first 8 tokens to be theirs alone"
    ):
        ost.token_homogenization(
            model, ost.Prompt.from_ids(model, list(range(10, 50))), contexts=[8]
        )
    assert len(
        ost.token_homogenization(
            model, ost.Prompt.from_ids(model, list(range(10, 18))), contexts=[8]
        ).frame
    )


def test_equal_tokens_without_positions_stay_equal_in_every_layer() -> None:
    """One token repeated, and rotations that turn no value: every layer's states are the same,
    whatever the weights.
    """
    model = tiny_model("llama", seed=2, dtype=torch.float64, **TINY)
    frame: Any = ost.token_homogenization(
        model, ost.Prompt.from_ids(model, [50] * 9), contexts=[3, 9]
    ).frame
    embedded = frame[frame["layer"] == 0]
    assert (embedded["entropy"] == 0).all()
    assert (embedded["effective_rank"] == 1).all()
    assert frame["entropy"].to_numpy() == pytest.approx(0, abs=1e-12)
    assert frame["rest_mean_cosine"].to_numpy() == pytest.approx(1, abs=1e-12)


def test_some_layers_of_a_table_are_told_of_all_layers_of_the_model() -> None:
    result = ost.token_homogenization(tiny_model("llama", n_layers=3), "1 0 1 1 0 1 0 0 1")
    rows: Any = result.frame
    for layers in (3, 2):
        shown = replace(result, frame=rows[rows["layer"] <= layers])
        assert " of 3: " in shown.findings()[0]
