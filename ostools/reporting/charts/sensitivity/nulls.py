"""A profile over the tokens, and the band that null models of several seeds fill."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ostools.measure.profiles.nulls import OWN, Nulls
from ostools.reporting.forms.curve import fitted
from ostools.reporting.forms.profile import of_tokens, profile, shown_tokens
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame, frame_of

SOURCES = {
    OWN: "the model",
    "initialised": "initialised",
    "embeddings-kept": "initialised, embeddings kept",
    "shuffled": "shuffled",
}


def nulls_chart(result: Nulls) -> Any:
    """Shares of the sum over all tokens, on a log axis: the model's as a line, of each kind of null the median and range."""
    table, band = frame_of(result), result.band
    own: Frame = table[table["source"] == OWN]
    both = pd.concat([own.assign(median=own["share"]), band], ignore_index=True)
    names = both["source"].map(SOURCES)
    rows = of_tokens(both, series=names, value=both["median"], low=both["low"], high=both["high"])
    rows, y = fitted(rows, "share of the summed sensitivity", ("low", "high"))
    sources = list(dict.fromkeys(table["source"]))
    hue = draw.hue("series", dict(zip([SOURCES[one] for one in sources], theme.colours(sources), strict=True)))
    panel = profile(rows, shown_tokens(own), y, hue, height=300, bands=[("low", "high", 0.25)])
    notes = _notes(result, bool(rows["zero"].any()))
    return draw.figure([[panel]], "Sensitivity before and after training", notes)


def _notes(result: Nulls, zeros: bool) -> list[str]:
    """What the shade is, and the verdicts of the shape by source, in three lines."""
    table: Any = result.summary
    lines = []
    for source, group in table.groupby("source", sort=False):
        counts = group["verdict"].value_counts().items()
        said = [f"{verdict} ({count} of {len(group)})" if len(group) > 1 else verdict for verdict, count in counts]
        lines.append(f"{SOURCES[str(source)]}: {'; '.join(said)}")
    shade = f"Shade: range over {int(table['seed'].nunique())} seeds."
    half = -(-len(lines) // 2)
    joined = [". ".join(part) for part in (lines[:half], lines[half:]) if part]
    return [f"{shade} {axes.ZERO_NOTE}" if zeros else shade, *joined]
