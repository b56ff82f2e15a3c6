"""The laboratory's charts.

`random_chart`: collapse by encoding, the assumption, depth, rounding, with bands over seeds and the
    fitted laws.
`trained_chart`: collapse and answers by encoding, by window, trained in or forced, and by depth.
"""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from ostools.reporting.style import axes, draw, notebook, theme
from ostools.results import Frame, frame_of
from ostools.theory.statistics.fits import Law
from studies.laboratory.config import BASE
from studies.laboratory.random_lab import RandomLab
from studies.laboratory.trained_lab import TrainedLab

_PANELS = {
    "positions": ("distance", "Collapse by encoding, 4 layers", "L2 distance at y"),
    "layers": (
        "total_variation",
        "Total variation of attention, layer",
        "delta of rows n and n + 1",
    ),
    "assumption": (
        "score_step",
        "The assumption: a score's step at a distance",
        "|change of score|, rms",
    ),
    "depth": ("distance", "Collapse by depth", "L2 distance at y"),
    "precision": ("pair_noise", "Rounding noise of the difference, and the distance", "L2 at y"),
    "validation": ("l1", "Collapse by encoding, run in", "L1 distance at v^(L)"),
}
"""By study: the quantity, the title, the axis."""
_SERIES = {"depth": "depth", "precision": "precision"}
"""Column of the lines of a panel, where they are no encodings."""
_FACETS = {
    "layers": "depth",
    "validation": "precision",
    "depth": "encoding",
    "precision": "encoding",
}
"""Column of the panels of a row, where they are no quantities."""
_X = {"assumption": "n, or the distance r of the key (tokens)"}
_POSITIONS = {"none": "no positions"}
_SECOND = {
    "positions": ("l1", "The same before the final norm (Theorem B.3)", "L1 distance at v^(L)"),
    "assumption": (
        "total_variation",
        "Total variation, one layer, random tokens",
        "delta of rows n and n + 1",
    ),
}
"""The second quantity of a study: the quantity, the title, the axis."""
_MOST = 60
"""Lengths drawn of a curve: log-spaced, more are not seen."""
_EXACT = "distance, float64"
_WIDTH, _HEIGHT = 330, 230
_NARROW = 200
"""The width of a panel in a row of more than two."""
_DISTANCE, _ACCURACY = "L2 distance at y, float64", "share of right answers"
_LENGTH = "length n (items of the sequence)"
_CHANGED = ["sinks", "norm", "trained_in"]
_TRAINED_FLOOR = 1e-6  # below it a float64 distance of y is rounding
_SMALL_WIDTH, _SMALL_HEIGHT = 190, 160  # five panels in a row


def random_chart(result: RandomLab) -> notebook.Offline:
    """One row of panels a study, small multiples on log axes: geometric mean over seeds, min-max
    band, fitted law (dotted).
    """
    frame = frame_of(result)
    rows = [
        _random_row(study, frame, result.fits)
        for study in _PANELS
        if (frame["study"] == study).any()
    ]
    note = axes.ROUNDING_NOTE if any(has_zeros for _, has_zeros in rows) else ""
    if note and (frame["study"] == "validation").any():
        note += " In a low precision, rounding is the noise of the difference from float64."
    subtitle = [
        "One random pre-norm decoder, d = 64, 4 heads: 16 random tokens, then one token n times, against n + 1 times.",
        "Lines: geometric mean over seeds; bands: minimum to maximum; thin dotted lines: the law, where one was found.",
        *([note] if note else []),
    ]
    return _page(
        [row for row, _ in rows],
        "What positions, depth and precision do to the last representation",
        subtitle,
    )


def _page(rows: list[alt.HConcatChart], title: str, subtitle: list[str]) -> notebook.Offline:
    titled = alt.TitleParams(title, subtitle=subtitle)
    return notebook.themed(
        alt.vconcat(*rows, title=titled, spacing=30).resolve_scale(color="independent")
    )


def _random_row(study: str, frame: Frame, fits: Any) -> tuple[alt.HConcatChart, bool]:
    """A study's panels, and whether one draws what is below its rounding."""
    quantity, title, y = _PANELS[study]
    rows = frame[(frame["study"] == study) & (frame["question"] > 0)]
    if study in _SECOND:
        panels = {
            name: (rows[rows["quantity"] == drawn_quantity], axis)
            for drawn_quantity, name, axis in ((quantity, title, y), _SECOND[study])
        }
    else:
        separator = " " if study in ("layers", "validation") else ": "
        panels = {
            f"{title}{separator}{_POSITIONS.get(part, part)}": (
                _facet_rows(study, group, quantity),
                y,
            )
            for part, group in rows.groupby(_FACETS[study], sort=False)
        }
    series = pd.concat([data[_SERIES.get(study, "encoding")] for data, _ in panels.values()])
    names = [
        str(name) for name in (sorted(set(series)) if study == "depth" else dict.fromkeys(series))
    ]
    width = _WIDTH if len(panels) <= 2 else _NARROW
    charts = [
        _random_panel(study, name, data, axis, fits, names, width)
        for name, (data, axis) in panels.items()
    ]
    row = alt.hconcat(*(chart for chart, _ in charts), spacing=34).resolve_scale(color="shared")
    return row, any(has_zeros for _, has_zeros in charts)


def _facet_rows(study: str, group: Frame, quantity: str) -> Frame:
    """Rows of the quantity; for precision the noise of each, and once the exact distance, which
    hides it where it is above.
    """
    rows = group[group["quantity"] == quantity]
    if study != "precision":
        return rows
    exact = group[
        (group["quantity"] == "exact_distance") & (group["precision"] == group["precision"].iloc[0])
    ]
    return pd.concat([exact.assign(precision=_EXACT), rows])


def _random_panel(
    study: str, title: str, data: Frame, y: str, fits: Any, names: list[str], width: int
) -> tuple[Any, bool]:
    series = _SERIES.get(study, "encoding")
    data = data.assign(series=data[series].astype(str))
    curves, scale, axis, floor = _random_curves(data, _laws(data, fits, study))
    low, high = int(curves["length"].min()), int(curves["length"].max())
    x = alt.X(
        "length:Q",
        title=_X.get(study, "n, copies of the token"),
        scale=alt.Scale(type="log", domain=[low, high], nice=False),
        # Every second power of two: lengths are drawn up to 512, the assumption up to 16,384.
        axis=alt.Axis(
            values=[4**power for power in range(12) if low <= 4**power], format="d", grid=False
        ),
    )
    # Depth has an order; the others are names.
    plain_names = ["float64" if name == _EXACT else name for name in names]
    colours = theme.ordered(len(names)) if study == "depth" else theme.colours(plain_names)
    legend = alt.Legend(columns=4, title=f"{series} (layers)" if study == "depth" else series)
    base = draw.rows(curves).encode(
        x=x,
        color=alt.Color(
            "series:N", sort=names, scale=alt.Scale(domain=names, range=colours), legend=legend
        ),
        tooltip=[
            "series:N",
            "length:Q",
            alt.Tooltip("words:N", title="value"),
            alt.Tooltip("law:N", title="law"),
        ],
    )
    laws = []
    if (curves["fitted"] > 0).any():
        law = base.transform_filter("datum.fitted > 0").mark_line(
            strokeDash=[1.5, 2.5], strokeWidth=1.1, clip=True
        )
        laws.append(law.encode(y=alt.Y("fitted:Q", scale=scale)))
    layers = _banded(base, y, scale, axis, floor is not None, below=[], above=laws)
    return layers.properties(
        width=width, height=_HEIGHT, title=_panel_title(title)
    ), floor is not None


def _random_curves(
    data: Frame, laws: dict[str, tuple[str, int, Law]]
) -> tuple[Frame, alt.Scale, alt.Axis, float | None]:
    """A row a series and drawn length: geometric mean, band, law (-1 where it was not fitted); and
    the axis around them.

    What is smaller than its rounding counts as that. A mean with such values in it is not more than
    what is drawn: it was not measured, and stands below the axis.
    """
    data = data.assign(
        value=np.maximum(data["value"], data["rounding"]), below=data["value"] <= data["rounding"]
    )
    curves = data.groupby(["series", "length"], sort=False)
    values, below = curves["value"], curves["below"].any()
    bands = pd.DataFrame(
        {"value": values.agg(_geometric), "low": values.min(), "high": values.max()}
    )
    bands = bands.assign(rounding=bands["value"].where(below, 0.0)).reset_index()
    lengths: Any = np.unique(bands["length"])
    spread = [
        int(lengths[np.abs(lengths - n).argmin()])
        for n in np.geomspace(lengths[0], lengths[-1], _MOST)
    ]
    points, floor = axes.floored(bands[bands["length"].isin(spread)])
    scale, axis = axes.log_axis(
        pd.concat([points["shown"], points["high"][points["high"] > 0]]), floor
    )
    fitted = [
        float(laws[name][2]([float(n)])[0]) if name in laws and n >= laws[name][1] else -1.0
        for name, n in zip(points["series"], points["length"], strict=True)
    ]
    words = [
        f"{'at most ' if zero else ''}{value:.4g}"
        for value, zero in zip(points["value"], points["zero"], strict=True)
    ]
    law_words = [laws[name][0] if name in laws else "none" for name in points["series"]]
    points = points.assign(low=points["low"].clip(lower=float(points["shown"].min())))
    return (
        points.assign(fitted=fitted, law=law_words, words=words).drop(columns="rounding"),
        scale,
        axis,
        floor,
    )


def _geometric(values: Any) -> float:
    return float(np.exp(np.log(values).mean())) if (values > 0).all() else 0.0


def _laws(data: Frame, fits: Any, study: str) -> dict[str, tuple[str, int, Law]]:
    """The law in words, the length from which it was fitted, and the law, by series."""
    first = data.iloc[0]
    rows = fits[
        (fits["study"] == study) & (fits["question"] > 0) & (fits["quantity"] == first["quantity"])
    ]
    if study in _FACETS:
        rows = rows[rows[_FACETS[study]] == first[_FACETS[study]]]
    if study == "precision":  # one exact distance is drawn, the first precision's
        rows = rows.iloc[:1].assign(precision=_EXACT)
    laws = {}
    for fit in rows[rows["law"].notna()].to_dict("records"):
        law = Law(
            fit["law"],
            fit["rate"],
            fit["low"],
            fit["high"],
            fit["log_amplitude"],
            fit["level"],
            np.nan,
        )
        words = f"{fit['verdict']}, rate {fit['rate']:.3g} [{fit['low']:.3g}, {fit['high']:.3g}]"
        laws[str(fit[_SERIES.get(study, "encoding")])] = (words, int(fit["fitted_from"]), law)
    return laws


def _banded(
    base: alt.Chart,
    y: str,
    scale: alt.Scale,
    axis: alt.Axis,
    floored: bool,
    *,
    below: list[Any],
    above: list[Any],
) -> Any:
    """Lines with their bands, between other layers; triangles stand for what was not measured, and
    no line leads to it.
    """
    measured = alt.Y("shown:Q", title=y, scale=scale, axis=axis)
    triangles = [axes.zero_marks(base.encode(y=measured))] if floored else []
    return alt.layer(
        *below,
        base.mark_area(opacity=0.13, clip=True).encode(
            y=alt.Y("low:Q", title=y, scale=scale), y2="high:Q"
        ),
        base.transform_filter("!datum.zero").mark_line(clip=True).encode(y=measured),
        *above,
        *triangles,
    )


def _panel_title(title: str) -> alt.TitleParams:
    return alt.TitleParams(title, fontSize=11, fontWeight="normal", offset=6, frame="group")


def trained_chart(result: TrainedLab) -> notebook.Offline:
    """Rows of panels: positions, windows, depth, other changes. Lines: means over seeds (of
    distances geometric); bands: minimum to maximum over seeds; the rule: the longest training
    sequence."""
    every_row = frame_of(result)
    changed = (
        (every_row["sinks"] > 0)
        | (every_row["norm"] != BASE.norm)
        | (every_row["trained_in"] != BASE.dtype)
    )
    frame = every_row[~changed]
    full = frame[(frame["window"] == 0) & ~frame["forced"]]
    plain = full[full["n_layers"] == BASE.n_layers]
    rope = frame[
        (frame["encoding"] == BASE.encoding)
        & (frame["n_layers"] == BASE.n_layers)
        & _trained(frame)
    ]
    depth = full[full["encoding"] == BASE.encoding]
    windows = rope["window"].map(lambda window: "none" if window == 0 else str(window))
    studies = [
        ("positions", plain.assign(series=plain["encoding"]), "encoding"),
        ("windows", rope.assign(series=windows), "window (keys seen)"),
        ("depth", depth.assign(series=depth["n_layers"].astype(str)), "layers"),
        ("other changes", _changes(every_row, changed), "one change"),
    ]
    # A table that is not finished yet gives the rows that it has.
    rows = [_trained_row(*study) for study in studies if len(study[1]) and _trained(study[1]).any()]
    parameters = result.provenance.parameters
    longest = int(frame[frame["seen"]]["length"].max())
    subtitle = [
        f"{parameters['measured']} of the grid's {parameters['planned']} models, trained on the same prompts of at most "
        f"{longest} bits (the vertical rule); rope-10000 and {BASE.n_layers} layers where a label does not say otherwise.",
        "Distance: n ones against n + 1. Lines: means over seeds, of distances geometric; bands: minimum to maximum.",
        axes.ROUNDING_NOTE,
    ]
    return _page(rows, "What positions, windows and depth do to trained decoders", subtitle)


def _changes(every_row: Frame, changed: Any) -> Frame:
    """The models with one change, and those of the same positions and window without it."""
    keys = ["encoding", "window"]
    models = every_row[(every_row["n_layers"] == BASE.n_layers) & ~every_row["forced"]]
    models = models.merge(every_row[changed][keys].drop_duplicates(), on=keys)
    names = [_change(*row) for row in models[[*keys, *_CHANGED]].itertuples(index=False, name=None)]
    return models.assign(series=names)


def _change(encoding: str, window: int, sinks: int, norm: str, trained_in: str) -> str:
    words = [encoding, f"window {window}" if window else "", f"{sinks} sink" if sinks else ""]
    words.append(f"norm {norm}" if norm != BASE.norm else "")
    words.append(f"trained in {trained_in}" if trained_in != BASE.dtype else "")
    return ", ".join(word for word in words if word)


def _trained(frame: Frame) -> Any:
    return frame["weights"] == "trained"


def _trained_row(what: str, data: Frame, legend: str) -> alt.HConcatChart:
    """Distances of two states of the models, and what the trained ones answer."""
    # Numbers by their size, words as they come, "none" last.
    names = sorted(
        dict.fromkeys(data["series"]),
        key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else 0),
    )
    distances = data[(data["quantity"] == "distance")]
    states = (
        {
            "window trained in": ~distances["forced"],
            "window forced": distances["forced"] | (distances["window"] == 0),
        }
        if what == "windows"
        else {"trained": _trained(distances), "before training": ~_trained(distances)}
    )
    panels = [
        _trained_panel(f"Collapse by {what}, {name}", distances[state], _DISTANCE, names, legend)
        for name, state in states.items()
        if state.any()
    ]
    answers = data[
        (data["quantity"] == "accuracy") & (data["precision"] == "float32") & _trained(data)
    ]
    answers = answers[~answers["forced"]]
    for question in ("first", "last", "count"):
        rows = answers[answers["task"] == f"lab-{question}"]
        panels.append(_trained_panel(f"Right answers: {question}", rows, _ACCURACY, names, legend))
    return alt.hconcat(*panels, spacing=30).resolve_scale(color="shared")


def _trained_panel(title: str, data: Frame, y: str, names: list[str], legend: str) -> Any:
    curves, scale, axis, floor = _trained_curves(data, y)
    # Encodings have colours of their own; numbers and changes are told apart by their order.
    of_encodings = not any(name.isdigit() or "," in name for name in names)
    colours = theme.colours(names) if of_encodings else theme.ordered(len(names))
    colour = alt.Color(
        "series:N",
        sort=names,
        scale=alt.Scale(domain=names, range=colours),
        legend=alt.Legend(title=legend, columns=6),
    )
    tooltip = [
        "series:N",
        "length:Q",
        alt.Tooltip("value:Q", title=y, format=".4g"),
        alt.Tooltip("seeds:Q"),
    ]
    base = draw.rows(curves).encode(
        x=axes.length_axis(curves["length"], _LENGTH), color=colour, tooltip=tooltip
    )
    end = pd.DataFrame({"end": [float(data[data["seen"]]["length"].max())]})
    rule = draw.rows(end).mark_rule(color=theme.INK, strokeDash=[4, 3])
    rule = rule.encode(x=alt.X("end:Q", title=_LENGTH))
    layers = _banded(base, y, scale, axis, floor is not None, below=[rule], above=[])
    return layers.properties(width=_SMALL_WIDTH, height=_SMALL_HEIGHT, title=_panel_title(title))


def _trained_curves(data: Frame, y: str) -> tuple[Frame, alt.Scale, alt.Axis, float | None]:
    """A row a series and length: mean, minimum and maximum over seeds; the axis around them, and
    where rounding stands.
    """
    values = data.assign(value=data["value"].clip(lower=_TRAINED_FLOOR)) if y == _DISTANCE else data
    curves = values.groupby(["series", "length"], sort=False)["value"]
    mean = curves.agg(_geometric) if y == _DISTANCE else curves.mean()
    bands = pd.DataFrame(
        {"value": mean, "low": curves.min(), "high": curves.max(), "seeds": curves.size()}
    )
    bands = bands.reset_index()
    if y == _ACCURACY:
        axis = alt.Axis(format="%", values=[0, 0.25, 0.5, 0.75, 1])
        return bands.assign(shown=bands["value"], zero=False), alt.Scale(domain=[0, 1]), axis, None
    # A mean with a value in it that is rounding was not measured.
    points, floor = axes.floored(
        bands.assign(rounding=np.where(bands["low"] <= _TRAINED_FLOOR, bands["value"], 0.0))
    )
    scale, axis = axes.log_axis(pd.concat([points["shown"], points["high"]]), floor)
    points = points.assign(low=points["low"].clip(lower=float(points["shown"].min())))
    return points.drop(columns="rounding"), scale, axis, floor
