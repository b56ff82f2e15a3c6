"""Whether a prediction may be believed: a form of the path sum beside measured norms, effects
predicted to first order beside the real ones.

By rules that were fixed before anything was measured. An order is right from a rank correlation of
`RIGHT_RANK` on, over at least `FEWEST` things. A size is right within a factor of `RIGHT_FACTOR`,
of a form in the median over the tokens that reach y. A form without a scale is held to its order
alone. Of a sketch, which knows two limits of a norm, the order is estimated, and a size is right or
wrong where it is so by both limits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float

from ostools.ground import factor
from ostools.results import Frame
from ostools.theory.profiles import acting, rank_correlation

RIGHT_RANK, RIGHT_FACTOR, FEWEST = 0.9, 2.0, 8
GREATEST = 3
"""First order is believed where it has the sign and size of each of this many greatest real
effects.
"""

Values = Float[np.ndarray, " place"]


def agreement_table(frame: Frame, keys: Sequence[str], part: str) -> pd.DataFrame:
    """`first_order_agreement` of the columns effect and predicted_effect, a row for each value of
    `keys`; `part`: the column of the parts' names.
    """
    rows = [
        dict(zip(keys, values, strict=True))
        | first_order_agreement(
            group["effect"].to_numpy(float),
            group["predicted_effect"].to_numpy(float),
            group[part].tolist(),
        )
        for values, group in frame.groupby([*keys], sort=False, dropna=False)
    ]
    return pd.DataFrame(rows).astype({"believed": "boolean"})


def first_order_agreement(
    real: Values, predicted: Values, names: Sequence[str]
) -> dict[str, object]:
    """How well first order predicted the real effects of parts that are called `names`.

    Of the parts with an effect, real or predicted: one that is exactly 0 on both sides could not
    act (a patch before the tokens that differ), and is no evidence.

    parts (so many); spearman (rank correlation of the two); moved (parts whose real effect is not
    0), and of those same_sign (the share whose two effects have the same sign) and within_factor_2
    (the share whose prediction is between half and twice the real effect); believed and words
    (whether first order may be believed, by the rules above: the order of all parts, and sign and
    size of each of the three greatest real effects); largest, largest_predicted
    (the parts with the greatest real and predicted effect, by size).
    """
    largest, largest_predicted = (
        str(names[int(np.abs(effects).argmax())]) for effects in (real, predicted)
    )
    acts = acting(real, predicted)
    real, predicted = real[acts], predicted[acts]
    changed = real != 0
    factor = predicted[changed] / real[changed]
    order = np.abs(real).argsort()[::-1]
    greatest = order[: min(GREATEST, np.count_nonzero(real))]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = predicted[greatest] / real[greatest]
        log_ratios = np.where(ratio > 0, np.log10(np.abs(ratio)), np.inf)
    off = float(log_ratios[np.abs(log_ratios).argmax()]) if len(log_ratios) else np.nan
    size = "" if not np.isinf(off) else "a greatest effect has another sign, or none"
    rank = rank_correlation(real, predicted)
    verdict = judged(rank, (off, off), f"{len(real)} parts with an effect", len(real), size=size)
    return {
        "parts": len(real),
        "spearman": rank,
        "moved": int(changed.sum()),
        "same_sign": (factor > 0).mean() if len(factor) else np.nan,
        "within_factor_2": ((factor >= 0.5) & (factor <= 2)).mean() if len(factor) else np.nan,
        "believed": verdict.believed,
        "words": verdict.words,
        "largest": largest,
        "largest_predicted": largest_predicted,
    }


@dataclass(frozen=True)
class Belief:
    """Verdict on one form on one prompt. `believed`: None where it could not be tested, or where
    estimated norms do not decide it. `spearman`: rank correlation with the norms. `log10_off_lower`
    and `log10_off_upper`: between these lies the median over the tokens that reach y (value or norm
    is not 0) of log10(value / norm); one number beside exact norms; NaN of a form without a scale.
    `words`: the verdict with its reason, as charts and tables show it."""

    believed: bool | None
    spearman: float
    log10_off_lower: float
    log10_off_upper: float
    words: str

    @property
    def as_dict(self) -> dict[str, object]:
        """Plain values for the provenance, None for what is not known."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in vars(self).items()
        }


def belief(value: Values, norm: Values, lower: Values, upper: Values, *, scaled: bool) -> Belief:
    """Verdict on the values of a form beside norms with their intervals (exact norms: both limits
    are the norm), over the tokens that reach y.
    """
    in_reach = acting(value, upper)
    value, norm, lower, upper = (column[in_reach] for column in (value, norm, lower, upper))
    # A median grows with each of its ratios, so that the real one lies between these two.
    least, most = (float(pd.Series(log10_ratio(value, end)).median()) for end in (upper, lower))
    off = (least, most) if scaled else (math.nan, math.nan)
    return judged(
        rank_correlation(value, norm),
        off,
        f"{len(value)} tokens that reach y",
        len(value),
        scaled=scaled,
        is_estimated=bool((lower < upper).any()),
    )


def log10_ratio(value: Values, measured: Values) -> Values:
    """log10(value / measured), 0 where both are the same, infinite beside a single 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log10(value) - np.log10(measured)
    return np.where(value == measured, 0.0, ratio)


def judged(
    rank: float,
    off: tuple[float, float],
    what: str,
    count: int,
    *,
    scaled: bool = True,
    size: str = "",
    is_estimated: bool = False,
) -> Belief:
    """Verdict by the rules on a rank correlation over `count` things (`what`: in words) and on
    log10 of the error of a size, which lies between two numbers.

    `size`: words for the error of the size where a factor does not say it. `is_estimated`: what the
    things are held against.
    """
    if count < FEWEST:
        return Belief(None, rank, *off, f"not tested here: {what}, {FEWEST} needed")
    if math.isnan(rank):
        return Belief(
            None, rank, *off, "not tested here: one of the two sides is the same everywhere"
        )
    limit = math.log10(RIGHT_FACTOR)
    nearest, farthest = max(off[0], -off[1], 0.0), max(off[1], -off[0])
    is_order_right, is_size_right = rank >= RIGHT_RANK, not scaled or farthest <= limit
    is_size_wrong = scaled and not nearest <= limit
    order = "estimated " * is_estimated + f"Spearman {_rank(rank)}"
    at = ("at least " if is_size_wrong else "at most ") * is_estimated
    size = size or f"size off by {_times(nearest if is_size_wrong else farthest, at)}"
    if is_order_right and not is_size_wrong:
        believed, verdict = (True, "believed") if is_size_right else (None, "not decided")
        words = f"{verdict} here: {order}, {size if scaled else 'order alone'}"
        return Belief(believed, rank, *off, words)
    wrong = [size] * is_size_wrong + [order] * (not is_order_right)
    return Belief(False, rank, *off, f"not believed here: {', '.join(wrong)}")


def _rank(rank: float) -> str:
    # A rank just below the limit is not written as the limit.
    is_close = rank < RIGHT_RANK <= round(rank, 2)
    return f"{math.floor(rank * 1e4) / 1e4:.4f}" if is_close else f"{rank:.2f}"


def _times(log10: float, at: str = "") -> str:
    """The factor in words, the same for too large and too small; `at`: least or most."""
    if not math.isfinite(log10):
        return "more than any factor"
    if 0 < abs(log10) - math.log10(RIGHT_FACTOR) < 1e-3:  # nor is one just beyond its limit
        return f"{at}a factor of {math.ceil(10 ** abs(log10) * 1e4) / 1e4:.4f}"
    factor_words = factor(abs(log10))
    return at + (factor_words if factor_words.startswith("10^") else f"a factor of {factor_words}")
