"""The claims within the proof of Theorem B.3, on the model's own attention and after each of its blocks."""

from __future__ import annotations

from typing import Any

from ostools.experiments.reproduce.claim import Claim, ResultsByPart, UntestedError, Verdict, decide
from ostools.experiments.reproduce.collapse import FIT_FROM
from ostools.ground.words import number
from ostools.theory.statistics.fits import Decay, fit_decay

ATTENTION, LAYERS = "attention", "layers"
ROUNDING = 1e-12
"""Of float64 attention weights."""


def _to_zero(curves: dict[str, Any], what: str, floors: dict[str, float]) -> Verdict:
    """Every curve (values by length) is fitted: all of them have to fall by a law without a level."""
    descriptions, falling = [], []
    for name, curve in curves.items():
        curve = curve[curve.index >= FIT_FROM]
        fitted = fit_decay(curve.index.to_numpy(dtype=float), curve.to_numpy(dtype=float), floor=floors[name])
        if fitted.verdict == "too few":
            descriptions.append(f"{name}: {fitted.used} lengths above rounding, and a fit needs 8")
            continue
        falling.append(fitted.law is not None and fitted.law.level == 0)
        descriptions.append(f"{name}: {_law(fitted)}")
    if not falling:
        raise UntestedError(f"{what}: no curve can be fitted ({'; '.join(descriptions)})")
    count_words = f"falls by a law without a level in {sum(falling)} of {len(falling)}"
    sentence = f"{what}, from n = {FIT_FROM} on: {count_words} ({'; '.join(descriptions)})"
    if all(falling) and len(falling) < len(curves):
        raise UntestedError(f"{sentence}: {len(curves) - len(falling)} of {len(curves)} curves cannot be fitted")
    return decide(all(falling), sentence, falling=sum(falling), fitted=len(falling), curves=len(curves))


def _law(fitted: Decay) -> str:
    law = fitted.law
    if law is None:
        return fitted.verdict
    level = f" to {number(law.level)}" if law.level else ""
    return f"{fitted.verdict}, rate {number(law.rate)}{level}"


def _attention(results: ResultsByPart, quantity: str) -> Verdict:
    """The mean over heads of one quantity of `ost.attention_variation`, a curve for each layer."""
    variation: Any = results[ATTENTION]["variation"]
    frame = variation.over_heads()
    curves = {
        f"layer {layer}": rows.set_index("length")[quantity].sort_index() for layer, rows in frame.groupby("layer")
    }
    return _to_zero(curves, f"{quantity}, the mean over heads", dict.fromkeys(curves, ROUNDING))


def variation_vanishes(results: ResultsByPart) -> Verdict:
    return _attention(results, "delta")


def own_weight_vanishes(results: ResultsByPart) -> Verdict:
    return _attention(results, "own")


def every_layer(results: ResultsByPart) -> Verdict:
    """The float64 L1 distance of the last tokens after each block; the embedding, where it is 0, is left out."""
    collapse: Any = results[LAYERS]["collapse"]
    frame = collapse.frame
    after_blocks = (
        (frame["site"] == "residual") & (frame["per"] == "vector") & (frame["norm"] == "l1") & (frame["layer"] > 0)
    )
    rows = frame[after_blocks].drop_duplicates(["layer", "length"])
    if rows.empty:
        raise UntestedError("no block was measured")
    curves, floors = {}, {}
    for layer, layer_rows in rows.groupby("layer"):
        name = f"block {layer}"
        curves[name] = layer_rows.set_index("length")["float64_distance"].astype(float).sort_index()
        sizes = (layer_rows["mean"] / layer_rows["relative"]).astype(float)
        floors[name] = 1e-6 * float(sizes.median()) if sizes.notna().any() else 0.0
    return _to_zero(curves, "the float64 L1 distance of v^(l)", floors)


_FALLS = f"falls by a law without a level from n = {FIT_FROM} on, on the prompts of Figure 5 (a)"
_ALL = (
    "in every layer. A layer with fewer than eight lengths above rounding is not fitted. There is no verdict if no layer is "
    "fitted, or if some are not fitted and all others fall. A finite run does not show a limit."
)
CLAIMS = (
    Claim(
        "attention-variation-vanishes",
        "Appendix B.1, proof of Theorem B.3",
        r"goes to 0 with $n \to \infty$ thanks to Lemma B.2 and our assumptions on the positional encodings",
        f"agrees if delta(alpha_n, alpha*_(n+1)) of the model's attention, the mean over heads, {_FALLS}, {_ALL}",
        variation_vanishes,
        (ATTENTION,),
    ),
    Claim(
        "own-weight-vanishes",
        "Appendix B.1, proof of Theorem B.3",
        "goes to 0 due to Lemma B.1",
        f"agrees if the weight alpha*_(n+1,n+1) of the repeated token on itself, the mean over heads, {_FALLS}, {_ALL}",
        own_weight_vanishes,
        (ATTENTION,),
    ),
    Claim(
        "induction-on-layers",
        "Appendix B.1, proof of Theorem B.3",
        "The result then follows via a simple inductive approach on the layers.",
        f"agrees if the float64 L1 distance of v^(l), l = 1 ... L, {_FALLS}, {_ALL}",
        every_layer,
        (LAYERS,),
    ),
)
