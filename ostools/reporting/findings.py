"""What the numbers say, in sentences computed from them: also, and first of all, when they do not say what the theory says.

Every function takes a result (or its table) and returns sentences of plain text. A measured number is called measured, a bound
certified, the paper's form the paper's, a prediction predicted. The thresholds behind the words stand in this file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ostools.reporting.frames import Column, Frame, frame_of
from ostools.reporting.theme import display_token

if TYPE_CHECKING:
    from ostools.measure import Collapse, Comparison, Sensitivity

HALVED = 0.5
"""A curve falls where its last quarter lies below this share of its first quarter (medians); `STEADY` and above: it does not."""
STEADY = 0.8
LOOSE = 3.0
"""From a median looseness of 10^3 on, a bound is said to tell nothing of the size."""
CLOSE, ROUGH = 0.1, 0.5
"""A prediction within 10^0.1 (26%) of the measured size in the median is close; beyond 10^0.5 (a factor of 3) it misses."""


def number(value: float) -> str:
    """Three significant digits, without an exponent where it can be read so."""
    if value != value:
        return "unknown"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    digits, power = f"{value:.2g}".split("e") if "e" in f"{value:.2g}" else (f"{value:.1e}".split("e"))
    return f"{digits}e{int(power)}"


def factor(log10: float) -> str:
    """A looseness as a factor: the power of ten and, where it is small, the number itself."""
    if math.isinf(log10):
        return "infinitely many"
    return f"{10**log10:.2g}" if abs(log10) < 2 else f"10^{log10:.1f}"


# --- collapse --------------------------------------------------------------------------------------------------------


def collapse_findings(result: Collapse, trained: Mapping[str, int] | None = None) -> list[str]:
    """What a collapse curve shows: does it fall, where does each dtype stop, does the model's answer change?

    `trained` is the model's longest trained length by task, where its card knows it.
    """
    rows = frame_of(result)
    rows = rows[(rows["site"] == "y") & (rows["per"] == "vector") & (rows["norm"] == "l2")]
    theorem = rows[rows["pair"] == "theorem"]
    said = []
    if not theorem.empty:
        exact = _most_exact(theorem)
        said.append(_fall(_curve(theorem, exact), exact))
        said += [_stop(theorem, dtype, _collapse_length(result, dtype)) for dtype in dict.fromkeys(theorem["dtype"])]
        said.append(_answers(theorem))
    said += _one_more_digit(rows)
    said += _beyond(rows, trained)
    return said


def _most_exact(rows: Frame) -> str:
    return next(dtype for dtype in ("float64", "float32", *rows["dtype"]) if (rows["dtype"] == dtype).any())


def _curve(rows: Frame, dtype: str) -> Column:
    """Distance by length, the mean over seeds."""
    return rows[rows["dtype"] == dtype].groupby("length")["mean"].mean().sort_index()


def _fall(curve: Column, dtype: str) -> str:
    lengths, first, last = curve.index, float(curve.iloc[0]), float(curve.iloc[-1])
    span = (
        f"Measured in {dtype}, the L2 distance between y of the sequence and y of the sequence with its last token "
        f"repeated goes from {number(first)} at n = {lengths[0]} to {number(last)} at n = {lengths[-1]}"
    )
    if len(curve) < 8:
        return f"{span}; with {len(curve)} lengths no trend is claimed."
    quarter = max(2, len(curve) // 4)
    ratio = _ratio(float(curve.iloc[-quarter:].median()), float(curve.iloc[:quarter].median()))
    share = f"the median of the last quarter of the lengths is {number(ratio)} times that of the first quarter"
    if ratio <= HALVED:
        return f"{span}: it falls, {share}{_rate(curve)}. The theorem's hypotheses are not proved for this model; the fall is what was measured."
    if ratio < STEADY:
        return f"{span}: it falls little, {share}, which is no collapse over these lengths."
    return f"{span}: it does not fall, {share}. Theorem 4.2 is not seen at work on this model over these lengths."


def _ratio(over: float, under: float) -> float:
    return over / under if under > 0 else (1.0 if over == 0 else math.inf)


def _rate(curve: Column) -> str:
    """The power law that fits the curve best, where one fits."""
    curve = curve[(curve > 0) & (curve.index > 0)]
    x, y = np.log(curve.index.to_numpy(dtype=float)), np.log(curve.to_numpy(dtype=float))
    if len(x) < 8:
        return ""
    slope, _ = np.polyfit(x, y, 1)
    fit = float(np.corrcoef(x, y)[0, 1] ** 2)
    return f", about as n^{slope:.2f} (R² {fit:.2f})" if fit >= 0.8 else ", by no clear power of n"


def _stop(rows: Frame, dtype: str, length: int | None) -> str:
    here = rows[rows["dtype"] == dtype].sort_values("length")
    tail = here[here["length"] >= here["length"].quantile(0.75)]
    n_max = int(here["length"].max())
    end = (
        f"In {dtype}, over the last quarter of the lengths, the measured distance is in the median "
        f"{number(float(tail['ulps'].median()))} representable steps and "
        f"{number(_ratio(float(tail['mean'].median()), float(tail['noise'].median())))} times the rounding noise of the run"
    )
    if length is None:
        return f"{end}; collapse in {dtype} was not reached by n = {n_max}."
    return f"{end}; from n = {length} on the exact distance lies below that noise: collapse length {length}."


def _collapse_length(result: Collapse, dtype: str) -> int | None:
    """The collapse length at y in a dtype: the greatest over seeds, None where any seed did not reach it."""
    table = result.collapse_lengths()
    table = table[(table["dtype"] == dtype) & (table["site"] == "y") & (table["pair"] == "theorem")]
    reached = table["collapse_length"]
    return None if table.empty or reached.isna().any() else int(reached.max())


def _answers(rows: Frame) -> str:
    parts = []
    for dtype, here in rows.groupby("dtype", sort=False):
        same, identical = int(here["same_top_token"].sum()), int(here["identical_logits"].sum())
        bits = f", with bit-identical logits at {identical}" if identical else ""
        parts.append(f"in {dtype} at {same} of {len(here)} pairs{bits}")
    varied = float(rows["total_variation"].max())
    return (
        f"The most likely next token is the same for both sequences {'; '.join(parts)}; the next-token distributions differ "
        f"by at most {number(varied)} in L1 (the paper's total variation, at most 2)."
    )


def _one_more_digit(rows: Frame) -> list[str]:
    other, theorem = rows[rows["pair"] == "one-more-digit"], rows[rows["pair"] == "theorem"]
    if other.empty:
        return []
    exact = _most_exact(other)
    curve = _curve(other, exact)
    said = (
        f"The pair with one more digit is another question, to which no theorem applies (its two prompts can end in "
        f"different tokens): its measured distance in {exact} has a median of {number(float(curve.median()))}"
    )
    if theorem.empty or not (theorem["dtype"] == exact).any():
        return [f"{said}."]
    beside = float(_curve(theorem, exact).median())
    return [f"{said}, {number(_ratio(float(curve.median()), beside))} times the theorem pair's {number(beside)}."]


def _beyond(rows: Frame, trained: Mapping[str, int] | None) -> list[str]:
    from ostools import tasks

    if not trained or rows.empty:
        return []
    name = str(rows["task"].iloc[0])
    longest = trained.get(tasks.get(name).form.name) if name in tasks.FIGURE_5 else None
    if longest is None:
        return []
    n_max = int(rows["length"].max())
    if n_max <= longest:
        return [f"All of these lengths lie inside what the model was trained on (up to {longest})."]
    return [
        f"The model was trained on this prompt up to n = {longest}: lengths beyond it say little of over-squashing."
    ]


# --- sensitivity and bounds ------------------------------------------------------------------------------------------


def sensitivity_findings(result: Sensitivity) -> list[str]:
    """Where the measured sensitivity is large and small, and what freezing changes."""
    said = []
    profiles = {
        str(name): rows.sort_values("position") for name, rows in frame_of(result).groupby("linearisation", sort=False)
    }
    for name, rows in profiles.items():
        norms = rows["operator_norm"].to_numpy()
        top, low = rows.iloc[int(norms.argmax())], rows.iloc[int(norms.argmin())]
        said.append(
            f"Measured ({name}): y of the last token responds most to {_place(top)} (operator norm "
            f"{number(float(norms.max()))}) and least to {_place(low)} ({number(float(norms.min()))}), "
            f"{_spread(norms)}.{_trend(norms)}"
        )
    if "full" in profiles and "frozen" in profiles:
        full, frozen = (profiles[name]["operator_norm"].to_numpy() for name in ("full", "frozen"))
        if (full > 0).all() and (frozen > 0).all():
            ratio = frozen / full
            said.append(
                f"Measured with patterns and norms frozen, as the theorem assumes, the norm is {number(float(np.median(ratio)))} "
                f"times the real one in the median over tokens (from {number(float(ratio.min()))} to {number(float(ratio.max()))}): "
                "a bound of the frozen derivative is no bound of the real one."
            )
    return said


def _place(row: Column) -> str:
    return f"token {int(row['position'])} “{display_token(str(row['token']))}”"


def _spread(norms: np.ndarray) -> str:
    if norms.min() == 0:
        return f"{int((norms == 0).sum())} of {len(norms)} tokens have no influence at all (exactly 0)"
    return f"a factor of {number(float(norms.max() / norms.min()))} between them"


def _trend(norms: np.ndarray) -> str:
    """How sensitivity goes with position, apart from the last token itself, which always has the skip path."""
    from scipy.stats import spearmanr

    before = norms[:-1]
    if len(before) < 8 or np.ptp(before) == 0:
        return ""
    rank = float(spearmanr(np.arange(len(before)), before).statistic)
    where = (
        "later tokens count more"
        if rank > 0.3
        else "earlier tokens count more"
        if rank < -0.3
        else "no trend with position"
    )
    return f" Over the tokens before the last: {where} (rank correlation with position {rank:.2f})."


def comparison_findings(result: Comparison) -> list[str]:
    """For each variant: does it hold, how loose is it, does its shape predict the measured one? Three questions, three answers."""
    said = []
    for row in result.summary.to_dict(orient="records"):
        below, total = _below(frame_of(result), row)
        say = {"certified": _certified, "paper": _paper, "predicted": _predicted}[str(row["kind"])]
        said.append(say(row, below, total))
    return said


def _below(frame: Frame, row: Mapping[Any, Any]) -> tuple[int, int]:
    """At how many tokens the variant lies below the measured norm that it stands beside, of how many."""
    same = frame[frame["norm"] == row["norm"]]
    measured = same[(same["kind"] == "measured") & (same["linearisation"] == row["linearisation"])]
    variant = same[(same["kind"] == row["kind"]) & (same["source"] == row["variant"])]
    joined = measured.merge(variant, on="position", suffixes=("_measured", "_variant"))
    return int((joined["value_variant"] < joined["value_measured"]).sum()), len(joined)


def _certified(row: Mapping[Any, Any], below: int, total: int) -> str:
    holds = (
        f"it holds at all {total} tokens"
        if bool(row["holds"])
        else f"IT DOES NOT HOLD, measured lies above it at {below} of {total} tokens: a certified bound that fails is a defect "
        "of this software or of the run; please report it"
    )
    median, worst = float(row["median_log10_looseness"]), float(row["max_log10_looseness"])
    verdict = (
        "so it says nothing of how large the sensitivity is"
        if median >= LOOSE
        else "so it says little of the size"
        if median >= 1
        else "which is tight"
    )
    return (
        f"Certified bound `{row['variant']}` ({row['linearisation']}, {row['norm']} norm): {holds}; it is "
        f"{factor(median)} times the measured norm in the median and {factor(worst)} times at worst, {verdict}; "
        f"{_shape(row)}."
    )


def _paper(row: Mapping[Any, Any], below: int, total: int) -> str:
    start = f"The paper's form `{row['variant']}` (not certified)"
    median = float(row["median_log10_looseness"])
    if math.isnan(median):
        return f"{start} has a constant that the paper leaves open, so only its shape counts: {_shape(row)}."
    side = (
        f"lies below the measured {row['linearisation']} norm at {below} of {total} tokens, so it is no bound here"
        if below
        else f"lies above the measured {row['linearisation']} norm at all {total} tokens here, which nothing guarantees elsewhere"
    )
    return f"{start} {side}; its ratio to the measured norm is {factor(median)} in the median; {_shape(row)}."


def _predicted(row: Mapping[Any, Any], below: int, total: int) -> str:
    start = f"Prediction `{row['variant']}` (bounds nothing)"
    median = float(row["median_log10_looseness"])
    if math.isnan(median):
        return f"{start} is a ranking only: {_shape(row)}."
    size = (
        "close to the measured size"
        if abs(median) <= CLOSE
        else "the right order of magnitude"
        if abs(median) <= ROUGH
        else "it misses the measured size"
    )
    return (
        f"{start}: {factor(median)} times the measured {row['linearisation']} {row['norm']} norm in the median ({size}), "
        f"at most {factor(float(row['max_log10_looseness']))} times; {_shape(row)}."
    )


def _shape(row: Mapping[Any, Any]) -> str:
    """Whether the order of the tokens is that of the measured profile."""
    rank = float(row["spearman"])
    if math.isnan(rank):
        return "a flat profile has no order to compare"
    if rank >= 0.9:
        words = "orders the tokens almost as measured"
    elif rank >= 0.6:
        words = "orders the tokens roughly as measured"
    elif rank >= 0.3:
        words = "orders the tokens only weakly as measured"
    elif rank > -0.3:
        words = "does not order the tokens as measured"
    else:
        words = "orders the tokens against the measured order"
    return f"its shape {words} (Spearman {rank:.2f})"


# --- what the card knows ---------------------------------------------------------------------------------------------


def card_findings(accuracy: Sequence[Mapping[str, Any]]) -> list[str]:
    """Measured accuracies of a model's card, within its trained lengths and beyond them, never in one number."""
    said = []
    for within, words in ((True, "Inside the trained lengths"), (False, "Beyond the trained lengths")):
        rows = [row for row in accuracy if bool(row["within_training"]) is within]
        if not rows:
            continue
        shares = [float(row["accuracy"]) for row in rows]
        right, wrong = sum(share >= 0.99 for share in shares), sum(share <= 0.01 for share in shares)
        said.append(
            f"{words}: {right} of {len(rows)} measured combinations of task and length are answered exactly "
            f"(99% or more of the prompts), {wrong} never (1% or fewer), the median is {float(np.median(shares)):.0%}."
        )
    if said:
        said.append(
            "Failures beyond the trained lengths are positions and counts never seen; they are not over-squashing."
        )
    return said
