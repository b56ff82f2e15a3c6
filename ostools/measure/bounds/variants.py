"""The forms of the path sum, by name: how each reads one block, and what it multiplies the product
with.

A variant walks the blocks from the last to the first, so that one block's weights are in memory at
a time. The certified bounds of the frozen derivative have no free constant, and none estimated from
below (docs/theory.md 3.2).

`local` multiplies bounds of single blocks' norms. It costs n norms of d x d matrices a block beside
its pattern (none with mlp_norm="product").

`windowed(k)` groups the blocks by k, from the last one down, takes norms of each group's exact
Jacobian, token by token, and multiplies them, with one matrix W for every group of blocks a + 1 to
b:

    W_ij = || d v_i^(b) / d v_j^(a) ||_2, patterns and scales held, the final norm included at b = L

so that `local` >= `windowed(1)` >= `windowed(k)` >= `windowed(m k)` >= `windowed(L)`, which is the
measured norm. Cost: d_model cotangents for every token through every block, and n^2 / 2 norms of d
x d matrices a group: a diagnostic of what chaining norms costs. Memory: k n d_model^2.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ostools import hooks
from ostools.ground import Linearisation, TransformerBridge, checked_names
from ostools.hooks.sites import is_closed
from ostools.measure.formulas.block import BlockTerms, Forward
from ostools.measure.formulas.weights import final_gain, final_norm
from ostools.theory import path_sum

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


Edges = Float[Tensor, "query key"]


def local(view: BlockTerms) -> Edges:
    """(1 + ||D_i||) ( sum_h omega_h alpha_ij^h / (rp1_i r1_j) + delta_ij )."""
    return path_sum.local_edges(view.weighted, view.r1, view.rp1, view.mlp_norms, view.parallel)


Cotangents = Float[Tensor, "d_out pos d_model"]


def pull(
    block: BlockTerms, rows: Float[Tensor, "all_pos d_model d_model"], cotangents: Cotangents
) -> Cotangents:
    """g^T (I + D) T for cotangents on the first positions: from what leaves a block to what enters
    it, patterns and scales held. `rows`: I + D. Of a parallel block g^T (T + D).
    """
    n, weights = cotangents.shape[1], block.weights
    after = torch.einsum("opd,pde->ope", cotangents, rows[:n])
    scaled = (cotangents if block.parallel else after) / block.rp1[:n, None]
    received = torch.zeros_like(after)
    for pattern, left_matrix, right in zip(
        block.pattern[:, :n, :n], weights.left_factor, weights.right, strict=True
    ):
        received += pattern.mT @ (scaled @ left_matrix) @ right
    return after + received / block.r1[:n, None]


@dataclass
class WindowedFold:
    """Groups the blocks by k, from the last one down, and multiplies the groups' norms."""

    run: Forward
    k: int

    def __post_init__(self) -> None:
        scale = self.run.final_norm_scale
        self.rows = torch.eye(len(scale), dtype=scale.dtype, device=scale.device)[-1:]
        self.front: Float[Tensor, "d_model d_model"] | None = final_norm(self.run.model)
        self.group: list[tuple[BlockTerms, Float[Tensor, "pos d_model d_model"]]] = []

    def step(self, block: BlockTerms) -> None:
        block.require_causal(f"windowed({self.k})")
        self.group.append((block, block.rows))
        if len(self.group) == self.k or block.layer == 0:
            self.rows = self.rows @ self._norms()
            self.group, self.front = [], None

    def _norms(self) -> Edges:
        """W of the group, every token as query; of the top group, which has the final norm inside,
        the last alone (others 0).
        """
        scale = self.run.final_norm_scale
        norms = torch.zeros(len(scale), len(scale), dtype=scale.dtype, device=scale.device)
        for i in range(len(scale)) if self.front is None else [len(scale) - 1]:
            norms[i, : i + 1] = path_sum.spectral_norms(self._jacobian(i))
        return norms

    def _jacobian(self, i: int) -> Float[Tensor, "key d_out d_model"]:
        """The group's Jacobian of token i with respect to every token up to it."""
        rows = self.group[0][1]
        front = torch.eye(rows.shape[-1], dtype=rows.dtype, device=rows.device)
        if self.front is not None:
            front = self.front / self.run.final_norm_scale[i]
        cotangents = front.new_zeros(len(front), i + 1, front.shape[1])
        cotangents[:, i] = front
        for block, rows in self.group:
            cotangents = pull(block, rows, cotangents)
        return cotangents.transpose(0, 1)

    def values(self) -> Float[Tensor, " pos"]:
        return self.rows[0]


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
    if window := _WINDOWED.fullmatch(name):
        return Variant(name, "certified", local, window=int(window[1]))
    return VARIANTS[name]


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
