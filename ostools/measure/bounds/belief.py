"""Whether a form that is no bound may be believed on this prompt: its order and its size beside the measured norms.

The rules were fixed before anything was measured. The order is right from a rank correlation of `RIGHT_RANK` on, over at least
`FEWEST` tokens. The size is right within a factor of `RIGHT_FACTOR` in the median over tokens. A form without a scale is held
to its order alone. Cost beside a path sum: one sketch of `COTANGENTS` cotangents.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from ostools.ground.errors import InputError
from ostools.ground.words import factor
from ostools.measure.bounds.variants import LINEARISATION, NORM, variant_named
from ostools.measure.jacobian.sensitivity import sensitivity
from ostools.models import Prompt
from ostools.results import Frame
from ostools.theory.profiles import rank_correlation

RIGHT_RANK, RIGHT_FACTOR, FEWEST = 0.9, 2.0, 8
COTANGENTS = 8

Values = Float[np.ndarray, " pos"]


@dataclass(frozen=True)
class Belief:
    """Verdict on one form on one prompt. `believed`: None where it could not be tested. `spearman`: rank correlation with the
    norms. `log10_off`: median over tokens of log10(value / norm), 0 inside the norm's interval; NaN of a form without a scale.
    `words`: the verdict with its reason, as charts and tables show it."""

    believed: bool | None
    spearman: float
    log10_off: float
    words: str

    @property
    def as_dict(self) -> dict[str, Any]:
        """Plain values for the provenance, None for what is not known."""
        numbers = {"spearman": self.spearman, "log10_off": self.log10_off}
        finite_numbers = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        return {"believed": self.believed, **finite_numbers, "words": self.words}


def belief(value: Values, norm: Values, lower: Values, upper: Values, *, scaled: bool) -> Belief:
    """Verdict on the values of a form beside norms with their intervals (exact norms: both limits are the norm)."""
    rank = rank_correlation(value, norm)
    off = float(np.median(_log10_off(value, lower, upper))) if scaled else math.nan
    return judged(rank, off, f"{len(value)} tokens", len(value), scaled=scaled)


def judged(rank: float, off: float, what: str, count: int, *, scaled: bool = True, size: str = "") -> Belief:
    """Verdict by the rules on a rank correlation over `count` things (`what`: in words) and on log10 of the error of a size.

    `size`: words for the error of the size where a factor does not say it.
    """
    if count < FEWEST:
        return Belief(None, rank, off, f"not tested here: {what}, {FEWEST} needed")
    if math.isnan(rank):
        return Belief(None, rank, off, "not tested here: one of the two sides is the same everywhere")
    order, size = f"Spearman {rank:.2f}", size or f"size off by {_times(off)}"
    right_order, right_size = rank >= RIGHT_RANK, not scaled or abs(off) <= math.log10(RIGHT_FACTOR)
    if right_order and right_size:
        return Belief(True, rank, off, f"believed here: {order}" + (f", {size}" if scaled else ", order alone"))
    wrong = [words for words, right in ((size, right_size), (order, right_order)) if not right]
    return Belief(False, rank, off, f"not believed here: {', '.join(wrong)}")


def beliefs(
    model: TransformerBridge, tokens: Prompt, values: Mapping[str, Float[Tensor, " pos"]], max_memory: int | None
) -> dict[str, Belief]:
    """Verdict on each variant that is no bound, beside a sketch of the frozen derivative.

    `values`: of the last token, by variant. Active edits are respected. Where the sketch is refused the form is untested, with
    the reason.
    """
    forms = {name: variant_named(name) for name in values if variant_named(name).kind != "certified"}
    if not forms:
        return {}
    sketch: dict[str, Any] = {"linearisations": (LINEARISATION,), "method": "sketch", "cotangents": COTANGENTS}
    try:
        frame: Frame = sensitivity(model, tokens, **sketch, max_memory=max_memory, progress=False).frame
    except InputError as error:
        return dict.fromkeys(forms, Belief(None, math.nan, math.nan, f"not tested here: {error}"))
    lower, upper = (frame[f"{NORM}_{end}"].to_numpy(float) for end in ("lower", "upper"))
    # The order of operator norms is taken from the Frobenius norms: of an operator norm a sketch knows two limits.
    order = frame["frobenius_norm"].to_numpy(float)
    return {
        name: belief(values[name].cpu().numpy(), order, lower, upper, scaled=form.scaled)
        for name, form in forms.items()
    }


def _log10_off(value: Values, lower: Values, upper: Values) -> Values:
    """log10 of value over the nearer end of its interval; 0 inside it."""
    nearest = np.clip(value, lower, upper)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log10(value) - np.log10(nearest)
    return np.where(value == nearest, 0.0, ratio)


def _times(log10: float) -> str:
    """The factor in words, the same for too large and too small."""
    if math.isinf(log10):
        return "more than any factor"
    factor_words = factor(abs(log10))
    return factor_words if factor_words.startswith("10^") else f"a factor of {factor_words}"
