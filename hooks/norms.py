"""The norms on the path, with their numbers: gain, bias, eps, centred or not.

A norm is g * (x - c(x)) / r(x) + b with r(x) = sqrt(mean((x - c(x))^2) + eps); c is the mean for GPT-2's LayerNorm
and 0 for the RMS norms of Gemma (g = 1 + w) and Llama (g = w), which have no bias either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge import TransformerBridge

from hooks.errors import HookError, checked_arguments

PRE_NORMS = ("ln1", "ln2")
POST_NORMS = ("ln1_post", "ln2_post")
QK_NORMS = ("attn.q_norm", "attn.k_norm")


@dataclass(frozen=True)
class Norm:
    """One norm of the model, and the hook points before and after it. `gain` is the effective g, with its offset."""

    name: str
    gain: Float[Tensor, " width"]
    bias: Float[Tensor, " width"] | None
    eps: float
    centred: bool
    before: HookPoint
    after: HookPoint

    def centre(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """x - c(x): for a LayerNorm the mean is subtracted; for an RMS norm it is x itself."""
        return x - x.mean(-1, keepdim=True) if self.centred else x

    def inverse_scale(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch 1"]:
        """1 / r(x), in float32, or in float64 for float64 input, as the models themselves compute it."""
        x = x if x.dtype == torch.float64 else x.float()
        return torch.rsqrt(self.centre(x).square().mean(-1, keepdim=True) + self.eps)

    def __call__(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """The norm of x, in the precision of `inverse_scale`."""
        scale = self.inverse_scale(x)
        out = self.centre(x.to(scale.dtype)) * scale * self.gain.to(scale.dtype)
        return out if self.bias is None else out + self.bias.to(scale.dtype)


@checked_arguments(HookError)
def norms(model: TransformerBridge) -> dict[str, Norm]:
    """Every norm on the path of this model by name ("blocks.0.ln1", "blocks.0.attn.q_norm", "ln_final")."""
    per_block = PRE_NORMS + POST_NORMS + QK_NORMS
    names = [f"blocks.{layer}.{part}" for layer in range(int(model.cfg.n_layers)) for part in per_block]
    points = model.hook_dict  # put together anew at every access
    return {name: _norm(model, name, points) for name in [*names, "ln_final"] if f"{name}.hook_out" in points}


def component_of(model: TransformerBridge, name: str) -> Any:
    """The part of the model with that path ("blocks.0.ln1"), None where it has none."""
    found: Any = model
    for part in name.split("."):
        found = found[int(part)] if part.isdigit() else getattr(found, part, None)
        if found is None:
            return None
    return found


def _norm(model: TransformerBridge, name: str, points: dict[str, HookPoint]) -> Norm:
    component: Any = component_of(model, name)
    original = component.original_component
    eps = getattr(original, "eps", getattr(original, "variance_epsilon", None))
    if eps is None:
        raise HookError(f"norm {name} ({type(original).__name__}): expected an eps or variance_epsilon, found neither")
    weight = component.weight.detach()
    bias = None if component.uses_rms_norm else getattr(original, "bias", None)
    return Norm(
        name=name,
        gain=1.0 + weight if component.uses_weight_offset else weight,
        bias=None if bias is None else bias.detach(),
        eps=float(eps),
        centred=not component.uses_rms_norm,
        before=points[f"{name}.hook_in"],
        after=points[f"{name}.hook_out"],
    )
