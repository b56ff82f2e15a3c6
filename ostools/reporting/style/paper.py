"""A chart at the width that a paper or a slide has: a column, a page, a slide, or so many inches.

One pixel of a chart is 1/96 inch, so letters of 11 pixels have 8.25 points on paper. Panels become narrower, a row of
panels that does not fit is broken into several, and titles take several lines. A file whose words still need more room
is scaled down to the width (`notebook.Finished`).
"""

from __future__ import annotations

import textwrap
from typing import Any

from ostools.ground.errors import InputError, unknown_name
from ostools.reporting.style import theme
from ostools.reporting.style.notebook import PER_INCH, Finished

SIZES = {"column": 3.3, "page": 6.8, "slide": 5.8}
"""Width in inches by name: of one column of a paper in two, of its text over both, and of a picture whose letters have 19
points where it is stretched over a slide of 13.3 inches."""
_AXIS, _LEAST = 85, 110  # pixels: what a panel's axis and its words take; the least width of a panel
_LETTER, _BOLD = 6.2, 7.4  # pixels of a letter, and of one in a chart's own title
_TWO_COLUMNS = 480  # pixels: from this width on a legend may have several columns


def inches(size: str | float | int) -> float:
    """The width that a size means. Raises `InputError` for an unknown name, and where no chart fits into it."""
    if isinstance(size, str):
        if size not in SIZES:
            raise unknown_name("size", size, tuple(SIZES))
        return SIZES[size]
    if isinstance(size, bool) or not isinstance(size, int | float) or not 2 <= size <= 100:
        raise InputError(f"size: expected 'column', 'page', 'slide' or a width in inches from 2 on, found {size!r}")
    return float(size)


def sized(chart: Any, size: str | float | int | None, title: bool = True) -> Finished:
    """The chart laid out for this width (None: its own); without its `title` and notes where a caption says them."""
    spec = chart.to_dict(validate=False)
    if not title:
        spec.pop("title", None)
    if size is None:
        return Finished(spec)
    width = round(inches(size) * PER_INCH)
    _narrow(spec, width)
    _wrap_title(spec, width)
    return Finished(theme.stacked(spec), width)


def _parts(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The panels that are put together, of what is no single panel."""
    return next((spec[kind] for kind in ("vconcat", "hconcat", "concat") if kind in spec), [])


def _natural(spec: dict[str, Any]) -> float:
    """About how wide it is by itself."""
    if parts := _parts(spec):
        widths = [_natural(part) for part in parts]
        return max(widths) if "vconcat" in spec else sum(widths[: spec.get("columns", len(widths))])
    width = spec.get("width")
    return float(width if isinstance(width, int | float) else 300) + _AXIS


def _narrow(spec: dict[str, Any], room: float | int) -> None:
    """Give each panel a width with which all fit into the room; break a row that does not fit into several."""
    parts = _parts(spec)
    if not parts:
        _narrow_panel(spec, room)
    elif "vconcat" in spec:
        for part in parts:
            _narrow(part, room)
    elif _natural(spec) > room:
        columns = max(1, min(spec.get("columns", len(parts)), int(room // (_LEAST + _AXIS))))
        for part in parts:
            _narrow(part, room / columns)
        if columns < len(parts):
            spec.pop("hconcat", None)
            spec |= {"concat": parts, "columns": columns}
            _visit(parts, lambda node, _: node.update(labels=True) if node.get("labels") is False else None)


def _narrow_panel(spec: dict[str, Any], room: float | int) -> None:
    width = spec["width"] = max(_LEAST, round(room - _AXIS))
    height = spec.get("height")
    sides = {"x": room, "y": height if isinstance(height, int | float) else 200}
    _wrap_title(spec, room)

    def change(node: dict[str, Any], name: str) -> None:
        for holder in (node, node.get("axis")) if name in sides else ():
            if isinstance(holder, dict) and isinstance(holder.get("title"), str):
                holder["title"] = textwrap.wrap(holder["title"], int(sides[name] / _LETTER))
        if node.get("labelAngle") == -90:
            node["labelOverlap"] = "greedy"
        if isinstance(legend := node.get("legend"), dict):
            legend["columns"] = 1 if room < _TWO_COLUMNS else legend.get("columns", 2)
            if "gradientLength" in legend:
                legend["gradientLength"] = min(legend["gradientLength"], width)

    _visit(spec, change)


def _visit(node: Any, change: Any, name: str = "") -> None:
    """Call `change` with every object inside, rows excepted, and what it is called there."""
    if isinstance(node, dict):
        change(node, name)
        for key in [key for key in node if key not in ("values", "datasets")]:
            _visit(node[key], change, key)
    elif isinstance(node, list):
        for part in node:
            _visit(part, change, name)


def _wrap_title(spec: dict[str, Any], width: float | int) -> None:
    title = spec.get("title")
    if not isinstance(title, dict):
        return
    for part in ("text", "subtitle"):
        letter = _BOLD if part == "text" and title.get("fontWeight") != "normal" else _LETTER
        lines = [title[part]] if isinstance(title.get(part), str) else title.get(part, [])
        if lines:
            title[part] = [piece for line in lines for piece in textwrap.wrap(line, int(width / letter)) or [""]]
