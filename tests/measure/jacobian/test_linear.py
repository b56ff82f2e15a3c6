"""The network linearised once against autograd: every family, linearisation, known edit; and its own adjoint."""

from __future__ import annotations

import pytest
import torch

import hooks
from ostools.ground.errors import InputError
from ostools.measure.formulas import forward
from ostools.measure.formulas.scores import strip_bounds, whole_strips
from ostools.measure.jacobian import linearised
from ostools.measure.jacobian.linearised import Linearised
from ostools.measure.jacobian.sensitivity import LINEARISATIONS
from ostools.measure.passes.contexts import true_arithmetic
from ostools.models import view_in
from ostools.models.precision import casting
from tests.checkpoints import TEXT_FAMILIES, TWO_FAMILIES, Family, tiny_model
from tests.families import EXPERTS, OTHERS
from tests.measure.jacobian.dense import assert_close, by_autograd, by_formulas
from tests.sets import quick

IDS = torch.tensor([2, 40, 50, 60, 60, 61, 70, 71])

every_family = pytest.mark.parametrize("family", TEXT_FAMILIES)


@pytest.mark.parametrize("family", [*TEXT_FAMILIES, *(family for family in OTHERS if family not in EXPERTS)])
def test_every_row_of_every_linearisation_is_autograds(family: str) -> None:
    """The quick law of each family: all that the formulas know of its blocks is in it."""
    model = tiny_model(family, seed=3, dtype=torch.float64, n_layers=3)
    for linearisation in LINEARISATIONS:
        assert_close(by_formulas(model, IDS, linearisation), by_autograd(model, IDS, linearisation), 1e-12)


@pytest.mark.parametrize("family", TWO_FAMILIES)
@pytest.mark.parametrize("linearisation", ["full", "frozen"])
def test_every_row_of_several_strips_is_autograds(family: Family, linearisation: str) -> None:
    """70 tokens: strips of 32, 32 and 6 queries; one head of the patterns is windowed, so that strips begin behind key 0."""
    assert strip_bounds(70) == [(0, 32), (32, 64), (64, 70)]
    assert [len(strip_bounds(queries)) for queries in (1, 32, 128, 129, 399, 400, 401)] == [1, 1, 4, 4, 4, 4, 4]
    assert strip_bounds(401) == [(0, 101), (101, 202), (202, 303), (303, 401)]
    model = tiny_model(family, seed=3, dtype=torch.float64, d_model=16, d_mlp=16)
    ids = torch.randint(10, 200, (70,), generator=torch.Generator().manual_seed(1))
    assert_close(by_formulas(model, ids, linearisation), by_autograd(model, ids, linearisation), 1e-9)


@pytest.mark.parametrize(("queries", "window"), [(33, 33), (70, 5), (150, 40), (200, 200)])
def test_strips_are_the_pattern_and_cover_it(queries: int, window: int) -> None:
    back = torch.arange(queries)[:, None] - torch.arange(queries)
    scores = torch.randn(2, queries, queries, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    pattern = scores.masked_fill((back < 0) | (back >= window), -torch.inf).softmax(-1)
    slope = torch.rand_like(pattern)
    found, answers = torch.zeros(2, 2, queries, queries, dtype=torch.float64)
    strips = whole_strips(pattern, slope)
    for strip in strips:
        found[:, strip.queries, strip.keys] += strip.pattern
        assert strip.answer is not None
        answers[:, strip.queries, strip.keys] += strip.answer
    assert torch.equal(found, pattern)
    assert torch.equal(answers, pattern * slope)
    assert [strip.queries.stop for strip in strips][-1] == queries
    if window < queries // 2:  # what no query of a strip sees is not in it
        assert strips[-1].keys.start > 0


@pytest.mark.parametrize("family", ["bloom", "granite", "qwen3"])
def test_a_temperature_is_in_the_derivative_whatever_makes_the_scores(family: str) -> None:
    """ALiBi added to them, a multiplier, norms of queries and keys. Every family under every edit: compositions."""
    model = tiny_model(family, seed=6, dtype=torch.float64)
    with hooks.scale_scores(model, 1.7):
        assert_close(by_formulas(model, IDS, "full"), by_autograd(model, IDS, "full"), 1e-11)


def test_a_replaced_pattern_has_a_frozen_derivative_only() -> None:
    model = tiny_model("llama", dtype=torch.float64)
    uniform = torch.tril(torch.ones(8, 8, dtype=torch.float64))
    uniform = (uniform / uniform.sum(-1, keepdim=True)).expand(1, 4, 8, 8)
    with hooks.replace_pattern(model, uniform):
        assert_close(by_formulas(model, IDS, "frozen"), by_autograd(model, IDS, "frozen"), 1e-9)
        with pytest.raises(
            InputError, match=r"which the active edit 'replace_pattern' at blocks\.0\.attn\.hook_pattern replaces"
        ):
            Linearised(model, IDS, "full")


@every_family
def test_every_layer_from_the_same_pass(family: Family) -> None:
    """d y_n / d v_i^(l) by autograd at each captured residual stream."""
    model = tiny_model(family, seed=9, dtype=torch.float64, n_layers=3)
    w = torch.randn(32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.enable_grad(), true_arithmetic(model):
        embedded = model.input_to_embed(IDS[None])[0].detach().requires_grad_(True)
        with hooks.capture(model, "residual_pre", "residual_post", "final_norm", detach=False) as record:
            model(embedded, start_at_layer=0)
        streams = [*record["residual_pre"].values(), record["residual_post"][2]]
        expected = torch.autograd.grad(record["final_norm"][0, -1] @ w, streams)
    found = Linearised(model, IDS, "full", range(4)).pull(w[None])[0]
    torch.testing.assert_close(found, torch.cat([gradient[0] for gradient in expected]), rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("family", TWO_FAMILIES)
@pytest.mark.parametrize("linearisation", quick(["full", "frozen"], "full"))
def test_blocks_read_again_give_the_same_bits(
    family: Family, linearisation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks kept or read at every use, the sites kept or run again, and weights cast where they are read."""
    half = tiny_model(family, seed=3, dtype=torch.bfloat16, n_layers=3)
    wide, model = view_in(half, torch.float32), tiny_model(family, seed=3, n_layers=3, fresh=True)
    for mine, given in zip(model.parameters(), half.parameters(), strict=True):
        mine.data.copy_(given.data)
    eye = torch.eye(int(model.cfg.d_model))
    kept = Linearised(model, IDS, linearisation, (0, 1, 3), chunk=5)
    expected = kept.pull(eye)
    monkeypatch.setattr(linearised, "KEPT_BYTES", 0)
    monkeypatch.setattr(casting, "SMALL_WEIGHT", 0)
    for case in (model, wide, view_in(half, torch.float32)):
        again = Linearised(case, IDS, linearisation, (0, 1, 3), chunk=5)
        assert not again._kept
        assert torch.equal(again.pull(eye), expected)
    monkeypatch.setattr(forward, "KEPT_BYTES", 0)
    again = Linearised(model, IDS, linearisation, (0, 1, 3), chunk=5)
    assert_close(again.pull(eye), expected, 1e-6)  # a block that runs alone may round otherwise
