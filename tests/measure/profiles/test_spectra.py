"""Spectra of real patterns: against dense linear algebra, and edits that break the hypotheses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools import hooks
from ostools.ground.errors import InputError
from ostools.models import Prompt
from tests.checkpoints import TEXT_FAMILIES, Family, tiny_model

IDS = [2, 40, 50, 60, 60, 61, 70, 80, 81, 90]
TINY: dict[str, Any] = {"d_model": 16, "d_mlp": 24}


def patterns(model: TransformerBridge, prompt: Prompt) -> np.ndarray:
    """[layer, head, query, key], float64."""
    with torch.no_grad(), hooks.capture(model, "pattern") as record:
        model(prompt.ids[None])
    return np.stack(
        [record["pattern"][layer][0].double().numpy() for layer in range(int(model.cfg.n_layers))]
    )


def dense_moduli(matrix: np.ndarray) -> np.ndarray:
    return np.sort(np.abs(np.linalg.eigvals(matrix)))[::-1]


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_every_head_and_the_mean_against_dense_eigenvalues(family: Family) -> None:
    model = tiny_model(family, scale=2.0, **TINY)
    prompt = Prompt.from_ids(model, IDS)
    frame = ost.measure.spectra(model, prompt, powers=4).frame
    assert len(frame) == int(model.cfg.n_layers) * (int(model.cfg.n_heads) + 1) * 2 * 5
    values: Any = frame.set_index(["layer", "head", "matrix", "quantity"])["value"].sort_index()
    for layer, heads in enumerate(patterns(model, prompt)):
        named = {"mean": heads.mean(0)} | {str(head): matrix for head, matrix in enumerate(heads)}
        for head, dense in named.items():
            lazy = (dense + np.eye(len(dense))) / 2
            for name, matrix, within in (("pattern", dense, 1.2e-7), ("lazy", lazy, 0.6e-7)):
                moduli, row = dense_moduli(matrix), values[layer, head, name]
                assert row["second_eigenvalue"] == pytest.approx(moduli[1], abs=1e-6)
                assert row["multiplicity"] == (moduli >= 1 - within).sum()
                assert row["first_mass_last"] == pytest.approx(matrix[-1, 0], abs=1e-7)
                assert row["first_mass_mean"] == pytest.approx(matrix[:, 0].mean(), abs=1e-7)


@pytest.mark.parametrize("family", ["gemma", "gemma2"])
def test_products_and_powers_against_dense_products(family: Family) -> None:
    model = tiny_model(family, dtype=torch.float64, n_layers=3, **TINY)
    prompt = Prompt.from_ids(model, IDS)
    with hooks.exact_arithmetic(model):
        mean = patterns(model, prompt).mean(1)
    found = ost.measure.spectra(model, prompt, powers=200)
    depth, limit = (table.set_index("matrix") for table in (found.depth, found.limit))
    for name, layers in (("pattern", mean), ("lazy", (mean + np.eye(len(IDS))) / 2)):
        product = np.eye(len(IDS))
        for blocks, layer in enumerate(layers, start=1):
            product = layer @ product
            row: Any = depth.loc[name].iloc[blocks - 1]
            assert row["blocks"] == blocks
            assert row["first_mass_last"] == pytest.approx(product[-1, 0], abs=1e-12)
            assert row["first_mass_mean"] == pytest.approx(product[:, 0].mean(), abs=1e-12)
            assert row["second_eigenvalue"] == pytest.approx(dense_moduli(product)[1], abs=1e-7)
            assert row["defect"] < 1e-12
        stack: Any = limit.loc[name][limit.loc[name]["layer"] == "all"]
        dense = [1 - np.linalg.matrix_power(product, power)[-1, 0] for power in (1, 2, 3)]
        assert stack["remainder"].tolist()[:3] == pytest.approx(dense, abs=1e-12)
        # The limit of Proposition 5.2, at the rate of the second eigenvalue.
        assert stack["remainder"].iloc[-1] < 1e-6
        assert stack["observed_rate"].iloc[-1] == pytest.approx(
            stack["predicted_rate"].iloc[-1], rel=0.05
        )
        one: Any = limit.loc[name][limit.loc[name]["layer"] == "1"]
        assert one["predicted_rate"].iloc[0] == pytest.approx(
            np.diag(layers[1])[1:].max(), abs=1e-12
        )


def test_rows_that_do_not_sum_to_1_are_refused_and_renormalised_ones_are_not() -> None:
    model = tiny_model("llama", **TINY)
    prompt = Prompt.from_ids(model, IDS)
    refused = pytest.raises(InputError, match=r"layer 1 off by .*method='renormalise'")
    with refused, hooks.ablate_edges(model, [(1, 0, 5, 2)]):
        ost.measure.spectra(model, prompt)
    with hooks.ablate_edges(model, [(1, 0, 5, 2)], method="renormalise"):
        found = ost.measure.spectra(model, prompt)
    assert found.provenance.edits != ()
    refused = pytest.raises(InputError, match="do not show the active edit 'ablate_heads'")
    with refused, hooks.ablate_heads(model, [(0, 1)]):
        ost.measure.spectra(model, prompt)


def test_refusals() -> None:
    model = tiny_model("llama", **TINY)
    prompt = Prompt.from_ids(model, IDS)
    with pytest.raises(InputError, match="at least two tokens"):
        ost.measure.spectra(model, Prompt.from_ids(model, [2]))
    with pytest.raises(InputError, match="powers of at least 2, found 1"):
        ost.measure.spectra(model, prompt, powers=1)
