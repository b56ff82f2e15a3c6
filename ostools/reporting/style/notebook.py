"""How a chart shows itself: as Vega-Lite with a small PNG in a notebook, and in files of exact
size; without a network.
"""

from __future__ import annotations

import json
import re
import textwrap
from base64 import b64encode
from functools import partial
from io import BytesIO
from itertools import chain
from typing import TYPE_CHECKING, Any

import altair as alt
import vl_convert
from altair.utils.mimebundle import spec_to_mimebundle
from altair.utils.save import write_file_or_filename
from markupsafe import escape
from PIL import Image

from ostools.ground import InputError, checked_name
from ostools.reporting.style import theme
from ostools.results import Looks

if TYPE_CHECKING:
    from ostools.results import Result

VEGA_LITE = "application/vnd.vegalite.v5+json"
SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
PER_INCH = 96
"""Pixels of a chart to an inch, as CSS counts them."""
LARGEST = 150_000
"""Most characters that a notebook stores of a chart; where both forms are more, it gets the picture
alone.
"""
_DEFAULT_WIDTH = 560
SCALE = 1.5
"""Pixels of the picture per pixel of the chart."""
_SIZE = re.compile(r' width="([\d.]+)" height="([\d.]+)"')
_MENU = {"actions": {"export": True, "source": False, "compiled": False, "editor": False}}


class Offline(alt.TopLevelMixin):
    """A chart that needs no network where it is shown; `paper_width`: pixels of its pictures, None
    for its own.
    """

    paper_width: int | None = None

    def picture(self) -> Looks:
        """The specification as a picture has it: its title and notes no wider than its panels."""
        spec = self.to_dict(validate=False)
        if isinstance(spec.get("title"), dict):  # a reader may have given it another
            wrap_words(spec, panels_width(spec))
        return spec

    def _repr_mimebundle_(self, *args: object, **options: object) -> object:
        return chart_bundle(self, "ostools chart")

    def save(self, fp: Any, format: Any = None, **options: Any) -> None:
        """As Altair's `save`, but: a pixel is 1/96 inch in every kind of picture, and a PNG has 300
        dots an inch.
        """
        kind = format or str(fp).rpartition(".")[2].lower()
        if kind not in ("svg", "pdf", "png") or options:
            super().save(fp, format=format, **options)
            return
        spec = self.picture()
        picture: Any = spec_to_mimebundle(spec, format="svg", mode="vega-lite")
        svg: str = picture["image/svg+xml"]
        width, height = map(float, _SIZE.findall(svg)[0])
        # vl-convert holds a pixel of the root element for 1/72 inch in a PDF.
        scale = (self.paper_width or width) / width * (72 / PER_INCH if kind == "pdf" else 1)
        svg = _SIZE.sub(f' width="{width * scale:g}" height="{height * scale:g}"', svg, count=1)
        if kind == "svg":
            write_file_or_filename(fp, svg, encoding="utf-8")
            return
        of_pixels = partial(vl_convert.svg_to_png, scale=72 / PER_INCH, ppi=300)
        write = vl_convert.svg_to_pdf if kind == "pdf" else of_pixels
        write_file_or_filename(fp, bytes(write(svg)), mode="wb")


class OfflineFigure(Offline, alt.VConcatChart):
    """`altair.VConcatChart`, shown without a network."""


class Finished(Offline):
    """A chart laid out for paper: it shows itself and is saved, and is not put together with
    others.
    """

    def __init__(self, spec: Looks, paper_width: int) -> None:
        self.spec, self.paper_width = spec, paper_width

    def to_dict(self, *args: object, **options: object) -> Looks:
        """The Vega-Lite specification."""
        return self.spec

    def picture(self) -> Looks:
        """The same: it is laid out."""
        return self.spec


_LETTER, _BOLD = 6.2, 7.4  # pixels of a letter, and of one in a chart's own title
_AXIS = 60  # pixels that the words of a panel's axis take


def wrap_words(spec: Looks, width: float | int) -> None:
    """Break the title and the notes of a specification into lines of at most that width in
    pixels."""
    words = spec["title"]
    for name, letter in (("text", _BOLD), ("subtitle", _LETTER)):
        lines = words.get(name, [])
        lines = [lines] if isinstance(lines, str) else lines
        words[name] = [*chain(*(textwrap.wrap(line, int(width / letter)) for line in lines))]


def panels_width(spec: Looks) -> float | int:
    """Pixels of the widest row of panels, with the words at their axes."""
    if "vconcat" in spec:
        return max(map(panels_width, spec["vconcat"]))
    panels = spec.get("hconcat") or spec.get("concat", [])[: spec.get("columns")]
    width = spec.get("width")  # a reader may have asked for "container"
    alone = (width if isinstance(width, int | float) else _DEFAULT_WIDTH) + _AXIS
    return sum(map(panels_width, panels)) if panels else alone


def themed(chart: alt.VConcatChart) -> Offline:
    """The chart as one of ours: shown without a network, in the common look."""
    # Not through the constructor: that copies and compares every panel again, which takes seconds
    # for many.
    figure = object.__new__(OfflineFigure)
    config = alt.Config.from_dict(theme.config(), validate=False)
    object.__setattr__(figure, "_args", chart._args)
    object.__setattr__(figure, "_kwds", {**chart._kwds, "config": config})
    return figure


def chart_bundle(chart: alt.TopLevelMixin, words: str) -> Any:
    """The MIME bundle of a chart, and its metadata; `words` where only text can be shown, and for
    screen readers.

    A renderer that the user has enabled in Altair (`alt.renderers.enable`) is obeyed.
    """
    if alt.renderers.active != "default":
        return alt.TopLevelMixin._repr_mimebundle_(chart)
    spec = chart.picture() if isinstance(chart, Offline) else chart.to_dict(validate=False)
    spec |= {"$schema": SCHEMA, "description": words}
    text = json.dumps(spec, allow_nan=False, separators=(",", ":"))
    png = picture_of(spec, SCALE)
    width, height = picture_size(png)
    picture = b64encode(png).decode()
    data: Looks = {"image/png": picture, "text/plain": words}
    size = {"width": round(width / SCALE), "height": round(height / SCALE)}
    if len(text) + len(picture) <= LARGEST:
        data[VEGA_LITE] = spec
    return data, {"image/png": size, VEGA_LITE: {"embed_options": _MENU}}


def picture_of(spec: Looks, scale: float) -> bytes:
    """The chart of a specification as a PNG: vl-convert compresses in haste, Pillow makes a third
    of it, of the same pixels.
    """
    picture: Any = spec_to_mimebundle(spec, format="png", mode="vega-lite", scale_factor=scale)
    file = BytesIO()
    with Image.open(BytesIO(picture[0]["image/png"])) as image:
        image.save(file, format="PNG", optimize=True)
    return file.getvalue()


def result_bundle(result: Result) -> Any:
    """The chart of a result with its summary for a text; where none can be drawn the summary, why,
    and some rows.
    """
    words = repr(result).partition("\n")[0]
    try:
        return chart_bundle(result.plot(), words)
    except InputError as error:
        text = f"{words}\nNo chart: {error}"
        table = result.frame.head().to_html(border=0)
        return {"text/plain": text, "text/html": f"<p>{escape(text)}</p>{table}"}, {}


def picture_size(picture: bytes) -> tuple[int, int]:
    """Width and height in pixels."""
    with Image.open(BytesIO(picture)) as image:
        return image.size


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


def sized(chart: alt.TopLevelMixin, inches: float) -> Finished:
    """The chart laid out for this width."""
    spec, width = chart.to_dict(validate=False), round(inches * PER_INCH)
    if "title" in spec:
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
