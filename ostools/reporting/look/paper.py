"""A chart at the width that a paper has: a column, a page, or so many inches. Its letters keep their size.

One pixel of a chart is 1/96 inch, so letters of 11 pixels have 8.25 points on paper. A chart is not made small: its panels
become narrower, a row of panels that does not fit is broken into several, and long words take several lines. A figure of an
HTML page is drawn by like rules (`page/templates/draw.js`), in the width that a browser gives it.
Cost: at most eight drawings of the chart, which measure how much room its words take: a second, and ten for many panels.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from ostools.ground.errors import InputError, unknown_name
from ostools.reporting.look import axes
from ostools.reporting.look.notebook import PER_INCH, Finished, drawn_svg

SIZES = {"column": 3.3, "page": 6.8}
"""Width in inches by name: of one column of a paper in two, and of its text over both."""
NARROWEST = 2.0
_AXIS = 85  # pixels: what a panel's axis and its words take, before it is measured
_LETTER, _BOLD = 6.2, 7.4  # of words, and of a chart's own title, in pixels
_UPRIGHT = 12  # width of a word that stands upright
_LEAST = 110  # of a panel
_FLATTEST = 0.72  # height of a panel that was made narrower, to its width
_TRIES, _SLACK, _STEP = 8, 6, 0.12
_TWO_COLUMNS = 480  # pixels: from this width on a legend may have several columns
_NAME = 18  # letters of a name along an axis in one line, in a column
_SIZE = re.compile(r'<svg[^>]* width="([\d.]+)"')


def inches(size: str | float | int) -> float:
    """The width that a size means. Raises `InputError` for an unknown name, and for a width that no chart fits into."""
    if isinstance(size, str):
        if size not in SIZES:
            raise unknown_name("size", size, tuple(SIZES))
        return SIZES[size]
    if isinstance(size, bool) or not isinstance(size, int | float) or not NARROWEST <= size <= 100:
        raise InputError(f"size: expected 'column', 'page' or a width in inches from {NARROWEST:g} on, found {size!r}")
    return float(size)


def sized(chart: Any, size: str | float | int | None, title: bool = True) -> Finished:
    """The chart in exactly this width (None: its own); without its `title` and the notes below it where a caption says them.

    Raises `InputError` for a size that cannot be used, and where the chart's words leave no room for its panels.
    """
    spec = chart.to_dict(validate=False)
    if not title:
        spec.pop("title", None)
    return Finished(spec if size is None else _fitted(spec, round(inches(size) * PER_INCH)))


def _fitted(spec: dict[str, Any], width: int) -> dict[str, Any]:
    """Laid out again and again, for as much room as the words turn out to leave; the rest becomes a margin at the right."""
    room, fits, too_wide = float(width), 0.0, math.inf
    over, best, rest = 0, None, width
    for _ in range(_TRIES):
        made = copy.deepcopy(spec)
        _fit(made, room)
        _in_lines(made, width)
        over = _width(made) - width
        if over > 0:
            too_wide = min(too_wide, room)
        else:
            fits = max(fits, room)
            best, rest = (made, -over) if -over <= rest else (best, rest)
        if -_SLACK <= over <= 0 or too_wide <= _LEAST:
            break
        room -= over if fits else max(over, room * _STEP)
        if not fits < room < too_wide:
            room = (fits + too_wide) / 2
    if best is None:
        raise InputError(
            f"size: this chart does not fit into {width / PER_INCH:.1f} inches: its words are {over} pixels wider; "
            "expected a larger size"
        )
    return best | {"padding": {"left": 5, "top": 5, "bottom": 5, "right": 5 + rest}}


def _width(spec: dict[str, Any]) -> int:
    found = _SIZE.search(drawn_svg(spec))
    if found is None:
        raise RuntimeError("vl-convert wrote a picture without a width")
    return round(float(found[1]))


def _walk(node: Any, change: Callable[[dict[str, Any], str], None], name: str = "") -> None:
    """Call `change` with every object inside, rows excepted, and what it is called there."""
    if isinstance(node, dict):
        change(node, name)
        for key in [key for key in node if key not in ("values", "datasets")]:
            _walk(node[key], change, key)
    elif isinstance(node, list):
        for part in node:
            _walk(part, change, name)


def _natural(spec: dict[str, Any]) -> float:
    """About how wide it is by itself."""
    if panels := spec.get("hconcat") or spec.get("vconcat") or spec.get("concat"):
        widths = [_natural(panel) for panel in panels]
        return sum(widths) if "hconcat" in spec else max(widths) * spec.get("columns", 1)
    width = spec.get("spec", spec).get("width")
    return float(width if isinstance(width, int | float) else 300) + _AXIS


def _fit(spec: dict[str, Any], room: float | int) -> None:
    if "vconcat" in spec:
        for panel in spec["vconcat"]:
            _fit(panel, room)
    elif "hconcat" in spec or "concat" in spec:
        _broken(spec, room)
    elif "facet" in spec:
        own = spec["spec"]["width"] + 34
        columns = max(1, min(spec.get("columns", 3), int((room - 60) // min(own, 200))))
        spec["columns"] = columns
        _narrow(spec["spec"], min(1.25 * own, (room - 80) / columns) - 34)
    elif not isinstance(spec.get("width"), dict) or _natural(spec) > room:
        _narrow(spec, room - _AXIS)


def _narrow(spec: dict[str, Any], width: float | int) -> None:
    """A panel of this width; of a lower height too, where that is a scale of numbers."""
    before, spec["width"] = spec.get("width"), max(_LEAST, round(width))
    height = spec.get("height")
    if (
        isinstance(height, int | float)
        and isinstance(before, int | float)
        and spec["width"] < before
        and _of_numbers(spec)
    ):
        spec["height"] = min(height, max(_LEAST, round(_FLATTEST * spec["width"])))
    _walk(spec, lambda node, name: _thin(node, spec["width"]))


def _of_numbers(spec: dict[str, Any]) -> bool:
    kinds: list[str] = []
    _walk(spec, lambda node, name: kinds.append(str(node.get("type"))) if name == "y" else None)
    return bool(kinds) and set(kinds) == {"quantitative"}


def _thin(node: dict[str, Any], width: float | int) -> None:
    """Of words that stand upright under an axis every second, or third, where there is no room for all; the last one stays."""
    values = node.get("values")
    if node.get("labelAngle") == -90 and isinstance(values, list):
        step = -(-len(values) * _UPRIGHT // width)
        node["values"] = [one for place, one in enumerate(values) if (len(values) - 1 - place) % step == 0]


def _broken(spec: dict[str, Any], room: float | int) -> None:
    """A row of panels in as many rows as it takes; what a panel left to its neighbour, it then says itself."""
    panels = spec.get("hconcat") or spec["concat"]
    if _natural(spec) <= room:
        return
    columns = max(1, min(len(panels), int(room // (_LEAST + _AXIS))))
    share = room / columns
    for panel in panels:
        _fit(panel, min(share, _natural(panel)))
    if columns < len(panels):
        spec.pop("hconcat", None)
        spec["concat"], spec["columns"] = panels, columns
        _walk(spec["concat"], lambda node, name: node.update(labels=True) if node.get("labels") is False else None)


def _in_lines(spec: dict[str, Any], width: int) -> None:
    """Titles, legends and names along an axis in lines that fit; of each panel its own, as wide as it is."""
    for panel in _panels(spec):
        across, down = panel.get("width"), panel.get("height")
        across = across if isinstance(across, int) else width - _AXIS
        sides = {"x": across + _AXIS / 2, "y": down if isinstance(down, int | float) else 200}
        _walk(panel, lambda node, name, sides=sides: _encoded_in_lines(node, name, sides, width))
        if "title" in panel and panel is not spec:
            _title_in_lines(panel["title"], across + _AXIS)
    if "title" in spec:
        _title_in_lines(spec["title"], width)
    # Several legends stand below each other.
    spec["config"]["legend"]["layout"] = {"bottom": {"direction": "vertical", "margin": 10}}


def _panels(spec: dict[str, Any]) -> list[dict[str, Any]]:
    parts = (
        spec.get("hconcat") or spec.get("vconcat") or spec.get("concat") or ([spec["spec"]] if "spec" in spec else [])
    )
    return [panel for part in parts for panel in _panels(part)] if parts else [spec]


def _title_in_lines(title: Any, width: float | int) -> None:
    if isinstance(title, dict):
        for part in ("text", "subtitle"):
            if title.get(part):
                letter = _BOLD if part == "text" and title.get("fontWeight") != "normal" else _LETTER
                title[part] = _wrapped(title[part], int(width / letter))


def _encoded_in_lines(node: dict[str, Any], name: str, sides: Mapping[str, float | int], width: int) -> None:
    """Of one channel: the title of its axis, the words of its legend, the names along it."""
    legend, domain = node.get("legend"), (node.get("scale") or {}).get("domain")
    if isinstance(legend, dict):
        legend["columns"] = 1 if width < _TWO_COLUMNS else legend.get("columns", 2)
        if "gradientLength" in legend:
            legend["gradientLength"] = min(legend["gradientLength"], width - 90)
        if isinstance(legend.get("title"), str):
            legend["title"] = _wrapped(legend["title"], int(width / _LETTER))
        if isinstance(domain, list) and all(isinstance(one, str) for one in domain):
            _words_in_lines(legend, domain, int((width / legend["columns"] - 60) / _LETTER))
    if name in sides:
        for holder in (node, node.get("axis")):
            if isinstance(holder, dict) and isinstance(holder.get("title"), str):
                holder["title"] = _wrapped(holder["title"], int(sides[name] / _LETTER))
        if name == "y" and isinstance(node.get("axis"), dict) and isinstance(node.get("sort"), list):
            _words_in_lines(node["axis"], node["sort"], _NAME if width < _TWO_COLUMNS else 2 * _NAME)


def _words_in_lines(guide: dict[str, Any], values: list[str], most: int) -> None:
    """The words of a legend or an axis; those that `axes.lookup` wrote are read back out of it."""
    words, said = values, guide.get("labelExpr", "")
    if said:
        words, end = json.JSONDecoder().raw_decode(said)
        values, _ = json.JSONDecoder().raw_decode(said[end + len("[indexof(") :])
    lines = [_wrapped(word, most) for word in words]
    if max(map(len, lines), default=1) > 1:
        guide["labelExpr"] = axes.lookup(values, lines)


def _wrapped(text: str | list[str], most: int) -> list[str]:
    lines: list[str] = []
    for line in [text] if isinstance(text, str) else text:
        words, last = str(line).split(" "), ""
        for word in words:
            if last and len(last) + 1 + len(word) > most:
                lines.append(last)
                last = word
            else:
                last = f"{last} {word}" if last else word
        lines.append(last)
    return lines
