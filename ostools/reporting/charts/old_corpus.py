"""A corpus, or several prompts: profiles over relative position, and collapse over the length of
the window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from ostools.ground.words import title_of
from ostools.measure.jacobian.sensitivity import Sensitivities
from ostools.measure.profiles.profile import BETWEEN, NO_SINK
from ostools.reporting.charts.tokens import kind_legend
from ostools.reporting.findings import first_few
from ostools.reporting.forms import BAND, bars, curve, log_rows
from ostools.reporting.style import axes, draw, theme
from ostools.results import Chart, Frame, frame_of

if TYPE_CHECKING:
    from ostools.sweep.corpus.result import Corpus, CorpusCollapse

_MARKS = (
    "Line: mean over texts; dark shade: its 95% interval, of three texts and more; pale shade: 10th to 90th percentile; "
    "dotted: an even share."
)
_PANELS = 3
"""Panels in a row."""
_NORMS = {"operator": "operator", "frobenius": "Frobenius"}
_ENDS = ["low", "high", "q10", "q90"]


def corpus_chart(result: Corpus) -> Chart:
    """Shares over the even share. A band from the 10th to the 90th percentile of the texts, the 95%
    interval of the mean over texts, where there are three texts, and the mean."""
    table: Frame = frame_of(result)
    axes.require_finite(table["mean"], "a profile over relative position")
    settings = result.provenance.parameters
    rows, y = _share_rows(table[["length", "start", "end", "mean", "median", *_ENDS]], _ENDS)
    looks: Any = {"bands": [("q10", "q90", 0.18), ("low", "high", 0.4)]}
    hue = alt.value(theme.colour(str(settings["linearisation"])))
    panels = [
        _position_panel(
            rows[rows["length"] == row["length"]],
            y,
            hue,
            f"{row['length']} tokens: {row['texts']} texts",
            (260, 220),
            **looks,
        )
        for row in result.summary.to_dict("records")
    ]
    kind = theme.KINDS[str(settings["kind"])]
    title = f"Sensitivity ({settings['linearisation']}) of {title_of(result.provenance.model)} over a corpus, {kind}"
    notes = [_MARKS, *corpus_findings(result)]
    return draw.figure(draw.in_rows(panels, _PANELS), title, notes, spacing=30, between=24)


def several_chart(result: Sensitivities) -> Chart:
    """The mean share over the even share, a line a source with the 95% interval over prompts; of
    the lowest layer.
    """
    every = result.over_position()
    table = every[every["layer"] == every["layer"].min()]
    kinds = table["kind"].map(theme.KINDS)
    table = table.assign(series=kinds + ": " + table["source"], name=table["source"])
    hue, dash = kind_legend(table)
    panels = []
    for norm, group in table.groupby("norm", sort=False):
        columns = ["series", "start", "end", "mean", "low", "high"]
        rows, y = _share_rows(group[columns], ["low", "high"])
        title = f"{_NORMS[str(norm)]} norm"
        panels.append(_position_panel(rows, y, hue, title, (300, 240), bands=[BAND], dash=dash))
    what = "Sensitivity"
    if "logit_norm" in result.provenance.parameters:
        what += f" of {theme.differentiated(result.provenance.parameters)[1]}"
    notes = f"Mean over {len(result)} prompts, each by the shares of its own sum. Dotted: an even share."
    notes += f" Of layer {every['layer'].min()}." * (every["layer"].nunique() > 1)
    notes += " Shade: the 95% interval of the mean." * bool(table["low"].notna().any())
    title = f"{what} over {len(result)} prompts, by relative position"
    return draw.figure([panels], title, [notes], spacing=30)


def _share_rows(table: Frame, ends: list[str]) -> tuple[Frame, dict[str, Any]]:
    """The rows at the middles of their bins, and a log axis: a share is so many times an even one."""
    rows = table.assign(at=(table["start"] + table["end"]) / 2, value=table["mean"])
    return log_rows(rows, "share / even share", ends)


def _position_panel(
    rows: Frame, y: dict[str, Any], hue: Any, title: str, size: tuple[int, int], **looks: Any
) -> Any:
    scale, axis = alt.Scale(domain=[0, 1]), alt.Axis(grid=False)
    x = alt.X("at:Q", title="relative position", scale=scale, axis=axis)
    marks = draw.line_at("y", "value", 1.0) + curve(rows, x, y, hue, points=14, width=1.8, **looks)
    return draw.panel(marks, *size, title)


def corpus_findings(result: Corpus) -> list[str]:
    """The shape of each length: among many texts the last token alone can lift the last third."""
    verdicts = result.shapes.pivot(index="length", columns="kept", values="verdict")
    return first_few(
        [
            f"{length} tokens, {NO_SINK}: {row[NO_SINK]}; {BETWEEN}: {row[BETWEEN]}."
            for length, row in verdicts.iterrows()
        ]
    )


def corpus_collapse_chart(result: CorpusCollapse) -> Chart:
    """The share of texts whose pair is hidden, with its 95% interval, by length and dtype; in a
    line below, how far apart the pairs are, and the noise."""
    frame = frame_of(result)
    axes.require_finite(frame["mean"], "a distance over a corpus")
    rows = frame[["dtype", "texts", "mean", "hidden_low", "hidden_high"]].assign(
        value=frame["hidden_share"], row=frame["length"].astype(str) + " tokens"
    )
    looks: Any = {"intervals": [("hidden_low", "hidden_high", 1.4)], "size": 40}
    hue = draw.hue("dtype", list(dict.fromkeys(frame["dtype"])))
    value = axes.linear("share of texts whose pair is hidden", (0, 1))
    names = alt.Y("row:N", sort=None, title="window")
    marks = bars(rows, names, value, hue, offset=alt.YOffset("dtype:N", sort=None), **looks)
    title = f"{title_of(result.provenance.model)}: each window of text, and the same with its last token once more"
    panel = draw.panel(marks, 320, alt.Step(26))
    return draw.figure([[panel]], title, corpus_collapse_findings(result), spacing=34)


def corpus_collapse_findings(result: CorpusCollapse) -> list[str]:
    """Of how many texts the pair is hidden, and how far apart pairs are beside the noise; a
    sentence a dtype and window.
    """
    return first_few(
        [
            f"{row['dtype']}, {row['length']} tokens: the pair is hidden in "
            f"{row['hidden_share']:.0%} [{row['hidden_low']:.0%}, "
            f"{row['hidden_high']:.0%}] of {row['texts']} texts; mean distance at y {row['mean']:.3g}, noise "
            f"{row['pair_noise']:.2g}."
            for row in frame_of(result).to_dict("records")
        ]
    )
