"""Mitigations that change the forward pass: a window of attention, and its temperature.

Sources: Beltagy, Peters, Cohan, "Longformer", 2020 (windows); Gemma 2, 2024 (every other layer);
Xiao et al., "Efficient streaming language models with attention sinks", 2023 (the first tokens stay
visible). Chiang, Cholak, "Overcoming a theoretical limitation of self-attention", 2022 (scores
times log n, so that attention over n keys can stay on one of them); Su Jianlin, "Scaling attention
by the logarithm of the length", 2021 (log n to the base of the trained length, and never below 1).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ostools.ground.arguments import typed_fields
from ostools.mitigations.base import Mitigation, MitigationError, require_whole

if (
    TYPE_CHECKING
):  # torch and TransformerLens take seconds, and a name with its options needs none of them
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from ostools.ground.lens import TransformerBridge


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
        _require_own_windows_allow(model, layer_indices, self.window, self.sinks)
        return hooks.mask_scores(model, self.sees, layers=layer_indices)

    def verify(self, record: Mapping[str, Mapping[int, Tensor]]) -> None:
        """Check that its layers see exactly the keys of the window and the sinks, and that weights
        sum to 1.

        Raises `MitigationError` otherwise.
        """
        from ostools.mitigations import invariants

        for layer, pattern, scores in invariants.layers_of(record, "SlidingWindow"):
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


def _require_own_windows_allow(
    model: TransformerBridge, layer_indices: list[int], window: int, sinks: int
) -> None:
    """Refuse layers whose own window hides what lies beyond it, whatever is asked of them here."""
    windows_by_layer = own_windows(model)
    narrower = [layer for layer in layer_indices if windows_by_layer.get(layer, window) < window]
    hiding = [layer for layer in layer_indices if layer in windows_by_layer] if sinks else []
    if refused := narrower or hiding:
        full_layers = tuple(sorted({*range(int(model.cfg.n_layers))} - {*windows_by_layer}))
        problem = (
            f"cannot widen attention to {window}"
            if narrower
            else f"sinks={sinks} would stay hidden"
        )
        advice = "a window of at most that" if narrower else "sinks=0"
        elsewhere = f"layers={full_layers}, which have none" if full_layers else "another model"
        raise MitigationError(
            f"SlidingWindow: {problem}: found layers {', '.join(map(str, refused))} with a window "
            f"of {windows_by_layer[refused[0]]} of their own; choose {advice}, or {elsewhere}"
        )


@typed_fields(MitigationError)
@dataclass(frozen=True)
class AttentionTemperature(Mitigation):
    """Sharper or flatter attention: every score is multiplied by one factor, or by a factor that
    grows as log n.

    The scores (scaled, soft-capped) of the query at position i are multiplied by c_i before the
    softmax.
    `factor`: c_i = factor, an inverse temperature. Above 1 attention is sharper, below 1 it is
    flatter. `rule="log-n"`: c_i = max(1, log(n_i) / log(base)) with n_i = i + 1, the number of
    positions that the query could see. With base e (the default) this is the log n of Chiang and
    Cholak from n = 3 on. With base = the trained length the first `base` positions stay as they
    are, bit for bit. Give `factor` or `rule`, not both.

    Raises `MitigationError` for both or neither, for a factor that is not finite and above 0, and
    for a base that is not above 1 or comes without the rule.
    """

    factor: int | float | None = None
    rule: Literal["log-n"] | None = None
    base: int | float | None = None

    def __post_init__(self) -> None:
        sound = (self.factor is None) != (self.rule is None)
        sound = sound and _is_above(self.factor, 0) and _is_above(self.base, 1)
        if not sound or (self.base is not None and self.rule is None):
            raise MitigationError(
                "AttentionTemperature: expected a factor above 0, or rule='log-n' (and a base "
                f"above 1), both finite, found factor={self.factor!r:.20}, rule={self.rule!r}, "
                f"base={self.base!r:.20}"
            )
        for field in ("factor", "base"):  # 2 and 2.0 are one mitigation, with one label
            value = getattr(self, field)
            object.__setattr__(self, field, None if value is None else float(value))

    def factors(self, query: Int[Tensor, " query"]) -> Float[Tensor, " query"]:
        """c_i of the queries at these absolute positions, float64."""
        import torch

        if self.factor is not None:
            return torch.full(
                query.shape, float(self.factor), dtype=torch.float64, device=query.device
            )
        length = math.log(self.base if self.base is not None else math.e)
        return ((query + 1).double().log() / length).clamp(min=1.0)

    def hooks(self, model: TransformerBridge) -> AbstractContextManager[None]:
        from ostools import hooks

        return hooks.scale_scores(model, self.factors)

    def verify(self, record: Mapping[str, Mapping[int, Tensor]]) -> None:
        """Raise `MitigationError` if a query sees a key after it, or if its weights do not sum to
        1.
        """
        from ostools.mitigations import invariants

        for layer, pattern, _ in invariants.layers_of(record, "AttentionTemperature"):
            invariants.require_unseen(
                "AttentionTemperature", layer, pattern, ~invariants.causal(pattern)
            )
            invariants.require_rows_sum_to_one("AttentionTemperature", layer, pattern)


def _is_above(value: int | float | None, least: int) -> bool:
    """Whether it is a number above `least` that a float holds, or None."""
    return value is None or least < value <= sys.float_info.max
