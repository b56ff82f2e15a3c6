"""The chart of the spectra holds the three tables' numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ostools as ost
from ostools import hooks
from ostools.models import Prompt
from ostools.reporting.charts.spectra import spectra_chart
from tests.checkpoints import tiny_model
from tests.reporting.made import rows_of, words_of

IDS = [2, 40, 50, 60, 60, 61]


@pytest.fixture(scope="module")
def found() -> Any:
    model = tiny_model("gemma2", window=3, d_model=16, d_mlp=24)
    prompt = Prompt.from_ids(model, IDS)
    return ost.measure.spectra(model, prompt, powers=8)


def test_every_panel_holds_its_table(found: Any) -> None:
    rows = rows_of(spectra_chart(found))
    heads = [row for row in rows if "head" in row]
    eigenvalues = found.frame[found.frame["quantity"] == "second_eigenvalue"]
    assert (
        len(heads) == ((eigenvalues["head"] == "mean") | (eigenvalues["matrix"] == "pattern")).sum()
    )
    kinds = {row["quantity"] for row in rows}
    assert kinds == {"last token", "mean over all tokens", "second eigenvalue of the whole product"}
    drawn = np.array([row["value"] for row in rows])
    for column in (found.depth["first_mass_last"], found.depth["first_mass_mean"]):
        assert np.isclose(drawn, column.to_numpy()[:, None], rtol=1e-5).any(1).all(), column.name


def test_two_tokens_and_nothing_left_after_a_power_can_be_drawn() -> None:
    """A head-to-first pattern leaves exactly nothing after one power, and no rate after that."""
    model = tiny_model("llama", d_model=16, d_mlp=24)
    with hooks.mask_scores(model, lambda query, key: (key == 0) & (query >= 0)):
        found = ost.measure.spectra(model, Prompt.from_ids(model, IDS[:2]), powers=4)
    pattern: Any = found.limit[
        (found.limit["matrix"] == "pattern") & (found.limit["layer"] == "all")
    ]
    assert pattern["remainder"].tolist() == [0.0] * 4
    assert pattern["observed_rate"].isna().tolist() == [False, True, True, True]
    assert "Products over depth" in words_of(spectra_chart(found))
