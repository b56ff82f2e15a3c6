"""The claims about representational collapse: section 4, Figures 5, 8 and 9, Theorem 4.2."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ostools.experiments.reproduce.claim import Claim, ResultsByPart, UntestedError, Verdict, decide
from ostools.experiments.reproduce.weighing import above_zero
from ostools.ground.words import number
from ostools.results import Frame
from ostools.theory.statistics.fits import fit_decay, over_seeds

LOW = "bfloat16"
"""The precision that the paper names ("i.e. bf16"), in which the collapse is judged."""
THEOREM = "theorem"
AROUND_50 = range(40, 61)
NEAR_FACTOR = 10.0
"""A distance of at most this many times the rounding noise is "near machine precision"."""
FIT_FROM = 16


def _panel(results: ResultsByPart, panel: str, dtype: str) -> Frame:
    """The drawn distance of one panel: a row a length, heads and seeds averaged."""
    figure: Any = results["figure-5"]["figure"]
    frame = figure.frame
    rows = frame[(frame["panel"] == panel) & (frame["pair"] == THEOREM) & (frame["dtype"] == dtype)]
    if rows.empty:
        raise UntestedError(f"panel ({panel}) was not measured in {dtype}")
    return rows.sort_values("length")


def _seeds(results: ResultsByPart, panel: str, dtype: str) -> Any:
    """The drawn distance by seed: a column a seed, a row a length."""
    figure: Any = results["figure-5"]["figure"]
    parameters = figure.provenance.parameters
    frame = figure.curves[panel].frame
    for column in ("site", "per", "norm"):
        frame = frame[frame[column] == parameters[column]]
    frame = frame[(frame["pair"] == THEOREM) & (frame["dtype"] == dtype)]
    if frame.empty:
        raise UntestedError(f"panel ({panel}) was not measured in {dtype}")
    return frame.pivot(index="length", columns="seed", values="mean").sort_index()


def _upper(lengths: Any) -> int:
    """The middle of the lengths: what is longer is the upper half."""
    return int(lengths.max()) // 2


def _exact(figure: Any) -> str:
    """The precision of the figure with the least rounding, in which a distance is not hidden by it."""
    names = list(dict.fromkeys(figure.frame["dtype"]))
    return next((name for name in ("float64", "float32") if name in names), names[0])


def arbitrarily_close(results: ResultsByPart) -> Verdict:
    """The law by which the float64 distance of v^(L) in (a) falls."""
    figure: Any = results["figure-5"]["figure"]
    curve = figure.curves["a"].reference_curve(THEOREM, "residual")
    curve = curve[curve.index >= FIT_FROM]
    positive = curve[curve["relative"] > 1e-6]
    fitted = fit_decay(curve.index.to_numpy(dtype=float), curve["distance"].to_numpy(), floor=_floor(curve))
    numbers: dict[str, Any] = {"verdict": fitted.verdict, "used": fitted.used, "longest": int(curve.index.max())}
    if fitted.verdict == "too few":
        raise UntestedError(
            f"{fitted.used} lengths from {FIT_FROM} on are above float64's rounding, and a fit needs 8", **numbers
        )
    ratio = float(positive["distance"].iloc[-1] / positive["distance"].iloc[0])
    law = fitted.law
    rate = "" if law is None else f", rate {number(law.rate)} [{number(law.low)}, {number(law.high)}]"
    level = "" if law is None or not law.level else f", to a level of {number(law.level)}"
    sentence = (
        f"from n = {FIT_FROM} to {int(positive.index[-1])} the float64 distance of v^(L) in (a) goes to {ratio:.2%} of what it "
        f"was: {fitted.verdict}{rate}{level}. How close it comes at greater n was not measured"
    )
    return decide(
        law is not None and law.level == 0,
        sentence,
        ratio=ratio,
        rate=None if law is None else law.rate,
        level=None if law is None else law.level,
        **numbers,
    )


def _floor(curve: Frame) -> float:
    """float64's rounding in units of the distance, as `relative` is of the vector's norm."""
    sizes = (curve["distance"] / curve["relative"]).replace([np.inf, -np.inf], np.nan).dropna()
    return 1e-6 * float(sizes.median()) if len(sizes) else 0.0


def near_precision_at_50(results: ResultsByPart) -> Verdict:
    """The drawn distance of (a) about n = 50, over the noise of rounding there."""
    rows = _panel(results, "a", LOW)
    rows = rows[rows["length"].isin(AROUND_50)]
    if rows.empty:
        raise UntestedError(f"no length from {min(AROUND_50)} to {max(AROUND_50)} was measured")
    ratio = float((rows["mean"] / rows["noise"]).median())
    if not np.isfinite(ratio):
        raise UntestedError(f"the noise of {LOW} is not known for this distance")
    sentence = (
        f"at n = {min(AROUND_50)} to {max(AROUND_50)} the distance of (a) in {LOW} is {number(ratio)} times the noise of "
        "rounding (median over these lengths)"
    )
    return decide(ratio <= NEAR_FACTOR, sentence, over_noise=ratio)


def varying_delays(results: ResultsByPart) -> Verdict:
    """log10 of (b) over (a) in the upper half of the lengths, a mean for each seed of (b)."""
    dtype = _exact(results["figure-5"]["figure"])
    ones, varied = _seeds(results, "a", dtype).mean(axis=1), _seeds(results, "b", dtype)
    shared = varied.index.intersection(ones.index)
    upper = shared[shared > _upper(shared)]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.log10(varied.loc[upper].div(ones.loc[upper], axis=0))
    samples = ratios.replace([np.inf, -np.inf], np.nan).mean(axis=0)
    return above_zero(
        samples.to_numpy(),
        f"log10 of the distance of (b) divided by that of (a), in {dtype}, n from {upper.min()} to {upper.max()}",
    )


def varied_falls(results: ResultsByPart) -> Verdict:
    """The slope of log distance against log length in (b), one for each seed."""
    dtype = _exact(results["figure-5"]["figure"])
    curves = _seeds(results, "b", dtype)
    curves = curves[curves.index >= FIT_FROM]
    slopes = _slopes(curves)
    return above_zero(
        -slopes, f"minus the slope of log distance against log n in (b), in {dtype}, from n = {FIT_FROM} on"
    )


def _slopes(curves: Any) -> np.ndarray:
    """Of log value against log length, a column a seed; NaN where a value is 0."""
    with np.errstate(divide="ignore"):
        logs = np.log(curves.to_numpy(dtype=float))
    x = np.log(curves.index.to_numpy(dtype=float))
    if len(x) < 2:
        return np.full(logs.shape[1], np.nan)
    return np.array([np.polyfit(x, y, 1)[0] if np.isfinite(y).all() else np.nan for y in logs.T])


def commas_separate(results: ResultsByPart) -> Verdict:
    """The drawn distance of (d) over that of (c), the median of the upper half, and (d) in low precision over its noise."""
    dtype = _exact(results["figure-5"]["figure"])
    plain = _panel(results, "c", dtype).set_index("length")["mean"]
    commas = _panel(results, "d", dtype).set_index("length")["mean"]
    shared = plain.index.intersection(commas.index)
    upper = shared[shared > _upper(shared)]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = float((commas.loc[upper] / plain.loc[upper]).median())
    share = float((commas.loc[upper] > plain.loc[upper]).mean())
    over = _over_noise(results)
    if not np.isfinite(ratio):
        raise UntestedError(
            f"the ratio of (d) to (c) in {dtype} is not finite: the distance of (c) is 0 at too many lengths"
        )
    helps, separate = ratio > 1, over["d"] > NEAR_FACTOR
    sentence = (
        f"helps: {'yes' if helps else 'no'}. Commas multiply the distance by {number(ratio)} (median of the {len(upper)} "
        f"lengths from {upper.min()} to {upper.max()}, in {dtype}), and it is larger with them at {share:.1%} of these "
        f"lengths. Well-separated: {'yes' if separate else 'no'}. In {LOW} the distance is {number(over['d'])} times the "
        f"noise with commas, and {number(over['c'])} times without{_one_more_digit(results, plain, dtype)}"
    )
    return decide(
        helps and separate,
        sentence,
        larger_share=share,
        median_ratio=ratio,
        over_noise_d=over["d"],
        over_noise_c=over["c"],
    )


def _one_more_digit(results: ResultsByPart, plain: Any, dtype: str) -> str:
    """The same of the second pair of (d), one digit more after a comma, where it was measured. It is not judged."""
    figure: Any = results["figure-5"]["figure"]
    frame = figure.frame
    rows = frame[(frame["panel"] == "d") & (frame["pair"] == "one-more-digit") & (frame["dtype"] == dtype)]
    pair = rows.set_index("length")["mean"]
    shared = plain.index.intersection(pair.index)
    upper = shared[shared > _upper(plain.index)]
    if not len(upper):
        return ""
    larger = float((pair.loc[upper] > plain.loc[upper]).mean())
    words = f"With one more digit after a comma the distance in {dtype} is larger than that of (c) at {larger:.0%}"
    return f". {words} of the {len(upper)} lengths from {upper.min()} on"


def _over_noise(results: ResultsByPart) -> dict[str, float]:
    """The distances of (c) and (d) in low precision over the noise, medians of the upper half."""
    over = {}
    for panel in "cd":
        rows = _panel(results, panel, LOW)
        rows = rows[rows["length"] > _upper(rows["length"])]
        over[panel] = float((rows["mean"] / rows["noise"]).median())
        if not np.isfinite(over[panel]):
            raise UntestedError(f"the noise of {LOW} is not known for this distance")
    return over


def ones_collapse(results: ResultsByPart) -> Verdict:
    """The drawn distance of (c) in low precision, over the noise of rounding."""
    over = _over_noise(results)["c"]
    return decide(
        over <= NEAR_FACTOR,
        f"in the upper half of the lengths the distance of (c) in {LOW} is {number(over)} times the noise of rounding (median)",
        over_noise=over,
    )


def sooner_in_low_precision(results: ResultsByPart) -> Verdict:
    """Where the first hidden range of every panel begins in the lowest precision, against the highest."""
    figure: Any = results["figure-5"]["figure"]
    table = figure.verdicts
    table = table[table["pair"] == THEOREM]
    high = next((name for name in ("float32", "float64") if name in set(table["dtype"])), None)
    if high is None or LOW not in set(table["dtype"]):
        raise UntestedError(
            f"this needs {LOW} and float32 or float64; measured were {', '.join(dict.fromkeys(table['dtype']))}"
        )
    ends = table.pivot_table(index=["panel", "seed"], columns="dtype", values="first", dropna=False)
    ends = ends.reindex(columns=[high, LOW]).astype("Float64").astype(float)
    n_max = int(table["longest"].max())
    reached_rows: Any = ends[ends.notna().any(axis=1)]
    numbers: dict[str, Any] = {"curves": len(table.drop_duplicates(["panel", "seed"])), "longest": n_max}
    if reached_rows.empty:
        raise UntestedError(
            f"no pair is hidden over a range of lengths in either precision up to n = {n_max}", **numbers
        )
    low_ends, high_ends = reached_rows[LOW].fillna(np.inf), reached_rows[high].fillna(np.inf)
    half = 2 * low_ends <= high_ends.clip(upper=n_max)
    open_ends = ~half & np.isinf(high_ends) & np.isfinite(low_ends)
    descriptions = [
        f"({panel}) {_length_words(row[LOW])} against {_length_words(row[high])}"
        for (panel, _), row in reached_rows.iterrows()
    ]
    numbers |= {"reached": len(reached_rows), "at_most_half": int(half.sum()), "open": int(open_ends.sum())}
    sentence = (
        f"{len(reached_rows)} curves have a hidden range by n = {n_max} in at least one of the two. In {LOW} it begins at "
        f"half the "
        f"length of {high} or less in {int(half.sum())} of them, and {int(open_ends.sum())} are left open because longer "
        f"lengths would have to be measured ({_with_counts(descriptions)})"
    )
    if bool(open_ends.all()):
        raise UntestedError(sentence, **numbers)
    return decide(bool((half | open_ends).all()), sentence, **numbers)


def _with_counts(descriptions: list[str]) -> str:
    """Each once, with how often."""
    return "; ".join(
        f"{sentence}{f' ({descriptions.count(sentence)} seeds)' if descriptions.count(sentence) > 1 else ''}"
        for sentence in dict.fromkeys(descriptions)
    )


def _length_words(value: Any) -> str:
    return "no range" if pd.isna(value) else str(int(value))


def synthetic_converges(results: ResultsByPart) -> Verdict:
    """The slope of the synthetic layer's distance, one for each seed, in every reading."""
    frame: Any = results["figure-8"]["figure"].frame
    readings = list(frame.groupby("reading", sort=False)) if "reading" in frame else [("the layer", frame)]
    descriptions, converges = [], []
    for reading, rows in readings:
        curves = rows[rows["length"] >= FIT_FROM].pivot(index="length", columns="seed", values="l1").sort_index()
        mean, low, high = over_seeds(list(_slopes(curves)))
        if not np.isfinite(low):
            raise UntestedError(
                f"{reading}: {curves.shape[1]} seeds; an interval needs at least 2, with every distance above 0"
            )
        fitted = fit_decay(curves.index.to_numpy(dtype=float), curves.mean(axis=1).to_numpy())
        converges.append(high < 0 and not (fitted.law is not None and fitted.law.level))
        descriptions.append(f"{reading}: slope {number(mean)} [{number(low)}, {number(high)}], {fitted.verdict}")
    return decide(
        converges[0],
        f"log L1 distance against log n from {FIT_FROM} on: {'; '.join(descriptions)}",
        readings=len(readings),
        converging=sum(converges),
    )


def variation_decays(results: ResultsByPart) -> Verdict:
    """The slope of Figure 9's total variation after the noisy entries, one for each seed, and our bound of it."""
    figure: Any = results["figure-9"]["figure"]
    frame = figure.frame
    noisy = int(figure.provenance.parameters["noisy"])
    beyond = frame[frame["length"] > 10 * noisy]
    if beyond["length"].nunique() < 2:
        raise UntestedError(
            f"{beyond['length'].nunique()} lengths are beyond ten times the {noisy} noisy entries, and a slope needs 2"
        )
    curves = beyond.pivot(index="length", columns="seed", values="delta").sort_index()
    slopes = _slopes(curves)
    mean, low, high = over_seeds(list(slopes))
    above = int((frame["delta"] > frame["bound"]).sum())
    sentence = (
        f"beyond n = {10 * noisy} delta goes as n to the power {number(mean)} [{number(low)}, {number(high)}] over "
        f"{curves.shape[1]} seeds. It is above our bound, which implies Lemma B.2, at {above} of {len(frame)} points"
    )
    if not np.isfinite(low):
        raise UntestedError(f"{curves.shape[1]} seeds; an interval needs at least 2, with every delta above 0")
    return decide(high < 0 and above == 0, sentence, slope=mean, low=low, high=high, above_bound=above)


_DISTANCE_WORDS = "the distance that Figure 5 draws"
CLAIMS = (
    Claim(
        "arbitrarily-close",
        "Theorem 4.2, Figure 5 (a)",
        "their representations become arbitrarily close as n increases",
        f"agrees if the float64 distance of v^(L) on the prompts of (a) falls by a law without a level, from n = {FIT_FROM} "
        "on. There is no verdict with fewer than eight lengths above float64's rounding. A finite run does not show a limit.",
        arbitrarily_close,
        ("figure-5",),
        (5,),
    ),
    Claim(
        "near-precision-at-50",
        "Section 4, Figure 5 (a)",
        "The repeated digits seem to make the collapse occur much sooner with a sequence length of around 50 being near "
        "machine precision",
        f"agrees if {_DISTANCE_WORDS} is at most {NEAR_FACTOR:.0f} times the noise of rounding in {LOW}, at the lengths "
        f"{min(AROUND_50)} to {max(AROUND_50)} of (a) (median over them).",
        near_precision_at_50,
        ("figure-5",),
        (5,),
    ),
    Claim(
        "varying-delays",
        "Section 4, Figure 5 (a, b)",
        "varying the digits seems to delay such a collapse",
        f"agrees if {_DISTANCE_WORDS} is larger in (b) than in (a) over the upper half of the lengths: the mean log ratio is "
        f"above 0 "
        "(95% Student interval over at least three digit streams). There is no verdict if the interval contains zero.",
        varying_delays,
        ("figure-5",),
        (5,),
    ),
    Claim(
        "varied-trend-downward",
        "Section 4, Figure 5 (b)",
        "a downward trend is maintained with respect to the sequence length",
        f"agrees if the slope of log distance against log length in (b), from n = {FIT_FROM} on, is negative (95% "
        "Student interval over at least three digit streams). There is no verdict if the interval contains zero.",
        varied_falls,
        ("figure-5",),
        (5,),
    ),
    Claim(
        "ones-collapse-in-copying",
        "Section 4, Figure 5 (c)",
        "the representations collapse for the sequence of ones (c)",
        f"agrees if {_DISTANCE_WORDS} in {LOW} is at most {NEAR_FACTOR:.0f} times the noise of rounding in the upper half of "
        f"the "
        "lengths (median over them).",
        ones_collapse,
        ("figure-5",),
        (5,),
    ),
    Claim(
        "commas-separate",
        "Section 4, Figure 5 (c, d)",
        "adding commas every third digit (d) helps to keep the representations well-separated",
        f"agrees if two things hold over the upper half of the lengths. “Helps”: commas enlarge {_DISTANCE_WORDS} (the "
        f"median of (d) "
        f"/ (c) is above 1; this does not speak of every length). “Well-separated”: in {LOW} (d) is above {NEAR_FACTOR:.0f} "
        "times the noise of rounding (median), the opposite of the collapse by which (c) is judged.",
        commas_separate,
        ("figure-5",),
        (5,),
    ),
    Claim(
        "sooner-in-low-precision",
        "Section 4, Quantisation and Tokenisation",
        "a lower machine precision will mean that the convergence of representations in Theorem 4.2 will occur much sooner",
        f"agrees if every curve of Figure 5 that collapses does so in {LOW} at half the length of float32 or less (much "
        "sooner). A curve whose lengths end before that can be seen is left open. There is no verdict if no curve collapses, "
        "or if all that do are left open.",
        sooner_in_low_precision,
        ("figure-5",),
        (5,),
    ),
    Claim(
        "synthetic-converges",
        "Appendix C.3, Figure 8",
        "We see how also for sinusoidal PEs with key, queries, and values randomly sampled, the convergence still occurs.",
        f"agrees if the slope of log distance against log length from {FIT_FROM} on is negative (95% Student interval over "
        "seeds) and no level was found, in the first reading of Figure 8 (“vectors”: queries, keys and values are Gaussian). "
        "The other readings are told, and not judged.",
        synthetic_converges,
        ("figure-8",),
        (8,),
    ),
    Claim(
        "total-variation-decays",
        "Appendix C.3, Figure 9",
        "It is clear how the total variation decays with length, in accordance with Lemma B.2.",
        "agrees if the slope of log delta against log length is negative beyond ten times the noisy entries (95% Student "
        "interval over seeds), and no point is above our bound, which implies Lemma B.2.",
        variation_decays,
        ("figure-9",),
        (9,),
        "it is a statement about drawn numbers, without a model, and the bound falls as 1/n whatever is drawn",
    ),
)
