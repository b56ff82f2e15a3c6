"""Parts of the frozen derivative by attention hops, against the blocks' own Jacobians multiplied
out.
"""

from itertools import product
from typing import Any

import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools import hooks
from ostools.measure.jacobian.hops import ALL, MORE
from ostools.measure.passes.contexts import run_from, true_arithmetic
from tests.checkpoints import refused, tiny_model

IDS = [2, 40, 50, 61, 50]


def block_jacobians(
    model: TransformerBridge, prompt: Any
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """B_l, d v^(l)_i / d v^(l-1)_j, by autograd with patterns and norm scales held; and d y_n / d
    v^(L)_n.
    """
    sites = ("residual_pre", "residual_post", "final_norm")
    with (
        true_arithmetic(model),
        torch.enable_grad(),
        hooks.frozen(model),
        hooks.capture(model, *sites, detach=False) as record,
    ):
        start = model.input_to_embed(prompt.ids[None])[0].detach().requires_grad_()
        run_from(model, start)
    inputs = [
        start if layer == 0 else record["residual_pre"][layer]
        for layer in range(model.cfg.n_layers)
    ]
    outputs = [record["residual_post"][layer] for layer in range(model.cfg.n_layers)]
    blocks = [
        _rows(output[0].flatten(), stream) for output, stream in zip(outputs, inputs, strict=True)
    ]
    pos, d = start.shape[1:]
    return [block.view(pos, d, pos, d) for block in blocks], _rows(
        record["final_norm"][0, -1], outputs[-1]
    )[:, -1]


def _rows(outputs: torch.Tensor, stream: torch.Tensor) -> torch.Tensor:
    gradients = [torch.autograd.grad(output, stream, retain_graph=True)[0][0] for output in outputs]
    return torch.stack(gradients)


@pytest.mark.parametrize("family", ["llama", "gemma3", "neox", "olmo2", "qwen3", "gpt2"])
def test_the_parts_are_the_products_of_diagonals_and_off_diagonals(family: str) -> None:
    """Every way to take the diagonal or the off-diagonal part of each block, summed by how often it
    is the latter.
    """
    model = tiny_model(family, dtype=torch.float64)
    prompt = ost.Prompt.from_ids(model, IDS)
    blocks, final = block_jacobians(model, prompt)
    pos, d = len(IDS), final.shape[0]
    same = torch.eye(pos, dtype=torch.float64)[:, None, :, None]
    expected = {name: torch.zeros(d, pos, d, dtype=torch.float64) for name in ("0", "1", MORE, ALL)}
    for choice in product((False, True), repeat=len(blocks)):
        row = torch.zeros(d, pos, d, dtype=torch.float64)
        row[:, -1] = final
        for hop, block in zip(reversed(choice), reversed(blocks), strict=True):
            row = torch.einsum("kic,icjd->kjd", row, block * (1 - same if hop else same))
        for name in (str(sum(choice)) if sum(choice) < 2 else MORE, ALL):
            expected[name] += row
    frame: Any = ost.measure.hops(model, prompt, most=1, cotangents=int(model.cfg.d_model)).frame
    for name, jacobian in expected.items():
        rows: Any = frame[frame["hops"] == name]
        assert rows["frobenius_norm"].to_numpy() == pytest.approx(
            jacobian.norm(dim=(0, 2)).numpy(), rel=1e-9, abs=1e-12
        )
        share = (jacobian * expected[ALL]).sum((0, 2)) / expected[ALL].square().sum((0, 2))
        assert rows["share"].to_numpy() == pytest.approx(share.numpy(), rel=1e-9, abs=1e-12)


def test_a_sketch_has_the_sizes_of_the_frozen_derivative_within_its_intervals() -> None:
    model = tiny_model("llama", seed=3)
    prompt = ost.Prompt.from_ids(model, IDS)
    exact: Any = ost.sensitivity(model, prompt, linearisations="frozen", method="exact").frame[
        "frobenius_norm"
    ]
    frame: Any = ost.measure.hops(model, prompt, cotangents=8, seed=1).frame
    whole = frame[frame["hops"] == ALL]
    assert (whole["frobenius_lower"].to_numpy() <= exact.to_numpy()).all()
    assert (exact.to_numpy() <= whole["frobenius_upper"].to_numpy()).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"most": 0}, "most: expected a whole number of at least 1, found 0"),
        ({"cotangents": 1}, "cotangents: expected a whole number of at least 2"),
        ({"cotangents": 33}, "at most d_model = 32 cotangents, found 33"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_used_are_refused(options: dict[str, Any], words: str) -> None:
    refused(words, ost.measure.hops, tiny_model("llama"), "1 1", **options)


def test_tokens_outside_of_every_window_are_left_out_of_shares() -> None:
    model = tiny_model("llama")
    prompt = ost.Prompt.from_ids(model, [*IDS, 44, 41])
    with hooks.mask_scores(model, lambda query, key: query - key < 2):
        result = ost.measure.hops(model, prompt, most=2)
    assert sorted(set(result.in_reach["position"])) == list(range(6 - int(model.cfg.n_layers), 7))
    summary: Any = result.summary
    assert summary["share"].notna().all()
    assert "over 2 tokens" in result.findings()[0]


@pytest.mark.parametrize("site", ["attn.hook_v", "hook_mlp_out", "hook_resid_mid"])
def test_what_may_move_between_positions_outside_of_the_heads_is_refused(site: str) -> None:
    """It would be counted as no hop."""
    model = tiny_model("llama")

    def add_the_token_before(tensor: torch.Tensor, hook: Any) -> torch.Tensor:
        return tensor + tensor.roll(1, 1)

    with (
        model.hooks(fwd_hooks=[(f"blocks.1.{site}", add_the_token_before)]),
        pytest.raises(
            ost.InputError, match=r"hops: expected a model without edits, .* count as no hop"
        ),
    ):
        ost.measure.hops(model, ost.Prompt.from_ids(model, IDS))


@pytest.mark.parametrize("cotangents", [32, 31])
def test_a_share_of_drawn_rows_is_told_as_an_estimate(cotangents: int) -> None:
    """All 32 rows of y_n give the number itself, and fewer an estimate of it."""
    result = ost.measure.hops(tiny_model("llama"), "The cat sat on the mat", cotangents=cotangents)
    assert result.is_estimated == (cotangents < 32)
    for sentence in result.findings():
        assert ("estimated" in sentence) == (cotangents < 32)
