"""Collapse over a corpus: over the length of the window, and window by window against its own noise."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from ostools.ground.words import short_name
from ostools.reporting.forms.curve import curve, fitted, shares
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame, frame_of
from ostools.runs import CorpusCollapse

_X = "window length (tokens)"
_RATIO = "distance / noise of its own window"


def corpus_collapse_chart(result: CorpusCollapse) -> Any:
    """A panel a dtype: which share of the windows of each length lies at most so many times above its noise (left of 1 the two
    are hidden). With several lengths one panel before them: the median distance, its windows from the 10th to the 90th
    percentile, and the median noise of each dtype (dashed)."""
    frame = frame_of(result)
    axes.require_finite(frame["mean"], "a distance over a corpus")
    lengths, dtypes = list(dict.fromkeys(frame["length"])), list(dict.fromkeys(frame["dtype"]))
    panels: list[Any] = [_over_lengths(frame, dtypes)] if len(lengths) > 1 else []
    panels += [_over_windows(result, dtype, lengths) for dtype in dtypes]
    title = f"{short_name(result.provenance.model)}: each window of text, and the same with its last token once more"
    counts = _counts(frame.drop_duplicates("length"))
    notes = [f"L2 distance at y, measured; {counts}. In brackets: the 95% interval over texts.", *_hidden(frame)]
    return draw.figure([panels], title, notes, spacing=34, color="independent")


def _counts(rows: Frame) -> str:
    of_length = [f"{row['windows']} windows of {row['length']} tokens" for row in rows.to_dict("records")]
    return ", ".join(of_length)


def _hidden(frame: Frame) -> list[str]:
    """What is hidden, in a line a dtype, with its interval over texts."""
    lines = []
    for dtype, rows in frame.groupby("dtype", sort=False):
        shares = [
            f"{row['hidden_share']:.0%} [{row['hidden_low']:.1%}, {row['hidden_high']:.1%}] at {row['length']} tokens"
            for row in rows.to_dict("records")
        ]
        lines.append(f"{dtype} hides {', '.join(shares)}.")
    return lines


def _over_lengths(frame: Frame, dtypes: list[str]) -> Any:
    """The distance hardly differs between dtypes: it is drawn of the first, and the noise of each."""
    first: Any = frame[frame["dtype"] == dtypes[0]].rename(columns={"median": "value"})
    noise: Any = frame[["length", "dtype", "pair_noise"]].rename(columns={"pair_noise": "value"})
    lowest = float(first["value"].min()) / 100
    first = first[["length", "value", "q10", "q90"]].assign(q10=first["q10"].clip(lower=lowest))
    floors = noise.assign(series="noise in " + noise["dtype"]).drop(columns="dtype")
    reach = [*first["q10"], *first["q90"], *floors["value"]]
    rows, y = fitted(first, "L2 distance at y", ("q10", "q90"), [value for value in reach if value > 0])
    floors = floors.assign(shown=floors["value"].clip(lower=min(value for value in reach if value > 0)))
    x = axes.length_axis(frame["length"], _X)
    hue = draw.hue("series", {f"noise in {name}": theme.colour(name) for name in dtypes})
    bands, told = [("q10", "q90", 0.2)], ["length:Q", "q10:Q", "q90:Q"]
    marks = curve(rows, x, y, alt.value(theme.INK), bands=bands, points=22, tooltip=told)
    marks += curve(floors, x, y, hue, points=18, tooltip=["series:N", "length:Q"], strokeDash=[5, 3])
    return draw.layers(*marks, width=240, height=220, title=draw.heading("Median and 10% to 90% of windows"))


def _over_windows(result: CorpusCollapse, dtype: str, lengths: list[int]) -> Any:
    windows: Any = result.windows
    parts = []
    for length in lengths:
        rows = windows[(windows["length"] == length) & (windows["dtype"] == dtype)]
        # The same numbers in both are hidden whatever the noise is.
        ratio = (
            (rows["float64_distance"] / rows["pair_noise"]).where(rows["distance"] > 0, 0.0).sort_values().to_numpy()
        )
        share = [(index + 1) / len(ratio) for index in range(len(ratio))]
        parts.append(pd.DataFrame({"series": f"{length} tokens", "ratio": ratio, "value": share}))
    rows: Any = pd.concat(parts, ignore_index=True)
    least = min([float(value) for value in rows["ratio"] if value > 0] + [1.0]) / 2
    rows = rows.assign(ratio=rows["ratio"].clip(lower=least, upper=1e300))
    scale, axis = axes.log_axis(pd.concat([rows["ratio"], pd.Series([1.0])], ignore_index=True), None)
    names = [f"{length} tokens" for length in lengths]
    hue = draw.hue("series", dict(zip(names, theme.ordered(len(names)), strict=True)))
    x = alt.X("ratio:Q", title=_RATIO, scale=scale, axis=axis)
    told = ["series:N", alt.Tooltip("ratio:Q", format=".3g")]
    looks: dict[str, Any] = {"width": 1.8, "interpolate": "step-after", "tooltip": told}
    marks = [*draw.line_at("x", "ratio", 1.0), *curve(rows, x, shares("share of windows"), hue, **looks)]
    heading = draw.heading(f"{dtype}: left of the line it is hidden")
    return draw.layers(*marks, width=240, height=220, title=heading)
