"""The claims about representational collapse: section 4, Figure 5, Theorem 4.2, and the proof of Theorem B.3."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from ostools.ground.words import number
from ostools.paper.claims.claim import ResultsByPart, UntestedError, Verdict, above_zero, claim, decide
from ostools.paper.claims.parts import ATTENTION, LAYERS
from ostools.results import Frame
from ostools.theory.statistics.fits import fit_decay

_figure_5 = partial(claim, needs=("figure-5",), figures=(5,))
_induction = partial(claim, needs=(ATTENTION,))

LOW = "bfloat16"
"""The precision that the paper names ("i.e. bf16"), in which the collapse is judged."""
THEOREM = "theorem"
AROUND_50 = range(40, 61)
NEAR_FACTOR = 10.0
"""A distance of at most this many times the rounding noise is "near machine precision"."""
FIT_FROM = 16
RELATIVE_ROUNDING = 1e-6
"""float64's rounding of a distance, relative to the vector's norm."""
WEIGHT_ROUNDING = 1e-12
"""Rounding of float64 attention weights."""
_DISTANCE_WORDS = "the distance that Figure 5 draws"
_PROOF = "Appendix B.1, proof of Theorem B.3"
_FALLS = f"falls by a law without a level from n = {FIT_FROM} on, on the prompts of Figure 5 (a)"
_ALL = (
    "in every layer. A layer with fewer than eight lengths above rounding is not fitted. There is no verdict if no layer is "
    "fitted, or if some are not fitted and all others fall. A finite run does not show a limit."
)


def _panel(results: ResultsByPart, panel: str, dtype: str) -> Frame:
    """The drawn distance of one panel: a row a length, heads and seeds averaged."""
    figure: Any = results["figure-5"]["figure"]
    frame = figure.frame
    rows = frame[(frame["panel"] == panel) & (frame["pair"] == THEOREM) & (frame["dtype"] == dtype)]
    if rows.empty:
        raise UntestedError(f"panel ({panel}) was not measured in {dtype}")
    return rows.sort_values("length")


def _seed_curves(results: ResultsByPart, panel: str, dtype: str) -> Any:
    """The drawn distance by seed: a column a seed, a row a length."""
    figure: Any = results["figure-5"]["figure"]
    frame = figure.curves[panel].frame
    for column in ("site", "per", "norm"):
        frame = frame[frame[column] == figure.provenance.parameters[column]]
    frame = frame[(frame["pair"] == THEOREM) & (frame["dtype"] == dtype)]
    if frame.empty:
        raise UntestedError(f"panel ({panel}) was not measured in {dtype}")
    return frame.pivot(index="length", columns="seed", values="mean").sort_index()


def _upper_half(lengths: Any) -> Any:
    """The lengths above half of the longest."""
    return lengths[lengths > int(lengths.max()) // 2]


def _least_rounding(results: ResultsByPart) -> str:
    """The precision of Figure 5 with the least rounding, in which a distance is not hidden by it."""
    figure: Any = results["figure-5"]["figure"]
    names = list(dict.fromkeys(figure.frame["dtype"]))
    return next((name for name in ("float64", "float32") if name in names), names[0])


def _median_over_noise(rows: Frame) -> float:
    """Median over lengths of a distance in low precision, in units of the rounding noise."""
    ratio = float((rows["mean"] / rows["noise"]).median())
    if not np.isfinite(ratio):
        raise UntestedError(f"the noise of {LOW} is not known for this distance")
    return ratio


def _upper_over_noise(results: ResultsByPart, panel: str) -> float:
    rows = _panel(results, panel, LOW)
    return _median_over_noise(rows[rows["length"].isin(_upper_half(rows["length"]))])


def log_log_slopes(curves: Any) -> np.ndarray:
    """Slope of log value against log length for each seed (a column); NaN where a value is 0."""
    with np.errstate(divide="ignore"):
        logs = np.log(curves.to_numpy(dtype=float))
    x = np.log(curves.index.to_numpy(dtype=float))
    if len(x) < 2:
        return np.full(logs.shape[1], np.nan)
    return np.array([np.polyfit(x, y, 1)[0] if np.isfinite(y).all() else np.nan for y in logs.T])


def rounding_floor(distance: Any, relative: Any) -> float:
    """float64's rounding in units of `distance`, where `relative` is the distance over the vector's norm."""
    norms = (distance / relative).replace([np.inf, -np.inf], np.nan).dropna()
    return RELATIVE_ROUNDING * float(norms.median()) if len(norms) else 0.0


def _all_vanish(curves: dict[str, Any], floors: dict[str, float], quantity: str) -> Verdict:
    """Fit every curve (values by length): all of them have to fall by a law without a level."""
    descriptions, falling = [], []
    for name, curve in curves.items():
        curve = curve[curve.index >= FIT_FROM]
        fitted = fit_decay(curve.index.to_numpy(dtype=float), curve.to_numpy(dtype=float), floor=floors[name])
        if fitted.verdict == "too few":
            descriptions.append(f"{name}: {fitted.used} lengths above rounding, and a fit needs 8")
            continue
        law, words = fitted.law, fitted.verdict
        if law is not None:
            words += f", rate {number(law.rate)}" + (f" to {number(law.level)}" if law.level else "")
        falling.append(law is not None and law.level == 0)
        descriptions.append(f"{name}: {words}")
    if not falling:
        raise UntestedError(f"{quantity}: no curve can be fitted ({'; '.join(descriptions)})")
    count_words = f"falls by a law without a level in {sum(falling)} of {len(falling)}"
    sentence = f"{quantity}, from n = {FIT_FROM} on: {count_words} ({'; '.join(descriptions)})"
    if all(falling) and len(falling) < len(curves):
        raise UntestedError(f"{sentence}: {len(curves) - len(falling)} of {len(curves)} curves cannot be fitted")
    return decide(all(falling), sentence)


@_figure_5(
    "arbitrarily-close",
    "Theorem 4.2, Figure 5 (a)",
    "their representations become arbitrarily close as n increases",
    f"agrees if the float64 distance of v^(L) {_FALLS}. There is no verdict with fewer than eight lengths above float64's "
    "rounding. A finite run does not show a limit.",
)
def arbitrarily_close(results: ResultsByPart) -> Verdict:
    figure: Any = results["figure-5"]["figure"]
    curve = figure.curves["a"].reference_curve(THEOREM, "residual")
    floor = rounding_floor(curve["distance"], curve["relative"])
    return _all_vanish({"(a)": curve["distance"]}, {"(a)": floor}, "the float64 distance of v^(L)")


@_figure_5(
    "near-precision-at-50",
    "Section 4, Figure 5 (a)",
    "The repeated digits seem to make the collapse occur much sooner with a sequence length of around 50 being near "
    "machine precision",
    f"agrees if {_DISTANCE_WORDS} is at most {NEAR_FACTOR:.0f} times the noise of rounding in {LOW}, at the lengths "
    f"{min(AROUND_50)} to {max(AROUND_50)} of (a) (median over them).",
)
def near_precision_at_50(results: ResultsByPart) -> Verdict:
    rows = _panel(results, "a", LOW)
    rows = rows[rows["length"].isin(AROUND_50)]
    if rows.empty:
        raise UntestedError(f"no length from {min(AROUND_50)} to {max(AROUND_50)} was measured")
    ratio = _median_over_noise(rows)
    sentence = (
        f"at n = {min(AROUND_50)} to {max(AROUND_50)} the distance of (a) in {LOW} is {number(ratio)} times the noise of "
        "rounding (median over these lengths)"
    )
    return decide(ratio <= NEAR_FACTOR, sentence)


@_figure_5(
    "varying-delays",
    "Section 4, Figure 5 (a, b)",
    "varying the digits seems to delay such a collapse",
    f"agrees if {_DISTANCE_WORDS} is larger in (b) than in (a) over the upper half of the lengths: the mean log ratio is "
    "above 0 (95% Student interval over at least three digit streams). There is no verdict if the interval contains zero.",
)
def varying_delays(results: ResultsByPart) -> Verdict:
    dtype = _least_rounding(results)
    ones, varied = _seed_curves(results, "a", dtype).mean(axis=1), _seed_curves(results, "b", dtype)
    upper = _upper_half(varied.index.intersection(ones.index))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.log10(varied.loc[upper].div(ones.loc[upper], axis=0))
    return above_zero(
        ratios.replace([np.inf, -np.inf], np.nan).mean(axis=0).to_numpy(),
        f"log10 of the distance of (b) divided by that of (a), in {dtype}, n from {upper.min()} to {upper.max()}",
    )


@_figure_5(
    "varied-trend-downward",
    "Section 4, Figure 5 (b)",
    "a downward trend is maintained with respect to the sequence length",
    f"agrees if the slope of log distance against log length in (b), from n = {FIT_FROM} on, is negative (95% "
    "Student interval over at least three digit streams). There is no verdict if the interval contains zero.",
)
def varied_falls(results: ResultsByPart) -> Verdict:
    dtype = _least_rounding(results)
    curves = _seed_curves(results, "b", dtype)
    slopes = log_log_slopes(curves[curves.index >= FIT_FROM])
    return above_zero(
        -slopes, f"minus the slope of log distance against log n in (b), in {dtype}, from n = {FIT_FROM} on"
    )


@_figure_5(
    "ones-collapse-in-copying",
    "Section 4, Figure 5 (c)",
    "the representations collapse for the sequence of ones (c)",
    f"agrees if {_DISTANCE_WORDS} in {LOW} is at most {NEAR_FACTOR:.0f} times the noise of rounding in the upper half of "
    "the lengths (median over them).",
)
def ones_collapse(results: ResultsByPart) -> Verdict:
    over = _upper_over_noise(results, "c")
    _upper_over_noise(results, "d")  # (c) is judged beside (d): both, or neither
    sentence = (
        f"in the upper half of the lengths the distance of (c) in {LOW} is {number(over)} times the noise of rounding "
        "(median)"
    )
    return decide(over <= NEAR_FACTOR, sentence)


@_figure_5(
    "commas-separate",
    "Section 4, Figure 5 (c, d)",
    "adding commas every third digit (d) helps to keep the representations well-separated",
    f"agrees if two things hold over the upper half of the lengths. “Helps”: commas enlarge {_DISTANCE_WORDS} (the "
    f"median of (d) / (c) is above 1; this does not speak of every length). “Well-separated”: in {LOW} (d) is above "
    f"{NEAR_FACTOR:.0f} times the noise of rounding (median), the opposite of the collapse by which (c) is judged.",
)
def commas_separate(results: ResultsByPart) -> Verdict:
    dtype = _least_rounding(results)
    plain, commas = (_panel(results, panel, dtype).set_index("length")["mean"] for panel in "cd")
    upper = _upper_half(plain.index.intersection(commas.index))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = float((commas.loc[upper] / plain.loc[upper]).median())
    share = float((commas.loc[upper] > plain.loc[upper]).mean())
    over_c, over_d = (_upper_over_noise(results, panel) for panel in "cd")
    if not np.isfinite(ratio):
        raise UntestedError(
            f"the ratio of (d) to (c) in {dtype} is not finite: the distance of (c) is 0 at too many lengths"
        )
    helps, separate = ratio > 1, over_d > NEAR_FACTOR
    sentence = (
        f"helps: {'yes' if helps else 'no'}. Commas multiply the distance by {number(ratio)} (median of the {len(upper)} "
        f"lengths from {upper.min()} to {upper.max()}, in {dtype}), and it is larger with them at {share:.1%} of these "
        f"lengths. Well-separated: {'yes' if separate else 'no'}. In {LOW} the distance is {number(over_d)} times the "
        f"noise with commas, and {number(over_c)} times without"
    )
    return decide(helps and separate, sentence)


@_figure_5(
    "sooner-in-low-precision",
    "Section 4, Quantisation and Tokenisation",
    "a lower machine precision will mean that the convergence of representations in Theorem 4.2 will occur much sooner",
    f"agrees if every curve of Figure 5 that collapses does so in {LOW} at half the length of float32 or less (much "
    "sooner). A curve whose lengths end before that can be seen is left open. There is no verdict if no curve collapses, "
    "or if all that do are left open.",
)
def sooner_in_low_precision(results: ResultsByPart) -> Verdict:
    figure: Any = results["figure-5"]["figure"]
    table = figure.verdicts
    table = table[table["pair"] == THEOREM]
    high = next((name for name in ("float32", "float64") if name in set(table["dtype"])), None)
    if high is None or LOW not in set(table["dtype"]):
        raise UntestedError(
            f"this needs {LOW} and float32 or float64; measured were {', '.join(dict.fromkeys(table['dtype']))}"
        )
    starts = table.pivot_table(index=["panel", "seed"], columns="dtype", values="first", dropna=False)
    starts = starts.reindex(columns=[high, LOW]).astype("Float64").astype(float)
    n_max = int(table["longest"].max())
    hidden: Any = starts[starts.notna().any(axis=1)]
    if hidden.empty:
        raise UntestedError(f"no pair is hidden over a range of lengths in either precision up to n = {n_max}")
    low_starts, high_starts = hidden[LOW].fillna(np.inf), hidden[high].fillna(np.inf)
    half = 2 * low_starts <= high_starts.clip(upper=n_max)
    left_open = ~half & np.isinf(high_starts) & np.isfinite(low_starts)
    descriptions = [
        f"({panel}) {_length_words(row[LOW])} against {_length_words(row[high])}"
        for (panel, _), row in hidden.iterrows()
    ]
    repeated = {words: descriptions.count(words) for words in descriptions}
    listing = "; ".join(f"{words} ({count} seeds)" if count > 1 else words for words, count in repeated.items())
    sentence = (
        f"{len(hidden)} curves have a hidden range by n = {n_max} in at least one of the two. In {LOW} it begins at half the "
        f"length of {high} or less in {int(half.sum())} of them, and {int(left_open.sum())} are left open because longer "
        f"lengths would have to be measured ({listing})"
    )
    if bool(left_open.all()):
        raise UntestedError(sentence)
    return decide(bool((half | left_open).all()), sentence)


def _length_words(value: Any) -> str:
    return "no range" if pd.isna(value) else str(int(value))


def _attention_vanishes(results: ResultsByPart, quantity: str) -> Verdict:
    """Fit the mean over heads of one quantity of `ost.measure.attention_variation`, a curve for each layer."""
    variation: Any = results[ATTENTION]["variation"]
    curves = {
        f"layer {layer}": rows.set_index("length")[quantity].sort_index()
        for layer, rows in variation.over_heads().groupby("layer")
    }
    return _all_vanish(curves, dict.fromkeys(curves, WEIGHT_ROUNDING), f"{quantity}, the mean over heads")


@_induction(
    "attention-variation-vanishes",
    _PROOF,
    r"goes to 0 with $n \to \infty$ thanks to Lemma B.2 and our assumptions on the positional encodings",
    f"agrees if delta(alpha_n, alpha*_(n+1)) of the model's attention, the mean over heads, {_FALLS}, {_ALL}",
)
def variation_vanishes(results: ResultsByPart) -> Verdict:
    return _attention_vanishes(results, "delta")


@_induction(
    "own-weight-vanishes",
    _PROOF,
    "goes to 0 due to Lemma B.1",
    f"agrees if the weight alpha*_(n+1,n+1) of the repeated token on itself, the mean over heads, {_FALLS}, {_ALL}",
)
def own_weight_vanishes(results: ResultsByPart) -> Verdict:
    return _attention_vanishes(results, "own")


@claim(
    "induction-on-layers",
    _PROOF,
    "The result then follows via a simple inductive approach on the layers.",
    f"agrees if the float64 L1 distance of v^(l), l = 1 ... L, {_FALLS}, {_ALL}",
    needs=(LAYERS,),
)
def every_layer(results: ResultsByPart) -> Verdict:
    frame: Any = results[LAYERS]["collapse"].frame
    l1 = (frame["site"] == "residual") & (frame["per"] == "vector") & (frame["norm"] == "l1")
    rows = frame[l1 & (frame["layer"] > 0)].drop_duplicates(["layer", "length"])  # at the embedding it is 0
    if rows.empty:
        raise UntestedError("no block was measured")
    curves, floors = {}, {}
    for layer, layer_rows in rows.groupby("layer"):
        name = f"block {layer}"
        curves[name] = layer_rows.set_index("length")["float64_distance"].astype(float).sort_index()
        floors[name] = rounding_floor(layer_rows["mean"].astype(float), layer_rows["relative"].astype(float))
    return _all_vanish(curves, floors, "the float64 L1 distance of v^(l)")


CLAIMS = (
    *(arbitrarily_close, near_precision_at_50, varying_delays, varied_falls, ones_collapse, commas_separate),
    sooner_in_low_precision,
)
INDUCTION = (variation_vanishes, own_weight_vanishes, every_layer)
