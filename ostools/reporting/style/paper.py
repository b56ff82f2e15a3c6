"""A chart at the width that a paper or a slide has: a column, a page, a slide, or so many inches.

One pixel of a chart is 1/96 inch, so letters of 11 pixels have 8.25 points on paper. Vega fits
neither a row of panels nor a long title into a width: here as many panels as fit stand in a row,
and titles take several lines. A file whose words still need more room is scaled down to the width
(`notebook.Finished`).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from ostools.ground.errors import InputError, unknown_name
from ostools.reporting.style import theme
from ostools.reporting.style.notebook import PER_INCH, Finished

SIZES = {"column": 3.3, "page": 6.8, "slide": 5.8}
"""Width in inches by name: of one column of a paper in two, of its text over both, and of a picture
whose letters have 19 points where it is stretched over a slide of 13.3 inches."""
_AXIS, _LEAST = (
    85,
    110,
)  # pixels: what a panel's axis and its words take; the least width of a panel
_LETTER, _BOLD = 6.2, 7.4  # pixels of a letter, and of one in a chart's own title
_TWO_COLUMNS = 480  # pixels: from this width on a legend may have several columns


def inches(size: str | float | int) -> float:
    """The width that a size means. Raises `InputError` for an unknown name, and where no chart fits
    into it.
    """
    if isinstance(size, str):
        if size not in SIZES:
            raise unknown_name("size", size, tuple(SIZES))
        return SIZES[size]
    if isinstance(size, bool) or not isinstance(size, int | float) or not 2 <= size <= 100:
        raise InputError(
            f"size: expected 'column', 'page', 'slide' or a width in inches from 2 on, found {size!r}"
        )
    return float(size)


def sized(chart: Any, size: str | float | int | None, title: bool = True) -> Finished:
    """The chart laid out for this width (None: its own); without its `title` and notes where a
    caption says them.
    """
    spec = chart.to_dict(validate=False)
    if not title:
        spec.pop("title", None)
    if size is None:
        return Finished(spec)
    width = round(inches(size) * PER_INCH)
    _fit(spec, width)
    return Finished(theme.stacked(spec), width)


def _fit(spec: dict[str, Any], room: float | int) -> None:
    """Give each panel the width with which as many as fit stand in a row, and break its words."""
    _wrap_title(spec.get("title"), room)
    panels = next((spec[kind] for kind in ("vconcat", "hconcat", "concat") if kind in spec), [])
    columns = (
        1
        if "vconcat" in spec
        else max(1, min(spec.get("columns", len(panels)), int(room // (_LEAST + _AXIS))))
    )
    for panel in panels:
        _fit(panel, room / columns)
    if not panels:
        _fit_panel(spec, room)
    elif columns < len(panels) and "vconcat" not in spec:
        spec.pop("hconcat", None)
        spec |= {"concat": panels, "columns": columns}
        for _, node in _nodes(panels):  # what a panel left to its neighbour, it now says itself
            node |= {"labels": True} if node.get("labels") is False else {}


def _fit_panel(spec: dict[str, Any], room: float | int) -> None:
    height = spec.get("height")
    spec["width"] = max(_LEAST, round(room - _AXIS))
    sides = {"x": room, "y": height if isinstance(height, int | float) else 200}
    for name, node in _nodes(spec):
        for holder in (node, node.get("axis")) if name in sides else ():
            if isinstance(holder, dict) and isinstance(holder.get("title"), str):
                holder["title"] = _wrapped(holder["title"], sides[name] / _LETTER)
        if node.get("labelAngle") == -90:
            node["labelOverlap"] = "greedy"
        if isinstance(legend := node.get("legend"), dict):
            legend["columns"] = 1 if room < _TWO_COLUMNS else legend.get("columns", 2)
            legend["gradientLength"] = min(legend.get("gradientLength", 200), spec["width"])


def _wrap_title(title: Any, room: float | int) -> None:
    for part in {"text", "subtitle"} & title.keys() if isinstance(title, dict) else ():
        letter = _BOLD if part == "text" and title.get("fontWeight") != "normal" else _LETTER
        title[part] = _wrapped(title[part], room / letter)


def _wrapped(text: str | list[str], letters: float) -> list[str]:
    lines = [text] if isinstance(text, str) else text
    return [piece for line in lines for piece in textwrap.wrap(line, int(letters)) or [""]]


def _nodes(part: Any, name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object inside, rows excepted, and what it is called there."""
    if isinstance(part, dict):
        yield name, part
        for key in [key for key in part if key not in ("values", "datasets")]:
            yield from _nodes(part[key], key)
    elif isinstance(part, list):
        for item in part:
            yield from _nodes(item, name)
