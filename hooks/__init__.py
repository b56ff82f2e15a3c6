"""See and change a forward pass of a raw `TransformerBridge`.

`capture` looks. `frozen` holds patterns, norm scales and activations constant. The others edit. All are context managers and
leave nothing behind. Where one of them would silently do nothing, it raises.
"""

from hooks.capture import Record as Record
from hooks.capture import capture as capture
from hooks.capture import head_outputs as head_outputs
from hooks.edit import ablate_edges as ablate_edges
from hooks.edit import ablate_heads as ablate_heads
from hooks.edit import mask_scores as mask_scores
from hooks.edit import replace_pattern as replace_pattern
from hooks.edit import scale_scores as scale_scores
from hooks.errors import HookError as HookError
from hooks.errors import RangeError as RangeError
from hooks.freeze import activation_of as activation_of
from hooks.freeze import activation_ratio as activation_ratio
from hooks.freeze import frozen as frozen
from hooks.freeze import hold_first_pass as hold_first_pass
from hooks.gates import Edge as Edge
from hooks.gates import Head as Head
from hooks.gates import Sublayer as Sublayer
from hooks.gates import ablate_layers as ablate_layers
from hooks.gates import gated as gated
from hooks.lock import clear as clear
from hooks.lock import locked as locked
from hooks.precision import SIXTEEN_BITS as SIXTEEN_BITS
from hooks.precision import UPCAST_PARTS as UPCAST_PARTS
from hooks.precision import exact_arithmetic as exact_arithmetic
from hooks.precision import upcast as upcast
from hooks.register import Edit as Edit
from hooks.register import active_edits as active_edits
from hooks.rounding import rounded as rounded
from hooks.sites import SITES as SITES
from hooks.sites import Norm as Norm
from hooks.sites import Site as Site
from hooks.sites import available_sites as available_sites
from hooks.sites import norms as norms
from hooks.strips import StripAttention as StripAttention
from hooks.strips import Strips as Strips
from hooks.strips import active_strips as active_strips
from hooks.strips import in_strips as in_strips

__all__ = [
    "SITES",
    "SIXTEEN_BITS",
    "UPCAST_PARTS",
    "Edge",
    "Edit",
    "Head",
    "HookError",
    "Norm",
    "RangeError",
    "Record",
    "Site",
    "StripAttention",
    "Strips",
    "Sublayer",
    "ablate_edges",
    "ablate_heads",
    "ablate_layers",
    "activation_of",
    "activation_ratio",
    "active_edits",
    "active_strips",
    "available_sites",
    "capture",
    "clear",
    "exact_arithmetic",
    "frozen",
    "gated",
    "head_outputs",
    "hold_first_pass",
    "in_strips",
    "locked",
    "mask_scores",
    "norms",
    "replace_pattern",
    "rounded",
    "scale_scores",
    "upcast",
]
