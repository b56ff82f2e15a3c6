"""The charts draw what the tables hold, say what they cannot show, and look the same everywhere."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ostools as ost
from ostools.ground.errors import InputError
from ostools.measure import Sensitivity
from ostools.reporting.charts.collapse import collapse_chart
from ostools.reporting.charts.collapse_parts import precision_chart
from ostools.reporting.charts.profile import profile_chart
from ostools.reporting.charts.tokens import (
    bounds_chart,
    comparison_chart,
    layers_chart,
    sensitivity_chart,
)
from ostools.reporting.findings.sensitivity import sensitivity_findings
from ostools.reporting.style import theme
from ostools.reporting.style.axes import ZERO_NOTE
from tests.reporting.made import (
    HOSTILE,
    PROVENANCE,
    made_collapse,
    made_comparison,
    made_paths,
    made_sensitivity,
    rows_of,
    words_of,
)
from tests.reporting.style.test_every_chart import nodes

PROFILE = [1.0, 3.0, 2.0, 5.0]
NAMED = re.compile(r"(\[.*\])\[indexof\((\[.*\]), datum.value\)\]")


def test_a_comparison_holds_every_row_of_the_table() -> None:
    result = made_comparison(PROFILE, {"local": [9.0, 8.0, 7.0, 6.0], "proof": PROFILE})
    rows = rows_of(comparison_chart(result))
    expected = {
        (int(row["position"]), str(row["source"]), float(row["value"]))
        for row in result.frame.to_dict(orient="records")
    }
    assert {
        (row["position"], row["series"].partition(": ")[2], row["value"]) for row in rows
    } == expected


def test_estimated_rows_are_not_called_measured() -> None:
    """A sketch has no operator norm to draw; its Frobenius norms have their intervals around them."""
    exact = made_sensitivity({"full": PROFILE})
    frame = exact.frame.assign(method="sketch", operator_norm=float("nan"))
    sketch = replace(exact, frame=frame.assign(frobenius_upper=1.5 * frame["frobenius_norm"]))
    words = words_of(sensitivity_chart(sketch))
    assert "estimated: full" in words
    assert "95% intervals of estimated norms" in words
    assert "operator" not in words
    assert "easured" not in words
    assert "intervals" not in words_of(sensitivity_chart(exact))


@pytest.mark.parametrize("chosen", [[3], [2, 3], [1, 3, 6], range(5, 60), range(9)])
def test_a_token_has_its_own_name_and_place_in_a_table_without_the_others(chosen: Any) -> None:
    whole = made_sensitivity({"full": [1.0 + place for place in range(60)]})
    frame: Any = whole.frame
    for order in (1, -1):
        drawn = sensitivity_chart(
            replace(whole, frame=frame[frame["position"].isin(chosen)][::order])
        )
        (axis,) = {
            (lookup.group(2), lookup.group(1), *node["scale"]["domain"])
            for node in nodes(drawn.to_dict())
            if (lookup := NAMED.match(str(node.get("axis", {}).get("labelExpr"))))
        }
        places, names = json.loads(axis[0]), json.loads(axis[1])
        assert names == [f"t{place} {place}" for place in places]
        assert {*places} == {place for place in chosen if len(chosen) < 48 or place % 2}
        assert axis[2:] == (min(chosen) - 0.5, max(*chosen, min(chosen) + 1) + 0.5)


@pytest.mark.parametrize("values", [[0.0, 1.0, 10.0], [0.0, 0.0], [0.5, 1.0, 10.0]])
def test_zeros_are_drawn_at_the_bottom_with_a_note(values: list[float]) -> None:
    chart = sensitivity_chart(made_sensitivity({"full": values}))
    zeros = [row for row in rows_of(chart, "shown") if row["value"] == 0]
    assert {row["position"] for row in zeros} == {
        place for place, value in enumerate(values) if value == 0
    }
    assert all(0 < row["shown"] < 1 for row in zeros)
    assert (ZERO_NOTE in words_of(chart)) == (0.0 in values)


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda: sensitivity_chart(made_sensitivity({"full": [1.0, float("nan")]})), "not finite"),
        (
            lambda: collapse_chart(made_collapse(lambda n: float("inf") if n == 9 else 1.0)),
            "not finite",
        ),
        (lambda: bounds_chart(made_paths({"local": [1.0, -1.0]})), "cannot be negative"),
        (
            lambda: collapse_chart(made_collapse(lambda n: 10.0, overflow=["float32"])),
            "float32 overflows on this model",
        ),
    ],
)
def test_what_has_no_place_in_a_chart_is_refused(draw: Callable[[], Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        draw()


def test_hostile_tokens_are_inert_even_where_altair_writes_them_into_html() -> None:
    chart = sensitivity_chart(made_sensitivity({"full": [1.0] * len(HOSTILE)}, HOSTILE))
    assert not re.search("</|<!", words_of(chart))


@pytest.mark.parametrize("token", [*HOSTILE, "\ud800", "", " the"])
def test_a_token_is_one_short_visible_word(token: str) -> None:
    word = theme.display_token(token)
    assert 1 <= len(word) <= theme.TOKEN_LENGTH
    assert word.isprintable()
    assert theme.inert(token).isprintable()
    assert " " not in word.replace("(empty)", "")
    word.encode("utf-8")


# --- collapse


def test_a_collapse_panel_holds_distance_noise_line_and_reference() -> None:
    result = made_collapse(lambda n: 4.0 / n, noise={"bfloat16": 0.2}, lengths=[4, 8])
    rows = rows_of(collapse_chart(result), "panel")
    at_8 = {row["quantity"]: row["value"] for row in rows if row["length"] == 8}
    assert at_8 == {"distance": 0.5, "noise": 0.2, "machine_line": 0.1, "reference": 0.5}


def test_seeds_have_their_mean_and_a_band_from_least_to_greatest() -> None:
    result = made_collapse(lambda n: 2.0, seeds=(0, 1), lengths=[2])
    result.frame.loc[result.frame["seed"] == 1, ["mean", "minimum", "maximum"]] = 4.0
    rows = rows_of(collapse_chart(result), "low")
    assert [
        (row["low"], row["value"], row["high"]) for row in rows if row["quantity"] == "distance"
    ] == [(2.0, 3.0, 4.0)]


def test_precisions_have_the_distance_of_the_weights_that_they_store_and_their_ranges() -> None:
    made = made_collapse(
        lambda n: 10.0 / n,
        noise={"bfloat16": 1e-9, "int4-weights": 0.001, "int8-kv": 0.33},
        lengths=range(1, 41),
    )
    frame = made.frame.assign(weights=made.frame["dtype"].replace({"int8-kv": "given"}))
    for name, distance in (("bfloat16", 2.0), ("int4-weights", 3.0)):
        frame.loc[frame["weights"] == name, "float64_distance"] = distance
    result = replace(made, frame=frame)
    chart = precision_chart(result)
    drawn = {
        (row["panel"].split()[0], row["quantity"], row["series"]): row["value"]
        for row in rows_of(chart, "panel")
        if row["length"] == 8
    }
    distance = {(panel, "distance", "float64"): 1.25 for panel in ("whole", "weights", "keys")}
    kept = {("whole", "stored", "bfloat16"): 2.0, ("weights", "stored", "int4"): 3.0}
    noise = {
        ("whole", "noise", "bfloat16"): 1e-9,
        ("weights", "noise", "int4"): 0.001,
        ("keys", "noise", "int8"): 0.33,
    }
    assert drawn == distance | kept | noise
    ranges = [(row["series"], row["length"], row["end"]) for row in rows_of(chart, "end")]
    assert ranges == [("int8", 31, 40)]
    assert "Which part" in words_of(result.plot())
    assert "Which part" not in words_of(made_collapse(lambda n: 1.0, lengths=[1, 2]).plot())


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
