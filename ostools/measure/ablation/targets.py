"""Parts of a model that an ablation takes out: heads, attention edges, and the attention or MLP of
a layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from ostools import hooks
from ostools.ground import InputError, TransformerBridge, checked_list
from ostools.hooks import Edge, Head, Sublayer

Target = Head | Edge | Sublayer

What = Literal["heads", "edges", "layers"]
TOP = 32
"""Number of edges where none are named."""

_FIELDS = {
    "heads": "(layer, head)",
    "edges": "(layer, head, query, key)",
    "layers": "(layer, 'attention' or 'mlp')",
}
_KINDS: Mapping[str, type[Head] | type[Edge] | type[Sublayer]] = {
    "heads": Head,
    "edges": Edge,
    "layers": Sublayer,
}


def checked_targets(what: str, targets: Iterable[Sequence[Any]]) -> tuple[Target, ...]:
    """The parts by name, without doubles; `InputError` for one that is no such part. One that the
    model does not have `hooks.gated` refuses.
    """
    kind, target_list = _KINDS[what], []
    for values in checked_list("targets", targets, f"[{_FIELDS[what]}]"):
        if not isinstance(values, list | tuple) or len(values) != len(kind._fields):
            raise InputError(f"ablation of {what}: expected {_FIELDS[what]}, found {values!r}")
        target_list.append(kind(*values))
    return tuple(dict.fromkeys(target_list))


def all_targets(
    model: TransformerBridge, what: str, prompt: Int[Tensor, " pos"], top: int
) -> tuple[Target, ...]:
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


def columns_of(target: Target) -> dict[str, object]:
    """layer, head, query, key, part (None where it has none), and `target`, its name in tables and
    charts: L2H0, L2 mlp, L2H0: 9 → 4.
    """
    if isinstance(target, Sublayer):
        name = f"L{target.layer} {target.part}"
    else:
        edge = f": {target.query} → {target.key}" if isinstance(target, Edge) else ""
        name = f"L{target.layer}H{target.head}{edge}"
    columns = dict.fromkeys(("layer", "head", "query", "key", "part"))
    return {"target": name} | columns | target._asdict()
