"""Predictions on whole models: exact for the last token and after one block, by dense matrices below; prefixes; dtypes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools.ground.chunks import smaller_chunks
from ostools.ground.errors import InputError
from ostools.measure.formulas.forward import forward
from ostools.measure.paths import predicted
from ostools.measure.paths.block_view import BlockView
from ostools.measure.paths.cost import path_sum_cost
from ostools.measure.paths.predicted import LiveParts
from ostools.models import Prompt, view_in
from ostools.models.shape import Shape
from ostools.theory.path_sum import edges
from ostools.theory.path_sum.live_moments import LiveHeads
from ostools.theory.path_sum.mlp_moments import Mlp
from ostools.theory.path_sum.parallel_moments import overlaps
from tests.checkpoints import TEXT_FAMILIES, TWO_FAMILIES, Family, tiny_model, trained
from tests.measure.formulas.test_blocks import IDS, N, held, live
from tests.sets import quick

LINEARISATION = {"second-moment": "frozen", "second-moment-full": "full"}
every_family = pytest.mark.parametrize("family", TEXT_FAMILIES)
both = pytest.mark.parametrize("variant", LINEARISATION)


def values(model: TransformerBridge, prompt: Prompt, variant: str, **options) -> np.ndarray:
    return ost.path_sum(model, prompt, variants=variant, **options).frame["value"].to_numpy()


def measured(model: TransformerBridge, prompt: Prompt, linearisation: str) -> np.ndarray:
    frame = ost.sensitivity(model, prompt, linearisations=[linearisation]).frame
    return frame["frobenius_norm"].to_numpy()


@every_family
@both
def test_one_block_is_exact_at_every_token(family: Family, variant: str) -> None:
    model = tiny_model(family, seed=7, dtype=torch.float64, n_layers=1, scale=1.5)
    prompt = Prompt.from_ids(model, IDS)
    assert values(model, prompt, variant) == pytest.approx(measured(model, prompt, LINEARISATION[variant]), rel=1e-7)


@every_family
@both
def test_the_last_token_is_exact_at_any_depth(family: Family, variant: str) -> None:
    model = tiny_model(family, seed=8, dtype=torch.float64, n_layers=3)
    prompt = Prompt.from_ids(model, IDS)
    exact = measured(model, prompt, LINEARISATION[variant])
    found = values(model, prompt, variant)
    assert found[-1] == pytest.approx(exact[-1], rel=1e-7)
    assert np.abs(np.log10(found / exact)).max() < 0.5


@pytest.mark.parametrize("traces", ["exact", "probes"])
def test_what_probes_meet_in_queries_and_keys_is_in_the_forecast(traces: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice what is kept of it: as much again is in memory while the keys' part is made."""
    model = tiny_model("llama", seed=9, dtype=torch.float32)
    with torch.no_grad():
        block = next(forward(model, Prompt.from_ids(model, IDS).ids).blocks(torch.float32))
        kept = sum(
            met.numel() * met.element_size() for met in LiveParts(BlockView(block, "svd", traces), torch.float32)._met
        )
    whole = path_sum_cost(Shape.of(model), N, ["second-moment-full"], traces=traces).memory
    monkeypatch.setattr("ostools.measure.paths.cost._met", lambda *_: 0)
    assert whole - path_sum_cost(Shape.of(model), N, ["second-moment-full"], traces=traces).memory == 2 * kept


@every_family
def test_live_squares_are_those_of_the_dense_blocks(family: Family) -> None:
    """||F^T T_ij||_F^2 by probes, against the columns of the certified route; the MLP against its dense rows."""
    model = tiny_model(family, seed=9, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    factor, other = torch.randn(2, 32, 3, generator=generator, dtype=torch.float64)
    factor = factor / factor.norm()
    with torch.no_grad():
        for block in forward(model, Prompt.from_ids(model, IDS).ids).blocks():
            view = BlockView(block, "svd")
            parts = LiveParts(view, torch.float64)
            heads, mlp = parts.heads(N - 1), parts.mlp(N - 1)
            assert isinstance(heads, LiveHeads)
            exact = dense_attention(view)
            for part in (slice(0, N), slice(2, N - 1)):
                found = heads.live_answers(factor, part)
                answers = torch.einsum("ap,ijab,bk->ipkj", factor, exact[part, : part.stop], heads.probes)
                torch.testing.assert_close(found, answers)
                gained = torch.zeros(len(found), N, dtype=torch.float64)
                gained[:, : part.stop] = answers.square().sum((1, 2)) / heads.probes.shape[1]
                gained -= heads.squares(factor)[part]
                torch.testing.assert_close(heads.gained(factor, part), gained)
                with smaller_chunks(1e-9):  # one query at a time
                    torch.testing.assert_close(heads.gained(factor, part), gained)
            torch.testing.assert_close(heads.last_pulled(heads.pulled(factor)), exact[-1, -1].T @ factor)
            rows, eye = view.live_rows, torch.eye(32, dtype=torch.float64)
            weights = torch.rand(N, generator=generator, dtype=torch.float64)
            (met,) = mlp.meet(factor)
            pulled, found = overlaps(mlp, met, weights)
            torch.testing.assert_close(pulled, torch.einsum("j,jab,ap->bp", weights, rows - eye, factor))
            overlap = torch.einsum("ap,iab,jcb,cp->ij", factor, rows, rows, factor)
            torch.testing.assert_close(found, overlap)
            traces = torch.einsum("ap,jab,bp->j", factor, rows - eye, other)
            torch.testing.assert_close(mlp.traces(met, *mlp.read(other)), traces)


def dense_attention(view: BlockView) -> Tensor:
    """T_ij with nothing held, [query, key, d, d]."""
    live = view.live_attention
    whole = torch.zeros(N, N, 32, 32, dtype=torch.float64)
    for key in range(N):
        left, basis = live.column(key)
        whole[key:, key] = left @ basis.T
    whole[range(N), range(N)] += edges.with_identity(live.query_part(slice(0, N)))
    return whole


@every_family
@pytest.mark.parametrize("layers", [1, 3])
def test_diagonal_is_its_formula_in_dense_matrices(family: Family, layers: int) -> None:
    """row_j <- sum_i row_i ||I + D_i||_F^2 ||T_ij||_F^2 / d^2; T and D by autograd."""
    case = held(family, layers)
    one = torch.eye(case.final_jacobian.shape[0], dtype=torch.float64)
    row = torch.zeros(N, dtype=torch.float64)
    row[-1] = case.final_jacobian.square().sum()
    for block in reversed(case.blocks):
        moved = block.update + torch.eye(N, dtype=torch.float64)[:, :, None, None] * one
        row = (row * (one + block.mlp).square().sum((1, 2))) @ moved.square().sum((2, 3)) / len(one) ** 2
    assert case.values("second-moment-diagonal") == pytest.approx(row.sqrt().numpy(), rel=1e-7)


@every_family
@pytest.mark.parametrize("layers", [2, 3])
def test_second_moment_is_its_recursion_in_dense_matrices(family: Family, layers: int) -> None:
    """Traces of whole d x d blocks and the two directions, T and D by autograd."""
    case = held(family, layers)
    eye, one = torch.eye(case.final_jacobian.shape[0], dtype=torch.float64), torch.eye(N, dtype=torch.float64)
    whole, shared = torch.zeros(N, N, *eye.shape, dtype=torch.float64), None
    whole[-1, -1] = case.final_jacobian.T @ case.final_jacobian
    for block in reversed(case.blocks):
        rows, moved = eye + block.mlp, block.update + one[:, :, None, None] * eye
        reached = (traces(whole).diagonal() > 0)[:-1]
        whole = torch.einsum("iba,ijbc,jcd->ijad", rows, whole, rows)
        shared = None if shared is None else turned_by_mlp(rows[:-1][reached], shared)
        whole = collapsed(whole, shared)
        apart = whole.clone()
        apart[-1, :-1] = apart[:-1, -1] = 0.0
        whole, apart = (torch.einsum("ikba,ijbc,jlcd->klad", moved, kept, moved) for kept in (whole, apart))
        each = [apart[j, j] / whole[j, j].trace() for j in range(N - 1) if whole[j, j].trace() > 0]
        shared = torch.stack(each).sum(0)
        shared = shared / shared.trace()
        whole = collapsed(whole, shared)
    assert case.values("second-moment") == pytest.approx(traces(whole).diagonal().sqrt().numpy(), rel=1e-9)


@every_family
@pytest.mark.parametrize("layers", quick([2, 3], 3))
def test_second_moment_full_is_its_recursion_in_dense_matrices(family: Family, layers: int) -> None:
    """What docs/theory.md says of the real derivative, in whole d x d blocks; held and live T and D by autograd.

    Exact are MLPs, the last token's own block, and every tr(T_ij^T Sigma T_ij). Where paths of two tokens interfere, attention
    is the held one, scaled with what the real derivative has more on the diagonal; so is what turns the directions.
    """
    still, real = held(family, layers), live(family, layers=layers, seed=7)
    blocks = zip([block.update for block in still.blocks], real.updates, real.mlps, strict=True)
    expected = sequential_in_dense_matrices([*blocks], real.final_jacobian)
    assert still.values("second-moment-full") == pytest.approx(expected.numpy(), rel=1e-9)


def sequential_in_dense_matrices(blocks: list[tuple[Tensor, Tensor, Tensor]], final_jacobian: Tensor) -> Tensor:
    """||J_j||_F of the recursion of the real derivative; a block: the held update of attention, the real one, the real MLP."""
    n, d = blocks[0][0].shape[1:3]
    eye, one = torch.eye(d, dtype=torch.float64), torch.eye(n, dtype=torch.float64)
    skip = one[:, :, None, None] * eye
    whole, shared = torch.zeros(n, n, *eye.shape, dtype=torch.float64), None
    whole[-1, -1] = final_jacobian.T @ final_jacobian
    for held_update, update, mlp in blocks[::-1]:
        rows, moved, alive = eye + mlp, held_update + skip, update + skip
        reached = (traces(whole).diagonal() > 0)[:-1]
        whole = torch.einsum("iba,ijbc,jcd->ijad", rows, whole, rows)
        shared = None if shared is None else turned_by_mlp(rows[:-1][reached], shared)
        whole = collapsed(whole, shared)
        apart = whole.clone()
        apart[-1, :-1] = apart[:-1, -1] = 0.0
        # Every sum of squares on the diagonal alone, held and real.
        squares = (torch.einsum("ijba,iibc,ijca->j", t, whole, t) for t in (moved, alive))
        gained = -next(squares) + next(squares)
        own = torch.einsum("ba,ibc,ijcd->jad", alive[-1, -1], whole[-1], moved)
        last = torch.einsum("ba,bc,cd->ad", alive[-1, -1], whole[-1, -1], alive[-1, -1])
        whole, apart = (torch.einsum("ikba,ijbc,jlcd->klad", moved, kept, moved) for kept in (whole, apart))
        size = traces(whole).diagonal()
        ratio = torch.where(size > 0, (size + gained) / size, 1.0).sqrt()
        whole = whole * (ratio[:, None] * ratio)[:, :, None, None]
        each = [apart[j, j] / whole[j, j].trace() for j in range(n - 1) if whole[j, j].trace() > 0]
        shared = torch.stack(each).sum(0)
        shared = shared / shared.trace()
        whole[-1], whole[:, -1] = own, own.mT
        whole[-1, -1] = last
        whole = collapsed(whole, shared)
    return traces(whole).diagonal().sqrt()


def traces(whole: Tensor) -> Tensor:
    return whole.diagonal(dim1=2, dim2=3).sum(-1)


def turned_by_mlp(rows: Tensor, shared: Tensor) -> Tensor:
    """What the others' MLPs have in common turns the direction; the rest of the trace is undirected."""
    mean = rows.mean(0)
    common = mean.T @ shared @ mean
    rest = torch.einsum("jba,bc,jca->j", rows, shared, rows).mean() - common.trace()
    turned = common + rest * torch.eye(len(shared), dtype=torch.float64) / len(shared)
    return turned / turned.trace()


def collapsed(whole: Tensor, shared: Tensor | None) -> Tensor:
    """K_jj' Sigma: the last token's own direction for its pairs, `shared` for the others."""
    kernel, own = traces(whole), whole[-1, -1] / whole[-1, -1].trace()
    out = kernel[:, :, None, None] * (torch.zeros_like(own) if shared is None else shared)
    out[-1], out[:, -1] = kernel[-1][:, None, None] * own, kernel[-1][:, None, None] * own
    return out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "trace"),
    [
        ("second-moment", "exact"),
        ("second-moment", "probes"),
        ("second-moment-diagonal", "exact"),
        ("second-moment-full", "exact"),
    ],
)
def test_all_positions_are_the_runs_on_prefixes(variant: str, trace: str) -> None:
    model = tiny_model("gemma2", seed=3, dtype=torch.float64, n_layers=3)
    frame: Any = ost.path_sum(model, Prompt.from_ids(model, IDS), variants=variant, positions="all", traces=trace).frame
    for m in range(N):
        row = frame[frame["last"] == m]["value"].to_numpy()
        prefix = values(model, Prompt.from_ids(model, IDS[: m + 1]), variant, traces=trace)
        assert row == pytest.approx(prefix, rel=1e-9)


# Every family's formulas are held in float64 above; what is lost in float32 is no family's own.
@pytest.mark.parametrize("family", TWO_FAMILIES)
@both
def test_float32_gives_the_float64_prediction(family: Family, variant: str) -> None:
    single = tiny_model(family, seed=4, n_layers=3)
    double = view_in(single, torch.float64)
    ids = [2, *range(40, 70), *[60] * 20]
    found, exact = (values(model, Prompt.from_ids(model, ids), variant) for model in (single, double))
    assert found == pytest.approx(exact, rel=1e-3)


def test_probes_are_near_recorded_and_reproducible() -> None:
    model = tiny_model("llama", seed=6, dtype=torch.float64, n_layers=3)
    prompt = Prompt.from_ids(model, IDS)
    first = ost.path_sum(model, prompt, variants="second-moment", traces="probes")
    assert first.provenance.parameters["traces"] == predicted.TRACES["probes"]
    found = first.frame["value"].to_numpy()
    assert found == pytest.approx(values(model, prompt, "second-moment", traces="probes"), rel=0)
    exact = values(model, prompt, "second-moment")
    assert found == pytest.approx(exact, rel=0.15)
    assert (found != exact).any()
    with pytest.raises(InputError, match=r"unknown traces 'probe': did you mean 'probes'\?"):
        ost.path_sum(model, prompt, variants="second-moment", traces="probe")


@pytest.mark.slow
def test_kernels_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    monkeypatch.setattr(predicted, "available_memory", lambda device: 1000)
    settings: Any = {"variants": "second-moment", "positions": "all", "max_memory": 1 << 40}
    with pytest.raises(InputError, match=r"second-moment for 7 last positions needs .*second-moment-diagonal"):
        ost.path_sum(model, Prompt.from_ids(model, IDS), **settings)


@both
def test_predictions_stand_beside_the_measured_profile_of_a_trained_model(variant: str) -> None:
    model = trained("embedded")
    prompt = ost.encode(model, "Consider the following sequence: 01010101010101. What is the last digit?")
    _near(values(model, prompt, variant), measured(model, prompt, LINEARISATION[variant]))


@both
def test_predictions_stand_beside_the_measured_profile_of_stories(variant: str) -> None:
    model = trained("stories")
    prompt = ost.encode(model, "Once upon a time, there was a little girl named Lily. She loved to play outside.")
    _near(values(model, prompt, variant), measured(model, prompt, LINEARISATION[variant]))


def _near(found: np.ndarray, exact: np.ndarray) -> None:
    assert float(np.asarray(spearmanr(found, exact))[0]) >= 0.9
    assert abs(float(np.median(np.log10(found / exact)))) <= np.log10(1.5)


@pytest.mark.parametrize("block", [0, 1, 4])
@pytest.mark.parametrize(
    ("variant", "wrong"),
    [
        *(("second-moment", wrong) for wrong in (-50.0, float("nan"))),
        *(("second-moment-diagonal", wrong) for wrong in (-50.0, float("nan"))),
        *(("second-moment-full", wrong) for wrong in (-50.0, float("nan"))),
    ],
)
def test_a_square_that_is_none_is_refused_in_whichever_block_it_arises(
    monkeypatch: pytest.MonkeyPatch, variant: str, wrong: float, block: int
) -> None:
    """Dropped with the other tokens' direction, or set to 0, it left a plausible profile."""
    model = tiny_model("llama", dtype=torch.float64, n_layers=6, d_model=16, d_mlp=24)
    overlap, calls = Mlp.overlap, []

    def spoiled(self: Mlp, *given: Any) -> Tensor:
        found = overlap(self, *given).clone()
        calls.append(None)
        if len(calls) == block + 1:
            found.diagonal().mul_(wrong)
        return found

    monkeypatch.setattr(Mlp, "overlap", spoiled)
    prompt = Prompt.from_ids(model, IDS)
    with pytest.raises(InputError, match="squared norms of 0 or more, found one that is negative or not a number"):
        values(model, prompt, variant)


@both
def test_rounding_of_the_weights_moves_a_prediction_by_as_much(variant: str) -> None:
    """What few probes miss is the same at every run: on another number of threads, or another processor."""
    sizes: dict[str, Any] = {
        "d_model": 512,
        "n_layers": 6,
        "n_heads": 8,
        "n_key_value_heads": 4,
        "d_head": 64,
        "d_mlp": 2048,
    }
    model = tiny_model("llama", seed=1, fresh=True, **sizes)
    prompt = Prompt.from_ids(model, torch.randint(10, 200, (48,), generator=torch.Generator().manual_seed(0)).tolist())
    before, generator = values(model, prompt, variant, traces="probes"), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1 + 1e-7 * torch.randn(weight.shape, generator=generator))
    assert values(model, prompt, variant, traces="probes") == pytest.approx(before, rel=1e-4)


def test_probes_are_the_default_where_they_pay() -> None:
    """From the embedded model's shape on: probes. A smaller model: exact traces. The provenance says which."""
    shape = Shape.of(tiny_model("llama"))
    wide = replace(shape, d_model=512, d_mlp=2048, gated=True)
    assert [predicted.chosen_traces(wide, pos) for pos in (64, 256, 2048)] == ["probes", "probes", "probes"]
    assert predicted.chosen_traces(replace(shape, d_model=64, d_mlp=172, gated=True), 64) == "exact"
    found = ost.path_sum(tiny_model("llama"), "ab", variants="second-moment").provenance.parameters
    assert found["traces"] == "exact"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_negative_square_is_nought_up_to_a_hundred_roundings_of_the_largest(dtype: torch.dtype) -> None:
    least = 100 * torch.finfo(dtype).eps
    squares = torch.tensor([4.0, -4 * least], dtype=torch.float64)
    assert predicted._norms(squares, dtype).tolist() == [2.0, 0.0]
    with pytest.raises(InputError, match="expected squared norms of 0 or more, found one that is negative"):
        predicted._norms(squares * torch.tensor([1.0, 1.01], dtype=torch.float64), dtype)
