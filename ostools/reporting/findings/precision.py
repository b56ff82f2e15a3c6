"""What storing numbers in few bits does to the pair, in sentences: which format, from which length, by which of its errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ostools.ground.words import number, ratio
from ostools.measure import Collapse
from ostools.measure.collapse.verdicts import OVERFLOWS, TOLD_APART, UNDECIDED
from ostools.reporting.findings.collapse import main_pair, overflow_sentence, verdicts_at_y, whole
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
        """How many times the noise of the difference the distance still is."""
        return ratio(self.stored, self.pair_noise)


def tails(result: Collapse) -> list[Tail]:
    """A `Tail` for each precision but float64 that was measured, in their order."""
    frame = whole(result.measured(), "y")
    pair = main_pair(result)
    frame = frame[(frame["pair"] == pair) & (frame["dtype"] != "float64")]
    exact: Any = result.reference
    exact = exact[(exact["pair"] == pair) & (exact["site"] == "y")]
    curves = {
        str(weights): rows.groupby("length")["distance"].mean()
        for weights, rows in exact.groupby("weights", sort=False)
    }
    if frame.empty:
        return []
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
    """Which formats hide the pair and over which lengths; and how far the nearest of the others is from it."""
    verdicts, name = verdicts_at_y(result), str(frame_of(result)["task"].iloc[0])
    hidden = {dtype: verdict for dtype, verdict in verdicts.items() if verdict.ranges}
    undecided = {dtype: verdict for dtype, verdict in verdicts.items() if verdict.kind == UNDECIDED}
    measured = [verdict.lengths[-1] for verdict in verdicts.values() if verdict.lengths]
    if hidden:
        listed = ", ".join(f"{dtype} from {verdict.where}" for dtype, verdict in hidden.items())
        said = f"On {name} the pair is below the rounding noise of its difference in {listed}."
    else:
        said = f"On {name} the pair is not hidden over a range of lengths in any of {len(measured)} precisions."
    said += f" The lengths go up to n = {max(measured, default=0)}."
    if undecided:
        listed = "; ".join(f"{dtype}: {verdict.words}" for dtype, verdict in undecided.items())
        said += f" {listed}."
    overflow = overflow_sentence(dtype for dtype, verdict in verdicts.items() if verdict.kind == OVERFLOWS)
    said += f" {overflow}" if overflow else ""
    apart = [tail for tail in tails(result) if verdicts[tail.dtype].kind == TOLD_APART]
    if apart:
        nearest = min(apart, key=lambda tail: tail.margin)
        start = "Of the others" if len(apart) < len(measured) else "Of them"
        said += (
            f" {start} {nearest.dtype} comes nearest: over the last quarter of the lengths the float64 distance "
            f"({number(nearest.stored)}) is {number(nearest.margin)} times the noise of the difference."
        )
    return [said]
