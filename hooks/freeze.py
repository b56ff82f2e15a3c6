"""Hold attention patterns and norm scales constant, the two assumptions of Theorem 5.1; and the
activations of the MLPs.

With all three held a network is linear in its embeddings, but for its biases. Freezing changes no
value, only what the gradient sees. Each frozen hook proves it on the spot: the linear map that the
gradient will follow must reproduce the output of the norm or the MLP, or the block raises.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ostools.ground import TransformerBridge
from ostools.hooks.register import HookError, Order, Placement, attached, model_block, with_input
from ostools.hooks.sites import Norm, available_sites, norms, points, require_open

# The frozen map is the norm itself, recomputed: it may differ from the model's output by rounding
# only.
_ROUNDING = {torch.float64: 1e-5, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


Activation = Callable[[Tensor], Tensor]
Linear = Callable[[Tensor], Tensor]


class HeldParts(NamedTuple):
    """Whether attention patterns, norm scales and the activations of MLPs are constants of a
    derivative.
    """

    attention: bool = False
    norms: bool = False
    activations: bool = False


@model_block
def frozen(
    model: TransformerBridge, attention: bool = True, norms: bool = True, activations: bool = False
) -> Iterator[None]:
    """Hold what is asked for constant inside the block: it is cut out of the gradient.

    `attention`: alpha -> stop(alpha). `norms`: norm(x) -> g * x / stop(r(x)), for the pre-, post-,
    qk- and final norms of the model. `activations`: act(a) u -> stop(act(a)) u in a gated MLP, and
    act(a) -> stop(act(a) / a) a in a plain one, with act'(0) for 0 / 0. The values of the forward
    pass stay bit-identical. The Jacobian d y_n / d v_i^(0) taken inside is the `frozen` one of
    docs/theory.md 2 (`attention` alone: `frozen-attention`; `norms` alone: `frozen-norm`; all
    three: `detached`).

    Raises `HookError` if none of the three is asked for, if a frozen map does not reproduce what
    the model computed, for activations of experts, and, at the end of the block, if no forward pass
    ran.
    """
    parts = HeldParts(attention, norms, activations)
    if not any(parts):
        raise HookError(
            "frozen() with attention=False, norms=False and activations=False holds nothing "
            "constant: set at least one"
        )
    with attached(_placements(model, "frozen", Holding([parts])), kind="freeze"):
        yield


@contextmanager
def holding(
    model: TransformerBridge, choices: Sequence[HeldParts], keeps: bool = False
) -> "Iterator[Holding]":
    """Let a forward pass be differentiated under each of the choices, and impose one prompt's
    values on others.

    One graph serves every choice: `Holding.followed` says which one the gradients of the next
    backward pass obey. Inside `Holding.imposing` the rows of a pass have the patterns, norm scales
    and activations of the prompt, as functions of their own input: their finite differences are
    those of the held network. `keeps`: those of the pass that was differentiated are kept; else the
    prompt has to be the first row.
    """
    held_values = Holding(choices, keeps)
    with attached(_placements(model, "holding", held_values), kind="freeze"):
        yield held_values


class Holding:
    """What one block holds. `anywhere`: the parts that any of its choices holds, `everywhere`:
    those that all of them hold.
    """

    def __init__(self, choices: Sequence[HeldParts], keeps: bool = False) -> None:
        self.keeps = keeps
        self._at_pass: dict[str, Any] = {}
        self.anywhere, self.everywhere = (
            HeldParts(*map(test, zip(*choices, strict=True))) for test in (any, all)
        )
        self.followed = choices[0]  # the choice that gradients obey from here on
        self._rows: Sequence[HeldParts] | None = None

    @contextmanager
    def imposing(self, rows: Sequence[HeldParts]) -> Iterator[None]:
        """Impose on each row of the passes inside the block what its choice holds of the prompt:
        of the pass that was kept, or of the first row.
        """
        self._rows = rows
        try:
            yield
        finally:
            self._rows = None

    def of_patterns(self, name: str, pattern: Tensor) -> Tensor | None:
        """The body that holds one block's pattern."""
        if self._rows is not None:
            return self._imposed("attention", pattern, self._at_pass.get(name, pattern[:1]))
        if not torch.is_grad_enabled():
            return None
        stopped = pattern.detach()
        if self.keeps:
            self._at_pass[name] = stopped
        return (
            stopped
            if self.everywhere.attention
            else cast(Tensor, _Routed.apply(pattern, stopped, self, "attention"))
        )

    def of_map(
        self, part: str, name: str, linear_of: Callable[..., Linear], bias: Tensor | float = 0.0
    ) -> Callable[..., Tensor | None]:
        """The body that holds a map at the values of its inputs, linear in the last one, but for
        the bias.
        """

        def body(*tensors: Tensor) -> Tensor | None:
            *inputs, out = tensors
            x = inputs[-1]
            if self._rows is not None:
                first = self._at_pass.get(name) or linear_of(*(tensor[:1] for tensor in inputs))
                return self._imposed(part, out, (first(x) + bias).to(out.dtype))
            linear = linear_of(*inputs)
            if self.keeps:
                self._at_pass[name] = linear
            linear_out = linear(x)
            _check_reproduces(name, linear_out + bias, out)
            if not torch.is_grad_enabled():
                return None
            if not getattr(self.everywhere, part):
                return cast(Tensor, _Routed.apply(out, linear_out.to(out.dtype), self, part))
            # x - stop(x) is exactly 0: the value is the model's own, the gradient the held map's.
            return out.detach() + linear(x - x.detach()).to(out.dtype)

        return body

    def _imposed(self, part: str, live: Tensor, constant: Tensor) -> Tensor:
        assert self._rows is not None
        is_held = torch.tensor([getattr(row, part) for row in self._rows], device=live.device)
        return torch.where(is_held.view(-1, *[1] * (live.ndim - 1)), constant, live)


class _Routed(torch.autograd.Function):
    """The value of `live`; the gradient of `constant` where the choice that is followed when it
    comes back holds the part.
    """

    @staticmethod
    def forward(ctx: Any, live: Tensor, constant: Tensor, holding: Holding, part: str) -> Tensor:
        ctx.holding, ctx.part = holding, part
        return live.view_as(live)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        # None, and not zeros: what lies behind is then not walked.
        is_held = getattr(ctx.holding.followed, ctx.part)
        return (None, gradients[0], None, None) if is_held else (gradients[0], None, None, None)


def _placements(model: TransformerBridge, what: str, values: Holding) -> list[Placement]:
    """Placements of what holds every pattern, norm and activation; of those that no choice holds
    none.
    """
    parts, placements = values.anywhere, list[Placement]()
    known_parts = (
        ("patterns", parts.attention),
        ("norms", parts.norms),
        ("activations", parts.activations),
    )
    if any(parts):
        require_open(model, what, *(part for part, is_held in known_parts if is_held))
    if parts.attention:
        patterns = points(model, "pattern").values()
        placements += [
            (point, partial(values.of_patterns, str(point.name)), Order.FREEZE)
            for point in patterns
        ]
    if parts.norms:
        for norm in norms(model).values():
            body = values.of_map(
                "norms",
                norm.name,
                partial(_linear_map, norm),
                0.0 if norm.bias is None else norm.bias,
            )
            placements += with_input(
                norm.before, norm.after, body, Order.FREEZE, reads=Order.FREEZE
            )
    return placements + (_activations(model, values) if parts.activations else [])


def activation_of(mlp: Any) -> Activation | None:
    """The activation function of a Hugging Face MLP, found by the names that transformers gives it;
    None if it has none.
    """
    names = ("act_fn", "activation_fn", "act", "gelu_impl")
    return next((getattr(mlp, name) for name in names if callable(getattr(mlp, name, None))), None)


def activation_ratio(activation: Activation, a: Tensor) -> Tensor:
    """act(a) / a; if a is 0, its limit act'(0). Raises `HookError` for an activation with act(0)
    other than 0.
    """
    origin = torch.zeros(1, dtype=a.dtype, device=a.device, requires_grad=True)
    with torch.enable_grad():
        value = activation(origin)
        (limit,) = torch.autograd.grad(value.sum(), origin)
    at_zero = float(value.detach())
    if not at_zero == 0.0:
        raise HookError(
            "freezing activations: expected act(0) = 0, so that act(a) is a multiple of a, found "
            f"{at_zero:.3g}: such an MLP has no linear form"
        )
    zero = a == 0
    return torch.where(zero, limit, activation(a) / torch.where(zero, 1.0, a))


def _activations(model: TransformerBridge, values: Holding) -> list[Placement]:
    """Placements that hold every MLP, between the input and the output of its activation."""
    available = available_sites(model)
    if "mlp_gate" not in available or "mlp_hidden" not in available:
        raise HookError(
            "freezing activations: expected one MLP a block, found "
            f"{type(model.blocks[0].mlp).__name__} in {model.cfg.architecture}, whose router "
            "chooses experts by the token: hold attention and norms alone"
        )
    gated, placements = "mlp_up" in available, []
    linear_at, hidden_at = (
        points(model, "mlp_up" if gated else "mlp_gate"),
        points(model, "mlp_hidden"),
    )
    for layer, gate_at in points(model, "mlp_gate").items():
        name = f"blocks.{layer}.mlp"
        activation = activation_of(model.blocks[layer].mlp.original_component)
        if activation is None:
            raise HookError(
                f"freezing {name}: expected an activation function, found none that this package "
                "knows"
            )
        # The factor of the linear half: act(a) of a gated MLP, act(a) / a of a plain one, whose
        # half is a.
        factor = activation if gated else partial(activation_ratio, activation)
        body = values.of_map("activations", name, partial(_scaled_by, factor))
        inputs = [gate_at, linear_at[layer]]
        placements += with_input(inputs, hidden_at[layer], body, Order.FREEZE, reads=Order.FREEZE)
    return placements


def _scaled_by(factor: Activation, a: Tensor, x: Tensor) -> Linear:
    """x -> factor(a) x, at this a."""
    held_factor = factor(a.detach())
    return lambda u: held_factor * u


def _linear_map(norm: Norm, x: Tensor) -> Callable[[Tensor], Tensor]:
    scale = norm.inverse_scale(x.detach())
    # One factor after the other: autograd keeps one number a position then, and not their product,
    # one a component.
    return lambda u: norm.centre(u.to(scale.dtype)) * scale * norm.gain.to(scale.dtype)


def _check_reproduces(name: str, expected: Tensor, out: Tensor) -> None:
    with torch.no_grad():
        error = (expected - out).abs().amax()
        size = out.abs().amax()
    # Written so that NaN fails too.
    if not error <= _ROUNDING[out.dtype] * size:
        raise HookError(
            f"freezing {name}: its held form differs from its own output by {float(error):.3g} "
            f"(outputs up to {float(size):.3g}); this part of the model, or an edit of it, is not "
            "one that this package knows, or is not finite"
        )
