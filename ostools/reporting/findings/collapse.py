"""What collapse curves say: does the distance fall, over which lengths does a dtype hide the pair, what would the model say?

The thresholds behind the words stand here. Whether a pair is hidden is decided by `measure.collapse.verdicts` alone; every
sentence, table and chart reads it from there. A curve that does not fall is said not to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ostools.ground.words import number, ratio
from ostools.measure import Collapse
from ostools.measure.collapse.result import FITTED_FROM, exact_from
from ostools.measure.collapse.verdicts import (
    OVERFLOWS,
    UNDECIDED,
    CurveVerdict,
    Reading,
    behind_all_blocks,
    trained_length,
)
from ostools.results import Column, Frame, frame_of
from ostools.theory.statistics.fits import fit_decay

HALVED, STEADY = 0.5, 0.8
"""The median of a curve's last quarter, as a share of its first quarter's: to HALVED it falls, from STEADY on it does not."""
FEW = 8
"""With fewer lengths than this no trend is claimed."""


LENGTH_DEPENDENT = 1e-5
"""A pass of its own may differ that much, relative: float32's rounding."""
COMPARED = {
    "theorem": "the sequence and y of the sequence with its last token repeated",
    "task": "the task with n items and y of the task with n + 1 (its words stand after the sequence: no theorem applies)",
    "one-more-digit": "the sequence and y of the sequence with one more digit",
}
"""What is compared, by the kind of pair."""


def collapse_findings(result: Collapse, trained: Mapping[str, int] | None = None) -> list[str]:
    """The paragraphs under a collapse curve, at y in L2; `trained`: the longest trained length by task, from a card."""
    pair, verdicts = main_pair(result), verdicts_at_y(result)
    rows, logits = whole(result.measured(), "y"), whole(result.measured(), "logits")
    main = rows[rows["pair"] == pair]
    fall = _fall(
        *_within_training(result, reference_curve(result), trained),
        exact_from(result.reference_curve(pair)),
        COMPARED[pair],
    )
    ends = [_dtype(main, dtype, verdicts.get(dtype)) for dtype in dict.fromkeys(frame_of(result)["dtype"])]
    answers = [_answers(logits[logits["pair"] == pair])] if len(logits) else []
    return [fall, *ends, *answers, *_route_differences(result), *_one_more_digit(result), *_beyond(rows, trained)]


def reading_findings(result: Collapse, reading: Reading) -> list[str]:
    """What is said under a table of another reading than y in L2: over which lengths each precision hides the pair by it."""
    table: Frame = result.verdicts(reading.per, reading.norm)
    table = table[table["site"] == reading.site]
    said = [f"{row.dtype}, {row.pair}, seed {row.seed}: {row.status}" for row in table.itertuples()]
    start = (
        f"Collapse by the {reading.words}: read so, the float64 distance is below the rounding noise of the difference."
    )
    return [start, *said] if said else [f"{start} There is no verdict: float64 alone, or a norm without this noise."]


def verdict_lines(result: Collapse, reading: Reading) -> list[str]:
    """A line a dtype: over which lengths the main pair is hidden by that reading after the last block, all seeds together."""
    pair, last = main_pair(result), int(frame_of(result)["layer"].max())
    every = result.verdicts_over_seeds(reading.per, reading.norm).items()
    task = _task(result)
    return [
        f"{task}, {reading.words}, {dtype}: {verdict.words}."
        for (kind, dtype, site, layer), verdict in every
        if (kind, site, layer) == (pair, reading.site, last)
    ]


@dataclass(frozen=True)
class Case:
    """One prompt in one precision, with its verdict at y."""

    task: str
    dtype: str
    verdict: CurveVerdict


def verdicts_at_y(result: Collapse) -> dict[str, CurveVerdict]:
    """The verdict on the main pair at y by dtype, of all seeds together; float64 is the reference, and has none."""
    pair = main_pair(result)
    every = result.verdicts_over_seeds().items()
    return {dtype: verdict for (kind, dtype, site, _), verdict in every if kind == pair and site == "y"}


def cases(results: Sequence[Collapse]) -> list[Case]:
    """Every prompt in every precision: those with a range first, by where it begins."""
    every = [Case(_task(result), dtype, found) for result in results for dtype, found in verdicts_at_y(result).items()]
    return sorted(every, key=lambda case: case.verdict.ranges[0].first if case.verdict.ranges else math.inf)


def overflow_sentence(dtypes: Iterable[str]) -> str:
    """Said of dtypes of which nothing was measured; empty for none."""
    names = list(dict.fromkeys(dtypes))
    return f"{' and '.join(names)} overflow{'s' * (len(names) == 1)} on this model: not measured." if names else ""


def collapse_summary(results: Sequence[Collapse]) -> list[str]:
    """One sentence over all tasks: on which of them the distance falls."""
    falls: dict[str, list[str]] = {}
    for result, curve in _long_enough(results):
        curve, where = _within_training(result, curve)
        change = fall_ratio(curve)
        verdict = "falls" if change <= HALVED else "falls little" if change < STEADY else "does not fall"
        falls.setdefault(verdict, []).append(f"{_task(result)} ({number(change)}{where})")
    if not falls:
        return []
    verdicts = "; ".join(f"{verdict} on {', '.join(names)}" for verdict, names in falls.items())
    return [
        f"The distance, measured in float64, {verdicts} (in brackets: median of the last quarter of the lengths over that "
        "of the first)."
    ]


def _within_training(result: Collapse, curve: Column, trained: Mapping[str, int] | None = None) -> tuple[Column, str]:
    """The trained lengths alone where they are enough to speak of a trend, and what is to be said of those chosen."""
    model: Any = result.provenance.model
    longest = longest_trained(result, trained or model.get("trained_lengths"))
    if longest is None or int(curve.index[-1]) <= longest:
        return curve, ""
    inside = curve[curve.index <= longest]
    return (
        (inside, f", up to the trained {longest}") if len(inside) >= FEW else (curve, f", beyond the trained {longest}")
    )


def precision_summary(results: Sequence[Collapse]) -> list[str]:
    """Over all tasks: which dtypes hide the pair of n and n + 1 items, and over which lengths."""
    every = cases(results)
    said: dict[str, list[str]] = {}
    for dtype in dict.fromkeys(dtype for result in results for dtype in verdicts_at_y(result)):
        own = [case for case in every if case.dtype == dtype and case.verdict.kind != OVERFLOWS]
        if own:  # dtypes of which the same is true share their words
            said.setdefault(_hidden_on(own), []).append(dtype)
    lines = [f"In {' and '.join(dtypes)} {words}." for words, dtypes in said.items()]
    overflow = overflow_sentence(case.dtype for case in every if case.verdict.kind == OVERFLOWS)
    longest = max((case.verdict.lengths[-1] for case in every if case.verdict.lengths), default=0)
    ends = [f"The lengths go up to n = {longest}."] if lines else []
    return [" ".join([*lines, overflow, *ends]).replace("  ", " ")] if every else []


def _hidden_on(own: Sequence[Case]) -> str:
    """On which prompts one dtype hides the pair."""
    hidden = [f"{case.task} (from {case.verdict.where})" for case in own if case.verdict.ranges]
    undecided = [case.task for case in own if case.verdict.kind == UNDECIDED]
    words = f"the pair is hidden on {', '.join(hidden)}" if hidden else "no range of lengths is hidden on any prompt"
    return f"{words}; not decided on {', '.join(undecided)}" if undecided else words


def _long_enough(results: Sequence[Collapse]) -> list[tuple[Collapse, Column]]:
    """Those with lengths enough to speak of a trend, each with its float64 curve."""
    curves = [(result, reference_curve(result)) for result in results]
    return [(result, curve) for result, curve in curves if len(curve) >= FEW]


def _task(result: Collapse) -> str:
    return str(frame_of(result)["task"].iloc[0])


def main_pair(result: Collapse) -> str:
    """The kind of pair that the result is about: the theorem's where it has some."""
    kinds = set(map(str, frame_of(result)["pair"]))
    return next(kind for kind in ("theorem", "task", "one-more-digit") if kind in kinds)


def reference_curve(result: Collapse, pair: str | None = None, site: str = "y") -> Column:
    """The float64 L2 distance of the given weights by length, the mean over seeds. `pair`: else the result's main kind."""
    return result.reference_curve(pair or main_pair(result), site)["distance"]


def fall_ratio(curve: Column) -> float:
    """Median of the last quarter of the lengths over the median of the first quarter."""
    quarter = max(2, len(curve) // 4)
    return ratio(float(curve.iloc[-quarter:].median()), float(curve.iloc[:quarter].median()))


def whole(rows: Frame, site: str) -> Frame:
    """Whole vectors at that site in L2, of which the theorem speaks, after the last block."""
    rows = behind_all_blocks(rows)
    return rows[(rows["site"] == site) & (rows["per"] == "vector") & (rows["norm"] == "l2")]


def _fall(curve: Column, chosen: str, exact: int | None, compared: str) -> str:
    """How the distance of y of `compared` goes with the length; `chosen`: the lengths that the trend is of, where not all."""
    first, last = float(curve.iloc[0]), float(curve.iloc[-1])
    span = (
        f"Measured in float64, the L2 distance between y of {compared} "
        f"goes from {number(first)} at n = {curve.index[0]} to {number(last)} at n = {curve.index[-1]}{chosen}"
    )
    if exact is not None:
        return (
            f"{span}: from n = {exact} on it is the rounding of float64 itself. The two representations are the same."
        )
    if len(curve) < FEW:
        return f"{span}; {len(curve)} lengths are too few to claim a trend."
    change = fall_ratio(curve)
    share = f"The median of the last quarter of the lengths is {number(change)} times that of the first quarter"
    if change <= HALVED:
        return f"{span}: it falls. {share}{_rate(curve)}."
    if change < STEADY:
        return f"{span}: it falls little. {share}. That is not a collapse over these lengths."
    return (
        f"{span}: it does not fall. {share}. What Theorem 4.2 describes is not seen on this prompt over these lengths."
    )


def _rate(curve: Column) -> str:
    """The law by which the curve falls, with its interval, where one holds."""
    curve = curve[curve.index >= FITTED_FROM]
    found = fit_decay([float(n) for n in curve.index], [float(value) for value in curve])
    law = found.law
    if law is None or found.verdict == "undecided":
        return ". A fit does not decide by which law (a power of n, or an exponential)"
    interval = f"{number(law.rate)}, 95% interval {number(law.low)} to {number(law.high)}"
    shape = f"as n^-k with k = {interval}" if law.name.startswith("power") else f"as e^(-r n) with r = {interval}"
    return f", from n = {FITTED_FROM} on {shape}{f', to a level of {number(law.level)}' if law.level else ''}"


def _dtype(rows: Frame, dtype: str, verdict: CurveVerdict | None) -> str:
    """Whether a dtype hides the pair, and where the distance as measured in it ends, in steps of the dtype."""
    here = rows[rows["dtype"] == dtype]
    if here.empty:
        return overflow_sentence([dtype])
    tail = here[here["length"] >= here["length"].quantile(0.75)]
    end = (
        f"over the last quarter of the lengths the median of the measured distance is {number(float(tail['ulps'].median()))} "
        f"{_steps(dtype)}"
    )
    return f"In {dtype} {end}." if verdict is None else f"In {dtype} the pair is {verdict.words}; {end}."


def _steps(dtype: str) -> str:
    """Whose steps: of a part stored in few bits, those that y would have if it were stored so too."""
    format, _, part = dtype.partition("-")
    return f"steps that {format} would have at the size of y (y itself is float32)" if part else "representable steps"


def _answers(rows: Frame) -> str:
    """What the model itself would say of the two sequences."""
    parts = []
    for dtype, here in rows.groupby("dtype", sort=False):
        same, identical = int(here["same_top_token"].sum()), int(here["identical_logits"].sum())
        bits = f" (bit-identical logits at {identical})" if identical else ""
        what = "lengths" if here["seed"].nunique() == 1 else "pairs (lengths and seeds)"
        parts.append(f"in {dtype} at {same} of {len(here)} {what}{bits}")
    return (
        f"The most likely next token is the same for both sequences {', '.join(parts)}; their next-token distributions "
        f"differ by at most {number(float(rows['total_variation'].max()))} in L1 (2 would be disjoint)."
    )


def _route_differences(result: Collapse) -> list[str]:
    """How far rows of the shared pass are from passes of their own, where that is more than float32's rounding."""
    given = result.provenance.parameters.get("difference_at_probed_lengths", {})
    seen = {name: value for name, value in given.items() if value > LENGTH_DEPENDENT}
    if not seen:
        return []
    parts = ", ".join(f"{number(value)} in {name}" for name, value in seen.items())
    return [
        "Kernels may round differently at another length. If a prompt has a pass of its own, its y differs from these rows by "
        f"up to {parts} (relative L2, at the probed lengths)."
    ]


def _one_more_digit(result: Collapse) -> list[str]:
    other, theorem = (reference_curve(result, pair) for pair in ("one-more-digit", "theorem"))
    if other.empty:
        return []
    said = (
        "The pair with one more digit after a separator is another question: its prompts differ by two tokens, so no theorem "
        f"applies. Its measured distance has a median of {number(float(other.median()))}"
    )
    if theorem.empty:
        return [f"{said}."]
    beside = float(theorem[theorem.index.isin(list(other.index))].median())
    times = number(ratio(float(other.median()), beside))
    return [f"{said}, {times} times the theorem pair's {number(beside)} at the same lengths."]


def longest_trained(result: Collapse, trained: Mapping[str, int] | None) -> int | None:
    """The longest sequence of this task that the model was trained on, in items; None where its card does not say."""
    return trained_length(_task(result), trained)


def _beyond(rows: Frame, trained: Mapping[str, int] | None) -> list[str]:
    longest = None if rows.empty else trained_length(str(rows["task"].iloc[0]), trained)
    if longest is None:
        return []
    if int(rows["length"].max()) <= longest:
        return [f"All of these lengths lie inside what the model was trained on (up to {longest})."]
    return [
        f"The model was trained on this prompt up to n = {longest}. Longer lengths say little about over-squashing."
    ]
