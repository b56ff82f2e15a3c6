"""See and change a forward pass of a raw `TransformerBridge`.

`capture` looks. `frozen` holds patterns, norm scales and activations constant. The others edit. All
are context managers and leave nothing behind. Where one of them would silently do nothing, it
raises.
"""

from ostools.hooks.capture import Record, capture, head_outputs
from ostools.hooks.edit import (
    ablate_edges,
    ablate_heads,
    mask_scores,
    replace_pattern,
    scale_scores,
)
from ostools.hooks.freeze import activation_of, activation_ratio, frozen
from ostools.hooks.gates import Edge, Head, Sublayer, ablate_layers, gated
from ostools.hooks.precision import SIXTEEN_BITS, exact_arithmetic
from ostools.hooks.register import Edit, FormatError, HookError, active_edits, clear, locked
from ostools.hooks.rounding import rounded
from ostools.hooks.sites import SITES, Norm, Site, available_sites, norms, residual_scale

__all__ = [
    "SITES",
    "SIXTEEN_BITS",
    "Edge",
    "Edit",
    "FormatError",
    "Head",
    "HookError",
    "Norm",
    "Record",
    "Site",
    "Sublayer",
    "ablate_edges",
    "ablate_heads",
    "ablate_layers",
    "activation_of",
    "activation_ratio",
    "active_edits",
    "available_sites",
    "capture",
    "clear",
    "exact_arithmetic",
    "frozen",
    "gated",
    "head_outputs",
    "locked",
    "mask_scores",
    "norms",
    "replace_pattern",
    "residual_scale",
    "rounded",
    "scale_scores",
]
