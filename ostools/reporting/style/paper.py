"""A chart at the width that a paper or a slide has: a column, a page, a slide, or so many inches.

One pixel of a chart is 1/96 inch, so letters of 11 pixels have 8.25 points on paper. Vega fits
neither a row of panels nor a long title into a width: here as many panels as fit stand in a row,
and titles take several lines. A file whose words still need more room is scaled down to the width
(`notebook.Finished`).
"""

from __future__ import annotations

import json

import altair as alt

from ostools.ground import InputError, checked_name
from ostools.reporting.style import theme
from ostools.reporting.style.notebook import PER_INCH, Finished, wrap_words
from ostools.results import Looks

SIZES = {"column": 3.3, "page": 6.8, "slide": 5.8}
"""Width in inches by name: of one column of a paper in two, of its text over both, and of a picture
whose letters have 19 points where it is stretched over a slide of 13.3 inches."""
# Pixels: what a panel's axis and its words take; the least width of a panel.
_AXIS, _LEAST = 85, 110
_TWO_COLUMNS = 480  # pixels: from this width on a legend may have several columns


def inches(size: str | float | int) -> float:
    """The width that a size means. Raises `InputError` for an unknown name, and where no chart fits
    into it.
    """
    if isinstance(size, str):
        return SIZES[checked_name("size", size, SIZES)]
    if isinstance(size, bool) or not isinstance(size, int | float) or not 2 <= size <= 100:
        raise InputError(
            "size: expected 'column', 'page', 'slide' or a width in inches from 2 on, found "
            f"{size!r}"
        )
    return float(size)


def sized(chart: alt.TopLevelMixin, size: str | float | int | None, title: bool = True) -> Finished:
    """The chart laid out for this width (None: its own); without its `title` and notes where a
    caption says them.
    """
    spec = chart.to_dict(validate=False)
    if not title:
        spec.pop("title", None)
    if size is None:
        return Finished(spec)
    width = round(inches(size) * PER_INCH)
    if title:
        wrap_words(spec, width)

    def narrowed(node: Looks) -> Looks:
        if isinstance(legend := node.get("legend"), dict) and width < _TWO_COLUMNS:
            legend |= {"columns": 1, "gradientLength": min(legend.get("gradientLength", 200), 200)}
        return node

    spec = json.loads(json.dumps(spec), object_hook=narrowed)
    _fit(spec, width)
    return Finished(theme.stacked(spec), width)


def _fit(spec: Looks, room: float | int) -> None:
    """Give each panel the width with which as many as fit stand in a row."""
    kind = next((kind for kind in ("vconcat", "hconcat", "concat") if kind in spec), None)
    if kind is None:
        spec["width"] = max(_LEAST, round(room - _AXIS))
        return
    panels = spec.pop(kind)
    most = spec.get("columns", len(panels))
    columns = 1 if kind == "vconcat" else max(1, min(most, int(room // (_LEAST + _AXIS))))
    spec |= {"concat": panels, "columns": columns}
    for panel in panels:
        _fit(panel, room / columns)
