"""Mitigations that change the forward pass: a window of attention, and its temperature.

Sources: Beltagy, Peters, Cohan, "Longformer", 2020 (windows); Gemma 2, 2024 (every other layer);
Xiao et al., "Efficient streaming language models with attention sinks", 2023 (the first tokens stay
visible).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ostools.ground import typed_fields
from ostools.mitigations.base import Mitigation, MitigationError, require_whole

if (
    TYPE_CHECKING
):  # torch and TransformerLens take seconds, and a name with its options needs none of them
    from jaxtyping import Bool, Int
    from torch import Tensor

    from ostools.ground import TransformerBridge


@typed_fields(MitigationError)
@dataclass(frozen=True)
class SlidingWindow(Mitigation):
    """Window of attention: each query sees the `window` keys up to itself, and the first `sinks`
    keys.

    Query i sees key j <= i if and only if i - j < window or j < sinks. Positions are absolute, and
    BOS is position 0. This is the mask of Hugging Face's `sliding_window`, bit for bit (sinks = 0).
    It narrows what the model itself sees and never widens it. The weights are renormalised over the
    keys that are left.

    Args:
        window: how many keys a query sees, itself included.
        layers: "all"; "alternate" (0, 2, 4, ..., as in Gemma 2); or the layers' numbers.
        sinks: how many first positions every query sees.

    Raises `MitigationError` for a window < 1, sinks < 0 and layers that are none of these. On a
    model it also raises it for a layer that the model does not have, and for a layer whose own
    window is narrower or would hide the sinks.
    """

    window: int
    layers: Literal["all", "alternate"] | Sequence[int] = "all"
    sinks: int = 0

    def __post_init__(self) -> None:
        require_whole(self, "window", 1)
        require_whole(self, "sinks", 0)
        if isinstance(self.layers, str):
            return
        layers = tuple(self.layers)
        if not layers or any(type(layer) is not int or layer < 0 for layer in layers):
            raise MitigationError(
                "SlidingWindow: expected layers 'all', 'alternate' or numbers such as (0, 2), "
                f"found {self.layers!r:.60}"
            )
        object.__setattr__(self, "layers", tuple(sorted(set(layers))))

    def sees(
        self, query: Int[Tensor, "query 1"], key: Int[Tensor, "1 key"]
    ) -> Bool[Tensor, "query key"]:
        """Whether each query may see each key, as far as this window and its sinks go."""
        return (query - key < self.window) | (key < self.sinks)

    def hooks(self, model: TransformerBridge) -> AbstractContextManager[None]:
        from ostools import hooks

        layer_indices = self._layer_indices(int(model.cfg.n_layers))
        window_by_layer = own_windows(model)
        narrower = {
            layer: window_by_layer[layer]
            for layer in layer_indices
            if layer in window_by_layer and (window_by_layer[layer] < self.window or self.sinks)
        }
        if narrower:
            raise MitigationError(
                "SlidingWindow: expected layers without a window of their own, a window of at most "
                f"theirs and sinks=0, found layers {', '.join(map(str, narrower))} with windows of "
                f"{', '.join(map(str, sorted({*narrower.values()})))}"
            )
        return hooks.mask_scores(model, self.sees, layers=layer_indices)

    def verify(self, record: Mapping[str, Mapping[int, Tensor]]) -> None:
        """Check that its layers see exactly the keys of the window and the sinks, and that weights
        sum to 1.

        Raises `MitigationError` otherwise.
        """
        from ostools.mitigations import invariants

        for layer, pattern, scores in invariants.layers_of(record):
            if self._slides(layer):
                visible = invariants.causal(pattern) & self.sees(*invariants.positions(pattern))
                invariants.require_unseen("SlidingWindow", layer, pattern, ~visible)
                invariants.require_unmasked("SlidingWindow", layer, scores, visible)
                invariants.require_rows_sum_to_one("SlidingWindow", layer, pattern)

    def _slides(self, layer: int) -> bool:
        if isinstance(self.layers, str):
            return self.layers == "all" or layer % 2 == 0
        return layer in self.layers

    def _layer_indices(self, n_layers: int) -> list[int]:
        layers = [layer for layer in range(n_layers) if self._slides(layer)]
        if not isinstance(self.layers, str) and len(layers) < len(self.layers):
            raise MitigationError(
                f"SlidingWindow: expected layers out of 0..{n_layers - 1}, found {self.layers}"
            )
        return layers


def own_windows(model: TransformerBridge) -> dict[int, int]:
    """The window in tokens of each layer of the model that slides by itself, from its Hugging Face
    configuration.
    """
    original: Any = model.original_model
    config = original.config
    if (kinds := getattr(config, "attention_layers", None)) is not None:  # GPT-Neo
        return {
            layer: int(config.window_size) for layer, kind in enumerate(kinds) if kind == "local"
        }
    window, kinds = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    if window is None:
        return {}
    if kinds is None:  # Mistral: every layer
        return dict.fromkeys(range(int(model.cfg.n_layers)), int(window))
    return {layer: int(window) for layer, kind in enumerate(kinds) if kind == "sliding_attention"}


@typed_fields(MitigationError)
@dataclass(frozen=True)
class AttentionTemperature(Mitigation):
    """Sharper or flatter attention: every score (scaled, soft-capped) is multiplied by `factor`
    before the softmax, an inverse temperature. Above 1 attention is sharper, below 1 it is flatter.

    Raises `MitigationError` for a factor that is not finite and above 0.
    """

    factor: int | float

    def __post_init__(self) -> None:
        if not 0 < self.factor <= sys.float_info.max:
            raise MitigationError(
                f"AttentionTemperature: expected a finite factor above 0, found {self.factor!r:.20}"
            )
        # 2 and 2.0 are one mitigation, with one label.
        object.__setattr__(self, "factor", float(self.factor))

    def hooks(self, model: TransformerBridge) -> AbstractContextManager[None]:
        from ostools import hooks

        return hooks.scale_scores(model, self.factor)

    def verify(self, record: Mapping[str, Mapping[int, Tensor]]) -> None:
        """Raise `MitigationError` if a query sees a key after it, or if its weights do not sum to
        1.
        """
        from ostools.mitigations import invariants

        for layer, pattern, _ in invariants.layers_of(record):
            invariants.require_unseen(
                "AttentionTemperature", layer, pattern, ~invariants.causal(pattern)
            )
            invariants.require_rows_sum_to_one("AttentionTemperature", layer, pattern)
