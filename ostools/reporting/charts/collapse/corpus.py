"""Collapse over a corpus: over the length of the window, and window by window against its own noise."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from ostools.ground.words import short_name
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
    words = f"{short_name(result.provenance.model)}: each window of text, and the same with its last token once more"
    row = frame.drop_duplicates("length")
    said = [
        f"L2 distance at y, measured; {_counts(row)}. In brackets: the 95% interval over texts.",
        *_hidden(frame),
    ]
    title = alt.TitleParams(words, subtitle=said)
    return axes.themed(alt.hconcat(*panels, spacing=34).resolve_scale(color="independent").properties(title=title))


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
    of_first: Any = frame[frame["dtype"] == dtypes[0]]
    noise: Any = frame[["length", "dtype", "pair_noise"]].rename(columns={"pair_noise": "noise"})
    reach: Any = pd.concat(
        [of_first["q10"].clip(lower=float(of_first["median"].min()) / 100), of_first["q90"], noise["noise"]]
    )
    scale, axis = axes.log_axis(reach[reach > 0], None)
    x = axes.length_axis(frame["length"], _X)

    def y(name: str) -> alt.Y:
        return alt.Y(f"{name}:Q", title="L2 distance at y", scale=scale, axis=axis)

    base = draw.rows(of_first[["length", "q10", "median", "q90"]].clip(lower=float(reach.min()))).encode(x=x)
    band = base.mark_area(opacity=0.2, color=theme.INK).encode(y=y("q10"), y2="q90:Q")
    line = base.mark_line(color=theme.INK, point=alt.OverlayMarkDef(size=22, color=theme.INK)).encode(
        y=y("median"), tooltip=[alt.Tooltip(f"{name}:Q", format=".4g") for name in ("length", "q10", "median", "q90")]
    )
    hues = {f"noise in {name}": theme.colour(name) for name in dtypes}
    floor = draw.rows(noise.assign(name="noise in " + noise["dtype"]).drop(columns="dtype"))
    floors = floor.mark_line(strokeDash=[5, 3], point=alt.OverlayMarkDef(size=18)).encode(
        x=x,
        y=y("noise"),
        color=draw.hue("name", hues),
        tooltip=["name:N", "length:Q", alt.Tooltip("noise:Q", format=".3g")],
    )
    return draw.layers(
        band, line, floors, width=240, height=220, title=draw.heading("Median and 10% to 90% of windows")
    )


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
        parts.append(pd.DataFrame({"tokens": f"{length} tokens", "ratio": ratio, "share": share}))
    shown: Any = pd.concat(parts, ignore_index=True)
    above: Any = shown["ratio"][shown["ratio"] > 0]
    least = min([float(value) for value in above] + [1.0]) / 2
    shown = shown.assign(ratio=shown["ratio"].clip(lower=least, upper=1e300))
    reach = pd.concat([shown["ratio"], pd.Series([1.0])], ignore_index=True)
    scale, axis = axes.log_axis(reach, None)
    names = [f"{length} tokens" for length in lengths]
    hues = dict(zip(names, theme.ordered(len(names)), strict=True))
    line = (
        draw.rows(shown)
        .mark_line(interpolate="step-after", strokeWidth=1.8)
        .encode(
            x=alt.X("ratio:Q", title=_RATIO, scale=scale, axis=axis),
            y=alt.Y("share:Q", title="share of windows", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])),
            color=draw.hue("tokens", hues),
            tooltip=["tokens:N", alt.Tooltip("ratio:Q", format=".3g"), alt.Tooltip("share:Q", format=".1%")],
        )
    )
    at_one = draw.rows(pd.DataFrame({"ratio": [1.0]})).mark_rule(color=theme.INK, strokeDash=[2, 3]).encode(x="ratio:Q")
    return draw.layers(
        at_one, line, width=240, height=220, title=draw.heading(f"{dtype}: left of the line it is hidden")
    )
