"""See a forward pass: residual streams, patterns, norm scales, head outputs.

Cost: memory for what is kept. All patterns of a long prompt are layers x heads x n^2 numbers; give
`reduce` to keep only what you need of each, one layer at a time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground import TransformerBridge, checked_arguments, nearest
from ostools.hooks.register import HookError, Order, attached, model_block
from ostools.hooks.sites import SITES, points_of, residual_scale

Reducer = Callable[[Tensor, int | None], Any]


class Record(dict[str, Any]):
    """Record of the latest forward pass inside a `capture` block. A new pass clears what the one
    before it recorded.

    `record["pattern"][layer]` for a site that every block has, `record["final_norm"]` for one that
    the model has once.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)

    def keep(self, name: str, layer: int | None, value: Any) -> None:
        # Passed once a forward pass: what is there already is of the one before.
        if name in self and (layer is None or layer in self[name]):
            self.clear()
        if layer is None:
            self[name] = value
        else:
            self.setdefault(name, {})[layer] = value

    def get(self, name: str, default: Any = None, /) -> Any:
        """As `record[name]`, which never gives the default: of a misspelt site it would be None."""
        return self[name]

    def __missing__(self, name: str) -> Any:
        if name not in self._names:
            raise HookError(f"site {name!r} was not captured: {nearest(name, self._names)}")
        raise HookError(
            f"site {name!r} is empty: no forward pass has run inside the capture block yet"
        )


@model_block
def capture(
    model: TransformerBridge,
    *names: str,
    layers: Iterable[int] | None = None,
    reduce: Reducer | Mapping[str, Reducer] | None = None,
    detach: bool = True,
) -> Iterator[Record]:
    """Record the named sites in every forward pass of the block, as edited. What the latest pass
    recorded stays.

    Args:
        names: sites of `hooks.SITES`, where their shapes and meaning stand.
        layers: which blocks; the default is all of them. Sites that exist once ignore it.
        reduce: called as `reduce(tensor, layer)` on each tensor as it appears. What it returns is
            kept in place of the tensor. A mapping gives a reducer to some of the sites only.
        detach: False keeps the autograd graph, so that gradients flow through what is captured.
            (They do not flow through the bridge's own activation cache.)

    Raises `HookError` for a site or a layer that the model does not have.
    """
    if not names:
        raise HookError(f"capture needs the name of at least one site: {', '.join(SITES)}")
    if isinstance(reduce, Mapping) and (unknown := set(reduce) - set(names)):
        raise HookError(
            f"reduce names {sorted(unknown)[0]!r}, which is not captured: "
            f"{nearest(sorted(unknown)[0], names)}"
        )
    record = Record(names)

    def keep(name: str, layer: int | None, reducer: Reducer | None, tensor: Tensor) -> None:
        if detach:
            tensor = tensor.detach()
        if name == "head_output" and layer is not None:
            tensor = head_outputs(model, layer, tensor)
        record.keep(name, layer, tensor if reducer is None else reducer(tensor, layer))

    placements = []
    for name, places in points_of(model, names, layers).items():
        reducer = reduce.get(name) if isinstance(reduce, Mapping) else reduce
        for layer, point in places.items():
            placements.append((point, partial(keep, name, layer, reducer), Order.OBSERVE))
    with attached(placements):
        yield record


@checked_arguments(HookError)
def head_outputs(
    model: TransformerBridge, layer: int, z: Float[Tensor, "batch pos head d_head"]
) -> Float[Tensor, "batch pos head d_model"]:
    """Term of each head in the attention output, z^h W_O^h (Granite: times its factor). They sum to
    it, up to a bias (and a post-norm).

    `hook_result` of TransformerLens has the same numbers, but needs a switch that changes how the
    forward pass sums.
    """
    w_o = residual_scale(model) * model.blocks[layer].attn.W_O
    return torch.einsum("bphe,hed->bphd", z, w_o.to(z.dtype))
