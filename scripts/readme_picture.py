"""docs/gemma.png, the README's picture: `python -m scripts.readme_picture` measures Gemma 3 270M and draws both phenomena.

Left: where bfloat16 hides one more 1 (Figure 5 (a) of the paper). Right: sensitivity by position in natural text. What was
measured is kept in artefacts/readme. Cost: seven minutes of one core, and 4 GB.
"""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

import ostools as ost
from ostools.reporting.charts.effects.position import position_curves
from ostools.reporting.findings.effects import contrast_words
from ostools.reporting.forms import BAND, curve, log_rows
from ostools.reporting.style import axes, draw, theme
from ostools.reporting.style.notebook import picture_of

MODEL, DTYPE, SITE = "gemma-3-270m", "bfloat16", "y"
ROOT = Path(__file__).parents[1]
STORE, PICTURE = ROOT / "artefacts" / "readme", ROOT / "docs" / "gemma.png"
WIDTH, HEIGHT = 420, 250
DISTANCE, NOISE = "distance of the pair, exact", f"rounding noise of {DTYPE}"


def measured(name: str, measure: Any) -> Any:
    """The stored result of that name; measured where there is none."""
    path = STORE / f"{name}.parquet"
    if not path.is_file():
        STORE.mkdir(parents=True, exist_ok=True)
        measure(ost.load_model(MODEL, dtype="float32")).save(path)
    return ost.load_result(path)


def collapse_panel(pairs: Any) -> Any:
    """The distance at y and the noise of its dtype; shaded, the lengths at which the pair is hidden."""
    of_site = f"site == '{SITE}' and dtype == '{DTYPE}'"
    at_y = pairs.frame.query(f"{of_site} and per == 'vector' and norm == 'l2'").set_index("length")
    curves: Any = pd.concat({DISTANCE: at_y["float64_distance"], NOISE: at_y["pair_noise"]}, names=["series"])
    rows, y = log_rows(curves.rename("value").reset_index(), "L2 distance of the pair")
    x = axes.length_axis(rows["length"], "n, ones in the prompt")
    hidden = pairs.hidden_ranges().query(of_site)
    words = [f"hidden at {row.hidden} of these {row.tried} lengths" for row in hidden.itertuples()]
    ranges = draw.rows(hidden[["first", "last"]].assign(length=hidden["first"], words=words))
    shade = ranges.encode(x=x, x2="last:Q", color=alt.value(theme.colour(DTYPE))).mark_rect(opacity=0.15)
    longest = ranges.transform_filter("datum.last - datum.first > 99").encode(
        x=x, text="words:N", y=alt.value(12), color=alt.value(theme.colour(DTYPE))
    )
    hue = draw.hue("series", {DISTANCE: theme.INK, NOISE: theme.colour(DTYPE)}, orient="bottom")
    marks = [shade, longest.mark_text(align="right", dx=-4, fontSize=10), *curve(rows, x, y, hue)]
    words = ["y of n and of n + 1 ones, Figure 5 (a) of the paper"]
    return draw.panel(marks, WIDTH, HEIGHT, "Representational collapse", *words)


def position_panel(position: Any) -> Any:
    """The mean norm at each position over the middle third's, with its 95% interval over passages."""
    rows, y = log_rows(position_curves(position), "norm of ∂y/∂v over the middle third's", ("low", "high"))
    x = axes.length_axis(rows["position"], "position in a natural text", "position", log=False)
    third = (int(rows["position"].max()) + 1) / 3
    edges = [mark for edge in (third, 2 * third) for mark in draw.line_at("x", "position", edge - 0.5)]
    marks = curve(rows, x, y, alt.value(theme.colour("full")), bands=[BAND])
    title = "Over-squashing: sensitivity of the last token by position"
    return draw.panel([*edges, *marks], WIDTH, HEIGHT, title, *contrast_words(position))


def main() -> None:
    pairs = measured("pairs", _pairs)
    position = measured("position", lambda model: ost.position_effect(model, untrained=False))
    panels = [collapse_panel(pairs), position_panel(position)]
    chart = draw.figure([panels], pairs.provenance.model["title"], spacing=50)
    PICTURE.write_bytes(b64decode(picture_of(chart.to_dict(validate=False), 1.2)))


def _pairs(model: Any) -> Any:
    return ost.collapse(model, "figure-5a", lengths=range(1, 513), dtypes=[DTYPE])


if __name__ == "__main__":
    main()
