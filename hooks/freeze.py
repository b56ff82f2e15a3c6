"""Hold attention patterns and norm scales constant: the two assumptions of Theorem 5.1.

Freezing changes no value, only what the gradient sees. Each frozen hook proves it on the spot: the linear map that the
gradient will follow must reproduce the norm's own output, or the block raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge import TransformerBridge

from hooks.errors import HookError
from hooks.norms import Norm
from hooks.norms import norms as norms_of
from hooks.register import HookBody, Order, attached
from hooks.sites import points

# The frozen map is the norm itself, recomputed: it may differ from the model's output by rounding only.
_ROUNDING = {torch.float64: 1e-5, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


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
            stack.enter_context(attached(_frozen_norms(model), kind="freeze"))
        yield


@contextmanager
def held(model: TransformerBridge, attention: bool = True, norms: bool = True) -> Iterator[None]:
    """Impose the patterns and the norms' scales of the block's first forward pass on those that follow.

    What `frozen` differentiates, as a function of its input: finite differences of later passes are those of the frozen
    network. The first pass has one prompt, later ones as many of the same length as one likes. Both False holds nothing.
    """
    with ExitStack() as stack:
        if attention:
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


def _first_scale(norm: Norm) -> list[tuple[HookPoint, HookBody, Order]]:
    """Two hooks: keep x before the norm; after it, g (x - c(x)) / r of the first pass."""
    seen: list[Tensor] = []
    linear: list[Callable[[Tensor], Tensor]] = []

    def before(x: Tensor) -> Tensor:
        seen[:] = [x]
        return x

    def after(out: Tensor) -> Tensor:
        x = seen.pop()
        if not linear:
            linear.append(_linear_map(norm, x))
            _check_reproduces(norm, linear[0](x), out)
        held_out = linear[0](x)
        return (held_out if norm.bias is None else held_out + norm.bias.to(held_out.dtype)).to(out.dtype)

    return [(norm.before, before, Order.FREEZE), (norm.after, after, Order.FREEZE)]


def _stop(tensor: Tensor) -> Tensor:
    return tensor.detach()


def _frozen_norms(model: TransformerBridge) -> list[tuple[HookPoint, HookBody, Order]]:
    placements: list[tuple[HookPoint, HookBody, Order]] = []
    for norm in norms_of(model).values():
        placements.extend(_frozen_norm(norm))
    return placements


def _frozen_norm(norm: Norm) -> list[tuple[HookPoint, HookBody, Order]]:
    """Two hooks: keep x before the norm; after it, the same value with the gradient of g (x - c(x)) / stop(r)."""
    seen: list[Tensor] = []

    def before(x: Tensor) -> Tensor:
        seen[:] = [x]
        return x

    def after(out: Tensor) -> Tensor:
        x = seen.pop()
        linear = _linear_map(norm, x)
        _check_reproduces(norm, linear(x), out)
        # x - stop(x) is exactly 0: the value is the model's own, the gradient the frozen map's.
        through = linear(x - x.detach()).to(out.dtype)
        return out.detach() + through

    return [(norm.before, before, Order.FREEZE), (norm.after, after, Order.FREEZE)]


def _linear_map(norm: Norm, x: Tensor) -> Callable[[Tensor], Tensor]:
    factor = norm.inverse_scale(x.detach())
    factor = factor * norm.gain.to(factor.dtype)
    return lambda u: norm.centre(u.to(factor.dtype)) * factor


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
