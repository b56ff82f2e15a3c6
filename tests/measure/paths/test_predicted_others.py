"""Predictions of parallel blocks, and of OLMo 2 (norms behind, one norm over all queries), as recursions in dense matrices.

T and D come from autograd through the model's own pass: no formula of `ostools` is in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import hooks
import ostools as ost
from ostools.ground.chunks import smaller_chunks
from ostools.measure.formulas.forward import forward
from ostools.measure.passes.arithmetic import true_arithmetic
from ostools.measure.paths import certified
from ostools.measure.paths.block_view import BlockView
from ostools.measure.paths.predicted import LiveParts
from ostools.models import Prompt
from ostools.theory.path_sum import parallel_moments
from ostools.theory.path_sum.live_moments import LiveHeads
from tests.checkpoints import tiny_model
from tests.measure.formulas.test_blocks import jacobian, position_by_position
from tests.measure.paths.test_predicted import collapsed, sequential_in_dense_matrices, traces
from tests.sets import quick

IDS = [2, 40, 50, 60, 60, 61, 70]
PARALLEL = ("neox", "phi", "falcon")
parallel_family = pytest.mark.parametrize("family", PARALLEL)
every_depth = pytest.mark.parametrize("layers", [2, 3])


@dataclass(frozen=True)
class Blocks:
    """A model's blocks on one prompt, dense: d attention_i / d v_j [query, key, d, d], d mlp_j / d its input [pos, d, d]."""

    updates: list[Tensor]
    mlps: list[Tensor]
    final_jacobian: Tensor


@cache
def model_of(family: str, layers: int, sharp: float = 1.0) -> TransformerBridge:
    model = tiny_model(family, seed=7, dtype=torch.float64, n_layers=layers, scale=1.5, fresh=True)
    for block in model.blocks:
        block.attn.q.weight.mul_(sharp)
    return model


@cache
def blocks(family: str, layers: int, held: bool, sharp: float = 1.0) -> Blocks:
    """By one pass whose graph is kept; `held`: patterns and norm scales are constants."""
    model = model_of(family, layers, sharp)
    source = "residual_pre" if family in PARALLEL else "residual_mid"
    sites = ["residual_pre", source, "residual_post", "attention_output", "mlp_output", "final_norm"]
    with torch.enable_grad(), true_arithmetic(model):
        start = model.input_to_embed(torch.tensor([IDS]))[0].detach().clone().requires_grad_(True)
        with hooks.capture(model, *dict.fromkeys(sites), detach=False) as record:
            if held:
                with hooks.frozen(model):
                    model(start, start_at_layer=0)
            else:
                model(start, start_at_layer=0)
    updates, mlps = [], []
    for layer in range(layers):
        attention, before = record["attention_output"][layer], record["residual_pre"][layer]
        updates.append(torch.stack([jacobian(row, before).transpose(0, 1) for row in attention[0]]))
        mlps.append(position_by_position(record["mlp_output"][layer], record[source][layer]))
    final = jacobian(record["final_norm"][0, -1], record["residual_post"][layers - 1])[:, -1]
    return Blocks(updates, mlps, final)


def values(family: str, layers: int, variant: str, sharp: float = 1.0) -> np.ndarray:
    model = model_of(family, layers, sharp)
    return ost.path_sum(model, Prompt.from_ids(model, IDS), variants=variant).frame["value"].to_numpy()


@every_depth
@pytest.mark.parametrize("sharp", quick([1.0, 30.0], 30.0))
def test_olmo_2s_real_derivative_is_its_recursion_in_dense_matrices(layers: int, sharp: float) -> None:
    still, real = (blocks("olmo2", layers, held, sharp) for held in (True, False))
    each = zip(still.updates, real.updates, real.mlps, strict=True)
    expected = sequential_in_dense_matrices([*each], real.final_jacobian)
    assert values("olmo2", layers, "second-moment-full", sharp) == pytest.approx(expected.numpy(), rel=1e-9)


@parallel_family
@every_depth
@pytest.mark.parametrize("sharp", quick([1.0, 30.0], 30.0))
def test_parallel_blocks_real_derivative_is_its_recursion_in_dense_matrices(
    family: str, layers: int, sharp: float
) -> None:
    still, real = (blocks(family, layers, held, sharp) for held in (True, False))
    each = zip(still.updates, real.updates, real.mlps, strict=True)
    expected = parallel_in_dense_matrices([*each], real.final_jacobian)
    assert values(family, layers, "second-moment-full", sharp) == pytest.approx(expected.numpy(), rel=1e-9)


@parallel_family
@every_depth
def test_parallel_blocks_held_are_their_recursion_in_dense_matrices(family: str, layers: int) -> None:
    still = blocks(family, layers, held=True)
    each = zip(still.updates, still.updates, still.mlps, strict=True)
    expected = parallel_in_dense_matrices([*each], still.final_jacobian)
    assert values(family, layers, "second-moment") == pytest.approx(expected.numpy(), rel=1e-9)


def parallel_in_dense_matrices(blocks: list[tuple[Tensor, Tensor, Tensor]], final_jacobian: Tensor) -> Tensor:
    """||J_j||_F of S_jj' <- sum_ii' X_ij^T S_ii' X_i'j', X_ij = T_ij + delta_ij D_i, every S_jj' collapsed to K_jj' Sigma.

    A block: the held update of attention, the real one, the MLP. Exact are D, the last token's own block, and every
    tr(X_ij^T Sigma X_ij); where paths of two tokens interfere, and for directions, attention is the held one.
    """
    n, d = blocks[0][0].shape[1:3]
    eye, one = torch.eye(d, dtype=torch.float64), torch.eye(n, dtype=torch.float64)[:, :, None, None]
    whole, shared = torch.zeros(n, n, d, d, dtype=torch.float64), None
    whole[-1, -1] = final_jacobian.T @ final_jacobian
    for held_update, update, mlp in blocks[::-1]:
        used, real = (attention + one * (eye + mlp) for attention in (held_update, update))
        between = whole.clone()
        between[-1] = between[:, -1] = 0.0
        squares = (torch.einsum("ijba,iibc,ijca->j", block, whole, block) for block in (used, real))
        gained = -next(squares) + next(squares)
        own = torch.einsum("ba,ibc,ijcd->jad", real[-1, -1], whole[-1], used)
        last = real[-1, -1].T @ whole[-1, -1] @ real[-1, -1]
        after = torch.einsum("ikba,ijbc,jlcd->klad", used, whole, used)
        size = traces(after).diagonal()
        ratio = torch.where(size > 0, (size + gained) / size, 1.0).sqrt()
        after = after * (ratio[:, None] * ratio)[:, :, None, None]
        weights = torch.where(traces(after).diagonal() > 0, 1.0 / traces(after).diagonal(), 0.0)
        weights[-1] = 0.0
        # The direction of the others: of paths through n, then of paths between them, turned by what their MLPs share.
        through_last = torch.einsum("jba,bc,jcd->jad", used[-1], whole[-1, -1], used[-1])
        turned = torch.einsum("j,jab->ab", weights, through_last)
        if shared is not None:
            carrying = (traces(whole).diagonal() != 0)[:-1]
            mean = mlp[:-1][carrying].mean(0)
            common = held_update + one * (eye + mean)
            turned = turned + torch.einsum("j,ijba,ikbc,kjcd->ad", weights, common, between, common)
            alone = traces(torch.einsum("jba,bc,jcd->jad", eye + mlp, shared, eye + mlp)[None])[0]
            rest = weights * traces(between).diagonal() * (alone - ((eye + mean).T @ shared @ (eye + mean)).trace())
            turned = turned + rest.sum().clamp_min(0.0) * eye / d
        shared = turned / turned.trace()
        after[-1], after[:, -1] = own, own.mT
        after[-1, -1] = last
        whole = collapsed(after, shared)
    return traces(whole).diagonal().sqrt()


@pytest.mark.parametrize("family", [*PARALLEL, "olmo2"])
def test_live_answers_and_squares_are_those_of_the_dense_blocks(family: str) -> None:
    """F^T T_ij z of every pair and probe; what a parallel block's D_i adds; a few queries at a time too."""
    model, real, still = model_of(family, 2), blocks(family, 2, held=False), blocks(family, 2, held=True)
    generator = torch.Generator().manual_seed(1)
    factor = torch.randn(32, 3, generator=generator, dtype=torch.float64)
    factor, n = factor / factor.norm(), len(IDS)
    skip = torch.eye(n, dtype=torch.float64)[:, :, None, None] * torch.eye(32, dtype=torch.float64)
    own = torch.eye(n, dtype=torch.float64)[:, :, None, None]
    with torch.no_grad():
        for block in forward(model, Prompt.from_ids(model, IDS).ids).blocks():
            parts, layer = LiveParts(BlockView(block, "svd"), torch.float64), block.layer
            heads, mlp = parts.heads(n - 1), parts.mlp(n - 1)
            assert isinstance(heads, LiveHeads)
            found = heads.live_answers(factor, slice(2, n - 1))
            exact = torch.einsum("ap,ijab,bk->ipkj", factor, (real.updates[layer] + skip), heads.probes)
            torch.testing.assert_close(found, exact[2 : n - 1, ..., : n - 1], rtol=1e-9, atol=1e-11)
            beside = own * real.mlps[layer] if family in PARALLEL else torch.zeros_like(skip)
            held, live = (
                torch.einsum("ap,ijab->ijpb", factor, update[layer] + skip + beside).square().sum((2, 3))
                for update in (still.updates, real.updates)
            )
            added = mlp if family in PARALLEL else None
            torch.testing.assert_close(heads.gained(factor, slice(0, n), added), live - held, rtol=1e-9, atol=1e-11)
            with smaller_chunks(1e-9):  # one query at a time
                gained = heads.gained(factor, slice(0, n), added)
            torch.testing.assert_close(gained, live - held, rtol=1e-9, atol=1e-11)
            if added is not None:
                torch.testing.assert_close(parallel_moments.squares(mlp, heads, factor), held, rtol=1e-9, atol=1e-11)


@parallel_family
@pytest.mark.parametrize("fronted", [False, True])
def test_joint_norms_of_a_parallel_block_are_those_of_the_dense_block(family: str, fronted: bool) -> None:
    """||F (T_ij + delta_ij D_i)||, of `edge` and `windowed`."""
    model, still, n = model_of(family, 2), blocks(family, 2, held=True), len(IDS)
    front = torch.randn(32, 32, generator=torch.Generator().manual_seed(2), dtype=torch.float64) if fronted else None
    own = torch.eye(n, dtype=torch.float64)[:, :, None, None]
    with torch.no_grad():
        for block in forward(model, Prompt.from_ids(model, IDS).ids).blocks():
            found = certified.joint_norms(BlockView(block, "svd"), list(range(n)), front)
            dense = still.updates[block.layer] + own * (torch.eye(32, dtype=torch.float64) + still.mlps[block.layer])
            exact = torch.linalg.matrix_norm(dense if front is None else front @ dense, ord=2)
            torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-11)


def test_every_block_and_use_has_random_directions_of_its_own() -> None:
    model = model_of("neox", 3)
    with torch.no_grad():
        parts = [
            LiveParts(BlockView(block, "svd"), torch.float64)
            for block in forward(model, Prompt.from_ids(model, IDS).ids).blocks()
        ]
    seeds = [sketch.seed for part in parts for sketch in (*part.sketches, part.asking)]
    assert len(set(seeds)) == len(seeds) == 9


@pytest.mark.slow
@pytest.mark.parametrize("family", [*PARALLEL, "olmo2"])
@pytest.mark.parametrize("trace", ["exact", "probes"])
def test_the_prediction_of_the_real_derivative_goes_along_with_the_measured_profile(family: str, trace: str) -> None:
    """A random prompt, one that repeats a token, one of two tokens in turn: rank and size."""
    model = tiny_model(family, seed=7, dtype=torch.float64, n_layers=3, scale=1.5)
    generator = torch.Generator().manual_seed(0)
    for ids in (
        [*torch.randint(10, 200, (24,), generator=generator).tolist()],
        [2, *[60] * 20, 61],
        [2, *[50, 60] * 11],
    ):
        prompt = Prompt.from_ids(model, ids)
        exact = ost.sensitivity(model, prompt, linearisations=["full"]).frame["frobenius_norm"].to_numpy()
        found = ost.path_sum(model, prompt, variants="second-moment-full", traces=trace).frame["value"].to_numpy()
        assert float(np.asarray(spearmanr(found, exact))[0]) >= 0.7
        assert abs(float(np.median(np.log(found / exact)))) <= np.log(1.7)
