"""At which lengths a pair is hidden: the one place that decides it, for tables, charts, findings
and other measurements.

A pair is hidden at a length where its float64 distance, with the same stored weights, is below the
rounding noise of the difference y - y* (`pair_noise`), or where the two come out as the same
numbers. Which of these lengths make a range is `theory.distances`. A length at which nothing was
measured, as the dtype overflows, is in no range.

A distance is read at a site, of the whole vector there or of its pieces by head, in a norm
(`Reading`). Figure 5 reports the "difference in representation at the last layer", the Linf norm of
v^(L) - v*^(L), "averaged out over each head" (section 4). v^(L) has no heads, and the paper does
not say what they are of it. Here it is cut into as many chunks of d_model / H as there are heads
(`per="head-chunk"`)."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import pandas as pd

from ostools import tasks
from ostools.ground import InputError, checked_name
from ostools.results import Column, Frame
from ostools.theory.distances import IN_A_ROW, NORMS, DistanceNorm, HiddenRange, hidden_ranges

Per = Literal["vector", "head-chunk"]
"""What is compared at a site: the whole vector, or pieces with their mean, least and greatest."""
VECTOR, HEAD_CHUNK = get_args(Per)


def behind_all_blocks(frame: Frame) -> Frame:
    """The rows of a `Collapse`'s table without v^(l) of the layers before the last."""
    return frame[frame["layer"] == frame["layer"].max()]


class Reading(NamedTuple):
    """One distance of a `Collapse`: a site, what is compared there, and a norm."""

    site: str
    per: Per = VECTOR
    norm: DistanceNorm = "l2"

    def of(self, frame: Frame, *, every_layer: bool = False) -> Frame:
        """The rows of a `Collapse`'s table that are read so, after the last block or after every
        one that was measured. Raises `InputError` where there are none.
        """
        table = frame if every_layer else behind_all_blocks(frame)
        rows = table[
            (table["site"] == self.site) & (table["per"] == self.per) & (table["norm"] == self.norm)
        ]
        if rows.empty:
            raise InputError(f"no rows of {'/'.join(self)} in this result")
        return rows


TOP_TOKEN, IDENTICAL = "top-token", "identical-logits"
MEASURED, OVERFLOWS = "measured", "not finite"
"""The `status` of a row."""
TO_THE_END, IN_A_RANGE, UNDECIDED, TOLD_APART = (
    "hidden to the end",
    "hidden in a range",
    "not decided",
    "apart",
)
"""The kinds of verdict, beside `OVERFLOWS`: a range that goes on to the longest length tried;
ranges that end before it; no range, but hidden at the longest length tried, or too few lengths for
a range; no range; nothing measured, as the dtype overflows."""
ONE_CURVE = ["task", "pair", "seed", "dtype", "site", "layer"]
"""What a curve over lengths is one of."""
_WORDS = {TOP_TOKEN: ("the same", "different"), IDENTICAL: ("identical", "different")}


@dataclass(frozen=True)
class Curve:
    """One curve: at which of its `lengths`, ascending, the pair is `hidden`; and the verdict on it.

    `key`: its values by the names of `ONE_CURVE`. At the sites "top-token" and "identical-logits"
    hidden is the same there. `finite`: False where the dtype overflows; then there are no lengths.
    """

    key: dict[str, Any]
    lengths: list[int]
    hidden: list[bool]
    finite: bool = True

    @cached_property
    def ranges(self) -> list[HiddenRange]:
        return hidden_ranges(self.hidden, self.lengths)

    @property
    def kind(self) -> str:
        """The kind of verdict."""
        if not self.finite:
            return OVERFLOWS
        if self.ranges:
            return TO_THE_END if self.ranges[-1].open else IN_A_RANGE
        few = any(self.hidden) and (self.hidden[-1] or len(self.lengths) < IN_A_ROW)
        return UNDECIDED if few else TOLD_APART

    @property
    def words(self) -> str:
        """The verdict with its numbers; the rule is that of `theory.distances`."""
        if not self.finite:
            return f"not measured: {self.key['dtype']} overflows on this model"
        hidden, told_apart = _WORDS.get(self.key["site"], ("hidden", "apart"))
        if self.ranges:
            spans = [
                f"from {_ends(span, self.lengths[0])} "
                f"({span.hidden} of the {span.lengths_tried} lengths tried)"
                + f", {told_apart} again at {self.apart_from(span)}"
                * (not span.open)
                for span in self.ranges
            ]
            return f"{hidden} {'; '.join(spans)}"
        at = f"{hidden} at {sum(self.hidden)}" if any(self.hidden) else f"not {hidden} at any"
        words = f"{at} of the {len(self.lengths)} lengths tried, up to {self.lengths[-1]}"
        words += f"; a range needs {IN_A_ROW} in a row" * any(self.hidden)
        return f"not decided: {words}" if self.kind == UNDECIDED else words

    @property
    def where(self) -> str:
        """The ranges alone, for a table: "138 to 501", "138 on, up to 256 (110 of 119)" where a
        range has lengths that are told apart; without one the kind, or "–" where it is apart.
        """
        if not self.ranges:
            return "–" if self.kind == TOLD_APART else self.kind
        return ", ".join(
            _ends(span)
            + f" ({span.hidden} of {span.lengths_tried})" * (span.hidden < span.lengths_tried)
            for span in self.ranges
        )

    @property
    def hidden_in_ranges(self) -> list[int]:
        """The lengths of the ranges at which the pair is hidden, without those between that are
        told apart."""
        hidden_lengths = (n for n, hidden in zip(self.lengths, self.hidden, strict=True) if hidden)
        return [n for n in hidden_lengths if any(s.first <= n <= s.last for s in self.ranges)]

    def apart_from(self, span: HiddenRange) -> int | None:
        """The next length tried after a range; None of an open one."""
        return min((n for n in self.lengths if n > span.last), default=None)


def trained_length(task: str, trained: Mapping[str, int] | None) -> int | None:
    """The longest sequence of this task that the model was trained on, in items; None where its
    card does not say.
    """
    if task not in (*tasks.REPEATING_TASKS, *tasks.APPENDIX_NAMES):
        return None
    return (trained or {}).get(tasks.pairs_or_task(task).trained_as or "")


def is_hidden(distance: Column, noise: Column, computed: Column) -> Column:
    """Which rows are hidden; `computed`: the distance of the two as they came out."""
    return (distance < noise) | (computed == 0)


def hidden_curves(
    table: Frame, per: Per = VECTOR, norm: DistanceNorm = "l2", *, over_seeds: bool = False
) -> Iterator[Curve]:
    """Every curve of a `Collapse`'s table but those of float64, and of rows without their float64
    distance.

    over_seeds: one curve for all seeds: hidden at a length where it is in every seed.

    Raises `InputError` for pieces or a norm that there are not.
    """
    checked_name("per", per, get_args(Per))
    checked_name("norm", norm, NORMS)
    rows = table[(table["per"] == per) & (table["norm"] == norm) & (table["dtype"] != "float64")]
    finite = rows["status"] != OVERFLOWS
    has_noise = rows["float64_distance"].notna() & rows["pair_noise"].notna()
    hidden = is_hidden(rows["float64_distance"], rows["pair_noise"], rows["mean"])
    rows = rows.assign(finite=finite, hidden=hidden)[~finite | has_noise]
    logits = rows[rows["site"] == "logits"]
    flags = [
        logits.assign(site=name, hidden=logits[column].fillna(False).astype(bool))
        for name, column in ((TOP_TOKEN, "same_top_token"), (IDENTICAL, "identical_logits"))
    ]
    rows = pd.concat([rows, *flags]).sort_index(kind="stable").sort_values("length", kind="stable")
    names = [name for name in ONE_CURVE if not (over_seeds and name == "seed")]
    groups: Frame = rows.groupby(names, sort=False)
    for key, group in groups:
        by_length = group[group["finite"]].groupby("length")["hidden"].all()
        values = dict(zip(names, key, strict=True))
        is_finite = bool(group["finite"].all())
        yield Curve(values, by_length.index.tolist(), by_length.tolist(), is_finite)


def deciding(curves: Iterable[Curve]) -> set[tuple[str, int, int]]:
    """(pair, seed, length) of the lengths that decide where a range begins and ends: both ends, and
    the lengths beside them.
    """
    deciding_lengths = set()
    for curve in curves:
        for span in curve.ranges:
            start, end = curve.lengths.index(span.first), curve.lengths.index(span.last)
            lengths = {*curve.lengths[max(start - 1, 0) : start + 1], *curve.lengths[end : end + 2]}
            deciding_lengths |= {(curve.key["pair"], curve.key["seed"], n) for n in lengths}
    return deciding_lengths


def _ends(span: HiddenRange, shortest: int | None = None) -> str:
    """The ends of a range; said with it where it begins at the `shortest` length tried, before
    which it may have begun.
    """
    first = f"{span.first}, the shortest tried," if span.first == shortest else f"{span.first}"
    return f"{first} on, up to {span.last}" if span.open else f"{first} to {span.last}"
