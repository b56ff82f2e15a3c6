"""What storing numbers in few bits does to the pair, in sentences: which format, from which length, by which of its errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ostools.ground.words import number, ratio
from ostools.measure import Collapse
from ostools.reporting.findings.collapse import collapse_ends, main_pair, whole
from ostools.results import frame_of


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
    frame = whole(frame_of(result), "y")
    pair = main_pair(result)
    frame = frame[(frame["pair"] == pair) & (frame["dtype"] != "float64")]
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


def below_at_the_end(result: Collapse) -> dict[str, int | None]:
    """By dtype the length from which the distance at y is below the noise up to the last one measured, None where it is not.

    No margin of lengths is asked for, as a collapse length asks: at the end of the range that may be chance. The greatest over
    seeds.
    """
    frame = whole(frame_of(result), "y")
    frame = frame[(frame["pair"] == main_pair(result)) & (frame["dtype"] != "float64")]
    frame = frame.assign(above=(frame["float64_distance"] >= frame["noise"]) & (frame["mean"] != 0))
    found: dict[str, int | None] = {}
    for dtype, rows in frame.groupby("dtype", sort=False):
        last = int(rows.loc[rows["above"], "length"].max()) if rows["above"].any() else 0
        later = rows.loc[rows["length"] > last, "length"]
        found[str(dtype)] = int(later.min()) if len(later) else None
    return found


def precision_findings(result: Collapse) -> list[str]:
    """In which formats the pair is below the noise, from which length; and how far the nearest of the others is from it."""
    frame = frame_of(result)
    n_max, name = int(frame["length"].max()), str(frame["task"].iloc[0])
    found, below = tails(result), below_at_the_end(result)
    ends, of_pair = collapse_ends(result), collapse_ends(result, "pair_collapse_length")

    def listed(lengths: dict[str, int]) -> str:
        """Each with the length from which their difference is lost too."""
        pairs = {dtype: "not reached" if of_pair[dtype] is None else f"from n = {of_pair[dtype]}" for dtype in lengths}
        return ", ".join(
            f"{dtype} from n = {n} (noise of their difference: {pairs[dtype]})" for dtype, n in lengths.items()
        )

    reached = {dtype: n for dtype, n in ends.items() if n is not None}
    late = {dtype: n for dtype, n in below.items() if n is not None and ends[dtype] is None}
    if reached:
        said = f"On {name} the float64 distance falls below the rounding noise of each sequence in {listed(reached)}."
    else:
        said = f"On {name} the float64 distance does not fall below the rounding noise and stay there in any of {len(found)} "
        said += "precisions."
    said += f" The lengths go up to n = {n_max}."
    if late:
        said += (
            f" At the end it is below the noise, but too few lengths follow to call that a collapse: {listed(late)}."
        )
    others = [tail for tail in found if below[tail.dtype] is None]
    if others:
        nearest = min(others, key=lambda tail: tail.margin)
        start = "Of the others" if reached or late else "Of them"
        said += (
            f" {start} {nearest.dtype} comes nearest: over the last quarter of the lengths the float64 distance "
            f"({number(nearest.stored)}) is {number(nearest.margin)} times its noise."
        )
    return [said]
