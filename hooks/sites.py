"""Sites of a forward pass: the one table of hook names.

A `Site` is a place with a name of the field ("pattern", "residual_post") and the anchored name of
its hook in a raw `TransformerBridge`. Anchored, because a bare suffix also matches the vision tower
of a multimodal model. A place that a model does not have (a post-norm in Llama, the middle of a
parallel block) is an error; so is one whose hook point never runs, or means something else there
(`_misnamed`).

Source of the names: TransformerLens 4.3, run on every family of docs/models.md.

The norms on the path stand here too, with their numbers. A norm is g * (x - c(x)) / r(x) + b with
r(x) = sqrt(mean((x - c(x))^2) + eps). c is the mean for GPT-2's LayerNorm, and 0 for the RMS norms
of Gemma (g = 1 + w) and Llama (g = w), which have no bias.
"""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ostools.ground import (
    HookPoint,
    JointQKVPositionEmbeddingsAttentionBridge,
    MoEBridge,
    TransformerBridge,
    checked_arguments,
    is_whole,
    nearest,
    short_repr,
)
from ostools.hooks.register import HookError


@dataclass(frozen=True)
class Site:
    """A named place. `template` is the hook's full name, with `{layer}` if every block has one.
    `axes` is its shape.
    """

    name: str
    template: str
    axes: str
    meaning: str

    @property
    def per_layer(self) -> bool:
        """Whether every block has one."""
        return "{layer}" in self.template


_RESIDUAL = "batch pos d_model"
_SCALE = "batch pos 1"

# fmt: off
_ROWS = (
    ("embedding", "blocks.0.hook_resid_pre", _RESIDUAL, "v^(0): what enters the first block"),
    ("residual_pre", ".hook_resid_pre", _RESIDUAL, "v^(l): the stream that enters block l"),
    ("residual_mid", ".hook_resid_mid", _RESIDUAL, "z^(l), between attention and MLP"),
    ("residual_post", ".hook_resid_post", _RESIDUAL, "v^(l+1): the stream that leaves block l"),
    ("final_norm", "ln_final.hook_out", _RESIDUAL, "y: behind the final norm"),
    ("scores", ".attn.hook_attn_scores", "batch head query key", "before softmax, masked"),
    ("pattern", ".attn.hook_pattern", "batch head query key", "alpha: rows sum to 1 (gpt-oss: <1)"),
    ("key", ".attn.hook_k", "batch pos kv_head d_head", "key vectors, before a qk-norm and RoPE"),
    ("value", ".attn.hook_v", "batch pos kv_head d_head", "value vectors, a key/value head each"),
    ("z", ".attn.hook_z", "batch pos head d_head", "pattern-weighted values, before W_O"),
    ("head_output", ".attn.hook_z", "batch pos head d_model", "each head's output, z W_O, no bias"),
    ("rotary_q", ".attn.hook_rot_q", "batch pos head d_head", "queries after RoPE"),
    ("rotary_k", ".attn.hook_rot_k", "batch pos kv_head d_head", "keys after RoPE"),
    ("rotary_cos", ".attn.hook_cos", "1 pos d_head", "cosines of the rotation by position"),
    ("rotary_sin", ".attn.hook_sin", "1 pos d_head", "sines of the rotation by position"),
    ("attention_output", ".hook_attn_out", _RESIDUAL, "what attention adds to the residual stream"),
    ("attention_raw", ".attn.hook_out", _RESIDUAL, "before a post-norm, where there is one"),
    ("mlp_output", ".hook_mlp_out", _RESIDUAL, "what the MLP adds to the residual stream"),
    ("mlp_raw", ".mlp.hook_out", _RESIDUAL, "before a post-norm, where there is one"),
    ("mlp_gate", ".mlp.hook_pre", "batch pos d_mlp", "W_gate x, before the activation"),
    ("mlp_up", ".mlp.hook_pre_linear", "batch pos d_mlp", "W_up x, the gated MLP's linear half"),
    ("mlp_hidden", ".mlp.hook_post", "batch pos d_mlp", "what W_down reads"),
    ("norm1_scale", ".ln1.hook_scale", _SCALE, "r1: RMS at the norm before attention"),
    ("norm2_scale", ".ln2.hook_scale", _SCALE, "r2: RMS at the norm before the MLP"),
    ("post_norm1_scale", ".ln1_post.hook_scale", _SCALE, "rp1: RMS at the norm after attention"),
    ("post_norm2_scale", ".ln2_post.hook_scale", _SCALE, "rp2: RMS at the norm after the MLP"),
    ("q_norm_scale", ".attn.q_norm.hook_scale", "batch head pos 1", "queries; or batch pos 1"),
    ("k_norm_scale", ".attn.k_norm.hook_scale", "batch kv_head pos 1", "keys; or batch pos 1"),
    ("final_norm_scale", "ln_final.hook_scale", _SCALE, "r3: RMS at the final norm"),
)
# fmt: on
"""Name, hook, axes and meaning; a hook's name that begins with a point is one in every block."""
SITES: Mapping[str, Site] = {
    name: Site(name, f"blocks.{{layer}}{hook}" if hook[0] == "." else hook, axes, meaning)
    for name, hook, axes, meaning in _ROWS
}


def site(name: str) -> Site:
    """The site of that name; an unknown one raises `HookError` with the nearest."""
    if not isinstance(name, str) or name not in SITES:
        raise HookError(f"unknown site {name!r}: {nearest(name, SITES)}")
    return SITES[name]


@checked_arguments(HookError)
def available_sites(model: TransformerBridge) -> tuple[str, ...]:
    """The names of the sites that this model has, in the table's order."""
    hook_points, misnamed = (
        model.hook_dict,
        _misnamed(model),
    )  # the first is put together anew at every access
    return tuple(
        name
        for name, place in SITES.items()
        if place.template.format(layer=0) in hook_points and name not in misnamed
    )


def adds_residual(sublayer: nn.Module) -> bool:
    """Whether attention or an MLP is handed the residual stream and adds it to its own output
    (Bloom; MPT's MLP).
    """
    original = getattr(sublayer, "original_component", sublayer)
    return "residual" in inspect.signature(original.forward).parameters


def is_closed(model: TransformerBridge) -> bool:
    """Whether nothing inside a block is known: a bridge with hook points between blocks alone."""
    return not {"attn", "mlp"} <= set(model.blocks[0]._modules)


def unknown_inside(model: TransformerBridge, *parts: str) -> str | None:
    """Why one of these parts of closed blocks is not known, None where all are: "patterns" and
    "norms" may be, others never.
    """
    if not is_closed(model):
        return None
    unknown = getattr(model, "unknown", {})
    known_parts = (
        [part for part in ("patterns", "norms") if part not in unknown]
        if hasattr(model, "known_norms")
        else []
    )
    missing = [part for part in parts if part not in known_parts]
    return unknown.get(missing[0], f"nothing is known of its {missing[0]}") if missing else None


def require_open(model: TransformerBridge, what: str, *parts: str) -> None:
    """`HookError` in the name of `what` for a model whose blocks are closed, at least to these
    parts.
    """
    reason = unknown_inside(model, *(parts or ("inside",)))
    if reason is not None:
        raise HookError(
            f"{what}: expected a model whose blocks are known inside, found "
            f"{model.cfg.architecture}: {reason}; what needs no inside is measured: "
            "linearisations=['full'] (of a logit too), collapse, evaluate, probe, faithfulness"
        )


def residual_scale(model: TransformerBridge) -> float:
    """Factor by which a block multiplies what attention and MLP compute before it adds them
    (Granite's residual_multiplier).
    """
    return float(getattr(model.blocks[0], "residual_contribution_scale", 1.0))


def _misnamed(model: TransformerBridge) -> frozenset[str]:
    """Sites whose hook point is there, but never runs, or is not at what the table says."""
    if is_closed(model):
        return frozenset()
    from transformer_lens.model_bridge.generalized_components import AttentionBridge

    block, misnamed = model.blocks[0], set[str]()
    if isinstance(block.attn, JointQKVPositionEmbeddingsAttentionBridge):
        misnamed |= {"rotary_q", "rotary_k"}  # never run
    if type(block.attn).forward is AttentionBridge.forward:
        misnamed |= {
            "scores",
            "pattern",
            "rotary_q",
            "rotary_k",
        }  # shown after the fact: a hook there changes nothing
    if not hasattr(block.attn, "hook_rot_q"):
        misnamed |= {
            "rotary_cos",
            "rotary_sin",
        }  # of attention that rotates, which this one need not do
    if isinstance(block.mlp, MoEBridge):
        misnamed |= {
            "mlp_gate",
            "mlp_up",
            "mlp_hidden",
        }  # what enters and leaves all experts together
    misnamed |= {"attention_raw"} if adds_residual(block.attn) else set()
    return frozenset(
        misnamed | ({"mlp_raw"} if block.mlp.name is None or adds_residual(block.mlp) else set())
    )


def checked_layers(model: TransformerBridge, layers: Iterable[int] | None) -> tuple[int, ...]:
    """`layers` sorted and without doubles, all of them for None; a layer that the model does not
    have raises.
    """
    count = int(model.cfg.n_layers)
    if layers is None:
        return tuple(range(count))
    return tuple(sorted(set(_checked("layers", layers, count))))


def checked_heads(model: TransformerBridge, heads: Iterable[int] | None) -> tuple[int, ...] | None:
    """`heads` as they are given, None for all of them; one that the model does not have raises."""
    return None if heads is None else _checked("heads", heads, int(model.cfg.n_heads))


def _checked(what: str, numbers: Iterable[int], count: int) -> tuple[int, ...]:
    numbers = tuple(numbers)
    wrong = [number for number in numbers if not is_whole(number) or not 0 <= number < count]
    if wrong or not numbers:
        raise HookError(
            f"expected {what} as whole numbers out of 0..{count - 1}, found "
            f"{short_repr(wrong) if wrong else 'none'}"
        )
    return tuple(map(int, numbers))


def points(
    model: TransformerBridge, name: str, layers: Iterable[int] | None = None
) -> dict[int | None, HookPoint]:
    """The hook points of a site by layer, or under the key None where there is only one in the
    model.

    Raises `HookError`, before anything is registered, for a site or layer that this model does not
    have.
    """
    if layers is not None and not site(name).per_layer:
        raise HookError(
            f"site {name!r} is one place in the model, found layers={short_repr(layers)}: leave "
            "layers out"
        )
    return points_of(model, [name], layers)[name]


def points_of(
    model: TransformerBridge, names: Iterable[str], layers: Iterable[int] | None = None
) -> dict[str, dict[int | None, HookPoint]]:
    """`points` of several sites; `layers` are of those that every block has."""
    hook_points, misnamed = (
        model.hook_dict,
        _misnamed(model),
    )  # the first is put together anew at every access
    layers = None if layers is None else tuple(layers)  # read again for every site
    points_by_site: dict[str, dict[int | None, HookPoint]] = {}
    for name in names:
        place = site(name)
        keys: tuple[int | None, ...] = checked_layers(model, layers) if place.per_layer else (None,)
        points_by_site[name] = {}
        for key in keys:
            full_name = place.template.format(layer=key)
            if full_name not in hook_points or name in misnamed:
                reason = unknown_inside(model, "patterns") if name == "pattern" else None
                raise HookError(
                    f"this model ({model.cfg.architecture}) has no site {name!r} ({full_name}): "
                    f"{reason or nearest(name, available_sites(model))}"
                )
            points_by_site[name][key] = hook_points[full_name]
    return points_by_site


_BLOCK_NORMS = ("ln1", "ln2", "ln1_post", "ln2_post", "attn.q_norm", "attn.k_norm")


@dataclass(frozen=True)
class Norm:
    """One norm of the model, and the hook points before and after it. `gain` is the effective g,
    with its offset.
    """

    name: str
    gain: Float[Tensor, "*width"]
    bias: Float[Tensor, "*width"] | None
    eps: float
    centred: bool
    before: HookPoint
    after: HookPoint

    def centre(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """x - c(x): for a LayerNorm the mean is subtracted; for an RMS norm it is x itself."""
        return x - x.mean(-1, keepdim=True) if self.centred else x

    def inverse_scale(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch 1"]:
        """1 / r(x), in float32, or in float64 for float64 input, as the models themselves compute
        it.
        """
        x = x if x.dtype == torch.float64 else x.float()
        return torch.rsqrt(self.centre(x).square().mean(-1, keepdim=True) + self.eps)

    def __call__(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """The norm of x, in the precision of `inverse_scale`."""
        scale = self.inverse_scale(x)
        out = self.centre(x.to(scale.dtype)) * scale * self.gain.to(scale.dtype)
        return out if self.bias is None else out + self.bias.to(scale.dtype)


@checked_arguments(HookError)
def norms(model: TransformerBridge) -> dict[str, Norm]:
    """Every norm on the path of this model by name ("blocks.0.ln1", "blocks.0.attn.q_norm",
    "ln_final").
    """
    require_open(model, "norms", "norms")
    if is_closed(model):
        closed: Any = model
        return closed.known_norms()
    layers = range(int(model.cfg.n_layers))
    names = [f"blocks.{layer}.{part}" for layer in layers for part in _BLOCK_NORMS]
    hook_points = model.hook_dict  # put together anew at every access
    return {
        name: _norm(model, name, hook_points)
        for name in [*names, "ln_final"]
        if f"{name}.hook_out" in hook_points
    }


def _norm(model: TransformerBridge, name: str, points: dict[str, HookPoint]) -> Norm:
    component: Any = model.get_submodule(name)
    original = component.original_component
    eps = getattr(original, "eps", getattr(original, "variance_epsilon", None))
    if eps is None:
        raise HookError(
            f"norm {name} ({type(original).__name__}): expected an eps or variance_epsilon, found "
            "neither"
        )
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
