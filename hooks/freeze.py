"""Hold attention patterns and norm scales constant, the two assumptions of Theorem 5.1; and the activations of the MLPs.

With all three held a network is linear in its embeddings, but for its biases. Freezing changes no value, only what the gradient
sees. Each frozen hook proves it on the spot: the linear map that the gradient will follow must reproduce the output of the norm
or the MLP, or the block raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from ostools.ground.lens import HookPoint, TransformerBridge
from ostools.hooks.errors import HookError
from ostools.hooks.lock import model_block
from ostools.hooks.register import HookBody, Order, Placement, attached, with_input
from ostools.hooks.sites import Norm, available_sites, points, require_open
from ostools.hooks.sites import norms as norms_of
from ostools.hooks.strips import active_strips

# The frozen map is the norm itself, recomputed: it may differ from the model's output by rounding only.
_ROUNDING = {torch.float64: 1e-5, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


Activation = Callable[[Tensor], Tensor]
Imposed = Callable[[Tensor, Tensor, Tensor], Tensor]


@model_block
def frozen(
    model: TransformerBridge, attention: bool = True, norms: bool = True, activations: bool = False
) -> Iterator[None]:
    """Hold what is asked for constant inside the block: it is cut out of the gradient.

    `attention`: alpha -> stop(alpha). `norms`: norm(x) -> g * x / stop(r(x)), for the pre-, post-, qk- and final norms of the
    model. `activations`: act(a) u -> stop(act(a)) u in a gated MLP, and act(a) -> stop(act(a) / a) a in a plain one, with
    act'(0) for 0 / 0. The values of the forward pass stay bit-identical. The Jacobian d y_n / d v_i^(0) taken inside is the
    `frozen` one of docs/theory.md 2 (`attention` alone: `frozen-attention`; `norms` alone: `frozen-norm`; all three:
    `detached`).

    Raises `HookError` if none of the three is asked for, if a frozen map does not reproduce what the model computed, for
    activations of experts, and, at the end of the block, if no forward pass ran.
    """
    if not (attention or norms or activations):
        raise HookError(
            "frozen() with attention=False, norms=False and activations=False holds nothing constant: set at least one"
        )
    _require_known(model, "frozen", attention, norms, activations)
    pattern = (lambda: _stop) if attention else None
    with attached(
        _placements(model, pattern, norms and _frozen_norm, activations and _frozen_activation), kind="freeze"
    ):
        yield


@model_block
def hold_first_pass(
    model: TransformerBridge, attention: bool = True, norms: bool = True, activations: bool = False
) -> Iterator[None]:
    """Impose the patterns, norm scales and activations of the block's first forward pass on the passes that follow.

    This is what `frozen` differentiates, as a function of its input: finite differences of later passes are those of the frozen
    network. The first pass has one prompt. Later passes have any number of prompts of the same length. If all three are False,
    nothing is held. Inside `in_strips` the first pass's queries and keys are imposed, which makes the same patterns again.
    """
    if attention or norms or activations:
        _require_known(model, "hold_first_pass", attention, norms, activations)
    strips = active_strips(model)
    pattern = _first_pattern if attention and strips is None else None
    placements = _placements(model, pattern, norms and _first_scale, activations and _first_activation)
    with strips.holding() if attention and strips is not None else nullcontext(), attached(placements, kind="freeze"):
        yield


def _placements(
    model: TransformerBridge,
    pattern: Callable[[], HookBody] | None,
    norm: Callable[[Norm], Callable[[Tensor, Tensor], Tensor]] | Literal[False],
    activation: Callable[[str, Activation], Imposed] | Literal[False],
) -> list[Placement]:
    """Placements of what these make for every pattern, norm and activation; of those that are left out none."""
    placements: list[Placement] = []
    if pattern is not None:
        placements += [(point, pattern(), Order.FREEZE) for point in points(model, "pattern").values()]
    if norm:
        for place in norms_of(model).values():
            placements += with_input(place.before, place.after, norm(place), Order.FREEZE, reads=Order.FREEZE)
    return placements + (_activations(model, activation) if activation else [])


def _require_known(model: TransformerBridge, what: str, attention: bool, norms: bool, activations: bool) -> None:
    held_parts = {"patterns": attention, "norms": norms, "activations": activations}
    require_open(model, what, *(part for part, is_asked in held_parts.items() if is_asked))


def activation_of(mlp: Any) -> Activation | None:
    """The activation function of a Hugging Face MLP, found by the names that transformers gives it; None if it has none."""
    names = ("act_fn", "activation_fn", "act", "gelu_impl")
    return next((getattr(mlp, name) for name in names if callable(getattr(mlp, name, None))), None)


def activation_ratio(activation: Activation, a: Tensor) -> Tensor:
    """act(a) / a; if a is 0, its limit act'(0). Raises `HookError` for an activation with act(0) other than 0."""
    origin = torch.zeros(1, dtype=a.dtype, device=a.device, requires_grad=True)
    with torch.enable_grad():
        value = activation(origin)
        (limit,) = torch.autograd.grad(value.sum(), origin)
    at_zero = float(value.detach())
    if not at_zero == 0.0:
        raise HookError(
            f"freezing activations: expected act(0) = 0, so that act(a) is a multiple of a, found {at_zero:.3g}: such an MLP "
            "has no linear form"
        )
    zero = a == 0
    return torch.where(zero, limit, activation(a) / torch.where(zero, 1.0, a))


def _activations(model: TransformerBridge, make: Callable[[str, Activation], Imposed]) -> list[Placement]:
    """Placements that `make` gives for every MLP, between the input and the output of its activation."""
    available = available_sites(model)
    if "mlp_gate" not in available or "mlp_hidden" not in available:
        raise HookError(
            f"freezing activations: expected one MLP a block, found {type(model.blocks[0].mlp).__name__} in "
            f"{model.cfg.architecture}, whose router chooses experts by the token: hold attention and norms alone"
        )
    gated, placements = "mlp_up" in available, []
    linear_at, hidden_at = points(model, "mlp_up" if gated else "mlp_gate"), points(model, "mlp_hidden")
    for layer, gate_at in points(model, "mlp_gate").items():
        name = f"blocks.{layer}.mlp"
        activation = activation_of(model.blocks[layer].mlp.original_component)
        if activation is None:
            raise HookError(f"freezing {name}: expected an activation function, found none that this package knows")
        # The factor of the linear half: act(a) of a gated MLP, act(a) / a of a plain one, whose half is a.
        factor = activation if gated else partial(activation_ratio, activation)
        placements += _gated_placements(gate_at, linear_at[layer], hidden_at[layer], make(name, factor))
    return placements


def _gated_placements(gate: HookPoint, linear: HookPoint, hidden: HookPoint, impose: Imposed) -> list[Placement]:
    """Hooks that hand `impose` what enters the activation, the linear half, and what `hidden` has of both."""
    inputs: dict[str, Tensor] = {}

    def keep(name: str) -> HookBody:
        def body(x: Tensor) -> None:
            inputs[name] = x

        return body

    def body(out: Tensor) -> Tensor:
        return impose(inputs.pop("gate"), inputs.pop("linear"), out)

    return [
        (gate, keep("gate"), Order.FREEZE),
        (linear, keep("linear"), Order.FREEZE),
        (hidden, body, Order.FREEZE),
    ]


def _frozen_activation(name: str, factor: Callable[[Tensor], Tensor]) -> Imposed:
    """Impose the same value with the gradient of stop(factor) x."""

    def freeze(a: Tensor, x: Tensor, out: Tensor) -> Tensor:
        held_factor = factor(a.detach())
        _check_reproduces(name, held_factor * x, out)
        return out.detach() + (held_factor * (x - x.detach())).to(out.dtype)

    return freeze


def _first_activation(name: str, factor: Callable[[Tensor], Tensor]) -> Imposed:
    """Impose the factor of the first pass on the linear half of later passes."""
    first: list[Tensor] = []

    def impose(a: Tensor, x: Tensor, out: Tensor) -> Tensor:
        if not first:
            first.append(factor(a.detach()))
            _check_reproduces(name, first[0] * x, out)
        return (first[0] * x).to(out.dtype)

    return impose


def _first_pattern() -> HookBody:
    first: list[Tensor] = []

    def impose(pattern: Tensor) -> Tensor:
        if not first:
            first.append(pattern.detach())
        return first[0].expand_as(pattern)

    return impose


def _first_scale(norm: Norm) -> Callable[[Tensor, Tensor], Tensor]:
    """After the norm, g (x - c(x)) / r of the first pass."""
    linear: list[Callable[[Tensor], Tensor]] = []

    def impose(x: Tensor, out: Tensor) -> Tensor:
        if not linear:
            linear.append(_linear_map(norm, x))
            _check_reproduces(norm.name, _with_bias(norm, linear[0](x)), out)
        return _with_bias(norm, linear[0](x)).to(out.dtype)

    return impose


def _frozen_norm(norm: Norm) -> Callable[[Tensor, Tensor], Tensor]:
    """After the norm, the same value with the gradient of g (x - c(x)) / stop(r)."""

    def freeze(x: Tensor, out: Tensor) -> Tensor:
        linear = _linear_map(norm, x)
        _check_reproduces(norm.name, _with_bias(norm, linear(x)), out)
        # x - stop(x) is exactly 0: the value is the model's own, the gradient the frozen map's.
        return out.detach() + linear(x - x.detach()).to(out.dtype)

    return freeze


def _stop(tensor: Tensor) -> Tensor:
    return tensor.detach()


def _linear_map(norm: Norm, x: Tensor) -> Callable[[Tensor], Tensor]:
    scale = norm.inverse_scale(x.detach())
    # One number a position is kept, and not one a component: the gain is multiplied in anew.
    return lambda u: norm.centre(u.to(scale.dtype)) * (scale * norm.gain.to(scale.dtype))


def _with_bias(norm: Norm, out: Tensor) -> Tensor:
    return out if norm.bias is None else out + norm.bias.to(out.dtype)


def _check_reproduces(name: str, expected: Tensor, out: Tensor) -> None:
    with torch.no_grad():
        error = (expected - out).abs().amax()
        size = out.abs().amax()
    # Written so that NaN fails too.
    if not error <= _ROUNDING[out.dtype] * size:
        raise HookError(
            f"freezing {name}: its held form differs from its own output by {float(error):.3g} (outputs up to "
            f"{float(size):.3g}); this part of the model, or an edit of it, is not one that this package knows, or "
            "is not finite"
        )
