"""Sliding-window attention: each query sees the keys near it, and perhaps the first few (attention sinks).

Sources: Beltagy, Peters, Cohan, "Longformer", 2020 (windows); Gemma 2, 2024 (every other layer); Xiao et al., "Efficient
streaming language models with attention sinks", 2023 (the first tokens stay visible).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mitigations.base import Mitigation, MitigationError, require_whole

if TYPE_CHECKING:  # torch and TransformerLens take seconds, and a name with its options needs none of them
    from jaxtyping import Bool, Int
    from torch import Tensor
    from transformer_lens.model_bridge import TransformerBridge


@dataclass(frozen=True)
class SlidingWindow(Mitigation):
    """Window of attention: each query sees the `window` keys up to itself, and the first `sinks` keys.

    Query i sees key j <= i if and only if i - j < window or j < sinks. Positions are absolute, and BOS is position 0. This is
    the mask of Hugging Face's `sliding_window`, bit for bit (sinks = 0). It narrows what the model itself sees and never
    widens it. The weights are renormalised over the keys that are left.

    Args:
        window: how many keys a query sees, itself included.
        layers: "all"; "alternate" (0, 2, 4, ..., as in Gemma 2); or the layers' numbers.
        sinks: how many first positions every query sees.

    Raises `MitigationError` for a window < 1, sinks < 0 and layers that are none of these. On a model it also raises it for a
    layer that the model does not have, and for a layer whose own window is narrower or would hide the sinks.
    """

    window: int
    layers: Literal["all", "alternate"] | Sequence[int] = "all"
    sinks: int = 0

    def __post_init__(self) -> None:
        require_whole(self, "window", 1)
        require_whole(self, "sinks", 0)
        if isinstance(self.layers, str) and self.layers in ("all", "alternate"):
            return
        layers = (
            tuple(self.layers) if isinstance(self.layers, Sequence) and not isinstance(self.layers, str | bytes) else ()
        )
        if not layers or any(type(layer) is not int or layer < 0 for layer in layers):
            layers_text = " ".join(repr(self.layers).split())
            raise MitigationError(
                f"SlidingWindow: expected layers 'all', 'alternate' or numbers such as (0, 2), found {layers_text:.60}"
            )
        object.__setattr__(self, "layers", tuple(sorted(set(layers))))

    def sees(self, query: Int[Tensor, "query 1"], key: Int[Tensor, "1 key"]) -> Bool[Tensor, "query key"]:
        """Whether each query may see each key, as far as this window and its sinks go."""
        return (query - key < self.window) | (key < self.sinks)

    def hooks(self, model: TransformerBridge) -> AbstractContextManager[None]:
        import hooks

        layer_indices = self._layer_indices(int(model.cfg.n_layers))
        _require_own_windows_allow(model, layer_indices, self.window, self.sinks)
        return hooks.mask_scores(model, self.sees, layers=layer_indices)

    def verify(self, record: Mapping[str, Any]) -> None:
        """Check that its layers see exactly the keys of the window and the sinks, and that weights sum to 1.

        Raises `MitigationError` otherwise.
        """
        from mitigations import invariants

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
        missing = [] if isinstance(self.layers, str) else [layer for layer in self.layers if layer >= n_layers]
        if missing:
            raise MitigationError(
                f"SlidingWindow: expected layers out of 0..{n_layers - 1}, found {', '.join(map(str, missing))}"
            )
        return [layer for layer in range(n_layers) if self._slides(layer)]


def own_windows(model: TransformerBridge) -> dict[int, int]:
    """The window in tokens of each layer of the model that slides by itself, from its Hugging Face configuration."""
    original: Any = model.original_model
    config = original.config
    if (kinds := getattr(config, "attention_layers", None)) is not None:  # GPT-Neo
        return {layer: int(config.window_size) for layer, kind in enumerate(kinds) if kind == "local"}
    window, kinds = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    if window is None:
        return {}
    if kinds is None:  # Mistral: every layer
        return dict.fromkeys(range(int(model.cfg.n_layers)), int(window))
    return {layer: int(window) for layer, kind in enumerate(kinds) if kind == "sliding_attention"}


def _require_own_windows_allow(model: TransformerBridge, layer_indices: list[int], window: int, sinks: int) -> None:
    """Refuse layers whose own window hides what lies beyond it, whatever is asked of them here."""
    windows_by_layer = own_windows(model)
    narrower = [layer for layer in layer_indices if windows_by_layer.get(layer, window) < window]
    hiding = [layer for layer in layer_indices if layer in windows_by_layer] if sinks else []
    refused = narrower or hiding
    if not refused:
        return
    full_layers = [layer for layer in range(int(model.cfg.n_layers)) if layer not in windows_by_layer]
    elsewhere = f"layers={tuple(full_layers)}, which have none" if full_layers else "a model whose layers have none"
    description = f"layers {', '.join(map(str, refused))} with a window of {windows_by_layer[refused[0]]} of their own"
    if narrower:
        raise MitigationError(
            f"SlidingWindow: cannot widen attention to {window}: found {description}; choose a window of at most that, or "
            f"{elsewhere}"
        )
    raise MitigationError(
        f"SlidingWindow: sinks={sinks} would stay hidden: found {description}; choose sinks=0, or {elsewhere}"
    )
