"""Placing hooks so that none can be left behind, and none can silently do nothing.

Everything in this package goes through `attached`. What is active is read off the hook points themselves
(`active_edits`), so that it can never disagree with what the forward pass will do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge import TransformerBridge

from hooks.errors import HookError

HookBody = Callable[[Tensor], Tensor | None]


@dataclass(frozen=True)
class Edit:
    """A change of the forward pass that is active now: `kind` says which function made it, `where` on which hook."""

    kind: str
    where: str


class _Placed:
    """One hook at one point. Calls the body, checks what it returns, and remembers that it ran."""

    def __init__(self, body: HookBody, kind: str | None) -> None:
        self.body = body
        self.kind = kind
        self.fired = False

    def __call__(self, tensor: Tensor, hook: HookPoint) -> Tensor | None:
        result = self.body(tensor)
        # Only now: a body that raised or was not reached has not done its work.
        self.fired = True
        # A wrong-shaped return would be broadcast into the forward pass without a word.
        if result is not None and (result.shape != tensor.shape or result.dtype != tensor.dtype):
            raise HookError(
                f"edit {self.kind!r} at {hook.name}: expected {tuple(tensor.shape)} {tensor.dtype}, "
                f"found {tuple(result.shape)} {result.dtype}"
            )
        return result


@contextmanager
def attached(placements: Iterable[tuple[HookPoint, HookBody]], kind: str | None = None) -> Iterator[None]:
    """Run the block with each body at its hook point; `kind` names an edit, None an observation.

    The hooks are removed when the block ends, however it ends. An edit that no forward pass reached raises
    `HookError` at the end of the block, unless the block is already raising something else.
    """
    placed: list[tuple[HookPoint, object, _Placed]] = []
    try:
        for point, body in placements:
            hook = _Placed(body, kind)
            # Permanent, so that TransformerLens' own reset inside the block cannot take it away.
            handle = point.add_hook(hook, is_permanent=True)
            placed.append((point, handle, hook))
        yield
        silent = [str(point.name) for point, _, hook in placed if not hook.fired]
        if kind is not None and silent:
            raise HookError(
                f"edit {kind!r} matched nothing: no forward pass of this model inside the block reached "
                f"{', '.join(silent[:3])}{' ...' if len(silent) > 3 else ''}"
            )
    finally:
        for point, handle, _ in reversed(placed):
            handle.hook.remove()  # type: ignore[attr-defined]
            point.fwd_hooks.remove(handle)  # type: ignore[arg-type]


def active_edits(model: TransformerBridge) -> tuple[Edit, ...]:
    """Every edit in force on this model, in the order of the forward pass; empty for an untouched model.

    Observations (`capture`) do not count. A hook that did not come from this package has kind "foreign": nobody knows
    what it does, so whoever computes from formulas has to refuse.
    """
    edits = []
    seen: set[int] = set()
    for name, point in model.hook_dict.items():
        if id(point) in seen:
            continue
        seen.add(id(point))
        for handle in point.fwd_hooks:
            hook = handle.user_hook
            if not isinstance(hook, _Placed):
                edits.append(Edit("foreign", name))
            elif hook.kind is not None:
                edits.append(Edit(hook.kind, name))
    for name, module in model.named_modules():
        placed = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        if not isinstance(module, HookPoint) and not all(_bridges_own(function) for function in placed):
            edits.append(Edit("foreign", name))
    return tuple(edits)


def _bridges_own(function: Callable[..., object]) -> bool:
    """TransformerLens places torch hooks of its own (it notes the residual before ln1); they change nothing."""
    return str(getattr(function, "__module__", "")).startswith("transformer_lens.")


def lowest(tensor: Tensor) -> float:
    """The score of a key that must not be seen: the dtype's lowest number, as Hugging Face masks it."""
    return torch.finfo(tensor.dtype).min


def hidden(scores: Tensor) -> Tensor:
    """Which keys are masked out. Half the lowest number, because an additive mask leaves lowest + score, rounded."""
    return scores <= lowest(scores) / 2
