"""One check: a figure, and what it had to be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pandas as pd

STATED = "as stated"
"""The hypotheses of a check that the lemma must pass; any other text names what was taken away, and what must then break."""

LENGTHS = (*range(1, 9), 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096)
"""At which n the lemmas about softmax are run; Lemma B.4 at the even ones."""

_HOLDS: dict[str, Callable[[float, float, float], bool]] = {
    "<=": lambda figure, required, tolerance: figure <= required + tolerance,
    ">=": lambda figure, required, tolerance: figure >= required - tolerance,
    ">": lambda figure, required, tolerance: figure > required,
    "=": lambda figure, required, tolerance: abs(figure - required) <= tolerance,
}


@dataclass(frozen=True)
class Check:
    """`figure` `relation` `required` (within `tolerance`, for rounding): what `computed` says was found, under `hypotheses`."""

    computed: str
    figure: float
    relation: str
    required: float
    tolerance: float = 0.0
    hypotheses: str = STATED

    @property
    def passed(self) -> bool:
        """A figure that is not a number passes nothing."""
        return _HOLDS[self.relation](self.figure, self.required, self.tolerance)


@dataclass(frozen=True)
class Checked:
    """A lemma's checks, and the curves behind them: a row a point, with the columns series, kind, x and value."""

    checks: list[Check]
    curves: pd.DataFrame


def points(
    series: str, x: Iterable[float | int], values: Iterable[float | int], kind: str = "measured"
) -> pd.DataFrame:
    """A curve's rows. `kind`: "measured", "certified" (a bound) or "predicted" (what the statement says it is)."""
    table = pd.DataFrame({"x": [float(place) for place in x], "value": [float(value) for value in values]})
    return table.assign(series=series, kind=kind)


def curves(*parts: pd.DataFrame) -> pd.DataFrame:
    return pd.concat(parts, ignore_index=True)
