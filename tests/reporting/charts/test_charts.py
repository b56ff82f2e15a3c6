"""The charts draw what the tables hold, say what they cannot show, and look the same everywhere."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import altair as alt
import numpy as np
import pytest
import vl_convert

from ostools.ground.errors import InputError
from ostools.measure.bounds.variants import VARIANTS
from ostools.measure.jacobian.sensitivity import LINEARISATIONS
from ostools.reporting.charts.collapse import collapse_chart
from ostools.reporting.charts.tokens import bounds_chart, comparison_chart, sensitivity_chart
from ostools.reporting.page.page import TEMPLATES
from ostools.reporting.style import theme
from ostools.reporting.style.axes import ZERO_NOTE
from tests.reporting.made import HOSTILE, made_collapse, made_comparison, made_paths, made_sensitivity

PROFILE = [1.0, 3.0, 2.0, 5.0]
(DARK_GROUND,) = set(re.findall(r"--ground: (#\w{6})", (TEMPLATES / "style.css").read_text())) - {theme.LIGHT_GROUND}


def svg_of(chart: alt.TopLevelMixin) -> str:
    """The chart as the static formats draw it; parsed, so that it is well-formed."""
    svg = vl_convert.vegalite_to_svg(chart.to_json())
    ElementTree.fromstring(svg)
    return svg


def rows_of(spec: dict[str, Any], *having: str) -> list[dict[str, Any]]:
    """The rows inside a specification, out of all its data that have these columns."""
    return [row for (columns,) in spec["datasets"].values() if {*having} <= {*columns} for row in _rows(columns)]


def _rows(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def test_a_comparison_holds_every_row_of_the_table() -> None:
    result = made_comparison(PROFILE, {"local": [9.0, 8.0, 7.0, 6.0], "proof": PROFILE})
    rows = rows_of(comparison_chart(result).to_dict())
    expected = {
        (int(row["position"]), str(row["source"]), float(row["value"]))
        for row in result.frame.to_dict(orient="records")
    }
    assert {(row["position"], row["series"].partition(": ")[2], row["value"]) for row in rows} == expected


def test_estimated_rows_are_not_called_measured() -> None:
    """A sketch has no operator norm to draw; its Frobenius norms have their intervals around them."""
    exact = made_sensitivity({"full": PROFILE})
    frame = exact.frame.assign(method="sketch", operator_norm=float("nan"))
    sketch = replace(exact, frame=frame.assign(frobenius_upper=1.5 * frame["frobenius_norm"]))
    svg = svg_of(sensitivity_chart(sketch))
    assert "estimated: full" in svg
    assert "95% intervals of estimated norms" in svg
    assert "operator" not in svg
    assert "easured" not in svg
    assert "intervals" not in svg_of(sensitivity_chart(exact))


def test_every_colour_is_seen_on_paper_and_in_the_dark_and_a_profile_s_names_differ() -> None:
    """WCAG 1.4.11: graphics need a contrast of 3:1."""
    for name, colour in theme.COLOURS.items():
        for ground in (theme.LIGHT_GROUND, DARK_GROUND):
            dark, light = sorted((_luminance(colour), _luminance(ground)))
            assert (light + 0.05) / (dark + 0.05) >= 3, (name, ground)
    names = [*LINEARISATIONS, *VARIANTS]
    assert len({theme.COLOURS[name] for name in names}) == len(names)


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


@pytest.mark.parametrize("values", [[0.0, 1.0, 10.0], [0.0, 0.0]])
def test_zeros_are_drawn_at_the_bottom_with_a_note(values: list[float]) -> None:
    chart = sensitivity_chart(made_sensitivity({"full": values}))
    assert ZERO_NOTE in svg_of(chart)
    zeros = [row for row in rows_of(chart.to_dict(), "shown") if row["value"] == 0]
    assert {row["position"] for row in zeros} == {place for place, value in enumerate(values) if value == 0}
    assert all(0 < row["shown"] < 1 for row in zeros)
    assert ZERO_NOTE not in svg_of(sensitivity_chart(made_sensitivity({"full": [0.5, 1.0, 10.0]})))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_and_negative_values_are_refused(bad: float) -> None:
    with pytest.raises(InputError, match="not finite"):
        sensitivity_chart(made_sensitivity({"full": [1.0, bad]}))
    with pytest.raises(InputError, match="not finite"):
        collapse_chart(made_collapse(lambda n: bad if n == 9 else 1.0))
    with pytest.raises(InputError, match="cannot be negative"):
        bounds_chart(made_paths({"local": [1.0, -1.0]}))


def test_hostile_tokens_are_inert_even_where_altair_writes_them_into_html() -> None:
    chart = sensitivity_chart(made_sensitivity({"full": [1.0] * len(HOSTILE)}, HOSTILE))
    for ending in ("</", "<!"):
        assert ending not in chart.to_json()
    svg = svg_of(chart)
    assert "<script" not in svg
    assert "onerror" not in [element.attrib for element in ElementTree.fromstring(svg).iter()]


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
    result = made_collapse(lambda n: 4.0 / n, noise={"float32": 1e-6, "bfloat16": 0.2})
    rows = [row for row in rows_of(collapse_chart(result, ("y",)).to_dict(), "panel") if row["panel"] == "y, bfloat16"]
    at_8 = {row["quantity"]: row["value"] for row in rows if row["length"] == 8}
    assert at_8 == {"distance": 0.5, "noise": 0.2, "machine_line": 0.1, "reference": 0.5}


def test_every_range_is_marked_and_the_model_s_window() -> None:
    def drawn(distance: Callable[[int], float], **limits: Any) -> str:
        result = made_collapse(distance, noise={"bfloat16": 0.33}, lengths=range(1, 65))
        parameters = {**result.provenance.parameters, "limits": limits}
        result = replace(result, provenance=replace(result.provenance, parameters=parameters))
        return svg_of(collapse_chart(result, ("y",)))

    assert "hidden from n = 31" in drawn(lambda n: 10.0 / n)
    ends = drawn(lambda n: 0.1 if 31 <= n < 60 else 10.0, sliding_windows=[65], context=70)
    for words in ("hidden from n = 31 to 59", "window of 65 tokens", "context of 70 tokens"):
        assert words in ends
    assert not re.search("hidden from|window of", drawn(lambda n: 10.0))


def test_a_dtype_that_overflows_is_left_out_of_the_chart_with_a_note() -> None:
    svg = svg_of(collapse_chart(made_collapse(lambda n: 10.0, overflow=["float16"]), ("y",)))
    assert "float16 overflows on this model: not measured." in svg
    with pytest.raises(InputError, match="float32 overflows on this model: not measured"):
        collapse_chart(made_collapse(lambda n: 10.0, overflow=["float32"]))


def test_heads_and_seeds_have_their_mean_and_a_band_from_least_to_greatest() -> None:
    heads = collapse_chart(made_collapse(lambda n: 2.0 / n), ("y",), per="head-chunk", norm="linf")
    assert "L∞ distance" in svg_of(heads)
    result = made_collapse(lambda n: 2.0, seeds=(0, 1))
    result.frame.loc[result.frame["seed"] == 1, ["mean", "minimum", "maximum"]] = 4.0
    for chart, band in ((heads, (0.5, 1.0, 2.0)), (collapse_chart(result, ("y",)), (2.0, 3.0, 4.0))):
        rows = [row for row in rows_of(chart.to_dict(), "low") if row["quantity"] == "distance"]
        assert band in [(row["low"], row["value"], row["high"]) for row in rows if row["length"] == 2]


def test_an_unknown_site_is_refused_with_what_there_is() -> None:
    with pytest.raises(InputError, match=r"no rows of attention/vector/l2.*y/vector/l2"):
        collapse_chart(made_collapse(lambda n: 1.0), ("attention",))
