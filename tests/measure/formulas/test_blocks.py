"""The forms of the path sum on real blocks, against enumerated paths over the same blocks by
autograd: equalities, not bounds.

The other route shares no code with `ostools.measure`: the oracle's blocks (`tests/oracle`), read
off an untouched Hugging Face model with the same weights, with patterns and norm scales held.
"""

from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from tests.checkpoints import make_model, tiny_model
from tests.oracle.decoder import decoder
from tests.oracle.measures import at_each

IDS = [2, 40, 50, 60, 60, 61, 70]
N = len(IDS)

every_family = pytest.mark.parametrize("family", ["gemma", "gemma2", "gemma3", "llama"])


@dataclass(frozen=True)
class HeldBlock:
    """One block with patterns and norm scales held, dense."""

    update: Tensor  # [query, key, d_model, d_model]: d attention_output_i / d residual_pre_j
    mlp: Tensor  # [pos, d_model, d_model]: D_j = d mlp_output_j / d residual_mid_j
    pattern: Tensor  # [head, query, key]
    betas: tuple[float, float]  # min_j r1_j / ||g1||_inf and min_j r2_j / ||g2||_inf
    sigma: float  # max_j ||J_psi|| at the inputs of this MLP


@dataclass(frozen=True)
class Held:
    """A tiny float64 model on one prompt: the bridge under test, and its held blocks by the
    independent route.
    """

    model: TransformerBridge
    prompt: ost.Prompt
    blocks: list[HeldBlock]
    final_jacobian: Tensor  # d y_n / d v_n^(L), scale held
    beta_3: float

    def values(self, variant: str, mlp_norm: Any = "svd") -> np.ndarray:
        return (
            ost.bounds(self.model, self.prompt, variants=variant, mlp_norm=mlp_norm)
            .frame["value"]
            .to_numpy()
        )


@cache
def held(family: Any, layers: int, **heads: Any) -> Held:
    model = tiny_model(family, seed=7, dtype=torch.float64, n_layers=layers, **heads)
    bare = make_model(family, seed=7, dtype=torch.float64, n_layers=layers, **heads)
    oracle = decoder(bare.config.to_dict(), bare.state_dict())
    stream, blocks = oracle.embedded(IDS), []
    for block in oracle.blocks:
        update: Any = torch.autograd.functional.jacobian(
            lambda v, block=block: block.attention(v, True), stream
        )
        mid = stream + block.attention(stream, True)
        pattern, r1 = block.seen["pattern"], block.seen["r1"]
        psi = at_each(lambda x, block=block: block.psi(x), block.norm2(mid, True))
        scales = ((r1, block.norm1), (block.norm2.scale(mid), block.norm2))
        first, second = (float(r.min() / norm.gain.abs().max()) for r, norm in scales)
        blocks.append(
            HeldBlock(
                update=update.permute(0, 2, 1, 3),
                mlp=at_each(lambda x, block=block: block.mlp(x, True), mid),
                pattern=pattern,
                betas=(first, second),
                sigma=float(torch.linalg.matrix_norm(psi, ord=2).max()),
            )
        )
        stream = mid + block.mlp(mid, True)
    gain, r3 = oracle.norm.gain, float(oracle.norm.scale(stream[-1]))
    return Held(
        model,
        ost.Prompt.from_ids(model, IDS),
        blocks,
        torch.diag(gain) / r3,
        r3 / float(gain.abs().max()),
    )


@every_family
@pytest.mark.parametrize("variant", ["theorem-5.1", "theorem-b5", "proof"])
def test_printed_forms_equal_the_sum_over_enumerated_paths(family: str, variant: str) -> None:
    """Three blocks, every path i <= k_1 <= k_2 <= n one by one, constants as docs/theory.md 3.1
    prints them.
    """
    blocks = (case := held(family, 3)).blocks
    beta_1, beta_2 = zip(*(block.betas for block in blocks), strict=True)
    sigma, same = max(block.sigma for block in blocks), torch.eye(N, dtype=torch.float64)
    mean = [block.pattern.mean(0) for block in blocks]
    front, edges = {
        "theorem-5.1": (
            1.0,
            [alpha / beta + same for alpha, beta in zip(mean, beta_2, strict=True)],
        ),
        "theorem-b5": (
            sigma**3,
            [(alpha + same) / beta for alpha, beta in zip(mean, beta_1, strict=True)],
        ),
        "proof": (
            np.prod([sigma / beta + 1.0 for beta in beta_2]) / case.beta_3,
            [alpha / beta + same for alpha, beta in zip(mean, beta_1, strict=True)],
        ),
    }[variant]
    expected = np.zeros(N)
    for i in range(N):
        for inner in combinations_with_replacement(range(i, N), 2):
            steps = pairwise((i, *inner, N - 1))
            expected[i] += front * np.prod(
                [float(edges[layer][step[::-1]]) for layer, step in enumerate(steps)]
            )
    assert case.values(variant) == pytest.approx(expected, rel=1e-7)


@every_family
@pytest.mark.parametrize("layers", [1, 3])
def test_the_literal_form_equals_the_printed_sum_term_by_term(family: str, layers: int) -> None:
    """i <= k_1 <= ... <= k_L <= n with the factors of equation 4 as they stand; k_L in the first
    factor only.
    """
    blocks = (case := held(family, layers)).blocks
    same = torch.eye(N, dtype=torch.float64)
    edge = [(block.pattern.mean(0) + same) / block.betas[0] for block in blocks]
    front = max(block.sigma for block in blocks) ** layers
    expected = np.zeros(N)
    for i in range(N):
        for k in combinations_with_replacement(range(i, N), layers):
            between = [float(edge[ell - 1][k[ell - 1], k[ell - 2]]) for ell in range(2, layers)]
            expected[i] += (
                front * float(edge[-1][N - 1, k[-1]] * edge[0][k[0], i]) * np.prod(between)
            )
    assert case.values("theorem-b5-literal") == pytest.approx(expected, rel=1e-7)


@every_family
def test_the_local_bound_of_one_head_is_of_the_norms_of_its_parts(family: str) -> None:
    """There the norms of heads are those of whole updates; the product of the MLP's weights' norms
    is larger everywhere.
    """
    case = held(family, 2, n_heads=1, n_key_value_heads=1)
    expected = torch.eye(N, dtype=torch.float64)[-1]
    for block in case.blocks[::-1]:
        update, mlp = (torch.linalg.matrix_norm(part, ord=2) for part in (block.update, block.mlp))
        expected = expected @ ((1 + mlp)[:, None] * (update + torch.eye(N, dtype=torch.float64)))
    assert case.values("local") == pytest.approx((expected / case.beta_3).numpy(), rel=1e-7)
    assert (case.values("local", mlp_norm="product") > case.values("local") * 1.01).all()
