"""Effects predicted to first order, held against the real ones: how well they agree, and whether
they may be believed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float

from ostools.measure.bounds.variants import judged
from ostools.results import Frame
from ostools.theory.profiles import rank_correlation

GREATEST = 3
"""First order is believed where it has the sign and size of each of this many greatest real
effects.
"""

Effects = Float[np.ndarray, " part"]


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
    real: Effects, predicted: Effects, names: Sequence[str]
) -> dict[str, object]:
    """How well first order predicted the real effects of parts that are called `names`.

    parts; spearman (rank correlation of the two); moved (parts whose real effect is not 0), and of
    those same_sign (the share whose two effects have the same sign) and within_factor_2 (the share
    whose prediction is between half and twice the real effect); believed and words (whether first
    order may be believed, by the rules of `ostools.measure.bounds.variants`: the order of all
    parts, and sign and size of each of the three greatest real effects); largest, largest_predicted
    (the parts with the greatest real and predicted effect, by size).
    """
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
    verdict = judged(rank, off, f"{len(real)} parts", len(real), size=size)
    return {
        "parts": len(real),
        "spearman": rank,
        "moved": int(changed.sum()),
        "same_sign": (factor > 0).mean() if len(factor) else np.nan,
        "within_factor_2": ((factor >= 0.5) & (factor <= 2)).mean() if len(factor) else np.nan,
        "believed": verdict.believed,
        "words": verdict.words,
        "largest": str(names[int(np.abs(real).argmax())]),
        "largest_predicted": str(names[int(np.abs(predicted).argmax())]),
    }
