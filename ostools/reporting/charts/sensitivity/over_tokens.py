"""Profiles over the tokens of a prompt: measured sensitivity, path sums, and both side by side.

One panel per norm, since an operator norm and a Frobenius norm share no axis; one line per linearisation or variant; path sums
whose constant is unknown, of which only the shape counts, have a panel of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from ostools.ground.errors import InputError
from ostools.ground.names import METHOD_KINDS, known_norm
from ostools.measure.attention.attention import ATTENTION
from ostools.measure.jacobian.sensitivity import Sensitivity
from ostools.measure.paths.path_sum import PathSum
from ostools.measure.profiles.compare import Comparison
from ostools.measure.prompts import named_by
from ostools.reporting.forms.curve import fitted
from ostools.reporting.forms.profile import of_tokens, profile, shown_tokens
from ostools.reporting.look import axes, draw, theme
from ostools.reporting.look.aside import aside as aside_of
from ostools.reporting.look.aside import notes
from ostools.results import Frame, frame_of

SHAPE = "shape"
NORMS = {
    "operator": "operator norm of ∂y/∂v",
    "frobenius": "Frobenius norm of ∂y/∂v",
    SHAPE: "an order alone, no scale",
}
INTERVAL_NOTE = "Bands: 95% intervals of estimated norms, a token at a time."
LOWER_END_NOTE = "An estimated operator norm is drawn at its lower end: the norm itself is at least as large."


def sensitivity_chart(result: Sensitivity) -> alt.VConcatChart:
    """Sensitivity of y_n to every token at one layer, measured or estimated: a line per linearisation, a panel per norm."""
    layers = frame_of(result)["layer"].nunique()
    if layers > 1:
        raise InputError(f"sensitivity_chart: expected one layer, found {layers} layers; draw them with layers_chart")
    symbol, words = theme.differentiated(result.provenance.parameters)
    return _profiles(measured_rows(frame_of(result)), f"Sensitivity of {words} to each token", symbol)


def path_sum_chart(result: PathSum) -> alt.VConcatChart:
    """The path sums over the tokens: certified bounds dashed, the paper's forms dotted, rankings dash-dotted. Above them stands
    which forms are not believed on this prompt."""
    title = "Path sums of Theorem 5.1 over the tokens"
    return _profiles(path_rows(frame_of(result)), title, first=_not_believed(result.beliefs))


def comparison_chart(result: Comparison) -> alt.VConcatChart:
    """Measured, certified, the paper's and predicted profiles on one log axis per norm."""
    rows = path_rows(frame_of(result).rename(columns={"source": "variant"}))
    symbol, words = theme.differentiated(result.provenance.parameters)
    other = "attention" if ATTENTION in set(rows["name"]) else "the path sums"
    return _profiles(rows, f"Sensitivity of {words} against {other}", symbol, _not_believed(result.summary))


def measured_rows(frame: Frame) -> Frame:
    """A sensitivity table in the long form of the others: one row per position, linearisation and norm."""
    named = frame[[*named_by(frame), "linearisation", "method"]]
    ends = {name: frame[f"frobenius_{name}"].where(frame["method"] != "exact") for name in ("lower", "upper")}
    tables = [named.assign(norm="frobenius", value=frame["frobenius_norm"], **ends)]
    if known_norm(frame["method"]) == "operator":
        tables.insert(0, named.assign(norm="operator", value=frame["operator_norm"]))
    rows: Frame = pd.concat(tables, ignore_index=True)
    return rows.assign(kind=rows["method"].map(METHOD_KINDS), name=rows["linearisation"])


def path_rows(frame: Frame) -> Frame:
    """A path-sum table with the columns of the others; what has no scale (attention too) gets a panel of its own."""
    from ostools.measure.paths.variants import VARIANTS

    unscaled = [ATTENTION, *(name for name, variant in VARIANTS.items() if not variant.scaled)]
    norm = frame["norm"].astype(str).where(~frame["variant"].isin(unscaled), SHAPE)
    return frame.rename(columns={"variant": "name"}).assign(norm=norm)


def norm_named(norm: str, symbol: str = "y") -> str:
    """A norm of the derivative of y, or of a logit t, whose two norms are one."""
    named = NORMS.get(norm, norm)
    return named if symbol == "y" or norm == SHAPE else f"length of ∂{symbol}/∂v"


def _not_believed(verdicts: Frame) -> list[str]:
    """A line for each form that is not believed on this prompt."""
    wrong: Frame = verdicts[verdicts["believed"].isin([False])]
    return [f"{name}: {words}" for name, words in zip(wrong["variant"], wrong["words"], strict=True)]


def _profiles(rows: Frame, title: str, symbol: str = "y", first: Sequence[str] = ()) -> alt.VConcatChart:
    """One panel per norm, one line per name, over the positions; `first`: the first lines below the title."""
    axes.require_finite(rows["value"], "a profile")
    wide = rows["upper"] > rows["lower"] if "upper" in rows else pd.Series(False, index=rows.index)
    ends = {end: rows[end].where(wide) if end in rows else float("nan") for end in ("lower", "upper")}
    series = [theme.series(str(kind), str(name)) for kind, name in zip(rows["kind"], rows["name"], strict=True)]
    data = of_tokens(rows, value=rows["value"].astype(float), series=series, **ends)
    data["linearisation"] = rows["linearisation"].astype(str)
    legend, aside, tokens = _legend(rows.assign(series=series)), aside_of(rows), shown_tokens(rows)
    norms = [norm for norm in NORMS if norm in set(rows["norm"])]
    panels = []
    for norm in norms:
        here, y = fitted(data[rows["norm"] == norm], norm_named(norm, symbol), ("lower", "upper"))
        looks: dict[str, Any] = {"dash": legend[1], "bands": [("lower", "upper", 0.15)], "width": 1.8, "aside": aside}
        panels.append([profile(here, tokens, y, legend[0], last=norm == norms[-1], **looks)])
    said = [*first, *([axes.ZERO_NOTE] if 0.0 in set(rows["value"]) else []), *notes(aside)]
    said += [LOWER_END_NOTE] if ((rows["kind"] == "estimated") & (rows["norm"] == "operator")).any() else []
    said += [INTERVAL_NOTE] if wide.any() else []
    return draw.figure(panels, title, said, between=18, color="shared", strokeDash="shared")


def _legend(data: Frame) -> tuple[alt.Color, alt.StrokeDash]:
    """Colour and dash of each series, in one legend: measured first, then certified, the paper's, predicted."""
    order = {kind: rank for rank, kind in enumerate(theme.KINDS)}
    names = data[["series", "kind", "name"]].drop_duplicates()
    names = names.sort_values("kind", key=lambda kinds: kinds.map(order), kind="stable")
    labels = names["series"].tolist()
    dashes = alt.Scale(domain=labels, range=[theme.DASHES[kind] for kind in names["kind"]])
    hue = draw.hue("series", dict(zip(labels, theme.colours(names["name"].tolist()), strict=True)))
    return hue, alt.StrokeDash("series:N", scale=dashes, legend=alt.Legend(title=None))
