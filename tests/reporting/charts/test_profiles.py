"""Profiles and heat maps draw what the tables hold and say what was tested."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ostools as ost
from ostools.measure import Sensitivity
from ostools.reporting.charts.profile import profile_chart
from ostools.reporting.charts.tokens import layers_chart, sensitivity_chart
from ostools.reporting.findings.sensitivity import sensitivity_findings
from tests.reporting.made import PROVENANCE, made_sensitivity, rows_of, words_of


def layered(
    tokens: int, layers: int, linearisations: tuple[str, ...] = ("full", "frozen")
) -> Sensitivity:
    """Norms 10^(layer - position / tokens); above the last block only the last token's is not zero."""
    tables = []
    for layer in range(layers + 1):
        norms = 10.0 ** (layer - np.arange(tokens) / tokens)
        if layer == layers:
            norms[:-1] = 0.0
        tables.append(
            made_sensitivity({name: list(norms) for name in linearisations}).frame.assign(
                layer=layer
            )
        )
    return Sensitivity(pd.concat(tables, ignore_index=True), PROVENANCE)


@pytest.mark.parametrize(
    ("asked", "words", "axis"),
    [
        ({}, "the last token’s representation", "operator norm of ∂y/∂v"),
        ({"logit": (" A",), "logit_norm": 2.0}, "t = the logit of ·A", "length of ∂t/∂v"),
        (
            {"logit": (" A", "</b>"), "logit_norm": 2.0},
            "t = the logit of ·A minus the logit of <∕b>",
            "length of ∂t/∂v",
        ),
    ],
)
def test_charts_and_words_say_what_was_differentiated(
    asked: dict[str, Any], words: str, axis: str
) -> None:
    made = made_sensitivity({"full": [2.0, 6.0, 1.0]})
    result = replace(
        made,
        provenance=replace(made.provenance, parameters={**made.provenance.parameters, **asked}),
    )
    drawn = [sensitivity_chart(result), profile_chart(ost.profile(result)), layers_chart(result)]
    for chart in drawn:
        said = words_of(chart).replace("'", "’")
        assert words in said or not asked
        assert axis in said
    assert f" {words} responds most to" in sensitivity_findings(result)[0].replace("'", "’")


def test_a_profile_chart_holds_every_token() -> None:
    chart = profile_chart(
        ost.profile(made_sensitivity({"full": [2.0, 6.0, 1.0], "frozen": [1.0, 2.0, 4.0]}))
    )
    drawn = {(row["position"], row["series"], row["value"]) for row in rows_of(chart, "position")}
    assert {(0, "full", 2.0), (2, "frozen", 4.0), (1, "full", 6.0)} <= drawn
    assert "Not tested: 2 tokens, 12 needed: " in words_of(chart)


def test_the_heat_map_has_a_cell_for_every_layer_and_token_that_is_not_zero() -> None:
    """Of an estimate, the norm that it knows: the Frobenius norm, twice the operator norm here."""
    exact = layered(5, 3)
    for method, norm, factor in (("exact", "operator", 1), ("estimate", "Frobenius", 2)):
        chart = layers_chart(Sensitivity(exact.frame.assign(method=method), PROVENANCE))
        cells = {
            (row["layer"], row["position"], row["series"]): row["value"] / factor
            for row in rows_of(chart)
        }
        assert len(cells) == 2 * (3 * 5 + 1)
        assert cells[2, 0, "full"] == pytest.approx(100)
        assert cells[3, 4, "frozen"] == pytest.approx(10.0 ** (3 - 4 / 5), rel=1e-5)
        assert f"{norm} norm" in words_of(chart)
