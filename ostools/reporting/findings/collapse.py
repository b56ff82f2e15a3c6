"""Sentences on collapse curves: over which lengths a dtype hides the pair, and whether the distance
falls.

Two words, with one meaning each. Falls: in exact arithmetic, which float64 stands for, the distance
is less at long lengths than at short ones. Hidden: in a dtype the pair is closer than rounding
moves it. Neither follows from the other.

Whether a pair is hidden is decided by `measure.collapse.verdicts` alone; every sentence, table and
chart reads it from there. The thresholds behind the other words stand here.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from ostools.ground import number, ratio
from ostools.measure import Collapse
from ostools.measure.collapse.result import (
    FITTED_FROM,
    exact_from,
    next_tokens,
    seeds_of_every_length,
)
from ostools.measure.collapse.verdicts import (
    OVERFLOWS,
    UNDECIDED,
    Curve,
    behind_all_blocks,
    trained_length,
)
from ostools.reporting.findings import present, where_read
from ostools.reporting.findings.answers import task_of
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
COMPARED = {
    "theorem": "the sequence and y of the sequence with its last token repeated",
    "task": (
        "the task with n items and y of the task with n + 1 (two questions of the task: no "
        "theorem is claimed of them)"
    ),
    "one-more-digit": "the sequence and y of the sequence with one more digit",
}


# --- what the sentences are made of


def main_pair(result: Collapse) -> str:
    """The kind of pair that the result is about: the theorem's where it has some."""
    kinds = set(map(str, frame_of(result)["pair"]))
    return next(kind for kind in COMPARED if kind in kinds)


def verdicts_at_y(result: Collapse) -> dict[str, Curve]:
    """Verdict on the main pair by dtype, over all seeds; float64, the reference, has none."""
    pair = main_pair(result)
    return {
        dtype: verdict
        for (kind, dtype, site, _), verdict in result.verdicts_over_seeds().items()
        if kind == pair and site == "y"
    }


def by_first_hidden(results: Sequence[Collapse]) -> list[tuple[str, str, Curve]]:
    """Task, dtype and verdict at y of every prompt in every precision: those with a range first, by
    where it begins; then those not decided; then by at how many lengths the pair is hidden.
    """
    cases = [
        (task_of(result), dtype, verdict)
        for result in results
        for dtype, verdict in verdicts_at_y(result).items()
    ]
    return sorted(cases, key=lambda case: _order(case[2]))


def _order(verdict: Curve) -> tuple[float, bool, int]:
    if verdict.ranges:
        return float(verdict.ranges[0].first), False, 0
    return math.inf, verdict.kind != UNDECIDED, -sum(verdict.hidden)


def tails(result: Collapse) -> Frame:
    """One row a measured precision but float64, in their order: medians of L2 at y over the last
    quarter of the lengths.

    float64_distance: with the weights as this precision stores them. weight_shift: how far storing
        moves y and y* alike. noise: of running in this precision. pair_noise: of y - y*. margin:
        float64_distance over pair_noise.
    """
    rows = vectors_at(result.measured(), "y")
    rows = rows[(rows["pair"] == main_pair(result)) & (rows["dtype"] != "float64")]
    rows = rows[rows["length"] >= rows["length"].quantile(0.75)]
    columns = ["float64_distance", "weight_shift", "noise", "pair_noise"]
    table = rows.groupby("dtype", sort=False)[columns].median().reset_index()
    return table.assign(margin=list(map(ratio, table["float64_distance"], table["pair_noise"])))


def nearest_to_noise(results: Sequence[Collapse]) -> tuple[Collapse, Row] | None:
    """The prompt, and of `tails` the precision, whose pair is nearest to the rounding noise at the
    end of the lengths.
    """
    pairs = [(result, tail) for result in results for _, tail in tails(result).iterrows()]
    return min(pairs, key=lambda pair: pair[1]["margin"], default=None)


def vectors_at(rows: Frame, site: str) -> Frame:
    """Rows of whole vectors at that site in L2, after the last block."""
    rows = behind_all_blocks(rows)
    return rows[(rows["site"] == site) & (rows["per"] == "vector") & (rows["norm"] == "l2")]


def longest_trained(result: Collapse) -> int | None:
    """The longest trained sequence of this task, in items; None where the card does not say."""
    return trained_length(task_of(result), result.provenance.model.get("trained_lengths"))


def longest(results: Sequence[Collapse]) -> int:
    """The largest number of items of these results."""
    return max(int(frame_of(result)["length"].max()) for result in results)


def overflow_sentence(dtypes: Iterable[str]) -> str:
    """Sentence on dtypes of which nothing was measured; empty for none."""
    names = dict.fromkeys(dtypes)
    return " ".join(f"{name} overflows on this model: not measured." for name in names)


# --- one prompt


def collapse_findings(result: Collapse) -> list[str]:
    """The verdict, where y was read, whether the distance falls, each dtype's verdict where there
    are several and how far a pass of its own differs, and the likeliest next tokens.
    """
    verdicts, parameters = verdicts_at_y(result).items(), result.provenance.parameters
    dtypes = [f"In {dtype} the pair is {verdict.words}." for dtype, verdict in verdicts]
    differences = parameters.get("difference_at_probed_lengths", {})
    most = max(differences.values(), default=0.0)
    route = (
        "Kernels may round differently at another length. If a prompt has a pass of its own, its "
        f"y differs from these rows by up to {number(most)} (relative L2, at the probed lengths)."
    )
    return present(
        pair_verdict([result]),
        where_read(parameters, next_tokens(result)),
        _fall(result),
        " ".join(dtypes * (len(dtypes) > 1) + [route] * (most > LENGTH_DEPENDENT)),
        _answers(result),
    )


def pair_verdict(results: Sequence[Collapse]) -> str:
    """Over which lengths a precision hides the pair, of the range that begins first; without a
    range at how many lengths; else how far the nearest is from that.
    """
    cases = by_first_hidden(results)
    nearest = nearest_to_noise(results)
    words = "Whether a precision hides the pair was not tested."
    if cases and cases[0][2].ranges:
        task, dtype, verdict = cases[0]
        words = (
            f"{dtype} hides the difference between n and n + 1 items of {task}: {verdict.words}."
        )
    elif cases and any(cases[0][2].hidden):
        task, dtype, verdict = cases[0]
        words = f"On {task} in {dtype} the pair is {verdict.words}."
    elif nearest is not None:
        result, tail = nearest
        finite = [case for case in cases if case[2].kind != OVERFLOWS]
        length_count = max(len(verdict.lengths) for *_, verdict in finite)
        dtypes = " or ".join(dict.fromkeys(dtype for _, dtype, _ in finite))
        words = (
            f"n and n + 1 items are told apart in {dtypes}: hidden at none of the "
            f"{length_count} lengths tried, up to n = {longest(results)}. {tail['dtype']} on "
            f"{task_of(result)} comes nearest, its distance "
            f"{number(tail['margin'])} times the rounding noise of the difference (last quarter "
            "of lengths)."
        )
    overflow = overflow_sentence(dtype for _, dtype, verdict in cases if verdict.kind == OVERFLOWS)
    return f"{words} {overflow}".strip()


def _trend(result: Collapse) -> tuple[Column, float, str]:
    """The float64 L2 distance of y by length, mean over seeds, at the trained lengths alone where
    there are some; the last quarter's median over the first quarter's, and whether it falls: empty
    of few lengths, of which no trend is claimed. Lengths that lie closer than others (1, 2, 3, ...,
    16, 32, 48) would fill a quarter: of these some are left out.
    """
    curve: Column = result.reference_curve(main_pair(result))["distance"]
    trained = longest_trained(result)
    if trained is not None and len(inside := curve[curve.index <= trained]):
        curve = inside
    even = curve[_evenly_spread(curve.index.tolist())]
    if len(even) < FEW:
        return curve, math.nan, ""
    quarter = len(even) // 4
    change = ratio(float(even.iloc[-quarter:].median()), float(even.iloc[:quarter].median()))
    falls = "falls" if change <= HALVED else "falls little" if change < STEADY else "does not fall"
    return curve, change, falls


def _evenly_spread(lengths: list[int]) -> list[int]:
    """The lengths, from the longest down, that lie at least half the widest gap apart."""
    least = max((after - n for n, after in pairwise(lengths)), default=0) / 2
    spread = lengths[-1:]
    for n in reversed(lengths):
        if spread[0] - n >= max(least, 1):
            spread.insert(0, n)
    return spread


def _fall(result: Collapse) -> str:
    """How the distance goes with the length, and by which law."""
    curve, change, trend = _trend(result)
    pair, complete = main_pair(result), len(seeds_of_every_length(result))
    if not complete:
        return "Whether the distance falls was not tested: no text has every length."
    exact = exact_from(result.reference_curve(pair))
    seeds = frame_of(result)["seed"].nunique()
    which = f", over the {complete} of {seeds} texts that have every length," * (complete < seeds)
    span = (
        f"In exact arithmetic (float64) the L2 distance between y of {COMPARED[pair]}{which} goes "
        f"from {number(float(curve.iloc[0]))} at n = {curve.index[0]} to "
        f"{number(float(curve.iloc[-1]))} at n = {curve.index[-1]}"
    )
    if exact is not None:
        return (
            f"{span}: from n = {exact} on it is the rounding of float64 itself. The two "
            "representations are the same."
        )
    evenly, of_all = len(_evenly_spread(curve.index.tolist())), ""
    if evenly < len(curve):
        of_all = f"{evenly} evenly spread of the "
    if not trend:
        return f"{span}; {of_all}{len(curve)} lengths are too few to claim a trend."
    lengths = f"{of_all}{len(curve)} lengths" if of_all else "lengths"
    return (
        f"{span}: it {trend}. The median of the last quarter of the {lengths} is {number(change)} "
        f"times that of the first quarter{_rate(curve) if trend == 'falls' else ''}."
    )


def _rate(curve: Column) -> str:
    """The law by which the curve falls, with its interval, where a fit decides."""
    curve = curve[curve.index >= FITTED_FROM]
    fit = fit_decay([float(n) for n in curve.index], [float(value) for value in curve])
    law = fit.law
    if law is None or fit.verdict == "undecided":
        return ". A fit does not decide by which law (a power of n, or an exponential)"
    form = "n^-k with k" if law.name.startswith("power") else "e^(-r n) with r"
    level = f", to a level of {number(law.level)}" if law.level else ""
    return (
        f", from n = {FITTED_FROM} on as {form} = {number(law.rate)}, 95% interval "
        f"{number(law.low)} to {number(law.high)}{level}"
    )


def _answers(result: Collapse) -> str:
    """At how many pairs the likeliest next token is the same for both sequences; empty where no
    logits were compared.
    """
    rows = vectors_at(result.measured(), "logits")
    rows = rows[rows["pair"] == main_pair(result)]
    counts = rows.groupby("dtype", sort=False)["same_top_token"].agg(["sum", "size"])
    parts = ", ".join(
        f"in {dtype} at {same} of {size}" for dtype, same, size in counts.itertuples()
    )
    return bool(parts) * (
        f"The most likely next token is the same for both sequences {parts} pairs; their "
        f"next-token distributions differ by at most {number(float(rows['total_variation'].max()))}"
        " in L1 (2 would be disjoint)."
    )


# --- all prompts


def collapse_summary(results: Sequence[Collapse]) -> list[str]:
    """One sentence over all tasks: on which of them the distance falls."""
    trends = [(task_of(result), *_trend(result)) for result in results]
    words = "; ".join(
        f"{trend} on {task} ({number(change)}, up to n = {curve.index[-1]})"
        for task, curve, change, trend in trends
        if trend
    )
    sentence = (
        f"The distance, measured in float64, {words} (in brackets: median of the last quarter of "
        "evenly spread lengths over that of the first)."
    )
    return [sentence] if words else []
