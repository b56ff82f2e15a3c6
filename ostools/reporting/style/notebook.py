"""PNG pictures made small enough to be stored in a notebook: a palette of 256 colours, and real compression.

vl-convert writes four bytes a pixel and compresses them in haste: 160 to 1,200 kB a chart where a fifth will do.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from io import BytesIO
from typing import TYPE_CHECKING, Any

import altair as alt
import vl_convert
from altair.utils.mimebundle import spec_to_mimebundle
from altair.utils.save import write_file_or_filename
from markupsafe import escape
from PIL import Image

from ostools.ground.errors import InputError
from ostools.ground.memory import require_room_to_draw
from ostools.ground.words import title_of
from ostools.reporting.style import theme

if TYPE_CHECKING:
    from ostools.results import Result

VEGA_LITE = "application/vnd.vegalite.v5+json"
SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
PER_INCH = 96
"""Pixels of a chart to an inch, as CSS counts them."""
LARGEST = 150_000
"""Most characters that a notebook stores of a chart; where both forms together are more, it gets the picture alone."""
SCALES = (1.5, 1.0, 0.75, 0.5)
"""Pixels of the picture per pixel of the chart: the first with which it is small enough, else the last."""
_MENU = {"actions": {"export": True, "source": False, "compiled": False, "editor": False}}


class Offline(alt.TopLevelMixin):
    """A chart that needs no network where it is shown."""

    def _repr_mimebundle_(self, *args: Any, **options: Any) -> Any:
        return chart_bundle(self, "ostools chart")

    def save(self, fp: Any, format: Any = None, **options: Any) -> None:
        """As Altair's `save`, but: a pixel is 1/96 inch in every kind of picture, and a PNG has 300 dots an inch."""
        require_room_to_draw()
        kind = format or str(fp).rpartition(".")[2].lower()
        if kind in ("svg", "pdf", "png") and not options:
            _save_picture(drawn_svg(self.to_dict(validate=False)), fp, kind, None)
        else:
            super().save(fp, format=format, **options)


class Finished(Offline):
    """A chart that was laid out for paper: it shows itself and is saved, and is not put together with others.

    `width`: of its pictures, in pixels; None leaves it to the chart.
    """

    def __init__(self, spec: dict[str, Any], width: int | None = None) -> None:
        self.spec, self.width = spec, width

    def to_dict(self, *args: Any, **options: Any) -> dict[str, Any]:
        """The Vega-Lite specification."""
        return self.spec

    def save(self, fp: Any, format: Any = None, **options: Any) -> None:
        """As `Offline.save`; a picture has exactly the width."""
        kind = format or str(fp).rpartition(".")[2].lower()
        _save_picture(drawn_svg(self.spec), fp, kind, self.width)


_ROOT = re.compile(r'(<svg[^>]*?) width="([\d.]+)" height="([\d.]+)" viewBox="[^"]*"')


def _save_picture(svg: str, fp: Any, kind: str, width: int | None) -> None:
    """Write a drawn chart; one wider than `width` is scaled down, and one narrower has a margin at its right."""
    root = _ROOT.match(svg)
    if root is None:
        raise RuntimeError("vl-convert wrote a picture without a width, a height and a view box")
    natural_width, height = float(root[2]), float(root[3])
    across = natural_width if width is None else max(natural_width, width)
    # vl-convert holds a pixel of the root element for 1/72 inch in a PDF.
    scale = (across if width is None else width) / across * (72 / PER_INCH if kind == "pdf" else 1)
    head = f'{root[1]} width="{across * scale:g}" height="{height * scale:g}" viewBox="0 0 {across:g} {height:g}"'
    ground = (f'<rect width="{size:g}" height="{height:g}" fill' for size in (natural_width, across))
    svg = head + svg[root.end() :].replace(next(ground), next(ground), 1)
    if kind == "svg":
        write_file_or_filename(fp, svg, encoding="utf-8")
    elif kind == "pdf":
        write_file_or_filename(fp, bytes(vl_convert.svg_to_pdf(svg)), mode="wb")
    else:
        picture = vl_convert.svg_to_png(svg, scale=72 / PER_INCH, ppi=300)
        write_file_or_filename(fp, bytes(picture), mode="wb")


def drawn_svg(spec: dict[str, Any]) -> str:
    """The chart of a specification as SVG."""
    require_room_to_draw()
    picture: Any = spec_to_mimebundle(spec, format="svg", mode="vega-lite")
    return picture["image/svg+xml"]


_KINDS: dict[type, type] = {
    kind: type(
        kind.__name__,
        (Offline, kind),
        {"__doc__": f"`altair.{kind.__name__}`, shown without a network.", "__module__": __name__},
    )
    for kind in (alt.Chart, alt.LayerChart, alt.FacetChart, alt.VConcatChart, alt.HConcatChart, alt.ConcatChart)
}


# By name too, so that a chart can be pickled.
globals().update({kind.__name__: kind for kind in _KINDS.values()})


def offline(chart: Any) -> Any:
    """A shallow copy of the chart that needs no network where it is shown; still the Altair object that it was."""
    if type(chart) not in _KINDS:
        raise TypeError(
            f"no offline form of a {type(chart).__name__}; there are {', '.join(k.__name__ for k in _KINDS)}"
        )
    # Not through its constructor: that copies and compares every panel again, which takes seconds for many.
    offline_chart = object.__new__(_KINDS[type(chart)])
    object.__setattr__(offline_chart, "_args", chart._args)
    object.__setattr__(offline_chart, "_kwds", dict(chart._kwds))
    return offline_chart


def chart_bundle(chart: Any, words: str) -> Any:
    """The MIME bundle of a chart, and its metadata; `words` where only text can be shown, and for screen readers.

    A renderer that the user has enabled in Altair (`alt.renderers.enable`) is obeyed.
    """
    if alt.renderers.active != "default":
        return alt.TopLevelMixin._repr_mimebundle_(chart)
    spec = chart.to_dict(validate=False) | {"$schema": SCHEMA, "description": words}
    text = json.dumps(spec, allow_nan=False, separators=(",", ":"))
    for scale in SCALES:
        picture = picture_of(spec, scale)
        if len(picture) <= LARGEST:
            break
    width, height = picture_size(b64decode(picture))
    data: dict[str, Any] = {"image/png": picture, "text/plain": words}
    metadata: dict[str, Any] = {"image/png": {"width": round(width / scale), "height": round(height / scale)}}
    if len(text) + len(data["image/png"]) <= LARGEST:
        data[VEGA_LITE], metadata[VEGA_LITE] = spec, {"embed_options": _MENU}
    return data, metadata


def picture_of(spec: dict[str, Any], scale: float) -> str:
    """The chart of a specification as a small PNG, in base64."""
    require_room_to_draw()
    picture: Any = spec_to_mimebundle(spec, format="png", mode="vega-lite", scale_factor=scale)
    return b64encode(reduced(picture[0]["image/png"])).decode()


def result_bundle(result: Result) -> Any:
    """The chart of a result with its summary for a text; where no chart can be drawn the summary, why, and the first rows."""
    words = summary(result)
    try:
        return chart_bundle(result.plot(), words)
    except InputError as error:
        text = f"{words}\nNo chart: {error}"
        table = result.frame.head().to_html(border=0)
        return {"text/plain": text, "text/html": f"<p>{escape(text)}</p>{table}"}, {}


def summary(result: Result) -> str:
    """One line: what it is, its size, and which model in which dtype."""
    model: Any = result.provenance.model
    rows, columns = result.frame.shape
    of = f", model {theme.title(title_of(model), 60)} in {model['dtype']}" if model else ""
    return f"{type(result).__name__}: {rows:,} rows of {columns} columns{of}"


def reduced(picture: bytes) -> bytes:
    """The same picture with at most 256 colours, white among them; as it came where it is not an opaque RGBA picture."""
    with Image.open(BytesIO(picture)) as image:
        if image.mode != "RGBA" or image.getchannel("A").getextrema() != (255, 255):
            return picture
        palette = image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    file = BytesIO()
    palette.save(file, format="PNG", compress_level=9)
    return file.getvalue()


def picture_size(picture: bytes) -> tuple[int, int]:
    """Width and height in pixels."""
    with Image.open(BytesIO(picture)) as image:
        return image.size
