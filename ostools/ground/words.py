"""How findings and titles write numbers and names."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path


def number(value: float) -> str:
    """Three significant digits, with an exponent only where zeros would have to be counted."""
    if not math.isfinite(value):
        return "unknown" if math.isnan(value) else "infinite"
    if value == 0 or 1e-3 <= abs(value) < 999.5:
        return f"{value:.3g}"
    if 999.5 <= abs(value) < 1e5:
        return f"{value:,.0f}"
    digits, power = f"{value:.1e}".split("e")
    return f"{digits}e{int(power)}"


def factor(log10: float) -> str:
    """A ratio from its log10: the number itself where it is small, else a power of ten."""
    if not math.isfinite(log10):
        return "infinitely many"
    return number(10**log10) if abs(log10) < 2 else f"10^{log10:.1f}"


def ratio(over: float, denominator: float) -> float:
    """Return over / denominator, 1 where both are zero."""
    return over / denominator if denominator > 0 else (1.0 if over == 0 else math.inf)


def title_of(model: Mapping[str, object]) -> str:
    """What tables, charts and pages call a provenance's model: its title, else its name, of which a
    path's last part.
    """
    name = str(model.get("title") or model.get("name", "unknown model"))
    return Path(name).name if Path(name).is_absolute() else name


def in_a_row(lengths: Sequence[int]) -> list[list[int]]:
    """Whole numbers in ascending order, in groups of those that follow each other."""
    import numpy as np  # not at the start of every command

    ends = np.flatnonzero(np.diff(lengths) != 1) + 1
    return [run.tolist() for run in np.split(np.asarray(lengths), ends) if run.size]


def runs(lengths: Sequence[int]) -> str:
    """Whole numbers in ascending order, three or more in a row as `3 to 10`."""
    rows = in_a_row(lengths)
    return ", ".join(
        f"{row[0]} to {row[-1]}" if len(row) > 2 else ", ".join(map(str, row)) for row in rows
    )


MINUS = " − "
"""Between the two tokens of a difference of logits."""
