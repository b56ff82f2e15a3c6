"""What collapse curves say: does the distance fall, where does a dtype stop, what would the model say?

The thresholds behind the words stand here. A curve that does not fall is said not to, and a collapse length that was
not reached is said not to be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ostools import tasks
from ostools.ground.words import number, ratio
from ostools.measure import Collapse
from ostools.measure.collapse.readings import Reading, behind_all_blocks
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
    from ostools.measure.collapse.collapse import exact_from

    rows, pair = whole(frame_of(result), "y"), main_pair(result)
    main = rows[rows["pair"] == pair]
    logits, ends = whole(frame_of(result), "logits"), collapse_ends(result)
    said = [
        _fall(
            *_within_training(result, reference_curve(result), trained),
            exact_from(result.reference_curve(pair)),
            COMPARED[pair],
        ),
        *(_stop(main, dtype, ends.get(dtype)) for dtype in dict.fromkeys(main["dtype"])),
        _answers(logits[logits["pair"] == pair]),
    ]
    return [*said, *_route_differences(result), *_one_more_digit(result), *_beyond(rows, trained)]


def reading_findings(result: Collapse, reading: Reading) -> list[str]:
    """What is said under a table of another reading than y in L2: where each precision collapses by it."""
    lengths: Frame = result.collapse_lengths(reading.per, reading.norm)
    lengths = lengths[lengths["site"] == reading.site]
    said = [f"{row.dtype}, {row.pair}, seed {row.seed}: {row.status}" for row in lengths.itertuples()]
    start = f"Collapse by the {reading.words}: read so, the float64 distance stays below the rounding noise of the run."
    return [start, *said] if said else [f"{start} Only float64 was measured, and float64 is the reference."]


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
    longest = trained_length(result, trained or model.get("trained_lengths"))
    if longest is None or int(curve.index[-1]) <= longest:
        return curve, ""
    inside = curve[curve.index <= longest]
    return (
        (inside, f", up to the trained {longest}") if len(inside) >= FEW else (curve, f", beyond the trained {longest}")
    )


def precision_summary(results: Sequence[Collapse]) -> list[str]:
    """Over all tasks: which dtypes cannot tell n items from n + 1, and from which length on."""
    said: dict[str, list[str]] = {}
    ends = {_task(result): (collapse_ends(result), int(curve.index[-1])) for result, curve in _long_enough(results)}
    for dtype in dict.fromkeys(dtype for found, _ in ends.values() for dtype in found):
        reached = [f"{task} (from n = {found[dtype]})" for task, (found, _) in ends.items() if found.get(dtype)]
        # Dtypes of which the same is true share their words.
        said.setdefault(", ".join(reached), []).append(dtype)
    n_max = max((n for _, n in ends.values()), default=0)
    below, above = (
        "falls below the rounding noise of each sequence on",
        "does not fall below the rounding noise on any prompt",
    )
    lines = [
        f"In {' and '.join(dtypes)} the float64 distance {f'{below} {where}' if where else above}"
        for where, dtypes in said.items()
    ]
    return [f"{'. '.join(lines)}. The lengths go up to n = {n_max}."] if lines else []


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


def collapse_ends(result: Collapse, which: str = "collapse_length") -> dict[str, int | None]:
    """The collapse length of the main pair at y by dtype: the greatest over seeds, None where a seed did not reach it."""
    table: Frame = result.collapse_lengths()
    table = table[(table["site"] == "y") & (table["pair"] == main_pair(result))]
    reached = {str(dtype): rows[which] for dtype, rows in table.groupby("dtype", sort=False)}
    return {dtype: None if bool(ends.isna().any()) else int(ends.max()) for dtype, ends in reached.items()}


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
    from ostools.measure.collapse.collapse import FITTED_FROM

    curve = curve[curve.index >= FITTED_FROM]
    found = fit_decay([float(n) for n in curve.index], [float(value) for value in curve])
    law = found.law
    if law is None or found.verdict == "undecided":
        return ". A fit does not decide by which law (a power of n, or an exponential)"
    interval = f"{number(law.rate)}, 95% interval {number(law.low)} to {number(law.high)}"
    shape = f"as n^-k with k = {interval}" if law.name.startswith("power") else f"as e^(-r n) with r = {interval}"
    return f", from n = {FITTED_FROM} on {shape}{f', to a level of {number(law.level)}' if law.level else ''}"


def _stop(rows: Frame, dtype: str, length: int | None) -> str:
    """Where the distance as measured in a dtype ends, in steps of the dtype, and whether the collapse length was reached."""
    here = rows[rows["dtype"] == dtype]
    tail = here[here["length"] >= here["length"].quantile(0.75)]
    end = (
        f"In {dtype}, over the last quarter of the lengths, the median of the measured distance is "
        f"{number(float(tail['ulps'].median()))} {_steps(dtype)}"
    )
    if dtype == "float64":
        return f"{end}."
    if length is None:
        return f"{end}; collapse in {dtype} was not reached by n = {int(here['length'].max())}."
    return (
        f"{end}; the float64 distance (of the weights as stored in {dtype}) lies below the rounding noise from n = {length} "
        f"on. This is the collapse length in {dtype}."
    )


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


def trained_length(result: Collapse, trained: Mapping[str, int] | None) -> int | None:
    """The longest sequence of this task that the model was trained on, in items; None where its card does not say."""
    return _trained_on(frame_of(result), trained)


def _trained_on(rows: Frame, trained: Mapping[str, int] | None) -> int | None:
    name = "" if rows.empty else str(rows["task"].iloc[0])
    known = tasks.task(name, tasks.CollapseTask).trained_as if name in tasks.COLLAPSE_TASKS else None
    return None if known is None else (trained or {}).get(known)


def _beyond(rows: Frame, trained: Mapping[str, int] | None) -> list[str]:
    longest = _trained_on(rows, trained)
    if longest is None:
        return []
    if int(rows["length"].max()) <= longest:
        return [f"All of these lengths lie inside what the model was trained on (up to {longest})."]
    return [
        f"The model was trained on this prompt up to n = {longest}. Longer lengths say little about over-squashing."
    ]
