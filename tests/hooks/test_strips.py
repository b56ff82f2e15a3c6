"""Attention in strips gives what the model's own attention gives, whatever edits it, and refuses
what needs a whole pattern.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge

from ostools import hooks
from ostools.hooks.freeze import HeldParts, holding
from tests.checkpoints import TEXT_FAMILIES, Family, tiny_model
from tests.sets import quick

TOKENS = torch.tensor(
    [[2, *range(20, 42)], [2, *range(60, 38, -1)]]
)  # 23: a prime, which no strip but 1 divides


def logits(
    model: TransformerBridge, size: int | None, tokens: torch.Tensor = TOKENS
) -> torch.Tensor:
    with torch.no_grad(), hooks.in_strips(model, size) if size else nullcontext():
        return model(tokens)


def edit_of(model: TransformerBridge, name: str):
    return {
        "none": lambda: nullcontext(),
        "window": lambda: hooks.mask_scores(model, lambda query, key: query - key < 3),
        "sink": lambda: hooks.mask_scores(model, lambda query, key: (key == 0) | (query == key)),
        "temperature": lambda: hooks.scale_scores(model, lambda query: 1.0 + query / 7.0),
        "edge": lambda: hooks.ablate_edges(model, [(0, 1, 9, 4), (1, 0, 22, 0)]),
        "shared edge": lambda: hooks.ablate_edges(model, [(0, 1, 9, 6)], method="renormalise"),
        "frozen": lambda: hooks.frozen(model),
    }[name]()


@pytest.mark.parametrize("size", quick([1, 4, 7, 23, 99], 1, 7, 99))
@pytest.mark.parametrize("family", quick([*TEXT_FAMILIES, "phi"], "gemma3", "gpt2", "phi"))
def test_strips_give_the_logits_of_the_whole(family: Family, size: int) -> None:
    model = tiny_model(family, dtype=torch.float64, scale=2.0)
    with hooks.exact_arithmetic(model):
        torch.testing.assert_close(logits(model, size), logits(model, None), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("edit", ["window", "sink", "temperature", "edge", "shared edge", "frozen"])
@pytest.mark.parametrize("family", quick(["gemma2", "gemma3", "gpt2"], "gemma2"))
def test_edits_act_on_strips_as_on_the_whole(family: Family, edit: str) -> None:
    model = tiny_model(family)
    with edit_of(model, edit):
        whole, plain = logits(model, None), logits(model, 6)
    torch.testing.assert_close(plain, whole, rtol=1e-5, atol=1e-5)
    if edit != "frozen":
        assert float((whole - logits(model, None)).abs().max()) > 1e-4  # the edit does something


@pytest.mark.parametrize("family", quick(TEXT_FAMILIES, "gemma3", "gpt2"))
def test_strips_and_patterns_that_are_handed_out_are_the_models_own(family: Family) -> None:
    model = tiny_model(family, scale=2.0, dtype=torch.float64)
    one = TOKENS[:1]
    with torch.no_grad(), hooks.exact_arithmetic(model), hooks.scale_scores(model, 1.5):
        with hooks.capture(model, "scores", "pattern") as whole:
            model(one)
        with hooks.in_strips(model, 5) as strips, strips.noting(1) as calls:
            model(one)
            scores, pattern = calls[0].strip(7, 12)
    assert len(calls) == 1
    torch.testing.assert_close(pattern, whole["pattern"][1][..., 7:12, :12], rtol=1e-9, atol=1e-11)
    visible = scores > -1e30
    torch.testing.assert_close(
        scores[visible], whole["scores"][1][..., 7:12, :12][visible], rtol=1e-9, atol=1e-9
    )
    assert float(whole["pattern"][1][..., 7:12, 12:].abs().max()) == 0.0


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_without_a_mask_attention_is_causal(family: Family) -> None:
    model = tiny_model(family, dtype=torch.float64)
    with torch.no_grad(), hooks.in_strips(model, 5) as strips, strips.noting(1) as calls:
        model(TOKENS[:1])
        _, pattern = calls[0].strip(7, 12)
        _, found = replace(calls[0], _mask=None).strip(7, 12)
    assert torch.equal(found, pattern)


@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("family", ["gemma3", "gpt2"])
def test_held_patterns_in_strips_are_those_of_the_first_pass(family: Family, norms: bool) -> None:
    model = tiny_model(family, dtype=torch.float64)
    first = model.input_to_embed(TOKENS[:1])[0].detach()
    moved = first + 0.1 * torch.randn(
        first.shape, generator=torch.Generator().manual_seed(0), dtype=first.dtype
    )

    def held(size: int | None) -> torch.Tensor:
        strips = hooks.in_strips(model, size) if size else nullcontext()
        choices = [HeldParts(True, norms), HeldParts()]
        with (
            torch.no_grad(),
            strips,
            hooks.exact_arithmetic(model),
            holding(model, choices) as holds,
            holds.imposing([HeldParts(), choices[0], choices[1], choices[0]]),
        ):
            rows = torch.cat([first, moved.expand(3, -1, -1)])
            return model(rows, start_at_layer=0)[1:]

    torch.testing.assert_close(held(4), held(None), rtol=1e-9, atol=1e-9)
    live = model(moved, start_at_layer=0)
    assert float((held(4)[0] - live).abs().max()) > 1e-3
    torch.testing.assert_close(held(4)[1:2], live, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(held(4)[2], held(4)[0], rtol=1e-9, atol=1e-9)


def test_a_generation_with_a_cache_goes_on_in_strips() -> None:
    model = tiny_model("gemma")
    with torch.no_grad():
        plain = model.original_model(TOKENS[:, :17], use_cache=True)
        expected = model.original_model(
            TOKENS[:, 17:], past_key_values=plain.past_key_values
        ).logits
        with hooks.in_strips(model, 4):
            start = model.original_model(TOKENS[:, :17], use_cache=True)
            found = model.original_model(
                TOKENS[:, 17:], past_key_values=start.past_key_values
            ).logits
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_what_needs_the_whole_pattern_is_refused_and_nothing_stays_behind() -> None:
    model = tiny_model("gemma")
    plain = logits(model, None)
    with hooks.replace_pattern(model, lambda pattern, layer: pattern):
        logits(model, None)
        with pytest.raises(hooks.HookError, match="replace_pattern"):
            logits(model, 4)
    with (
        hooks.capture(model, "pattern"),
        pytest.raises(hooks.HookError, match="an observer at blocks"),
    ):
        logits(model, 4)
    with hooks.in_strips(model, 4):
        with (
            pytest.raises(hooks.HookError, match="never exists as a whole"),
            hooks.capture(model, "scores"),
        ):
            pass
        with pytest.raises(hooks.HookError, match="of its kind"), hooks.in_strips(model, 4):
            pass
        whole = pytest.raises(hooks.HookError, match="needs the whole pattern")
        with whole, hooks.replace_pattern(model, lambda pattern, layer: pattern):
            model(TOKENS)
    with pytest.raises(hooks.HookError, match="at least one query"):
        logits(model, -1)
    assert all("forward" not in vars(block.attn) for block in model.blocks)
    assert torch.equal(logits(model, None), plain)


def test_a_mask_has_four_axes_or_is_none() -> None:
    model = tiny_model("gpt2")
    x = torch.randn(1, 23, 32, generator=torch.Generator().manual_seed(0))
    causal = torch.zeros(1, 1, 23, 23).masked_fill(
        torch.ones(23, 23).triu(1).bool(), torch.finfo(torch.float32).min
    )
    with torch.no_grad(), hooks.in_strips(model, 4):
        expected = model.blocks[0].attn(x, attention_mask=causal)[0]
        for mask in (None, torch.ones(1, 1, 23, 23).tril().bool()):
            torch.testing.assert_close(model.blocks[0].attn(x, attention_mask=mask)[0], expected)
        with pytest.raises(
            hooks.HookError, match=r"expected a mask of four axes or none, found \(1, 23, 23\)"
        ):
            model.blocks[0].attn(x, attention_mask=causal[0])
