"""The flow of sensitivity: conserved, causal, its nodes the prediction at every layer, near the measured ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import hooks
import ostools as ost
from ostools.measure.paths.flow import flow
from ostools.models import Prompt, load_model
from tests.checkpoints import TEXT_FAMILIES, Family, tiny_model

IDS = [2, 40, 50, 60, 60, 61, 70]
N = len(IDS)


def table(frame: Any) -> Any:
    """A frame, its columns untyped."""
    return frame


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_flow_is_conserved_causal_and_adds_up(family: Family) -> None:
    model = tiny_model(family, seed=2, dtype=torch.float64, n_layers=3)
    prompt = Prompt.from_ids(model, IDS)
    result = flow(model, prompt)
    edges, nodes = table(result.frame), table(result.nodes)
    assert edges.groupby("layer")["flow"].sum().tolist() == pytest.approx([1.0] * 3)
    assert (edges["key"] <= edges["query"]).all()
    assert set(edges[edges["layer"] == 2]["query"]) == {N - 1}
    for layer in (0, 1):
        arrived = edges[edges["layer"] == layer].groupby("query")["flow"].sum()
        left = edges[edges["layer"] == layer + 1].groupby("key")["flow"].sum()
        assert arrived[arrived > 0].to_dict() == pytest.approx(left[left > 0].to_dict())
    for layer in range(3):
        node = nodes[nodes["layer"] == layer].set_index("position")
        weight = edges[edges["layer"] == layer].groupby("key")["weight"].sum().reindex(range(N), fill_value=0.0)
        square = node["frobenius_norm"] ** 2
        assert (weight + node["interference"]).tolist() == pytest.approx(square.tolist())
    predicted = ost.path_sum(model, prompt, variants="second-moment").frame["value"].tolist()
    assert nodes[nodes["layer"] == 0]["frobenius_norm"].tolist() == pytest.approx(predicted)
    started = edges[edges["layer"] == 0].groupby("key")["flow"].sum().to_numpy()
    shares = np.array(predicted)[np.array(predicted) > 0]
    assert started == pytest.approx(shares / shares.sum())


@pytest.mark.slow
def test_the_last_block_is_exact_and_has_no_interference() -> None:
    model = tiny_model("gemma3", seed=2, dtype=torch.float64, n_layers=2)
    prompt = Prompt.from_ids(model, IDS)
    nodes = table(flow(model, prompt).nodes)
    measured = table(ost.sensitivity(model, prompt, linearisations=["frozen"], layers=[1, 2]).frame)
    for layer in (1, 2):
        found = nodes[nodes["layer"] == layer]["frobenius_norm"].tolist()
        assert found == pytest.approx(measured[measured["layer"] == layer]["frobenius_norm"].tolist(), rel=1e-7)
        assert np.abs(nodes[nodes["layer"] == layer]["interference"]).max() < 1e-9


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_the_last_tokens_own_path_is_exact(family: Family) -> None:
    """Only its own query sees the last token: the edge from it to itself has its whole derivative, at every layer."""
    model = tiny_model(family, seed=2, dtype=torch.float64, n_layers=3)
    prompt = Prompt.from_ids(model, IDS)
    edges = table(flow(model, prompt).frame)
    measured = table(ost.sensitivity(model, prompt, linearisations=["frozen"], layers=[0, 1, 2], progress=False).frame)
    own = edges[(edges["key"] == N - 1) & (edges["query"] == N - 1)].set_index("layer")["weight"]
    exact = measured[measured["position"] == N - 1].set_index("layer")["frobenius_norm"] ** 2
    assert own.to_dict() == pytest.approx(exact.to_dict(), rel=1e-9)


def test_no_edge_leads_where_attention_is_masked() -> None:
    model = tiny_model("llama", dtype=torch.float64)
    with hooks.mask_scores(model, lambda query, key: query - key < 2):
        edges = table(flow(model, Prompt.from_ids(model, IDS)).frame)
    assert (edges["query"] - edges["key"] < 2).all()


def test_nodes_stand_beside_the_measured_layers_of_a_trained_model() -> None:
    model = load_model(device="cpu")
    prompt = ost.encode(model, "Consider the following sequence: 010101. What is the last digit?")
    nodes = table(flow(model, prompt).nodes)
    measured = table(ost.sensitivity(model, prompt, linearisations=["frozen"], layers="all").frame)
    for layer in range(4):
        exact = measured[measured["layer"] == layer]["frobenius_norm"].to_numpy()
        found = nodes[nodes["layer"] == layer]
        assert abs(np.median(np.log10(found["frobenius_norm"].to_numpy() / exact))) < np.log10(1.5)
        assert found["frobenius_norm"].iloc[-1] == pytest.approx(exact[-1], rel=0.25)  # by probes


def test_the_picture_draws_the_strongest_edges_of_every_block() -> None:
    model = tiny_model("gemma", n_layers=2)
    result = flow(model, Prompt.from_ids(model, [2, *range(40, 70)]))
    chart: Any = result.plot().to_dict()
    drawn = chart["datasets"][chart["layer"][0]["data"]["name"]][0]
    assert drawn["layer"].count(0) == drawn["layer"].count(1) + 60 - 31 == 60
    edges = table(result.frame)
    strongest = edges[edges["layer"] == 0]["flow"].nlargest(60)
    assert sum(flow for flow, layer in zip(drawn["flow"], drawn["layer"], strict=True) if layer == 0) == pytest.approx(
        float(strongest.sum()), rel=1e-4
    )
