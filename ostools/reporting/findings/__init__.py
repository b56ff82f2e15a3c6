"""Functions from a result to at most `MOST` sentences: a number, its unit, its interval, what it is compared with.

A measured number is called measured, a bound certified, the paper's form the paper's, a prediction predicted. What a result
shows beyond these sentences stands in its tables; what it means stands in the docs.
"""

from __future__ import annotations

from collections.abc import Sequence

MOST = 5


def first_few(sentences: Sequence[str], count: int = MOST) -> list[str]:
    """The first `count` sentences; the last of them says how many more there are."""
    shown, more = list(sentences[:count]), len(sentences) - count
    if more > 0:
        shown[-1] += f" {more} more like this stand{'s' * (more == 1)} in the table."
    return shown
