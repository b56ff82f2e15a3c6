"""What a result says of closed blocks."""

from __future__ import annotations

from ostools.ground.lens import TransformerBridge, original_model
from ostools.hooks.sites import unknown_inside
from ostools.models.shape import setting

_SOFTMAX = ("full_attention", "sliding_attention", "chunked_attention", "attention")
"""What `layer_types` of a configuration calls layers whose attention is a softmax, and nothing
else.
"""
_NO_SOFTMAX = ("mamba", "rwkv", "recurrent", "lstm")
"""What classes of blocks without softmax attention have in their names; of a model without
`layer_types`.
"""
_HELD_PARTS = {
    "frozen": ("patterns", "norms"),
    "frozen-attention": ("patterns",),
    "frozen-norm": ("norms",),
    "detached": ("patterns", "norms", "activations"),
}
"""What a linearisation holds inside a block."""


def block_notes(model: TransformerBridge) -> dict[str, str]:
    """What a derivative on closed blocks (`sites.is_closed`) means, for the provenance."""
    reasons = {part: unknown_inside(model, part) for part in ("patterns", "norms")}
    known_parts = "".join(f", {part}" for part, reason in reasons.items() if reason is None)
    missing = ", ".join(
        name for name, parts in _HELD_PARTS.items() if unknown_inside(model, *parts)
    )
    why = "".join(f"; {reason}" for reason in reasons.values() if reason is not None)
    notes = {
        "blocks": f"closed: known of them: the residual stream between them{known_parts}; `full` "
        "is the real derivative, and linearisations that hold what else is inside a block "
        f"({missing}) are missing{why}"
    }
    if kinds := without_softmax(model):
        notes["no_softmax"] = (
            f"{kinds}: the paper's statements on softmax attention are not about these blocks"
        )
    return notes


def without_softmax(model: TransformerBridge) -> str:
    """Blocks that are not of softmax attention alone: by the configuration where it says so, else
    by the names of classes.
    """
    layer_types = setting(original_model(model).config.get_text_config(), "layer_types")
    if layer_types:
        return ", ".join(sorted({*layer_types} - {*_SOFTMAX}))
    kinds = sorted({type(part).__name__ for block in model.blocks for part in block.modules()})
    return ", ".join(kind for kind in kinds if any(word in kind.lower() for word in _NO_SOFTMAX))
