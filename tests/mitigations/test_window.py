"""A window is Hugging Face's own, bit for bit, in one pass and token by token; never widens; and a wrong one is caught."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from jaxtyping import Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformers import DynamicCache

import hooks
from mitigations import MitigationError, SlidingWindow, acts, label, mitigation, running
from tests.checkpoints import Family, make_model, tiny_model

Tokens = Int[Tensor, "batch pos"]
TOKENS = torch.randint(10, 200, (2, 23), generator=torch.Generator().manual_seed(0))
WIDE = 256


def cached_logits(model: Any, tokens: Tokens, first: int = 9, **cache: Any) -> Tensor:
    """Logits of each position behind the first ones, a token at a time through a key/value cache."""
    past = DynamicCache(**cache)
    model(tokens[:, :first], past_key_values=past, use_cache=True)
    steps = []
    for at in range(first, tokens.shape[1]):
        out = model(tokens[:, at : at + 1], past_key_values=past, use_cache=True)
        steps.append(getattr(out, "logits", out)[:, -1])
    return torch.stack(steps, 1)


@pytest.mark.parametrize("window", [1, 5])
def test_it_is_gemma_2s_own_window_bit_for_bit(window: int) -> None:
    own = make_model("gemma2", seed=1, n_layers=3, window=window)
    model = tiny_model("gemma2", seed=1, n_layers=3, window=WIDE)
    expected, steps = own(TOKENS).logits, cached_logits(own, TOKENS)
    with running(model, SlidingWindow(window, layers="alternate")):
        assert torch.equal(model(TOKENS), expected)
        assert torch.equal(cached_logits(model, TOKENS), steps)
    assert not torch.equal(model(TOKENS), expected)


def four_dimensional(window: int, sinks: int, length: int) -> Tensor:
    """A mask written by hand: 0 where a key is seen, the lowest number elsewhere."""
    mask = torch.full((1, 1, length, length), torch.finfo(torch.float32).min)
    for query in range(length):
        for key in range(query + 1):
            if query - key < window or key < sinks:
                mask[0, 0, query, key] = 0.0
    return mask


@pytest.mark.parametrize("family", ["gemma", "gpt2"])
@pytest.mark.parametrize(("window", "sinks"), [(1, 1), (3, 5)])
def test_sinks_are_a_mask_written_by_hand(family: Family, window: int, sinks: int) -> None:
    expected = make_model(family, seed=1)(TOKENS, attention_mask=four_dimensional(window, sinks, 23)).logits
    model = tiny_model(family, seed=1)
    with running(model, SlidingWindow(window, sinks=sinks)):
        found, steps = model(TOKENS), cached_logits(model, TOKENS)
    if family == "gpt2":  # three matrices where Hugging Face multiplies one
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    else:
        assert torch.equal(found, expected)
    torch.testing.assert_close(steps, expected[:, 9:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("layers", "slides"), [("all", {0, 1, 2, 3}), ("alternate", {0, 2}), ([3, 1, 3], {1, 3}), (range(2), {0, 1})]
)
def test_only_the_layers_named_slide(layers: Any, slides: set[int]) -> None:
    model = tiny_model("llama", seed=1, n_layers=4)
    window = SlidingWindow(3, layers=layers)
    with running(model, window), hooks.capture(model, "pattern") as record:
        model(TOKENS)
    beyond = torch.ones(23, 23).tril(-3).bool()
    for layer, pattern in record["pattern"].items():
        assert bool((pattern[..., beyond] == 0).all()) == (layer in slides)
    assert mitigation(label(window)) == window


def test_a_window_as_wide_as_the_prompt_does_not_act() -> None:
    model = tiny_model("gemma", seed=1)
    assert not acts(model, SlidingWindow(23), TOKENS[0])
    assert acts(model, SlidingWindow(22), TOKENS[0])
    assert not acts(model, SlidingWindow(22, sinks=1), TOKENS[0])
    before = model(TOKENS)
    with running(model, SlidingWindow(23)):
        assert torch.equal(model(TOKENS), before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window": 0}, "expected window of at least 1, found 0"),
        ({"window": 4, "sinks": -1}, "expected sinks of at least 0, found -1"),
        ({"window": 4, "layers": ()}, r"expected layers 'all', 'alternate' or numbers such as \(0, 2\), found \(\)"),
        ({"window": 4, "layers": (0, -1)}, r"expected layers .* found \(0, -1\)"),
    ],
)
def test_what_is_no_window_is_refused_at_construction(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(MitigationError, match=f"SlidingWindow: {message}"):
        SlidingWindow(**arguments)


def test_a_models_own_window_is_never_widened() -> None:
    model = tiny_model("gemma2", n_layers=4, window=5)  # layers 0 and 2 slide
    refusal = (
        r"cannot widen attention to 6: found layers 0, 2 with a window of 5 of their own; choose a window of at most"
    )
    for layers in ("all", "alternate", (0, 1, 2)):
        with pytest.raises(MitigationError, match=refusal + r" that, or layers=\(1, 3\), which have none"):
            SlidingWindow(6, layers=layers).hooks(model)
    for allowed in (SlidingWindow(5), SlidingWindow(3, layers="alternate"), SlidingWindow(9, layers=(1, 3), sinks=2)):
        with running(model, allowed):
            model(TOKENS)
    with pytest.raises(
        MitigationError, match="sinks=1 would stay hidden: found layers 0, 2 with a window of 5 of their"
    ):
        SlidingWindow(4, sinks=1).hooks(model)


# Windows that are wrong: the contract catches each.


@dataclass(frozen=True)
class Planted(SlidingWindow):
    """A window whose hooks do something else than it says."""

    fault: str = "none"

    @contextmanager
    def hooks(self, model: TransformerBridge) -> Iterator[None]:
        rule: Any = self.sees
        if self.fault == "wide":
            rule = SlidingWindow(self.window + 1, sinks=self.sinks).sees
        elif self.fault == "narrow":
            rule = SlidingWindow(self.window - 1, sinks=self.sinks).sees

        def short(pattern: Tensor, layer: int) -> Tensor:
            query = torch.arange(pattern.shape[-1])[-pattern.shape[-2] :, None]
            return pattern * self.sees(query, torch.arange(pattern.shape[-1])[None])

        if self.fault == "short":
            with hooks.replace_pattern(model, short):
                yield
        else:
            layers = [0] if self.fault == "layer 1" else None
            with hooks.mask_scores(model, rule, layers=layers):
                yield


FAULTS = {
    "wide": "expected weights of exactly 0 on the keys that it hides, found .* in layer 0, head 0, query 6, key 0",
    "narrow": "expected that every key which it does not hide is seen, .* masks in layer 0, head 0, query 4, key 2",
    "layer 1": "expected weights of exactly 0 .* in layer 1, head 0, query 5, key 2",
    "short": "expected the weights of every query to sum to 1, found 0.* in layer 0, head 0, query 5",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_window_is_caught(fault: str) -> None:
    model = tiny_model("llama", seed=1)
    sinks = 0 if fault == "wide" else 2
    window = 6 if fault == "wide" else 3
    with running(model, Planted(window, sinks=sinks)):
        model(TOKENS)
    message = FAULTS[fault]
    with pytest.raises(MitigationError, match=f"SlidingWindow: {message}"), running(
        model, Planted(window, sinks=sinks, fault=fault)
    ):  # fmt: skip
        model(TOKENS)
    assert hooks.active_edits(model) == ()


def test_two_windows_on_one_layer_are_not_what_either_says() -> None:
    model = tiny_model("llama", seed=1)
    both = mitigation("sliding-window:window=8 + sliding-window:window=4")
    with pytest.raises(MitigationError, match="found one that something else masks in layer 0"), running(model, both):
        model(TOKENS)
    apart = mitigation("sliding-window:window=8,layers=0 + sliding-window:window=4,layers=1")
    with running(model, apart):
        model(TOKENS)
