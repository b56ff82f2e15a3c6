"""A corpus, or several prompts: profiles over relative position, and collapse over the length of
the window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from ostools.ground.words import title_of
from ostools.measure.bounds.bounds import PromptBounds
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
    hue = alt.value(theme.colour(str(settings["linearisation"])))
    rows, y = _share_rows(table[["length", "start", "end", "mean", "median", *_ENDS]], _ENDS)
    bands = [("q10", "q90", 0.18), ("low", "high", 0.4)]
    panels = []
    for row in result.summary.to_dict("records"):
        title = f"{row['length']} tokens: {row['texts']} texts"
        group = rows[rows["length"] == row["length"]]
        panels.append(
            _position_panel(
                group, y, hue, title, "relative position in the window", (260, 220), bands=bands
            )
        )
    kind = theme.KINDS[str(settings["kind"])]
    words = f"Sensitivity ({settings['linearisation']}) of {title_of(result.provenance.model)} over a corpus, {kind}"
    return draw.figure(
        draw.in_rows(panels, _PANELS),
        words,
        [_MARKS, *corpus_findings(result)],
        spacing=30,
        between=24,
    )


def several_chart(result: Sensitivities | PromptBounds) -> Chart:
    """The mean share over the even share, a line a source with the 95% interval over prompts; of
    the lowest layer.
    """
    every = result.over_position()
    lowest = every["layer"].min()
    table: Frame = every[every["layer"] == lowest]
    series = [
        theme.series(kind, source)
        for kind, source in zip(table["kind"], table["source"], strict=True)
    ]
    table = table.assign(series=series, name=table["source"])
    hue, dash = kind_legend(table)
    panels = []
    for norm, group in table.groupby("norm", sort=False):
        rows, y = _share_rows(
            group[["series", "start", "end", "mean", "low", "high"]], ["low", "high"]
        )
        title, size = f"{_NORMS[str(norm)]} norm", (300, 240)
        panels.append(
            _position_panel(rows, y, hue, title, "relative position", size, bands=[BAND], dash=dash)
        )
    what = "Path sums" if isinstance(result, PromptBounds) else "Sensitivity"
    if "logit_norm" in result.provenance.parameters:
        what += f" of {theme.differentiated(result.provenance.parameters)[1]}"
    note_lines = f"Mean over {len(result)} prompts, each by the shares of its own sum. Dotted: an even share."
    note_lines += f" Of layer {lowest}." if every["layer"].nunique() > 1 else ""
    note_lines += (
        " Shade: the 95% interval of the mean." if bool(table["low"].notna().any()) else ""
    )
    return draw.figure(
        [panels],
        f"{what} over {len(result)} prompts, by relative position",
        [note_lines],
        spacing=30,
    )


def _share_rows(table: Frame, ends: list[str]) -> tuple[Frame, dict[str, Any]]:
    """The rows at the middles of their bins, and a log axis: a share is so many times an even one."""
    rows = table.assign(at=(table["start"] + table["end"]) / 2, value=table["mean"])
    return log_rows(rows, "share / even share", ends)


def _position_panel(
    rows: Frame,
    y: dict[str, Any],
    hue: Any,
    title: str,
    across: str,
    size: tuple[int, int],
    **looks: Any,
) -> Any:
    x = alt.X("at:Q", title=across, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(grid=False))
    marks = draw.line_at("y", "value", 1.0) + curve(rows, x, y, hue, points=14, width=1.8, **looks)
    return draw.panel(marks, *size, title)


def corpus_findings(result: Corpus) -> list[str]:
    """The shape of each length: among many texts the last token alone can lift the last third."""
    shapes: Frame = result.shapes
    verdicts = {
        length: dict(zip(rows["kept"], rows["verdict"], strict=True))
        for length, rows in shapes.groupby("length")
    }
    sentences = [
        f"{length} tokens, {NO_SINK}: {by_kept[NO_SINK]}; {BETWEEN}: {by_kept[BETWEEN]}."
        for length, by_kept in verdicts.items()
    ]
    return first_few(sentences)


def corpus_collapse_chart(result: CorpusCollapse) -> Chart:
    """The share of texts whose pair is hidden, with its 95% interval, by length and dtype; in a
    line below, how far apart the pairs are, and the noise."""
    frame = frame_of(result)
    axes.require_finite(frame["mean"], "a distance over a corpus")
    rows = frame.assign(
        value=frame["hidden_share"], row=[f"{length} tokens" for length in frame["length"]]
    )
    names = alt.Y("row:N", sort=None, title="window")
    hue, offset = (
        draw.hue("dtype", list(dict.fromkeys(frame["dtype"]))),
        alt.YOffset("dtype:N", sort=None),
    )
    value = axes.linear("share of texts whose pair is hidden", (0, 1))
    rows = rows[["row", "dtype", "texts", "value", "mean", "hidden_low", "hidden_high"]]
    marks = bars(
        rows,
        names,
        value,
        hue,
        intervals=[("hidden_low", "hidden_high", 1.4)],
        offset=offset,
        size=40,
    )
    panel = draw.panel(marks, 320, alt.Step(26))
    title = f"{title_of(result.provenance.model)}: each window of text, and the same with its last token once more"
    return draw.figure([[panel]], title, corpus_collapse_findings(result), spacing=34)


def corpus_collapse_findings(result: CorpusCollapse) -> list[str]:
    """Of how many texts the pair is hidden, and how far apart pairs are beside the noise; a
    sentence a dtype and window.
    """
    sentences = [
        f"{row['dtype']}, {row['length']} tokens: the pair is hidden in {row['hidden_share']:.0%} [{row['hidden_low']:.0%}, "
        f"{row['hidden_high']:.0%}] of {row['texts']} texts; mean distance at y {row['mean']:.3g}, noise "
        f"{row['pair_noise']:.2g}."
        for row in frame_of(result).to_dict("records")
    ]
    return first_few(sentences)
