"""Profiles and heat maps draw what the tables hold and say what was tested."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ostools as ost
from ostools.ground.errors import InputError
from ostools.measure import Sensitivity
from ostools.reporting.charts.profile import layers_chart, profile_chart
from ostools.reporting.charts.tokens import sensitivity_chart
from ostools.reporting.findings.sensitivity import sensitivity_findings
from tests.reporting.charts.test_charts import rows_of, svg_of
from tests.reporting.made import PROVENANCE, made_sensitivity


def layered(tokens: int, layers: int, linearisations: tuple[str, ...] = ("full", "frozen")) -> Sensitivity:
    """Norms 10^(layer - position / tokens); above the last block only the last token's is not zero."""
    tables = []
    for layer in range(layers + 1):
        norms = 10.0 ** (layer - np.arange(tokens) / tokens)
        if layer == layers:
            norms[:-1] = 0.0
        tables.append(made_sensitivity({name: list(norms) for name in linearisations}).frame.assign(layer=layer))
    return Sensitivity(pd.concat(tables, ignore_index=True), PROVENANCE)


@pytest.mark.parametrize(
    ("asked", "words", "axis"),
    [
        ({}, "the last token’s representation", "operator norm of ∂y/∂v"),
        ({"position": 2}, "the representation at position 2", "operator norm of ∂y/∂v"),
        ({"logit": (" A",), "logit_norm": 2.0}, "t = the logit of ·A", "length of ∂t/∂v"),
        (
            {"logit": (" A", "</b>"), "logit_norm": 2.0, "position": 1},
            "t = the logit of ·A minus the logit of <∕b> at position 1",
            "length of ∂t/∂v",
        ),
    ],
)
def test_charts_and_words_say_what_was_differentiated(asked: dict[str, Any], words: str, axis: str) -> None:
    made = made_sensitivity({"full": [2.0, 6.0, 1.0]})
    result = replace(made, provenance=replace(made.provenance, parameters={**made.provenance.parameters, **asked}))
    drawn = [sensitivity_chart(result), profile_chart(ost.profile(result)), layers_chart(result)]
    for chart in drawn:
        said = json.dumps(chart.to_dict(), ensure_ascii=False).replace("'", "’")
        assert words in said or not asked
        assert axis in said
    assert f" {words} responds most to" in sensitivity_findings(result)[0].replace("'", "’")


def test_a_profile_chart_holds_every_token() -> None:
    result = ost.profile(made_sensitivity({"full": [2.0, 6.0, 1.0], "frozen": [1.0, 2.0, 4.0]}))
    chart = profile_chart(result)
    rows = rows_of(chart.to_dict())
    drawn = {(row["position"], row["series"], row["value"]) for row in rows if "position" in row}
    assert {(0, "full", 2.0), (2, "frozen", 4.0), (1, "full", 6.0)} <= drawn
    assert "not tested: 2 tokens, 12 needed" in svg_of(chart)


def test_the_heat_map_has_a_cell_for_every_layer_and_token_that_is_not_zero() -> None:
    result = layered(5, 3)
    chart = layers_chart(result)
    rows = rows_of(chart.to_dict())
    assert len(rows) == 2 * (3 * 5 + 1)
    cells = {(row["layer"], row["position"], row["series"]): row["value"] for row in rows}
    assert cells["2", 0, "full"] == pytest.approx(100)
    assert cells["3", 4, "frozen"] == pytest.approx(10.0 ** (3 - 4 / 5), rel=1e-5)
    svg = svg_of(chart)
    assert "Blank: exactly zero" in svg
    assert "operator norm" in svg


def test_an_estimates_heat_map_is_of_the_norm_that_it_knows() -> None:
    exact = layered(256, 2, ("frozen",))
    chart = layers_chart(Sensitivity(exact.frame.assign(method="estimate"), PROVENANCE))
    rows = rows_of(chart.to_dict())
    assert len(rows) == 2 * 256 + 1
    assert max(row["value"] for row in rows) == pytest.approx(2 * exact.frame["operator_norm"].max(), rel=1e-5)
    svg = svg_of(chart)
    assert "Frobenius norm" in svg
    assert "token and its position i (×: so many in a row)" in svg


def test_several_layers_are_drawn_as_a_heat_map_and_one_as_lines() -> None:
    several = layered(4, 1)
    assert several.plot().to_dict() == layers_chart(several).to_dict()
    one = made_sensitivity({"full": [1.0, 2.0]})
    assert one.plot().to_dict() == sensitivity_chart(one).to_dict()
    with pytest.raises(InputError, match=r"found 2 layers.*layers_chart"):
        sensitivity_chart(several)
    with pytest.raises(InputError, match="not finite"):
        layers_chart(Sensitivity(several.frame.assign(operator_norm=np.nan), PROVENANCE))
