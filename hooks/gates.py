"""A factor on a head's output, on an attention edge or on a sublayer, through which gradients flow;
and sublayers taken out.

With every gate at 1 nothing changes; at 0 the part is taken out, as `ablate_heads`, `ablate_edges`
and `ablate_layers` do. The derivative of any number m of the forward pass with respect to a gate is
the first-order effect of that part: taking it out changes m by about -dm/dg. All of them come out
of one backward pass.

Source: Michel, Levy, Neubig, "Are sixteen heads really better than one?", 2019 (the gradient with
respect to head masks).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground import HookPoint, TransformerBridge
from ostools.hooks.register import HookBody, HookError, Order, attached, model_block
from ostools.hooks.sites import checked_heads, checked_layers, points

Part = Literal["attention", "mlp", "both"]
PARTS: dict[Part, tuple[str, ...]] = {
    "attention": ("attention_output",),
    "mlp": ("mlp_output",),
    "both": ("attention_output", "mlp_output"),
}
"""The sites at which each part of a block enters the residual stream, after a post-norm where there
is one.
"""


class Head(NamedTuple):
    """The output z of one head, before W_O."""

    layer: int
    head: int


class Edge(NamedTuple):
    """One attention weight: of an absolute query on an absolute key."""

    layer: int
    head: int
    query: int
    key: int


class Sublayer(NamedTuple):
    """Output that the "attention" or the "mlp" of a block adds to the residual stream."""

    layer: int
    part: Literal["attention", "mlp"]


Target: TypeAlias = Head | Edge | Sublayer


@model_block
def gated(
    model: TransformerBridge,
    targets: Sequence[Target],
    gates: Float[Tensor, " target"],
) -> Iterator[None]:
    """Replace x by g x at every target inside the block. g is its entry of `gates`: one for the
    whole batch.

    At g = 1 the values are bit-identical. If `gates` requires a gradient, the gradient flows.

    Raises `HookError` for targets that the model does not have, for an empty list, for a target
    that is named twice, and for a number of gates other than that of the targets; and in a forward
    pass that does not hold an edge's query and key.
    """
    if not targets or gates.shape != (len(targets),):
        raise HookError(
            f"gated: expected a gate for each of {len(targets)} targets, found {tuple(gates.shape)}"
        )
    if len(set(targets)) != len(targets):
        raise HookError("gated: expected different targets, found one named twice")
    by_point: dict[HookPoint, list[int]] = {}
    for index, target in enumerate(targets):
        by_point.setdefault(_point(model, target), []).append(index)
    placements = [
        (point, _body([targets[i] for i in indices], gates[indices]), Order.EDIT)
        for point, indices in by_point.items()
    ]
    with attached(placements, kind="gate"):
        yield


def _point(model: TransformerBridge, target: Target) -> HookPoint:
    if isinstance(target, Sublayer):
        if target.part not in ("attention", "mlp"):
            raise HookError(f"gated: expected the part 'attention' or 'mlp', found {target.part!r}")
        return points(model, PARTS[target.part][0], [target.layer])[target.layer]
    checked_heads(model, [target.head])
    if isinstance(target, Edge) and not 0 <= target.key <= target.query:
        raise HookError(
            f"gated: expected 0 <= key <= query, found query {target.query}, key {target.key}"
        )
    return points(model, "pattern" if isinstance(target, Edge) else "z", [target.layer])[
        target.layer
    ]


def _body(targets: Sequence[Target], gates: Float[Tensor, " target"]) -> HookBody:
    """Hook body at one hook point: x + (g - 1) x, so that a gate of 1 leaves every bit."""
    if isinstance(targets[0], Sublayer):
        return lambda output: output + (gates[0].to(output) - 1) * output
    # Of an edge its place in the pattern, of a head its place among the heads.
    places = tuple(torch.tensor(axis) for axis in zip(*(t[1:] for t in targets), strict=True))

    def of_pattern(pattern: Tensor) -> Tensor:
        n_queries, n_keys = pattern.shape[-2:]
        if n_queries != n_keys or int(places[1].max()) >= n_queries:
            raise HookError(
                "gated: expected a forward pass over the whole prompt, with query "
                f"{int(places[1].max())} in it, found {n_queries} queries and {n_keys} keys"
            )
        change = pattern.new_zeros(pattern.shape[1:]).index_put(places, gates.to(pattern) - 1)
        return pattern + change * pattern

    def of_z(z: Tensor) -> Tensor:
        change = z.new_zeros(z.shape[2]).index_put(places, gates.to(z) - 1)
        return z + change[:, None] * z

    return of_pattern if isinstance(targets[0], Edge) else of_z


@model_block
def ablate_layers(
    model: TransformerBridge, layers: Iterable[int], *, part: Part = "attention"
) -> Iterator[None]:
    """Put 0 in the place of what "attention", "mlp" or "both" of these blocks add to the residual
    stream.

    The cut is after the post-norm if there is one (Gemma 2 and 3), and includes the biases. Only
    the skip connection is left, so v^(l+1) = v^(l) bit for bit if both parts are out. It acts on
    each position alone, with or without a key/value cache.

    Raises `HookError` for layers that the model does not have, for an empty list of layers, and for
    an unknown part.
    """
    layer_indices = checked_layers(model, layers)
    placements = [
        (point, torch.zeros_like, Order.EDIT)
        for site in PARTS[part]
        for point in points(model, site, layer_indices).values()
    ]
    with attached(placements, kind="ablate_layers"):
        yield
