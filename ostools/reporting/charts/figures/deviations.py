"""What a chart of a paper's figure says of how it differs from the paper's: the first lines, and where the others stand."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN = 2
"""Lines in the chart. A subtitle of more than these and the legend's pushes the panels down."""


def shown_deviations(said: Sequence[str]) -> list[str]:
    """The first lines of a result's `deviations`, and how many more there are."""
    more = len(said) - SHOWN
    if more < 2:
        return list(said)
    return [*said[:SHOWN], f"`deviations` has {more} more notes on how this differs from the paper's figure."]
