"""Every block as the formulas read it, against the same block by autograd: equalities, not bounds.

Two routes that share no code with `ostools.measure`: the dense Jacobians of attention and MLP, with patterns and norm scales
held, by reverse mode through the model's own forward pass; and gains, projections and scales
read off an untouched Hugging Face model with the same weights. Wrong formulas are planted to see the equalities break.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations_with_replacement, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import hooks
import ostools as ost
from ostools.measure.bounds.certified import BlockView
from ostools.measure.formulas.block import Block
from ostools.measure.formulas.forward import forward
from ostools.models import Prompt
from ostools.theory import path_sum as operators
from tests.checkpoints import TEXT_FAMILIES, Family, make_model, tiny_model

IDS = [2, 40, 50, 60, 60, 61, 70]
N = len(IDS)
HEADS = 4

every_family = pytest.mark.parametrize("family", TEXT_FAMILIES)
shallow_and_deep = pytest.mark.parametrize("layers", [1, 3])


@dataclass(frozen=True)
class HeldNorm:
    """One norm read off Hugging Face's module: gain, bias, eps, and whether it takes the mean off."""

    gain: Tensor
    bias: Tensor
    eps: float
    centred: bool

    def centre(self, x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True) if self.centred else x

    def scale(self, x: Tensor) -> Tensor:
        """r(x) = sqrt(mean((x - c)^2) + eps), one number a position."""
        return (self.centre(x).square().mean(-1) + self.eps).sqrt()

    def __call__(self, x: Tensor) -> Tensor:
        return self.gain * self.centre(x) / self.scale(x)[:, None] + self.bias

    @property
    def matrix(self) -> Tensor:
        """diag(g) C: the norm as a matrix, its scale left out."""
        return self.gain[:, None] * self.centre(torch.eye(len(self.gain), dtype=torch.float64))


@dataclass(frozen=True)
class HeldBlock:
    """One block with patterns and norm scales held, dense; its norms, heads and MLP are Hugging Face's."""

    update: Tensor  # [query, key, d_model, d_model]: d attention_output_i / d residual_pre_j
    mlp: Tensor  # [pos, d_model, d_model]: D_j = d mlp_output_j / d residual_mid_j
    pattern: Tensor  # [head, query, key]
    residual_pre: Tensor  # [pos, d_model]
    residual_mid: Tensor  # [pos, d_model]
    psi: Callable[[Tensor], Tensor]
    norm1: HeldNorm
    norm2: HeldNorm
    post_norm1: HeldNorm | None
    head_matrices: Tensor  # [head, d_model, d_model]: W_O^h W_V^h, no gains

    @property
    def rp1(self) -> Tensor:
        """The scale of what attention computes before its post-norm (whose models have no biases)."""
        if self.post_norm1 is None:
            return torch.ones(N, dtype=torch.float64)
        raw = torch.einsum("hqk,hde,ke->qd", self.pattern, self.head_matrices, self.norm1(self.residual_pre))
        return self.post_norm1.scale(raw)

    @property
    def edges(self) -> Tensor:
        """sum_h omega_h alpha_ij^h / (rp1_i r1_j), omega_h = ||diag(gp1) W_O^h W_V^h diag(g1)|| by dense singular values."""
        gain = torch.ones_like(self.norm1.gain) if self.post_norm1 is None else self.post_norm1.gain
        omega = torch.linalg.matrix_norm(gain[:, None] * self.head_matrices @ self.norm1.matrix, ord=2)
        weighted = torch.einsum("h,hqk->qk", omega, self.pattern)
        return weighted / self.rp1[:, None] / self.norm1.scale(self.residual_pre)

    @property
    def betas(self) -> tuple[float, float]:
        """min_j r1_j / ||g1||_inf and min_j r2_j / ||g2||_inf."""
        pairs = ((self.norm1, self.residual_pre), (self.norm2, self.residual_mid))
        first, second = (float(norm.scale(residual).min() / norm.gain.abs().max()) for norm, residual in pairs)
        return first, second

    @cached_property
    def sigma(self) -> float:
        """max_j ||J_psi|| at the inputs of this MLP, by autograd through Hugging Face's module."""
        inputs = self.norm2(self.residual_mid).requires_grad_(True)[None]
        with torch.enable_grad():
            jacobians = position_by_position(self.psi(inputs), inputs)
        return float(torch.linalg.matrix_norm(jacobians, ord=2).max())


@dataclass(frozen=True)
class Held:
    """A tiny float64 model on one prompt: the bridge under test, and its held blocks by the independent routes."""

    model: TransformerBridge
    prompt: Prompt
    blocks: list[HeldBlock]
    final_norm: HeldNorm
    final_jacobian: Tensor  # d y_n / d v_n^(L), scale held
    final_scale: float

    def values(self, variant: str) -> np.ndarray:
        return ost.bounds(self.model, self.prompt, variants=variant).frame["value"].to_numpy()

    def read(self) -> list[Block]:
        """The blocks as `ostools.measure` reads them, from the first to the last."""
        with hooks.exact_arithmetic(self.model):
            run = forward(self.model, self.prompt.ids)
        return list(run.blocks())[::-1]


@cache
def held(family: Family, layers: int) -> Held:
    """One forward pass with patterns and norm scales held, its graph kept and differentiated block by block."""
    model = tiny_model(family, seed=7, dtype=torch.float64, n_layers=layers)
    hugging_face: Any = make_model(family, seed=7, dtype=torch.float64, n_layers=layers)
    prompt = Prompt.from_ids(model, IDS)
    sites = ["pattern", "residual_pre", "residual_mid", "residual_post", "attention_output", "mlp_output", "final_norm"]
    with torch.enable_grad(), hooks.exact_arithmetic(model):
        start = model.input_to_embed(prompt.ids[None])[0].detach().clone().requires_grad_(True)
        with hooks.frozen(model), hooks.capture(model, *sites, detach=False) as record:
            model(start, start_at_layer=0)
    stack = hugging_face.transformer.h if family == "gpt2" else hugging_face.model.layers
    final = held_norm(family, hugging_face.transformer.ln_f if family == "gpt2" else hugging_face.model.norm)
    last = record["residual_post"][layers - 1]
    return Held(
        model=model,
        prompt=prompt,
        blocks=[held_block(family, module, record, layer) for layer, module in enumerate(stack)],
        final_norm=final,
        final_jacobian=jacobian(record["final_norm"][0, -1], last)[:, -1],
        final_scale=float(final.scale(last.detach()[0, -1])),
    )


def jacobian(output: Tensor, source: Tensor) -> Tensor:
    """d output / d source, [component of the output, pos, component of the source], one backward pass a component."""
    rows = [torch.autograd.grad(component, source, retain_graph=True)[0][0] for component in output]
    return torch.stack(rows)


def position_by_position(output: Tensor, source: Tensor) -> Tensor:
    """d output_j / d source_j, [pos, d_model, d_model], of a map that mixes no positions."""
    return jacobian(output[0].sum(0), source).transpose(0, 1)


def held_block(family: Family, module: Any, record: hooks.Record, layer: int) -> HeldBlock:
    attention, pre, mid = (record[site][layer] for site in ("attention_output", "residual_pre", "residual_mid"))
    if family == "gpt2":
        ln1, post1, ln2 = module.ln_1, None, module.ln_2
    elif family in ("gemma2", "gemma3"):
        ln1, post1, ln2 = module.input_layernorm, module.post_attention_layernorm, module.pre_feedforward_layernorm
    else:
        ln1, post1, ln2 = module.input_layernorm, None, module.post_attention_layernorm
    return HeldBlock(
        update=torch.stack([jacobian(attention[0, i], pre).transpose(0, 1) for i in range(N)]),
        mlp=position_by_position(record["mlp_output"][layer], mid),
        pattern=record["pattern"][layer].detach()[0],
        residual_pre=pre.detach()[0],
        residual_mid=mid.detach()[0],
        psi=module.mlp,
        norm1=held_norm(family, ln1),
        norm2=held_norm(family, ln2),
        post_norm1=None if post1 is None else held_norm(family, post1),
        head_matrices=head_matrices(family, module),
    )


def held_norm(family: Family, module: Any) -> HeldNorm:
    eps = module.variance_epsilon if family == "llama" else module.eps
    gain = module.weight + 1.0 if "gemma" in family else module.weight
    bias = module.bias if family == "gpt2" else torch.zeros_like(gain)
    return HeldNorm(gain, bias, eps, centred=family == "gpt2")


def head_matrices(family: Family, module: Any) -> Tensor:
    """W_O^h W_V^h from the projections as Hugging Face stores them; query head h reads key/value head h // (H / n_kv)."""
    if family == "gpt2":
        d_model = module.attn.c_proj.weight.shape[0]
        value, output = module.attn.c_attn.weight[:, 2 * d_model :].T, module.attn.c_proj.weight.T
    else:
        value, output = module.self_attn.v_proj.weight, module.self_attn.o_proj.weight
    d_head = output.shape[1] // HEADS
    shared = HEADS * d_head // value.shape[0]
    values, outputs = value.split(d_head), output.split(d_head, dim=1)
    return torch.stack([outputs[head] @ values[head // shared] for head in range(HEADS)])


def close(found: Tensor, expected: Tensor) -> None:
    """Equal up to 1e-7 of the largest entry; an all-zero expectation would prove nothing."""
    size = float(expected.abs().max())
    assert size > 0
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) <= 1e-7 * size


@every_family
def test_mlp_jacobian_and_its_norms(family: Family) -> None:
    case = held(family, 3)
    for block, exact in zip(case.read(), case.blocks, strict=True):
        weights = block.weights
        parts = (weights.down, weights.gate, weights.up, block.p, block.q)
        scale = block.norm2.scale * block.post_norm2.scale
        close(operators.mlp_jacobian(*parts) / scale[:, None, None], exact.mlp)
        norms = torch.linalg.matrix_norm(exact.mlp, ord=2)
        assert BlockView(block, "svd").mlp_norms.tolist() == pytest.approx(norms.tolist(), rel=1e-7)
        assert (BlockView(block, "product").mlp_norms >= norms * (1 - 1e-9)).all()


@every_family
def test_attention_moves_by_the_folded_heads(family: Family) -> None:
    case = held(family, 3)
    for block, exact in zip(case.read(), case.blocks, strict=True):
        heads = block.weights.left_factor @ block.weights.right
        scales = block.post_norm1.scale[:, None] * block.norm1.scale
        close(torch.einsum("hqk,hde->qkde", block.pattern, heads) / scales[:, :, None, None], exact.update)
        view = BlockView(block, "svd")
        close(view.weighted / scales, exact.edges)
        assert (view.beta_1, view.beta_2) == pytest.approx(exact.betas, rel=1e-7)
        assert view.sigma_psi == pytest.approx(exact.sigma, rel=1e-7)


@every_family
@shallow_and_deep
def test_local_is_its_formula_with_norms_read_independently(family: Family, layers: int) -> None:
    """(1 + ||D_i||) (sum_h omega_h alpha_ij^h / (rp1_i r1_j) + delta_ij), multiplied over blocks, times ||g3||_inf / r3_n."""
    case = held(family, layers)
    row = torch.eye(N, dtype=torch.float64)[-1] * float(case.final_norm.gain.abs().max()) / case.final_scale
    for block in reversed(case.blocks):
        row = row * (1.0 + torch.linalg.matrix_norm(block.mlp, ord=2))
        row = row @ (block.edges + torch.eye(N, dtype=torch.float64))
    assert case.values("local") == pytest.approx(row.numpy(), rel=1e-7)


@every_family
@pytest.mark.parametrize("variant", ["theorem-5.1", "theorem-b5", "proof"])
def test_printed_forms_equal_the_sum_over_enumerated_paths(family: Family, variant: str) -> None:
    """Three blocks, every path i <= k_1 <= k_2 <= n one by one, constants as docs/theory.md 3.1 prints them."""
    blocks = (case := held(family, 3)).blocks
    beta_1, beta_2 = zip(*(block.betas for block in blocks), strict=True)
    sigma = max(block.sigma for block in blocks)
    beta_3 = case.final_scale / float(case.final_norm.gain.abs().max())

    def edge(layer: int, query: int, key: int) -> float:
        alpha, same = float(blocks[layer].pattern[:, query, key].mean()), float(query == key)
        return {
            "theorem-5.1": alpha / beta_2[layer] + same,
            "theorem-b5": (alpha + same) / beta_1[layer],
            "proof": alpha / beta_1[layer] + same,
        }[variant]

    front = {"theorem-b5": sigma**3, "proof": np.prod([sigma / b + 1.0 for b in beta_2]) / beta_3}.get(variant, 1.0)
    expected = []
    for i in range(N):
        paths = [(i, *inner, N - 1) for inner in combinations_with_replacement(range(i, N), 2)]
        steps = [[edge(layer, query, key) for layer, (key, query) in enumerate(pairwise(path))] for path in paths]
        expected.append(front * sum(map(np.prod, steps)))
    assert case.values(variant) == pytest.approx(expected, rel=1e-7)


@every_family
@shallow_and_deep
def test_the_literal_form_equals_the_printed_sum_term_by_term(family: Family, layers: int) -> None:
    """i <= k_1 <= ... <= k_L <= n with the factors of equation 4 as they stand; k_L in the first factor only."""
    blocks = (case := held(family, layers)).blocks
    same = torch.eye(N, dtype=torch.float64)
    edge = [(block.pattern.mean(0) + same) / block.betas[0] for block in blocks]
    front = max(block.sigma for block in blocks) ** layers
    expected = np.zeros(N)
    for i in range(N):
        for k in combinations_with_replacement(range(i, N), layers):
            between = [float(edge[ell - 1][k[ell - 1], k[ell - 2]]) for ell in range(2, layers)]
            expected[i] += front * float(edge[-1][N - 1, k[-1]] * edge[0][k[0], i]) * np.prod(between)
    assert case.values("theorem-b5-literal") == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_what_the_real_derivative_needs_is_the_same_where_the_block_runs_again_for_it(family: Family) -> None:
    model = tiny_model(family, seed=3, dtype=torch.float64)
    ids = torch.as_tensor(IDS)
    kept, again = (forward(model, ids, live=live) for live in (True, False))
    assert "scores" in kept.kept_sites
    assert "scores" not in again.kept_sites
    for layer in range(len(kept.calls)):
        assert torch.equal(kept.block(layer).scores.slope, again.block(layer).scores.slope)
