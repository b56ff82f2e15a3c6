"""The network linearised once against autograd: every family, linearisation and known edit, of whole patterns and in strips."""

from __future__ import annotations

import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge

import hooks
import ostools as ost
from hooks import strips as attention_in_strips
from ostools.ground.errors import InputError
from ostools.measure.formulas import forward
from ostools.measure.formulas.scores import strip_bounds, whole_strips
from ostools.measure.jacobian import routes
from ostools.measure.jacobian.linearise import LINEARISATIONS, Linearised
from ostools.measure.passes import contexts
from ostools.measure.passes.contexts import true_arithmetic
from ostools.models import Prompt, view_in
from ostools.models.precision import casting
from tests.checkpoints import TEXT_FAMILIES, TWO_FAMILIES, Family, tiny_model
from tests.families import EXPERTS, OTHERS
from tests.measure.jacobian.dense import assert_close, by_autograd, by_formulas
from tests.sets import quick

IDS = torch.tensor([2, 40, 50, 60, 60, 61, 70, 71, 9, 33, 41])  # 11: a prime
QUERIES = 4  # a strip


def in_strips(model: TransformerBridge, ids: torch.Tensor, linearisation: str, size: int = QUERIES) -> torch.Tensor:
    with hooks.in_strips(model, size), true_arithmetic(model):
        return by_formulas(model, ids, linearisation, chunk=7)


@pytest.mark.parametrize("family", [*TEXT_FAMILIES, *(family for family in OTHERS if family not in EXPERTS)])
def test_every_row_of_every_linearisation_is_autograds(family: str) -> None:
    """The quick law of each family: all that the formulas know of its blocks is in it."""
    model = tiny_model(family, seed=3, dtype=torch.float64, n_layers=3)
    for linearisation in LINEARISATIONS:
        expected = by_autograd(model, IDS, linearisation)
        assert_close(by_formulas(model, IDS, linearisation), expected, 1e-12)
        if family in TEXT_FAMILIES:
            assert_close(in_strips(model, IDS, linearisation), expected, 1e-9)


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


EDITS = {
    "window": lambda model: hooks.mask_scores(model, lambda query, key: query - key < 3),
    "sink": lambda model: hooks.mask_scores(model, lambda query, key: (key == 0) | (query - key < 2)),
    "log n": lambda model: hooks.scale_scores(model, lambda query: (query + 2.0).log()),
    "shared edge": lambda model: hooks.ablate_edges(model, [(0, 1, 7, 4), (1, 0, 10, 0)], method="renormalise"),
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("family", quick(["gemma2", "gemma3", "gpt2"], "gemma2"))
def test_edits_are_in_the_derivative_of_strips(edit: str, family: Family) -> None:
    model = tiny_model(family, seed=6, dtype=torch.float64)
    with EDITS[edit](model):
        for linearisation in ("full", "frozen"):
            assert_close(in_strips(model, IDS, linearisation), by_autograd(model, IDS, linearisation), 1e-9)


@pytest.mark.parametrize("family", ["bloom", "granite", "qwen3"])
def test_a_temperature_is_in_the_derivative_whatever_makes_the_scores(family: str) -> None:
    """ALiBi added to them, a multiplier, norms of queries and keys. Every family under every edit: compositions."""
    model = tiny_model(family, seed=6, dtype=torch.float64)
    with hooks.scale_scores(model, 1.7):
        assert_close(by_formulas(model, IDS, "full"), by_autograd(model, IDS, "full"), 1e-11)


@pytest.mark.parametrize("size", [1, 10])
def test_strips_of_any_size_and_a_prompt_of_one_token(size: int) -> None:
    model = tiny_model("gemma2", seed=5, scale=4.0, dtype=torch.float64)
    for ids in (IDS, IDS[:1]):
        assert_close(in_strips(model, ids, "full", size), by_autograd(model, ids, "full"), 1e-8)


def test_a_replaced_pattern_has_a_frozen_derivative_only() -> None:
    model = tiny_model("llama", dtype=torch.float64)
    uniform = torch.tril(torch.ones(len(IDS), len(IDS), dtype=torch.float64))
    uniform = (uniform / uniform.sum(-1, keepdim=True)).expand(1, 4, -1, -1)
    refused = pytest.raises(
        InputError, match=r"which the active edit 'replace_pattern' at blocks\.0\.attn\.hook_pattern"
    )
    with hooks.replace_pattern(model, uniform):
        assert_close(by_formulas(model, IDS, "frozen"), by_autograd(model, IDS, "frozen"), 1e-9)
        with refused:
            Linearised(model, IDS, "full")


@pytest.mark.parametrize("family", TEXT_FAMILIES)
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
    rows = Linearised(model, IDS, "full", range(4)).pull(w[None])[0]
    torch.testing.assert_close(rows, torch.cat([gradient[0] for gradient in expected]), rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("family", TWO_FAMILIES)
def test_blocks_read_again_give_the_same_bits(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks kept or read at every use, the sites kept or run again, and weights cast where they are read."""
    half = tiny_model(family, seed=3, dtype=torch.bfloat16, n_layers=3)
    wide, model = view_in(half, torch.float32), tiny_model(family, seed=3, n_layers=3, fresh=True)
    for mine, given in zip(model.parameters(), half.parameters(), strict=True):
        mine.data.copy_(given.data)
    eye = torch.eye(int(model.cfg.d_model))
    expected = Linearised(model, IDS, "full", (0, 1, 3), chunk=5).pull(eye)
    monkeypatch.setattr(routes, "KEPT_BYTES", 0)
    monkeypatch.setattr(casting, "SMALL_WEIGHT", 0)
    for case in (model, wide, view_in(half, torch.float32)):
        again = Linearised(case, IDS, "full", (0, 1, 3), chunk=5)
        assert not again._kept
        assert torch.equal(again.pull(eye), expected)
    monkeypatch.setattr(forward, "KEPT_BYTES", 0)
    again = Linearised(model, IDS, "full", (0, 1, 3), chunk=5)
    assert_close(again.pull(eye), expected, 1e-6)  # a block that runs alone may round otherwise


def test_without_live_no_scores_are_kept_and_a_block_runs_again_for_its_slopes() -> None:
    model = tiny_model("gemma3", seed=3, dtype=torch.float64)
    kept, again = (forward.forward(model, IDS, live=live) for live in (True, False))
    assert ("scores" in kept.kept_sites, "scores" in again.kept_sites) == (True, False)
    for layer in range(int(model.cfg.n_layers)):
        assert torch.equal(kept.block(layer).slope, again.block(layer).slope)


def test_what_no_query_of_a_strip_sees_is_not_in_it() -> None:
    *_, last = whole_strips(torch.ones(1, 200, 200).tril().triu(-4), None)
    assert last.keys == slice(last.queries.start - 4, 200) == slice(146, 200)


def test_a_long_prompt_is_measured_and_certified_in_strips_as_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gemma3", seed=1, dtype=torch.float64)
    prompt = Prompt.from_ids(model, IDS)
    short = ost.sensitivity(model, prompt, linearisations=LINEARISATIONS, layers=(0, 1)).frame
    monkeypatch.setattr(contexts, "WHOLE_PATTERN_BYTES", 0)
    monkeypatch.setattr(contexts, "STRIP", QUERIES * 4 * len(IDS) * 8)
    long = ost.sensitivity(model, prompt, linearisations=LINEARISATIONS, layers=(0, 1))
    for name in ("operator_norm", "frobenius_norm"):
        assert_close(torch.tensor(long.frame[name]), torch.tensor(short[name]), 1e-8)
    for run in long.provenance.parameters["runs"].values():
        assert run["route"] == "analytic"
        assert run["certificate"]["error"] < 5e-3
    allowed = torch.ones(len(IDS), len(IDS), dtype=torch.bool)
    with pytest.raises(hooks.HookError, match="a rule of positions"), hooks.mask_scores(model, allowed):
        ost.sensitivity(model, prompt)
    with hooks.mask_scores(model, lambda query, key: allowed[query, key]):
        ost.sensitivity(model, prompt)


@pytest.mark.parametrize(
    ("point", "words"), [("hook_attn_scores", "the scores of attention"), ("hook_pattern", "not the softmax")]
)
def test_every_strip_is_checked(point: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One number of the last strip but one off, and the block is refused."""
    model = tiny_model("gemma", dtype=torch.float32)

    def spoilt(tensor: torch.Tensor, hook: object) -> torch.Tensor | None:
        if tensor.shape[-1] != 2 * QUERIES:
            return None
        out = tensor.clone()
        out[0, 1, -1, 2] += 0.1
        return out

    # Nobody may edit a strip by a hook of his own: this one stands for an attention that computes something else.
    monkeypatch.setattr(attention_in_strips, "_require_stripwise", lambda point: None)
    place = getattr(model.blocks[0].attn, point)
    with hooks.in_strips(model, QUERIES):
        block = forward.forward(model, IDS).block(0, torch.float32)
        block.check()
        block.check_scores()
        place.add_hook(spoilt)
        try:
            with pytest.raises(InputError, match=words):
                block.check_scores()
        finally:
            place.remove_hooks("fwd")
