"""The claims about representational collapse: section 4, Figure 5, Theorem 4.2, and the proof of
Theorem B.3.
"""

from functools import partial
from typing import Any

import numpy as np

from ostools.ground import number
from ostools.measure import Reading
from ostools.paper.claims.claim import (
    DECISIVE_LEVEL,
    FIT_FROM,
    LEAST_RATE,
    PaperClaim,
    ResultsByPart,
    Verdict,
    above_zero,
    all_vanish,
    decide,
    log_log_slopes,
    require_data,
)
from ostools.paper.claims.parts import ATTENTION, LAYERS
from ostools.paper.figure5 import FIGURE_5_READING
from ostools.results import Column, Frame
from ostools.theory.statistics.fits import DECISIVE

_figure_5 = partial(PaperClaim, needs=("figure-5",), figures=(5,))
_induction = partial(PaperClaim, needs=(ATTENTION,))

LOW = "bfloat16"
"""The precision that the paper names ("i.e. bf16"), in which the collapse is judged."""
THEOREM = "theorem"
AROUND_50 = range(40, 61)
NEAR_FACTOR = 10.0
"""A distance of at most this many times the rounding noise is "near machine precision"."""
RELATIVE_ROUNDING = 1e-6
"""float64's rounding of a distance, relative to the vector's norm."""
WEIGHT_ROUNDING = 1e-12
"""Rounding of float64 attention weights."""
_DISTANCE_WORDS = "the distance that Figure 5 draws"
_ZEROS = "A distance of exactly 0 counts as the least above 0."
_PROOF = "Appendix B.1, proof of Theorem B.3"
_FALLS = f"falls by a law without a level from n = {FIT_FROM} on, on the prompts of Figure 5 (a)"
_BY_FITS = (
    "A law falls without a level if its rate is above 0 (95% interval, neighbouring lengths "
    f"correlated) and one to a level has a BIC that is worse by {DECISIVE:.0f}. Does not agree if "
    f"one to a level is better by {DECISIVE_LEVEL:.0f}, or if the rate as a power of n is below "
    f"{LEAST_RATE}. Else there is no verdict, nor with fewer than eight lengths above rounding. A "
    "finite run does not show a limit."
)
_ALL = (
    f"in every layer. {_BY_FITS} One layer is enough to disagree; so that many layers do not make "
    "one, the intervals are at Bonferroni's level for all of them, and ten times as many layers "
    f"ask for {DECISIVE_LEVEL:.0f} more of BIC."
)


def _of_theorem(frame: Frame, panel: str, dtype: str) -> Frame:
    """Rows of the theorem's pair in a dtype. Raises `UntestedError` where there are none."""
    rows = frame[(frame["pair"] == THEOREM) & (frame["dtype"] == dtype)]
    require_data(not rows.empty, f"panel ({panel}) was not measured in {dtype}")
    return rows.sort_values("length")


def _panel(results: ResultsByPart, panel: str, dtype: str) -> Frame:
    """The drawn distance of one panel: a row a length, heads and seeds averaged."""
    frame = results["figure-5"]["figure"].frame
    return _of_theorem(frame[frame["panel"] == panel], panel, dtype).set_index("length")


def _seed_curves(results: ResultsByPart, panel: str, dtype: str) -> Frame:
    """The drawn distance by seed: a column a seed, a row a length."""
    curve = results["figure-5"]["figure"].curves[panel].frame
    rows = _of_theorem(FIGURE_5_READING.of(curve), panel, dtype)
    return rows.pivot(index="length", columns="seed", values="mean")


def _upper_half(lengths: Any) -> Any:
    """The lengths above half of the longest."""
    return lengths[lengths > int(lengths.max()) // 2]


def _least_rounding(results: ResultsByPart) -> str:
    """The precision of Figure 5 with the least rounding, in which a distance is not
    hidden by it.
    """
    names = list(dict.fromkeys(results["figure-5"]["figure"].frame["dtype"]))
    return next((name for name in ("float64", "float32") if name in names), names[0])


def _over_noise(rows: Frame) -> float:
    """Median over lengths of a distance in low precision, in units of the rounding noise."""
    ratio = float((rows["mean"] / rows["noise"]).median())
    require_data(np.isfinite(ratio), f"no length has a distance whose noise in {LOW} is known")
    return ratio


def _upper_over_noise(results: ResultsByPart, panel: str) -> float:
    rows = _panel(results, panel, LOW)
    return _over_noise(rows.loc[_upper_half(rows.index)])


def _near_noise(ratio: float, distance: str) -> Verdict:
    """Verdict on a distance, in these words, that is so many times the noise of rounding."""
    sentence = f"{distance} in {LOW} is {number(ratio)} times the noise of rounding (median)"
    return decide(ratio <= NEAR_FACTOR, sentence)


def rounding_floor(distance: Column, relative: Column) -> float:
    """float64's rounding in units of `distance`, where `relative` is the distance over the vector's
    norm; 0 where no norm is known.
    """
    norms = (distance / relative).astype(float)
    return RELATIVE_ROUNDING * float(np.nan_to_num(norms[np.isfinite(norms)].median()))


def arbitrarily_close(results: ResultsByPart) -> Verdict:
    curve = results["figure-5"]["figure"].curves["a"].reference_curve(THEOREM, "residual")
    floor = rounding_floor(curve["distance"], curve["relative"])
    return all_vanish({"(a)": curve["distance"]}, {"(a)": floor}, "the float64 distance of v^(L)")


def near_precision_at_50(results: ResultsByPart) -> Verdict:
    rows = _panel(results, "a", LOW)
    where = f"at n = {min(AROUND_50)} to {max(AROUND_50)} the distance of (a)"
    return _near_noise(_over_noise(rows[rows.index.isin(AROUND_50)]), where)


def _least_distance(*tables: Frame | Column) -> tuple[float, str]:
    """The least distance above 0, as which one of exactly 0 counts in a log; in words how many do.
    Raises `UntestedError` where all are 0.
    """
    distances = np.concatenate([table.to_numpy(float).ravel() for table in tables])
    above, zeros = distances[distances > 0], int((distances == 0).sum())
    require_data(len(above), f"none of {len(distances)} distances is above 0")
    least = float(above.min())
    words = f" ({zeros} of {len(distances)} are 0, and taken as {number(least)}, the least other)"
    return least, words * (zeros > 0)


def varying_delays(results: ResultsByPart) -> Verdict:
    dtype = _least_rounding(results)
    ones, varied = _seed_curves(results, "a", dtype).mean(axis=1), _seed_curves(results, "b", dtype)
    upper = _upper_half(varied.index.intersection(ones.index))
    least, zeros = _least_distance(ones, varied)
    ones, varied = (table.loc[upper].replace(0.0, least) for table in (ones, varied))
    return above_zero(
        np.log10(varied.div(ones, axis=0)).mean(axis=0).to_numpy(),
        f"log10 of the distance of (b) divided by that of (a), in {dtype}, n from {upper.min()} to "
        f"{upper.max()}{zeros}",
    )


def varied_falls(results: ResultsByPart) -> Verdict:
    dtype = _least_rounding(results)
    curves = _seed_curves(results, "b", dtype).loc[FIT_FROM:]
    least, zeros = _least_distance(curves)
    return above_zero(
        -log_log_slopes(curves.replace(0.0, least)),
        f"minus the slope of log distance against log n in (b), in {dtype}, from n = {FIT_FROM} on"
        f"{zeros}",
    )


def ones_collapse(results: ResultsByPart) -> Verdict:
    # (c) is judged beside (d): both, or neither.
    ratio, _ = (_upper_over_noise(results, panel) for panel in "cd")
    return _near_noise(ratio, "in the upper half of the lengths the distance of (c)")


def commas_separate(results: ResultsByPart) -> Verdict:
    dtype = _least_rounding(results)
    plain, commas = (_panel(results, panel, dtype)["mean"] for panel in "cd")
    ratios = (commas / plain).loc[_upper_half(plain.index.intersection(commas.index))]
    ratio, over_d = float(ratios.median()), _upper_over_noise(results, "d")
    require_data(np.isfinite(ratio), f"in {dtype} the distance of (c) is 0 at too many lengths")
    sentence = (
        f"commas multiply the distance by {number(ratio)} (median of {len(ratios)} lengths, in "
        f"{dtype}; it is larger at {(ratios > 1).mean():.1%} of them); in {LOW} it is then "
        f"{number(over_d)} times the noise of rounding"
    )
    return decide(ratio > 1 and over_d > NEAR_FACTOR, sentence)


def sooner_in_low_precision(results: ResultsByPart) -> Verdict:
    figure = results["figure-5"]["figure"]
    table = figure.verdicts[figure.verdicts["pair"] == THEOREM]
    starts, longest = (
        table.pivot(index=["panel", "seed"], columns="dtype", values=name)
        for name in ("first", "longest")
    )
    high = next((name for name in ("float32", "float64") if name in starts), "")
    require_data({high, LOW} <= {*starts}, f"expected {LOW} and float32 or float64")
    pair = [LOW, high]
    overflows = longest[pair].isna().any(axis=1)
    hidden = starts.loc[~overflows, pair].astype("Float64").dropna(how="all").astype(float)
    hidden = hidden.fillna(np.inf)
    left_out = f" ({overflows.sum()} that overflow are left out)" * bool(overflows.any())
    require_data(len(hidden), f"no curve has a hidden range in {LOW} or {high}{left_out}")
    end = int(table["longest"].max())
    half = 2 * hidden[LOW] <= hidden[high].clip(upper=end)
    begins_hidden = hidden[LOW] == _of_theorem(figure.frame, "a to d", LOW)["length"].min()
    left_open = ~half & (np.isinf(hidden[high]) | begins_hidden)
    sentence = (
        f"{len(hidden)} curves have a hidden range by n = {end} in {LOW} or {high}{left_out}. In "
        f"{LOW} it begins at half the length or less in {half.sum()}, and {left_open.sum()} are "
        "left open: they need longer or shorter lengths"
    )
    return decide(bool((half | left_open).all()), sentence, not left_open.all())


def _attention_vanishes(results: ResultsByPart, quantity: str) -> Verdict:
    """Fit the mean over heads of one quantity of `ost.measure.attention_variation`, a curve for
    each layer.
    """
    by_layer = results[ATTENTION]["variation"].over_heads().groupby("layer")
    curves = {
        f"layer {layer}": rows.set_index("length")[quantity].sort_index()
        for layer, rows in by_layer
    }
    floors = dict.fromkeys(curves, WEIGHT_ROUNDING)
    return all_vanish(curves, floors, f"{quantity}, the mean over heads")


def every_layer(results: ResultsByPart) -> Verdict:
    frame = results[LAYERS]["collapse"].frame
    frame = Reading("residual", "vector", "l1").of(frame, every_layer=True)
    blocks = frame[frame["layer"] > 0].drop_duplicates(["layer", "length"])  # 0: the embedding
    curves, floors = {}, {}
    for layer, rows in blocks.set_index("length").sort_index().groupby("layer"):
        curves[f"block {layer}"] = rows["float64_distance"].astype(float)
        floors[f"block {layer}"] = rounding_floor(rows["mean"], rows["relative"])
    return all_vanish(curves, floors, "the float64 L1 distance of v^(l)")


CLAIMS = (
    _figure_5(
        "arbitrarily-close",
        "Theorem 4.2, Figure 5 (a)",
        "their representations become arbitrarily close as n increases",
        f"agrees if the float64 distance of v^(L) {_FALLS}. {_BY_FITS}",
        arbitrarily_close,
    ),
    _figure_5(
        "near-precision-at-50",
        "Section 4, Figure 5 (a)",
        "The repeated digits seem to make the collapse occur much sooner with a sequence length of "
        "around 50 being near machine precision",
        f"agrees if {_DISTANCE_WORDS} is at most {NEAR_FACTOR:.0f} times the noise of rounding in "
        f"{LOW}, at the lengths {min(AROUND_50)} to {max(AROUND_50)} of (a) (median over them).",
        near_precision_at_50,
    ),
    _figure_5(
        "varying-delays",
        "Section 4, Figure 5 (a, b)",
        "varying the digits seems to delay such a collapse",
        f"agrees if {_DISTANCE_WORDS} is larger in (b) than in (a) over the upper half of the "
        "lengths: the mean log ratio is above 0 (95% Student interval over at least three digit "
        f"streams). {_ZEROS} There is no verdict if the interval contains zero.",
        varying_delays,
    ),
    _figure_5(
        "varied-trend-downward",
        "Section 4, Figure 5 (b)",
        "a downward trend is maintained with respect to the sequence length",
        f"agrees if the slope of log distance against log length in (b), from n = {FIT_FROM} on, "
        f"is negative (95% Student interval over at least three digit streams). {_ZEROS} There is "
        "no verdict if the interval contains zero.",
        varied_falls,
    ),
    _figure_5(
        "ones-collapse-in-copying",
        "Section 4, Figure 5 (c)",
        "the representations collapse for the sequence of ones (c)",
        f"agrees if {_DISTANCE_WORDS} in {LOW} is at most {NEAR_FACTOR:.0f} times the noise of "
        "rounding in the upper half of the lengths (median over them).",
        ones_collapse,
    ),
    _figure_5(
        "commas-separate",
        "Section 4, Figure 5 (c, d)",
        "adding commas every third digit (d) helps to keep the representations well-separated",
        "agrees if two things hold over the upper half of the lengths. “Helps”: commas enlarge "
        f"{_DISTANCE_WORDS} (the median of (d) / (c) is above 1; this does not speak of every "
        f"length). “Well-separated”: in {LOW} (d) is above {NEAR_FACTOR:.0f} times the noise of "
        "rounding (median), the opposite of the collapse by which (c) is judged.",
        commas_separate,
    ),
    _figure_5(
        "sooner-in-low-precision",
        "Section 4, Quantisation and Tokenisation",
        "a lower machine precision will mean that the convergence of representations in Theorem "
        "4.2 will occur much sooner",
        f"agrees if every curve of Figure 5 that collapses does so in {LOW} at half the length of "
        "float32 or less (much sooner). A curve whose lengths end before that can be seen, or "
        f"begin within the hidden range of {LOW}, is left open; one that overflows is left out. "
        "There is no verdict if no curve collapses, or if all that do are left open.",
        sooner_in_low_precision,
    ),
)
INDUCTION = (
    _induction(
        "attention-variation-vanishes",
        _PROOF,
        r"goes to 0 with $n \to \infty$ thanks to Lemma B.2 and our assumptions on the positional "
        "encodings",
        "agrees if delta(alpha_n, alpha*_(n+1)) of the model's attention, the mean over heads, "
        f"{_FALLS}, {_ALL}",
        lambda results: _attention_vanishes(results, "delta"),
    ),
    _induction(
        "own-weight-vanishes",
        _PROOF,
        "goes to 0 due to Lemma B.1",
        "agrees if the weight alpha*_(n+1,n+1) of the repeated token on itself, the mean over "
        f"heads, {_FALLS}, {_ALL}",
        lambda results: _attention_vanishes(results, "own"),
    ),
    PaperClaim(
        "induction-on-layers",
        _PROOF,
        "The result then follows via a simple inductive approach on the layers.",
        f"agrees if the float64 L1 distance of v^(l), l = 1 ... L, {_FALLS}, {_ALL}",
        every_layer,
        needs=(LAYERS,),
    ),
)
