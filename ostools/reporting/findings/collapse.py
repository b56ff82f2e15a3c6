"""Sentences on collapse curves: over which lengths a dtype hides the pair, and whether the distance
falls.

Two words, with one meaning each. Falls: in exact arithmetic, which float64 stands for, the distance
is less at long lengths than at short ones. Hidden: in a dtype the pair is closer than rounding
moves it. Neither follows from the other.

Whether a pair is hidden is decided by `measure.collapse.verdicts` alone; every sentence, table and
chart reads it from there. The thresholds behind the other words stand here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ostools.ground.words import number, ratio
from ostools.measure import Collapse
from ostools.measure.collapse.result import FITTED_FROM, exact_from, next_tokens
from ostools.measure.collapse.verdicts import (
    OVERFLOWS,
    UNDECIDED,
    CurveVerdict,
    Reading,
    behind_all_blocks,
    trained_length,
)
from ostools.reporting.findings.answers import task_of
from ostools.reporting.findings.position import where_read
from ostools.results import Column, Frame, Row, frame_of
from ostools.theory.statistics.fits import fit_decay

HALVED, STEADY = 0.5, 0.8
"""The last quarter's median over the first's: to HALVED the curve falls, from STEADY on it does
not.
"""
FEW = 8
"""With fewer lengths no trend is claimed."""
LENGTH_DEPENDENT = 1e-5
"""Relative difference that a pass of its own may have: float32's rounding."""
_NOT_SEEN = " What Theorem 4.2 describes is not seen on this prompt over these lengths."
COMPARED = {
    "theorem": "the sequence and y of the sequence with its last token repeated",
    "task": "the task with n items and y of the task with n + 1 (two questions of the task: no theorem is claimed of them)",
    "one-more-digit": "the sequence and y of the sequence with one more digit",
}


# --- what the sentences are made of


@dataclass(frozen=True)
class Case:
    """One prompt in one precision, with its verdict at y."""

    task: str
    dtype: str
    verdict: CurveVerdict


def main_pair(result: Collapse) -> str:
    """The kind of pair that the result is about: the theorem's where it has some."""
    kinds = set(map(str, frame_of(result)["pair"]))
    return next(kind for kind in COMPARED if kind in kinds)


def verdicts_at_y(result: Collapse) -> dict[str, CurveVerdict]:
    """The verdict on the main pair by dtype, over all seeds; float64 is the reference and has none."""
    pair, verdicts = main_pair(result), result.verdicts_over_seeds().items()
    return {
        dtype: verdict
        for (kind, dtype, site, _), verdict in verdicts
        if kind == pair and site == "y"
    }


def cases(results: Sequence[Collapse]) -> list[Case]:
    """Every prompt in every precision: those with a range first, by where it begins."""
    all_cases = [
        Case(task_of(result), dtype, verdict)
        for result in results
        for dtype, verdict in verdicts_at_y(result).items()
    ]
    return sorted(
        all_cases,
        key=lambda case: case.verdict.ranges[0].first if case.verdict.ranges else math.inf,
    )


def tails(result: Collapse) -> Frame:
    """One row a measured precision but float64, in their order: medians of L2 at y over the last
    quarter of the lengths.

    exact, stored: the float64 distance with the weights as given, and as this precision stores
        them.
    weight_shift: how far storing moves y and y* alike. noise: of running in this precision.
    pair_noise: of y - y*. margin: stored over pair_noise.
    """
    pair = main_pair(result)
    frame = vectors_at(result.measured(), "y")
    frame = frame[(frame["pair"] == pair) & (frame["dtype"] != "float64")]
    exact: Frame = result.reference
    start = frame["length"].quantile(0.75)
    exact = exact[(exact["pair"] == pair) & (exact["site"] == "y") & (exact["length"] >= start)]
    medians = exact.groupby(["weights", "length"])["distance"].mean().groupby("weights").median()
    columns = ["weight_shift", "noise", "pair_noise"]
    table = frame[frame["length"] >= start].groupby("dtype", sort=False)[["weights", *columns]]
    table = (
        table.agg({"weights": "first", **dict.fromkeys(columns, "median")})
        .fillna({"weight_shift": 0.0})
        .reset_index()
    )
    stored = table["weights"].map(medians)
    margin = [
        ratio(distance, noise) for distance, noise in zip(stored, table["pair_noise"], strict=True)
    ]
    return table.assign(exact=medians.get("given"), stored=stored, margin=margin)[
        ["dtype", "exact", "stored", *columns, "margin"]
    ]


def reference_curve(result: Collapse, pair: str | None = None) -> Column:
    """The float64 L2 distance of y by length, mean over seeds; `pair`: else the main kind."""
    return result.reference_curve(pair or main_pair(result), "y")["distance"]


def fall_ratio(curve: Column) -> float:
    """Median of the last quarter of the lengths over the median of the first quarter."""
    quarter = max(2, len(curve) // 4)
    return ratio(float(curve.iloc[-quarter:].median()), float(curve.iloc[:quarter].median()))


def vectors_at(rows: Frame, site: str) -> Frame:
    """Rows of whole vectors at that site in L2, after the last block."""
    rows = behind_all_blocks(rows)
    return rows[(rows["site"] == site) & (rows["per"] == "vector") & (rows["norm"] == "l2")]


def longest_trained(result: Collapse) -> int | None:
    """The longest trained sequence of this task, in items; None where the card does not say."""
    return trained_length(task_of(result), result.provenance.model.get("trained_lengths"))


def overflow_sentence(dtypes: Iterable[str]) -> str:
    """Sentence on dtypes of which nothing was measured; empty for none."""
    names = list(dict.fromkeys(dtypes))
    return (
        f"{' and '.join(names)} overflow{'s' * (len(names) == 1)} on this model: not measured."
        if names
        else ""
    )


def _trend_lengths(result: Collapse, curve: Column) -> tuple[Column, str]:
    """The trained lengths alone where they are enough for a trend, and words that say which."""
    longest = longest_trained(result)
    if longest is None or int(curve.index[-1]) <= longest:
        return curve, ""
    inside = curve[curve.index <= longest]
    if len(inside) >= FEW:
        return inside, f", up to the trained {longest}"
    return curve, f", beyond the trained {longest}"


# --- one prompt


def result_findings(result: Collapse) -> list[str]:
    """Findings of a collapse by its own reading, or else at y in L2."""
    if result.reading is not None:
        return reading_findings(result, result.reading)
    return collapse_findings(result)


def collapse_findings(result: Collapse) -> list[str]:
    """The verdict, where y was read, whether the distance falls, each dtype's verdict, and the
    likeliest next tokens.
    """
    pair = main_pair(result)
    curve, lengths_words = _trend_lengths(result, reference_curve(result))
    logits = vectors_at(result.measured(), "logits")
    sentences = [
        pair_verdict([result]),
        " ".join(where_read(result.provenance.parameters, next_tokens(result))),
        _fall(curve, lengths_words, exact_from(result.reference_curve(pair)), COMPARED[pair]),
        " ".join([*_dtypes(result), *_route_differences(result)]),
        _answers(logits[logits["pair"] == pair]) if len(logits) else "",
    ]
    return [sentence for sentence in sentences if sentence]


def pair_verdict(results: Sequence[Collapse]) -> str:
    """Over which lengths a precision hides the pair, of the range that begins first; else how far
    the nearest is from that.
    """
    all_cases = cases(results)
    overflow = overflow_sentence(case.dtype for case in all_cases if case.verdict.kind == OVERFLOWS)
    first = next((case for case in all_cases if case.verdict.ranges), None)
    undecided = next((case for case in all_cases if case.verdict.kind == UNDECIDED), None)
    nearest = nearest_to_noise(results)
    if first is not None:
        count = sum(bool(case.verdict.ranges) for case in all_cases)
        measured = sum(case.verdict.kind != OVERFLOWS for case in all_cases)
        verdict = (
            f"{first.dtype} hides the difference between n and n + 1 items of {first.task}: {first.verdict.words}. There is a "
            f"range of lengths in {count} of {measured} cases (a prompt in a precision)."
        )
    elif undecided is not None:
        verdict = f"On {undecided.task} in {undecided.dtype} the pair is {undecided.verdict.words}."
    elif nearest is not None:
        result, tail = nearest
        verdict = (
            f"No precision hides the pair over a range of lengths up to n = {longest(results)}: {tail['dtype']} on "
            f"{task_of(result)} comes nearest, its distance {number(tail['margin'])} times the rounding noise of the "
            "difference (last quarter of lengths)."
        )
        single = [
            f"{case.task} in {case.dtype} is {case.verdict.words}"
            for case in all_cases
            if case.verdict.hidden
        ]
        verdict += f" {'; '.join(single)}." if single else ""
    else:
        return f"Whether a precision hides the pair was not tested. {overflow}".strip()
    return f"{verdict} {overflow}".strip()


def longest(results: Sequence[Collapse]) -> int:
    """The largest number of items of these results."""
    return max(int(frame_of(result)["length"].max()) for result in results)


def reading_findings(result: Collapse, reading: Reading) -> list[str]:
    """Findings of another reading than y in L2: over which lengths each precision hides the main
    pair after the last block.
    """
    pair, last = main_pair(result), int(frame_of(result)["layer"].max())
    lines = [
        f"{dtype}: {verdict.words}."
        for (kind, dtype, site, layer), verdict in result.verdicts_over_seeds(
            reading.per, reading.norm
        ).items()
        if (kind, site, layer) == (pair, reading.site, last)
    ]
    start = f"By the {reading.words}, a pair is hidden where the float64 distance is below the rounding noise of it."
    verdicts = (
        " ".join(lines) or "There is no verdict: float64 alone, or a norm without this noise."
    )
    where = " ".join(where_read(result.provenance.parameters, next_tokens(result)))
    return [sentence for sentence in (where, f"{start} {verdicts}") if sentence]


def _fall(curve: Column, lengths_words: str, exact: int | None, compared: str) -> str:
    """How the distance goes with the length; `exact`: from where on it is float64's rounding."""
    start, end = curve.index[0], curve.index[-1]
    span = (
        f"In exact arithmetic (float64) the L2 distance between y of {compared} goes from {number(float(curve.iloc[0]))} at "
        f"n = {start} to {number(float(curve.iloc[-1]))} at n = {end}{lengths_words}"
    )
    if exact is not None:
        return f"{span}: from n = {exact} on it is the rounding of float64 itself. The two representations are the same."
    if len(curve) < FEW:
        return f"{span}; {len(curve)} lengths are too few to claim a trend."
    change = fall_ratio(curve)
    trend = _trend(change)
    law = _rate(curve) if trend == "falls" else ""
    share = f"The median of the last quarter of the lengths is {number(change)} times that of the first quarter{law}."
    not_seen = _NOT_SEEN if compared == COMPARED["theorem"] and trend == "does not fall" else ""
    return f"{span}: it {trend}. {share}{not_seen}"


def _trend(change: float) -> str:
    """Whether a curve falls, in words, by its `fall_ratio`."""
    return "falls" if change <= HALVED else "falls little" if change < STEADY else "does not fall"


def _rate(curve: Column) -> str:
    """The law by which the curve falls, with its interval, where a fit decides."""
    curve = curve[curve.index >= FITTED_FROM]
    fit = fit_decay([float(n) for n in curve.index], [float(value) for value in curve])
    law = fit.law
    if law is None or fit.verdict == "undecided":
        return ". A fit does not decide by which law (a power of n, or an exponential)"
    interval = f"{number(law.rate)}, 95% interval {number(law.low)} to {number(law.high)}"
    shape = (
        f"as n^-k with k = {interval}"
        if law.name.startswith("power")
        else f"as e^(-r n) with r = {interval}"
    )
    return f", from n = {FITTED_FROM} on {shape}{f', to a level of {number(law.level)}' if law.level else ''}"


def _dtypes(result: Collapse) -> list[str]:
    """Whether each dtype hides the pair, and the distance measured in it at the end, in its
    representable steps.
    """
    verdicts, rows = verdicts_at_y(result), vectors_at(result.measured(), "y")
    rows = rows[rows["pair"] == main_pair(result)]
    sentences = []
    for dtype, of_dtype in rows.groupby("dtype", sort=False):
        steps = float(
            of_dtype[of_dtype["length"] >= of_dtype["length"].quantile(0.75)]["ulps"].median()
        )
        verdict = f" the pair is {verdicts[str(dtype)].words};" if dtype in verdicts else ""
        sentences.append(
            f"In {dtype}{verdict} the median distance over the last quarter of the lengths is {number(steps)} representable "
            f"steps of {str(dtype).partition('-')[0]}."
        )
    return sentences


def _answers(rows: Frame) -> str:
    """At how many lengths the likeliest next token is the same for both sequences."""
    parts = []
    for dtype, dtype_rows in rows.groupby("dtype", sort=False):
        same, identical = (
            int(dtype_rows[name].sum()) for name in ("same_top_token", "identical_logits")
        )
        bits = f" (bit-identical logits at {identical})" if identical else ""
        unit = "lengths" if dtype_rows["seed"].nunique() == 1 else "pairs (lengths and seeds)"
        parts.append(f"in {dtype} at {same} of {len(dtype_rows)} {unit}{bits}")
    return (
        f"The most likely next token is the same for both sequences {', '.join(parts)}; their next-token distributions "
        f"differ by at most {number(float(rows['total_variation'].max()))} in L1 (2 would be disjoint)."
    )


def _route_differences(result: Collapse) -> list[str]:
    """How far the shared pass is from separate passes, where that is more than float32's rounding."""
    differences = result.provenance.parameters.get("difference_at_probed_lengths", {})
    large = {name: value for name, value in differences.items() if value > LENGTH_DEPENDENT}
    if not large:
        return []
    parts = ", ".join(f"{number(value)} in {name}" for name, value in large.items())
    return [
        "Kernels may round differently at another length. If a prompt has a pass of its own, its y differs from these rows by "
        f"up to {parts} (relative L2, at the probed lengths)."
    ]


# --- all prompts


def collapse_summary(results: Sequence[Collapse]) -> list[str]:
    """One sentence over all tasks: on which of them the distance falls."""
    tasks_by_trend: dict[str, list[str]] = {}
    for result in results:
        curve = reference_curve(result)
        if len(curve) < FEW:
            continue
        curve, lengths_words = _trend_lengths(result, curve)
        change = fall_ratio(curve)
        tasks_by_trend.setdefault(_trend(change), []).append(
            f"{task_of(result)} ({number(change)}{lengths_words})"
        )
    if not tasks_by_trend:
        return []
    trends = "; ".join(f"{trend} on {', '.join(names)}" for trend, names in tasks_by_trend.items())
    return [
        f"The distance, measured in float64, {trends} (in brackets: median of the last quarter of the lengths over that of "
        "the first)."
    ]


def nearest_to_noise(results: Sequence[Collapse]) -> tuple[Collapse, Row] | None:
    """The prompt, and of `tails` the precision, whose pair is nearest to the rounding noise at the
    end of the lengths.
    """
    pairs = [(result, tail) for result in results for _, tail in tails(result).iterrows()]
    return min(pairs, key=lambda pair: pair[1]["margin"], default=None)
