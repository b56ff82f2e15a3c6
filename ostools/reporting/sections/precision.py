"""Precision: from which length on the pair is below the noise of a cast or of a part stored in few bits."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ostools.ground.words import number
from ostools.measure import Collapse
from ostools.measure.collapse.starts import IDENTICAL
from ostools.reporting.charts.collapse.precision import precision_chart
from ostools.reporting.findings.collapse import collapse_ends, main_pair, precision_summary
from ostools.reporting.findings.precision import precision_findings, tails
from ostools.reporting.page.page import Figure
from ostools.reporting.page.section import Part, Section, Table
from ostools.reporting.sections.measurements import Measurements
from ostools.results import frame_of

LEAD = (
    "From which length on does rounding move either sequence by more than the distance of the pair? Weights stored in few bits "
    "move both sequences alike, which does not hide the pair. What counts is the rounding while the model runs, of "
    "activations or of keys and values. A part of that rounding can move both sequences alike too. Below the noise of each "
    "sequence the pair can therefore still be told apart, as long as its distance is above the noise of the difference."
)


def precision_section(found: Measurements) -> Section | None:
    """Where parts were stored in few bits, or else where the model was cast on some prompt."""
    parts = [] if found.precision is None else [_stored(found.precision)]
    if found.casts:
        said = precision_summary(found.casts)
        parts.append(Part(title="The model cast, on every prompt", findings=said, tables=[_casts(found.casts)]))
    return Section("precision", "Precision (Section 4)", "Precision", LEAD, parts) if parts else None


def _stored(result: Collapse) -> Part:
    """The chart of one prompt: casts and stored parts side by side."""
    name = str(frame_of(result)["task"].iloc[0])
    said = precision_findings(result)
    caption = f"Which part of low precision hides the pair, {name}"
    figure = Figure("precision-chart", precision_chart(result), caption, f"{caption}. {said[0]}")
    return Part(figure=figure, findings=said, tables=[_formats(result, name)])


def _formats(result: Collapse, name: str) -> Table:
    """What a cast changes beside what noise hides, a row a precision."""
    lengths: Any = result.collapse_lengths()
    lengths = lengths[lengths["pair"] == main_pair(result)]
    n_max = int(lengths["n_max"].max())
    rows = []
    for tail in tails(result):
        here = lengths[lengths["dtype"] == tail.dtype].set_index("site")
        ends = (
            here.loc["y", "collapse_length"],
            here.loc["y", "pair_collapse_length"],
            here.loc[IDENTICAL, "collapse_length"],
        )
        sizes = (tail.given, tail.stored, tail.weight_shift, tail.noise, tail.pair_noise)
        rows.append([tail.dtype, *map(number, sizes), *(_reached(end) for end in ends)])
    columns = [
        "precision",
        "distance, float64",
        "… weights so stored",
        "shift by storing (both alike)",
        "noise of running",
        "… of the difference",
        "below the noise of each from n",
        "below that of the difference from n",
        "logits bit-identical from n",
    ]
    caption = (
        f"{name}: L2 at y, medians over the last quarter of the lengths, and the length from which the float64 distance stays "
        f"below the noise up to n = {n_max} (–: not reached)"
    )
    return Table(caption, columns, rows)


def _reached(length: Any) -> str:
    return "–" if pd.isna(length) else str(int(length))


def _casts(results: list[Collapse]) -> Table:
    """The collapse length at y of each dtype on each prompt."""
    ends = {str(frame_of(result)["task"].iloc[0]): collapse_ends(result) for result in results}
    n_max = max(int(frame_of(result)["length"].max()) for result in results)
    dtypes = dict.fromkeys(dtype for found in ends.values() for dtype in found)
    rows = [[dtype, *(_reached(found.get(dtype)) for found in ends.values())] for dtype in dtypes]
    caption = (
        "The length from which the float64 distance at y stays below the dtype's rounding noise, up to "
        f"n = {n_max} (–: not reached)"
    )
    return Table(caption, ["dtype", *ends], rows)
