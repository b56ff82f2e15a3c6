"""What a chart of a paper's figure says of how it differs from the paper's: what was run, and where the rest stands."""

from __future__ import annotations

from collections.abc import Sequence


def shown_deviations(said: Sequence[str]) -> list[str]:
    """A line: the first of a result's `deviations`, which says what was run, and how many more there are."""
    first, *more = said
    if not more:
        return [first]
    return [f"{first} `deviations` has {len(more)} more note{'s' * (len(more) > 1)} on how it differs."]
