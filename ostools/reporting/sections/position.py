"""Whether the place of a token in a text decides how much it counts, token identity taken out."""

from __future__ import annotations

from typing import Any

from ostools.ground.words import number
from ostools.reporting.charts.sensitivity.position import position_chart
from ostools.reporting.findings.position import contrast_words, position_headline
from ostools.reporting.page.page import Figure
from ostools.reporting.page.section import More, Part, Section, Table
from ostools.reporting.sections.measurements import Measurements
from ostools.results import Frame

LEAD = (
    "Over-squashing says that the last token hears some places of a prompt less than others. In one prompt, place and content "
    "are confounded. Here natural passages are rotated by thirds, so that every token stands once at the start, once in the "
    "middle and once at the end: what is left is the place alone."
)


def position_section(found: Measurements) -> Section | None:
    """Where the position effect was measured."""
    if found.position is None:
        return None
    headline = position_headline(found.position)
    caption = "Sensitivity by position over rotated passages, beside the same architecture before training"
    words = " ".join(contrast_words(found.position))
    figure = Figure("position-chart", position_chart(found.position), caption, f"{caption}. {words}")
    part = Part(
        figure=figure,
        findings=[f"{headline.verdict} {headline.text}"],
        more=[More("The contrasts in numbers", tables=[_contrasts(found.position.contrasts)])],
    )
    return Section("position", "Sensitivity by position", "Position", LEAD, [part])


def _contrasts(contrasts: Frame) -> Table:
    rows = []
    for row in contrasts.to_dict("records"):
        ends = [_interval(row, end) for end in ("start", "end")]
        rows.append([str(row["source"]), str(row["passages"]), *ends, str(row["shape"])])
    columns = ["of", "passages", "first third over the middle", "last third over the middle", "shape"]
    return Table("How many times the middle third's norm, with 95% intervals over passages", columns, rows)


def _interval(row: dict[Any, Any], end: str) -> str:
    value, low, high = (number(10.0 ** float(row[f"{end}{part}"])) for part in ("", "_low", "_high"))
    return f"{value} [{low}, {high}], p = {number(float(row[f'{end}_p']))}"
