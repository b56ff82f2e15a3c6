"""Hold attention patterns and norm scales constant: the two assumptions of Theorem 5.1.

Freezing changes no value, only what the gradient sees. Each frozen hook proves it on the spot: the linear map that the
gradient will follow must reproduce the norm's own output, or the block raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from hooks.errors import HookError, checked_arguments
from hooks.norms import Norm
from hooks.norms import norms as norms_of
from hooks.register import HookBody, Order, Placement, attached, with_input
from hooks.sites import points
from hooks.strips import active_strips

# The frozen map is the norm itself, recomputed: it may differ from the model's output by rounding only.
_ROUNDING = {torch.float64: 1e-5, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@checked_arguments(HookError)
@contextmanager
def frozen(model: TransformerBridge, attention: bool = True, norms: bool = True) -> Iterator[None]:
    """Run the block with patterns (`attention`) and every norm's scale (`norms`) cut out of the gradient.

    alpha -> stop(alpha) and norm(x) -> g * x / stop(r(x)), for the pre-, post-, qk- and final norms of the model. The
    values of the forward pass stay bit-identical. The Jacobian d y_n / d v_i^(0) taken inside is the `frozen` one of
    docs/theory.md 2 (`attention` alone: `frozen-attention`; `norms` alone: `frozen-norm`).

    Raises `HookError` where both are False, where a norm's frozen map does not reproduce its output, and at the end of
    the block where no forward pass ran.
    """
    if not attention and not norms:
        raise HookError("frozen() with attention=False and norms=False holds nothing constant: set at least one")
    with ExitStack() as stack:
        if attention:
            placements = [(point, _stop, Order.FREEZE) for point in points(model, "pattern").values()]
            stack.enter_context(attached(placements, kind="freeze"))
        if norms:
            norms_held = [placement for norm in norms_of(model).values() for placement in _frozen_norm(norm)]
            stack.enter_context(attached(norms_held, kind="freeze"))
        yield


@checked_arguments(HookError)
@contextmanager
def held(model: TransformerBridge, attention: bool = True, norms: bool = True) -> Iterator[None]:
    """Impose the patterns and the norms' scales of the block's first forward pass on those that follow.

    What `frozen` differentiates, as a function of its input: finite differences of later passes are those of the frozen
    network. The first pass has one prompt, later ones as many of the same length as one likes. Both False holds nothing.
    Inside `in_strips` the first pass's queries and keys are imposed: the same patterns, made again.
    """
    with ExitStack() as stack:
        strips = active_strips(model)
        if attention and strips is not None:
            stack.enter_context(strips.holding())
        elif attention:
            placements = [(point, _first_pattern(), Order.FREEZE) for point in points(model, "pattern").values()]
            stack.enter_context(attached(placements, kind="freeze"))
        if norms:
            scales = [placement for norm in norms_of(model).values() for placement in _first_scale(norm)]
            stack.enter_context(attached(scales, kind="freeze"))
        yield


def _first_pattern() -> HookBody:
    first: list[Tensor] = []

    def impose(pattern: Tensor) -> Tensor:
        if not first:
            first.append(pattern.detach())
        return first[0].expand_as(pattern)

    return impose


def _first_scale(norm: Norm) -> list[Placement]:
    """After the norm, g (x - c(x)) / r of the first pass."""
    linear: list[Callable[[Tensor], Tensor]] = []

    def impose(x: Tensor, out: Tensor) -> Tensor:
        if not linear:
            linear.append(_linear_map(norm, x))
            _check_reproduces(norm, linear[0](x), out)
        held_out = linear[0](x)
        return (held_out if norm.bias is None else held_out + norm.bias.to(held_out.dtype)).to(out.dtype)

    return with_input(norm.before, norm.after, impose, Order.FREEZE, reads=Order.FREEZE)


def _frozen_norm(norm: Norm) -> list[Placement]:
    """After the norm, the same value with the gradient of g (x - c(x)) / stop(r)."""

    def freeze(x: Tensor, out: Tensor) -> Tensor:
        linear = _linear_map(norm, x)
        _check_reproduces(norm, linear(x), out)
        # x - stop(x) is exactly 0: the value is the model's own, the gradient the frozen map's.
        return out.detach() + linear(x - x.detach()).to(out.dtype)

    return with_input(norm.before, norm.after, freeze, Order.FREEZE, reads=Order.FREEZE)


def _stop(tensor: Tensor) -> Tensor:
    return tensor.detach()


def _linear_map(norm: Norm, x: Tensor) -> Callable[[Tensor], Tensor]:
    scale = norm.inverse_scale(x.detach())
    # One number a position is kept, and not one a component: the gain is multiplied in anew.
    return lambda u: norm.centre(u.to(scale.dtype)) * (scale * norm.gain.to(scale.dtype))


def _check_reproduces(norm: Norm, linear: Tensor, out: Tensor) -> None:
    with torch.no_grad():
        expected = linear if norm.bias is None else linear + norm.bias.to(linear.dtype)
        error = (expected - out).abs().amax()
        size = out.abs().amax()
    # Written so that NaN fails too.
    if not error <= _ROUNDING[out.dtype] * size:
        raise HookError(
            f"freezing {norm.name}: g * x / r(x) differs from the norm's own output by {float(error):.3g} "
            f"(outputs up to {float(size):.3g}); the model's norm is not the one this package knows, or is not finite"
        )
