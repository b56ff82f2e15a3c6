"""The forms of the path sum, by name: how each reads one block, what it multiplies the product
with, and whether one that is no bound may be believed.

A variant walks the blocks from the last to the first, so that one block's weights are in memory at
a time.

A form is believed on a prompt for its order and its size beside the measured norms, by rules that
were fixed before anything was measured. The order is right from a rank correlation of `RIGHT_RANK`
on, over at least `FEWEST` tokens. The size is right within a factor of `RIGHT_FACTOR` in the median
over tokens. A form without a scale is held to its order alone. Cost beside a path sum: one sketch
of `COTANGENTS` cotangents.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ostools import hooks
from ostools.ground import InputError, TransformerBridge
from ostools.ground.names import Linearisation, checked_names
from ostools.ground.words import factor
from ostools.hooks.sites import is_closed
from ostools.measure.bounds.certified import WindowedFold, local
from ostools.measure.formulas.block import BlockTerms, Forward
from ostools.measure.formulas.weights import final_gain
from ostools.measure.jacobian.sensitivity import sensitivity
from ostools.models import Prompt
from ostools.results import Frame
from ostools.theory import path_sum
from ostools.theory.profiles import rank_correlation

MlpNorm = Literal["svd", "product"]
Kind = Literal["certified", "paper"]


LINEARISATION: Linearisation = "frozen"
NORM = "operator"
"""The derivative that every variant stands beside, and the norm of it."""


@dataclass(frozen=True)
class Variant:
    """A form of the path sum and what kind of number it gives; it stands beside the operator norm
    of the frozen derivative.

    `edges`: Abar of a block; `numbers`: what `constant` makes the factor in front of, from those of
    every block and beta_3. Without a constant only the shape (the ranks) can be compared.
    `printed`: the sum of equation 4 as printed (docs/fidelity.md, `path_sum.printed_row`).
    `window`: k of `windowed(k)`, whose fold is its own.
    """

    name: str
    kind: Kind
    edges: Callable[[BlockTerms], Float[Tensor, "query key"]]
    numbers: Callable[[BlockTerms], tuple[float, ...]] | None = None
    constant: Callable[[list[tuple[float, ...]], float], float] | None = None
    printed: bool = False
    window: int = 0

    @property
    def scaled(self) -> bool:
        return self.constant is not None or self.window > 0

    def fold(self, run: Forward) -> RowFold | WindowedFold:
        """The path sum in the making: fed the blocks from the last to the first, then asked for its
        values.
        """
        return WindowedFold(run, self.window) if self.window else RowFold(self, run)


class RowFold:
    """constant * ( Abar^(L-1) ... Abar^(0) )_{n,:} for the last position n, with Abar from the
    variant's `edges` and the constant from its numbers of each block.
    """

    def __init__(self, variant: Variant, run: Forward) -> None:
        self.variant, self.run = variant, run
        self.rows = torch.eye(len(run.final_norm_scale)).to(run.final_norm_scale)[-1:]
        self.block_numbers: list[tuple[float, ...]] = []

    def step(self, view: BlockTerms) -> None:
        variant = self.variant
        if variant.printed:
            view.require_causal(variant.name)
        edges = variant.edges(view).to(self.rows)
        self.rows = self.rows @ edges
        if variant.printed and not self.block_numbers:
            # k_L is joined to nothing; of one block it is k_1.
            has_one_block = int(self.run.model.cfg.n_layers) == 1
            self.rows = self.rows @ edges if has_one_block else path_sum.tail_sums(self.rows)
        self.block_numbers.append(() if variant.numbers is None else variant.numbers(view))

    def values(self) -> Float[Tensor, " pos"]:
        """The row; beta_3 = r3_n / ||g3||_inf."""
        if (constant := self.variant.constant) is None:
            return self.rows[0]
        beta_3 = self.run.final_norm_scale[-1] / final_gain(self.run.model).abs().max()
        return constant(self.block_numbers, float(beta_3)) * self.rows[0]


# Equation 4's factors and its sigma_psi^L.
_THEOREM_B5 = Variant(
    "theorem-b5",
    "paper",
    lambda view: path_sum.theorem_b5_edges(view.mean_pattern, view.beta_1),
    lambda view: (view.sigma_psi,),
    lambda numbers, beta_3: max(sigma for (sigma,) in numbers) ** len(numbers),
)

VARIANTS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        # Equation 1's factors; its C is "some constant".
        Variant(
            "theorem-5.1",
            "paper",
            lambda view: path_sum.theorem_51_edges(view.mean_pattern, view.beta_2),
        ),
        _THEOREM_B5,
        replace(_THEOREM_B5, name="theorem-b5-literal", printed=True),
        Variant(
            "proof",
            "paper",
            lambda view: path_sum.proof_edges(view.mean_pattern, view.beta_1),
            lambda view: (view.sigma_psi, view.beta_2),
            lambda numbers, beta_3: path_sum.proof_constant(
                max(sigma for sigma, _ in numbers), [beta_2 for _, beta_2 in numbers], beta_3
            ),
        ),
        # ( row ) ||g3||_inf / r3_n
        Variant("local", "certified", local, constant=lambda numbers, beta_3: 1.0 / beta_3),
    )
}
"""Every name but `windowed(k)`, which `variant_named` makes."""

USUAL = ("local",)
"""The certified bound that is cheap."""

_WINDOWED = re.compile(r"windowed\(([1-9][0-9]{0,8})\)")


def checked_variants(variants: str | Iterable[str]) -> tuple[str, ...]:
    """The names in order and without doubles, `windowed(k)` for any k among them; an `InputError`
    for one that is unknown.
    """
    names = [variants] if isinstance(variants, str) else list(variants)
    windows = [name for name in names if _WINDOWED.fullmatch(str(name))]
    return checked_names("variant", names, [*VARIANTS, "windowed(1)", "windowed(2)", *windows])


def variant_named(name: str) -> Variant:
    """The variant of a checked name."""
    window = _WINDOWED.fullmatch(name)
    if window is None:
        return VARIANTS[name]
    return Variant(name, "certified", local, window=int(window[1]))


def undescribed(model: TransformerBridge, names: Iterable[str]) -> dict[str, str]:
    """The variants among `names` that do not describe this model's blocks, each with the reason in
    a few words.

    The papers' forms are of a block with a norm before attention and then one before the MLP: their
    beta_1 and beta_2 are the scales of these two norms, and their MLP reads what attention leaves.
    """
    if not is_closed(model) and {"residual_mid", "norm1_scale"}.issubset(
        hooks.available_sites(model)
    ):
        return {}
    papers = (
        "expected the paper's block, a norm before attention and then one before the MLP, found "
        "another one"
    )
    return {name: papers for name in names if variant_named(name).kind == "paper"}


RIGHT_RANK, RIGHT_FACTOR, FEWEST = 0.9, 2.0, 8
COTANGENTS = 8

Values = Float[np.ndarray, " pos"]


@dataclass(frozen=True)
class Belief:
    """Verdict on one form on one prompt. `believed`: None where it could not be tested. `spearman`:
    rank correlation with the norms. `log10_off`: median over tokens of log10(value / norm), 0
    inside the norm's interval; NaN of a form without a scale.
    `words`: the verdict with its reason, as charts and tables show it."""

    believed: bool | None
    spearman: float
    log10_off: float
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
    are the norm).
    """
    nearest = np.clip(value, lower, upper)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log10(value) - np.log10(nearest)
    off = float(np.median(np.where(value == nearest, 0.0, ratio))) if scaled else math.nan
    what = f"{len(value)} tokens"
    return judged(rank_correlation(value, norm), off, what, len(value), scaled=scaled)


def judged(
    rank: float, off: float, what: str, count: int, *, scaled: bool = True, size: str = ""
) -> Belief:
    """Verdict by the rules on a rank correlation over `count` things (`what`: in words) and on
    log10 of the error of a size.

    `size`: words for the error of the size where a factor does not say it.
    """
    if count < FEWEST:
        return Belief(None, rank, off, f"not tested here: {what}, {FEWEST} needed")
    if math.isnan(rank):
        return Belief(
            None, rank, off, "not tested here: one of the two sides is the same everywhere"
        )
    right_order, right_size = rank >= RIGHT_RANK, not scaled or abs(off) <= math.log10(RIGHT_FACTOR)
    # A rank just below the limit is not written as the limit.
    digits = 2 if right_order or round(rank, 2) < RIGHT_RANK else 4
    order, size = f"Spearman {rank:.{digits}f}", size or f"size off by {_times(off)}"
    if right_order and right_size:
        return Belief(
            True,
            rank,
            off,
            f"believed here: {order}" + (f", {size}" if scaled else ", order alone"),
        )
    wrong = [words for words, right in ((size, right_size), (order, right_order)) if not right]
    return Belief(False, rank, off, f"not believed here: {', '.join(wrong)}")


def beliefs(
    model: TransformerBridge,
    tokens: Prompt,
    values: Mapping[str, Float[Tensor, " pos"]],
    max_memory: int | None,
) -> dict[str, Belief]:
    """Verdict on each variant that is no bound, beside a sketch of the frozen derivative.

    `values`: of the last token, by variant. Active edits are respected. Where the sketch is refused
    the form is untested, with the reason.
    """
    forms = {
        name: variant_named(name) for name in values if variant_named(name).kind != "certified"
    }
    if not forms:
        return {}
    try:
        frame: Frame = sensitivity(
            model,
            tokens,
            linearisations=LINEARISATION,
            method="sketch",
            cotangents=COTANGENTS,
            max_memory=max_memory,
            progress=False,
        ).frame
    except InputError as error:
        return dict.fromkeys(forms, Belief(None, math.nan, math.nan, f"not tested here: {error}"))
    lower, upper = (frame[f"{NORM}_{end}"].to_numpy(float) for end in ("lower", "upper"))
    # The order of operator norms is taken from the Frobenius norms: of an operator norm a sketch
    # knows two limits.
    order = frame["frobenius_norm"].to_numpy(float)
    return {
        name: belief(values[name].cpu().numpy(), order, lower, upper, scaled=form.scaled)
        for name, form in forms.items()
    }


def _times(log10: float) -> str:
    """The factor in words, the same for too large and too small."""
    if math.isinf(log10):
        return "more than any factor"
    factor_words = factor(abs(log10))
    return factor_words if factor_words.startswith("10^") else f"a factor of {factor_words}"
