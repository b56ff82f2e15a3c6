"""What storing numbers in few bits hides, in sentences: which format, from which length, by which of its errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ostools.reporting.collapse_findings import collapse_ends, main_pair
from ostools.reporting.frames import Frame, frame_of
from ostools.reporting.words import number, ratio

if TYPE_CHECKING:
    from ostools.measure import Collapse


@dataclass(frozen=True)
class Tail:
    """One precision over the last quarter of the lengths, medians of L2 at y.

    given, stored: the float64 distance with the weights as given, and as this precision stores them. weight_shift: how far
    storing moves v, and v* alike. noise: of running, against float64 with the same stored weights; pair_noise: of y - y*.
    """

    dtype: str
    given: float
    stored: float
    weight_shift: float
    noise: float
    pair_noise: float

    @property
    def margin(self) -> float:
        """How many times its noise the distance still is."""
        return ratio(self.stored, self.noise)


def tails(result: Collapse) -> list[Tail]:
    """A `Tail` for each precision but float64, in the order measured."""
    frame: Frame = frame_of(result)
    pair = main_pair(result)
    at_y = (frame["site"] == "y") & (frame["per"] == "vector") & (frame["norm"] == "l2")
    frame = frame[at_y & (frame["pair"] == pair) & (frame["dtype"] != "float64")]
    exact: Any = result.reference
    exact = exact[(exact["pair"] == pair) & (exact["site"] == "y")]
    curves = {
        str(weights): rows.groupby("length")["distance"].mean()
        for weights, rows in exact.groupby("weights", sort=False)
    }
    first = float(frame["length"].quantile(0.75))
    last = frame[frame["length"] >= first]
    return [
        Tail(
            str(dtype),
            _median(curves["given"], first),
            _median(curves[str(rows["weights"].iloc[0])], first),
            float(rows["weight_shift"].median()) if rows["weight_shift"].notna().any() else 0.0,
            float(rows["noise"].median()),
            float(rows["pair_noise"].median()),
        )
        for dtype, rows in last.groupby("dtype", sort=False)
    ]


def _median(curve: Any, first: float) -> float:
    return float(curve[curve.index >= first].median())


def precision_findings(result: Collapse) -> list[str]:
    """Which formats hide the pair, from which length; and how far the nearest of the others is from it."""
    frame = frame_of(result)
    n_max, name = int(frame["length"].max()), str(frame["task"].iloc[0])
    found = tails(result)
    ends = collapse_ends(result)
    hidden = [f"{dtype} from n = {length}" for dtype, length in ends.items() if length is not None]
    others = [tail for tail in found if ends[tail.dtype] is None]
    said = [
        f"On {name} the pair is hidden below the rounding noise in {', '.join(hidden)}."
        if hidden
        else f"On {name} none of {len(found)} precisions hides the pair by n = {n_max}."
    ]
    if others:
        nearest = min(others, key=lambda tail: tail.margin)
        rest = "Of the others the nearest to it" if hidden else "The nearest to it"
        said[0] += (
            f" {rest} is {nearest.dtype}: at the end of the lengths the float64 distance ({number(nearest.stored)}) is "
            f"{number(nearest.margin)} times its noise."
        )
    return said
