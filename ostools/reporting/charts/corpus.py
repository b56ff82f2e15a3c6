"""A corpus, or several prompts: profiles over relative position, and collapse over the length of the window."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from ostools.ground.words import short_name
from ostools.measure.bounds.bounds import PromptBounds
from ostools.measure.jacobian.sensitivity import Sensitivities
from ostools.measure.profiles.profile import BETWEEN, NO_SINK
from ostools.reporting.forms import BAND, curve, log_rows, share_axis
from ostools.reporting.style import axes, draw, theme
from ostools.results import Column, Frame, frame_of
from ostools.runs import CorpusCollapse
from ostools.runs.corpus.result import Corpus

_WIDEST = 8.0
"""Above this ratio of the largest number drawn to the smallest the axis is logarithmic."""
_PANELS = 3
"""Panels in a row."""
_NORMS = {"operator": "operator", "frobenius": "Frobenius"}
_STATISTICS = ["mean", "low", "high", "q10", "median", "q90"]


def corpus_chart(result: Corpus) -> Any:
    """Shares over the even share. A band from the 10th to the 90th percentile of the windows, the 95% interval of the mean
    over texts, where there are three texts, and the mean."""
    table: Any = frame_of(result)
    axes.require_finite(table["mean"], "a profile over relative position")
    settings = result.provenance.parameters
    hue = alt.value(
        theme.colour(str(settings["linearisation"] if settings["measure"] == "sensitivity" else settings["measure"]))
    )
    rows, y = _share_rows(table[["length", "start", "end", *_STATISTICS]], _STATISTICS)
    bands = [("q10", "q90", 0.18), ("low", "high", 0.4)]
    panels = []
    for row in result.summary.to_dict("records"):
        title = (
            f"{row['length']} tokens: {_count_words(row['windows'], 'window')} of {_count_words(row['texts'], 'text')}"
        )
        group = rows[rows["length"] == row["length"]]
        panels.append(_position_panel(group, y, hue, title, "relative position in the window", (260, 220), bands=bands))
    kind = theme.KINDS[str(settings["kind"])]
    words = f"{_measure_words(settings)} of {short_name(result.provenance.model)} over a corpus, {kind}"
    return draw.figure(draw.in_rows(panels, _PANELS), words, _corpus_notes(result), spacing=30, between=24)


def several_chart(result: Sensitivities | PromptBounds) -> Any:
    """The mean share over the even share, a line a source with the 95% interval over prompts; of the lowest layer."""
    every = result.over_position()
    lowest = every["layer"].min()
    table: Frame = every[every["layer"] == lowest]
    kinds = [theme.KINDS[kind] for kind in table["kind"]]
    table = table.assign(series=[f"{kind}: {source}" for kind, source in zip(kinds, table["source"], strict=True)])
    # Of both panels, which share a scale; a dash tells apart what has one colour.
    looks = {row["series"]: (row["source"], row["kind"]) for row in table.to_dict("records")}
    legend = alt.Legend(title=None, orient="bottom", labelLimit=0, symbolSize=400)
    hues = [theme.colour(source) for source, _ in looks.values()]
    dashes = [theme.DASHES[kind] for _, kind in looks.values()]
    hue = alt.Color("series:N", scale=alt.Scale(domain=list(looks), range=hues), legend=legend)
    dash = alt.StrokeDash("series:N", scale=alt.Scale(domain=list(looks), range=dashes), legend=legend)
    panels = []
    for norm, group in table.groupby("norm", sort=False):
        rows, y = _share_rows(group[["series", "start", "end", "mean", "low", "high"]], ["mean", "low", "high"])
        title, size = f"{_NORMS[str(norm)]} norm", (300, 240)
        panels.append(_position_panel(rows, y, hue, title, "relative position", size, bands=[BAND], dash=dash))
    what = "Path sums" if isinstance(result, PromptBounds) else "Sensitivity"
    if "logit_norm" in result.provenance.parameters:
        what += f" of {theme.differentiated(result.provenance.parameters)[1]}"
    note_lines = f"Mean over {len(result)} prompts, each by the shares of its own sum. Dotted: an even share."
    note_lines += f" Of layer {lowest}." if every["layer"].nunique() > 1 else ""
    note_lines += " Shade: the 95% interval of the mean." if bool(table["low"].notna().any()) else ""
    return draw.figure([panels], f"{what} over {len(result)} prompts, by relative position", [note_lines], spacing=30)


def _share_rows(table: Frame, numbers: list[str]) -> tuple[Frame, dict[str, Any]]:
    """The rows at the middles of their bins, and an axis from zero, or a logarithmic one where values lie far apart."""
    rows = table.assign(at=(table["start"] + table["end"]) / 2, value=table["mean"])
    values: Column = table[numbers].stack()
    positive = values[values > 0]
    if float(values.max()) > _WIDEST * float(positive.min()):  # a band that reaches zero reaches the lower edge
        columns = ["value", *numbers]
        rows[columns] = rows[columns].clip(lower=float(positive.min()))
        return rows, axes.log_channel(positive, "share / even share")
    scale = alt.Scale(domain=[0, float(values.max()) * 1.05], nice=False)
    return rows, {"title": "share / even share", "scale": scale, "axis": alt.Axis()}


def _position_panel(
    rows: Frame, y: dict[str, Any], hue: Any, title: str, across: str, size: tuple[int, int], **looks: Any
) -> Any:
    x = alt.X("at:Q", title=across, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(grid=False))
    tooltips = [alt.Tooltip(f"{name}:Q", format=".3g") for name in ("start", "end", *_STATISTICS) if name in rows]
    marks = curve(rows, x, y, hue, points=14, width=1.8, tooltip=tooltips, **looks)
    even = draw.line_at("y", "value", 1.0)
    return draw.layers(*even, *marks, width=size[0], height=size[1], title=draw.heading(title))


def _measure_words(settings: Any) -> str:
    """What is measured, with which derivative."""
    if settings["measure"] == "attention":
        return "Attention of the last token"
    return (
        f"Sensitivity ({settings['linearisation']})"
        if settings["measure"] == "sensitivity"
        else f"{settings['measure']}"
    )


def _corpus_notes(result: Corpus) -> list[str]:
    """What is drawn, and the shape of each length: among many texts the last token alone can lift the last third."""
    interval = "; dark shade: its 95% interval" if bool(frame_of(result)["low"].notna().any()) else ""
    note_lines = [
        f"Line: mean over texts{interval}; pale shade: 10th to 90th percentile of windows; dotted: an even share."
    ]
    shapes: Any = result.shapes
    for length, rows in shapes.groupby("length"):
        verdicts = dict(zip(rows["kept"], rows["verdict"], strict=True))
        note_lines.append(f"{length} tokens, {NO_SINK}: {verdicts[NO_SINK]}; {BETWEEN}: {verdicts[BETWEEN]}.")
    return note_lines


def _count_words(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


_WINDOW = "window length (tokens)"
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
    rows, y = log_rows(first, "L2 distance at y", ("q10", "q90"), [value for value in reach if value > 0])
    floors = floors.assign(shown=floors["value"].clip(lower=min(value for value in reach if value > 0)))
    x = axes.length_axis(frame["length"], _WINDOW)
    hue = draw.hue("series", {f"noise in {name}": theme.colour(name) for name in dtypes})
    bands, tooltips = [("q10", "q90", 0.2)], ["length:Q", "q10:Q", "q90:Q"]
    marks = curve(rows, x, y, alt.value(theme.INK), bands=bands, points=22, tooltip=tooltips)
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
    names = [f"{length} tokens" for length in lengths]
    hue = draw.hue("series", dict(zip(names, theme.ordered(len(names)), strict=True)))
    x = alt.X("ratio:Q", **axes.log_channel(pd.concat([rows["ratio"], pd.Series([1.0])]), _RATIO))
    tooltips = ["series:N", alt.Tooltip("ratio:Q", format=".3g")]
    looks: dict[str, Any] = {"width": 1.8, "interpolate": "step-after", "tooltip": tooltips}
    marks = [*draw.line_at("x", "ratio", 1.0), *curve(rows, x, share_axis("share of windows"), hue, **looks)]
    heading = draw.heading(f"{dtype}: left of the line it is hidden")
    return draw.layers(*marks, width=240, height=220, title=heading)
