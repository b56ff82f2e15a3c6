"""A window is Hugging Face's own, bit for bit; a temperature is a softmax by hand; what is not what
it says is caught.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from jaxtyping import Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformers import DynamicCache

from ostools import hooks
from ostools.mitigations import (
    AttentionTemperature,
    Mitigation,
    MitigationError,
    SlidingWindow,
    acts,
    label,
    mitigation,
    running,
)
from tests.checkpoints import TWO_FAMILIES, Family, make_model, tiny_model

Tokens = Int[Tensor, "batch pos"]
TOKENS: Tokens = torch.randint(10, 200, (2, 23), generator=torch.Generator().manual_seed(0))


def cached_logits(model: Any, first: int = 9) -> Tensor:
    """Logits of each position behind the first ones, a token at a time through a key/value cache."""
    past = DynamicCache()
    model(TOKENS[:, :first], past_key_values=past, use_cache=True)
    steps = []
    for at in range(first, TOKENS.shape[1]):
        out = model(TOKENS[:, at : at + 1], past_key_values=past, use_cache=True)
        steps.append(getattr(out, "logits", out)[:, -1])
    return torch.stack(steps, 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SlidingWindow(0), "SlidingWindow: expected window of at least 1, found 0"),
        (
            lambda: SlidingWindow(4, sinks=-1),
            "SlidingWindow: expected sinks of at least 0, found -1",
        ),
        (
            lambda: SlidingWindow(4, ()),
            r"expected layers 'all', 'alternate' or numbers such as \(0, 2\), found \(\)",
        ),
        (lambda: SlidingWindow(4, (0, -1)), r"SlidingWindow: expected layers .* found \(0, -1\)"),
        *(
            (lambda factor=factor: AttentionTemperature(factor), "expected a finite factor above 0")
            for factor in (0.0, 10**400, math.nan)
        ),
    ],
)
def test_what_is_none_is_refused_at_construction(
    make: Callable[[], Mitigation], message: str
) -> None:
    with pytest.raises(MitigationError, match=message):
        make()


# Windows.


@pytest.mark.parametrize("window", [1, 5])
def test_it_is_gemma_2s_own_window_bit_for_bit(window: int) -> None:
    own = make_model("gemma2", seed=1, n_layers=3, window=window)
    model = tiny_model("gemma2", seed=1, n_layers=3, window=256)
    expected, steps = own(TOKENS).logits, cached_logits(own)
    with running(model, SlidingWindow(window, layers="alternate")):
        assert torch.equal(model(TOKENS), expected)
        assert torch.equal(cached_logits(model), steps)
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
    expected = make_model(family, seed=1)(
        TOKENS, attention_mask=four_dimensional(window, sinks, 23)
    ).logits
    model = tiny_model(family, seed=1)
    with running(model, SlidingWindow(window, sinks=sinks)):
        found, steps = model(TOKENS), cached_logits(model)
    if family == "gpt2":  # three matrices where Hugging Face multiplies one
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    else:
        assert torch.equal(found, expected)
    torch.testing.assert_close(steps, expected[:, 9:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("layers", "slides"),
    [("all", {0, 1, 2, 3}), ("alternate", {0, 2}), ([3, 1, 3], {1, 3}), (range(2), {0, 1})],
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


def test_a_models_own_window_is_never_widened() -> None:
    model = tiny_model("gemma2", n_layers=4, window=5)  # layers 0 and 2 slide
    for layers in ("all", "alternate", (0, 1, 2)):
        with pytest.raises(MitigationError, match=r"found layers 0, 2 with windows of 5"):
            SlidingWindow(6, layers=layers).hooks(model)
    for allowed in (
        SlidingWindow(5),
        SlidingWindow(3, layers="alternate"),
        SlidingWindow(9, layers=(1, 3), sinks=2),
    ):
        with running(model, allowed):
            model(TOKENS)
    with pytest.raises(MitigationError, match="sinks=0, found layers 0, 2 with windows of 5"):
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
            with hooks.mask_scores(model, rule, layers=[0] if self.fault == "layer 1" else None):
                yield


FAULTS = {
    "wide": "expected weights of exactly 0 on the keys that it hides, found otherwise in layer 0, head 0, query 6, key 0",
    "narrow": "expected that every key which it does not hide is seen, .* in layer 0, head 0, query 4, key 2",
    "layer 1": "expected weights of exactly 0 .* in layer 1, head 0, query 5, key 2",
    "short": "expected the weights of every query to sum to 1, .* in layer 0, head 0, query 5",
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
    with (
        pytest.raises(
            MitigationError,
            match="every key which it does not hide is seen, found otherwise in layer 0",
        ),
        running(model, both),
    ):
        model(TOKENS)
    apart = mitigation("sliding-window:window=8,layers=0 + sliding-window:window=4,layers=1")
    with running(model, apart):
        model(TOKENS)


# Temperatures.


@pytest.mark.parametrize("family", TWO_FAMILIES)
def test_the_pattern_is_the_softmax_of_the_scaled_scores(family: Family) -> None:
    model, rule = tiny_model(family, seed=1), AttentionTemperature(factor=2.5)
    with hooks.capture(model, "scores", "pattern") as plain:
        model(TOKENS)
    with running(model, rule), hooks.capture(model, "pattern") as scaled:
        model(TOKENS)
        first = scaled["pattern"][0]
    scores = plain["scores"][0].double() * 2.5
    expected = torch.softmax(scores.where(plain["pattern"][0] > 0, -torch.inf), -1)
    torch.testing.assert_close(first.double(), expected, rtol=1e-4, atol=1e-6)
    assert not acts(model, AttentionTemperature(factor=1.0), TOKENS[0])


@dataclass(frozen=True)
class Leaking(AttentionTemperature):
    """Puts a little weight on what comes after the query, or takes some from every row, behind the
    first layer.
    """

    spoiled: Callable[[Tensor], Tensor] = torch.clone

    def hooks(self, model: Any) -> Any:
        return hooks.replace_pattern(
            model, lambda pattern, layer: self.spoiled(pattern) if layer else pattern
        )


def test_a_wrong_pattern_is_caught() -> None:
    model = tiny_model("llama", seed=1)
    with running(model, Leaking(factor=1.0)):
        model(TOKENS)
    faults: list[tuple[Callable[[Tensor], Tensor], str]] = [
        (
            lambda pattern: pattern + 1e-6,
            r"exactly 0 on the keys that it hides, .* in layer 1, .* key 1",
        ),
        (
            lambda pattern: pattern * 0.999,
            "weights of every query to sum to 1, .* in layer 1",
        ),
    ]
    for spoiled, message in faults:
        with (
            pytest.raises(MitigationError, match=message),
            running(model, Leaking(factor=1.0, spoiled=spoiled)),
        ):
            model(TOKENS)
