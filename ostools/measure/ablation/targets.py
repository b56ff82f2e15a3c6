"""Parts of a model that an ablation takes out: heads, attention edges, and the attention or MLP of
a layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from torch import Tensor

from ostools import hooks
from ostools.ground.errors import InputError
from ostools.ground.lens import TransformerBridge
from ostools.ground.names import checked_list, checked_name
from ostools.hooks import Edge, Head, Sublayer
from ostools.measure.ablation.effects import Gated, Ids

Target = Head | Edge | Sublayer

What = Literal["heads", "edges", "layers"]
METHODS: Mapping[str, tuple[str, ...]] = {
    "heads": ("zero", "mean"),
    "edges": ("zero",),
    "layers": ("zero",),
}
"""Kinds of parts, and what may stand in the place of one."""
TOP = 32
"""Number of edges where none are named."""

_FIELDS = {
    "heads": "(layer, head)",
    "edges": "(layer, head, query, key)",
    "layers": "(layer, 'attention' or 'mlp')",
}
_KINDS: Mapping[str, type[Any]] = {"heads": Head, "edges": Edge, "layers": Sublayer}


def checked_method(what: str, method: str) -> None:
    """Raises `InputError` for an unknown kind of part, or a method that it does not have."""
    checked_name(f"method for {what}", method, METHODS[what])


def checked_targets(
    model: TransformerBridge, what: str, targets: Iterable[Sequence[Any]]
) -> tuple[Target, ...]:
    """The parts by name, without doubles; `InputError` for one that is no such part or that the
    model does not have.
    """
    kind, target_list = _KINDS[what], []
    for values in checked_list("targets", targets, f"[{_FIELDS[what]}]"):
        if (
            isinstance(values, str)
            or not isinstance(values, Sequence)
            or len(values) != len(kind._fields)
        ):
            raise InputError(f"ablation of {what}: expected {_FIELDS[what]}, found {values!r}")
        target_list.append(kind(*values))
        _require_part(model, target_list[-1])
    return tuple(dict.fromkeys(target_list))


def _require_part(model: TransformerBridge, target: Target) -> None:
    """Refuse a part that the model does not have, before anything runs."""
    cfg = model.cfg
    if not _within(target.layer, cfg.n_layers):
        raise InputError(
            f"ablation: expected layers out of 0..{cfg.n_layers - 1}, found {target.layer!r}"
        )
    if isinstance(target, Sublayer):
        checked_name("part of a layer", target.part, ("attention", "mlp"))
        return
    if not _within(target.head, cfg.n_heads):
        raise InputError(
            f"ablation: expected heads out of 0..{cfg.n_heads - 1}, found {target.head!r}"
        )
    if isinstance(target, Edge) and not 0 <= target.key <= target.query:
        raise InputError(
            f"ablation: expected 0 <= key <= query, found query {target.query}, key {target.key}"
        )


def _within(index: Any, count: Any) -> bool:
    return type(index) is int and 0 <= index < int(count)


def all_targets(model: TransformerBridge, what: str, prompt: Ids, top: int) -> tuple[Target, ...]:
    """All heads; both sublayers of every block; or the last token's `top` edges with the most
    attention.
    """
    layers, n_heads = range(int(model.cfg.n_layers)), int(model.cfg.n_heads)
    if what == "heads":
        return tuple(Head(layer, head) for layer in layers for head in range(n_heads))
    if what == "layers":
        return tuple(Sublayer(layer, part) for layer in layers for part in ("attention", "mlp"))
    with (
        torch.no_grad(),
        hooks.capture(model, "pattern", reduce=lambda pattern, _: pattern[0, :, -1]) as record,
    ):
        model(prompt[None], logits_to_keep=1)
    weights = torch.stack([record["pattern"][layer] for layer in layers])
    edge_indices = weights.flatten().topk(min(top, weights.numel())).indices.tolist()
    last, n = len(prompt) - 1, len(prompt)
    return tuple(
        Edge(index // (n_heads * n), index // n % n_heads, last, index % n)
        for index in edge_indices
    )


def taken_out(
    model: TransformerBridge, target: Target, method: str, reference: Ids
) -> AbstractContextManager[None]:
    """The target's ablation, by the functions that anybody would call; "mean": over the positions
    of `reference`.
    """
    if isinstance(target, Edge):
        return hooks.ablate_edges(model, [target])
    if isinstance(target, Sublayer):
        return hooks.ablate_layers(model, [target.layer], part=target.part)
    if method == "mean":
        return hooks.ablate_heads(model, [target], method="mean", reference=reference[None])
    return hooks.ablate_heads(model, [target])


def gates_on(
    model: TransformerBridge, targets: Sequence[Target], method: str, reference: Ids
) -> Gated:
    """Gates on all the targets; a gate of 0 takes its target out as `taken_out` does."""
    means: dict[Head, Tensor] = {}
    if method == "mean":
        layers = sorted({target.layer for target in targets})
        with (
            torch.no_grad(),
            hooks.capture(model, "z", layers=layers, reduce=lambda z, _: z.mean((0, 1))) as record,
        ):
            model(reference[None])
        means = {
            head: record["z"][head.layer][head.head] for head in targets if isinstance(head, Head)
        }
    return lambda gates: hooks.gated(model, targets, gates, means=means)


def columns_of(target: Target) -> dict[str, Any]:
    """layer, head, query, key, part (None where it has none), and `target`, its name in tables and
    charts.
    """
    columns: dict[str, Any] = (
        dict.fromkeys(("layer", "head", "query", "key", "part")) | target._asdict()
    )
    if isinstance(target, Sublayer):
        name = f"{target.layer} {target.part}"
    elif isinstance(target, Edge):
        name = f"{target.layer}.{target.head}: {target.query} → {target.key}"
    else:
        name = f"{target.layer}.{target.head}"
    return {"target": name} | columns
