"""The five linearisations of docs/theory.md 2, and how rows g^T J_i of their Jacobians are computed.

`AutogradRoute` takes any model that the bridge runs, under any hooks, and needs to know nothing about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import hooks
from ostools.ground.errors import OF_A_LEFT_HOOK, InputError
from ostools.ground.progress import Progress, tell
from ostools.measure.passes.contexts import no_logits, run_from


@dataclass(frozen=True)
class FrozenParts:
    """Whether attention patterns, norm scales and the activations of MLPs are constants of the derivative."""

    attention: bool
    norms: bool
    activations: bool = False

    @property
    def any(self) -> bool:
        return self.attention or self.norms or self.activations

    @property
    def all(self) -> bool:
        """The network is then linear in its embeddings, but for its biases."""
        return self.attention and self.norms and self.activations


FROZEN_PARTS: Mapping[str, FrozenParts] = {
    "full": FrozenParts(attention=False, norms=False),
    "frozen": FrozenParts(attention=True, norms=True),
    "frozen-attention": FrozenParts(attention=True, norms=False),
    "frozen-norm": FrozenParts(attention=False, norms=True),
    "detached": FrozenParts(attention=True, norms=True, activations=True),
}
LINEARISATIONS = tuple(FROZEN_PARTS)
DEFAULT_LINEARISATIONS = ("full", "frozen")
"""What is measured of a model whose blocks are known inside, where nothing is asked for."""


def freezing(model: TransformerBridge, linearisation: str) -> AbstractContextManager[None]:
    """The context in which a forward pass has that linearisation."""
    frozen_parts = FROZEN_PARTS[linearisation]
    return (
        hooks.frozen(model, frozen_parts.attention, frozen_parts.norms, frozen_parts.activations)
        if frozen_parts.any
        else nullcontext()
    )


def require_unfrozen(model: TransformerBridge, caller: str) -> None:
    """Refuse, with `InputError`, the block of a freeze: each linearisation holds what it needs by itself."""
    if any(edit.kind == "freeze" for edit in hooks.active_edits(model)):
        raise InputError(
            f"{caller} freezes what it holds constant by itself; leave the block of hooks.frozen() first{OF_A_LEFT_HOOK}"
        )


Cotangents = Float[Tensor, "row d_model"]
Tangents = Float[Tensor, "row pos d_model"]


@runtime_checkable
class Route(Protocol):
    """Rows of the Jacobians J_i of one output of d_model components with respect to inputs at `pos` places.

    The places may be the tokens of a layer, or of several layers end to end. Cotangents may have any float dtype on any device,
    the answer has the model's own; a row costs one pass over the prompt.
    """

    def pull(self, cotangents: Cotangents, progress: Progress | None = None) -> Tangents:
        """g_c^T J_i for every row c and place i; in memory the places lie before the rows. The caller may write to it."""
        ...


class AutogradRoute:
    """J_i = d y_n / d v_i^(l) by automatic differentiation; `rows` copies of the prompt go through a pass side by side.

    The places are the tokens of each of `layers`, 0 for the embedded ones up to L for what the last block leaves. One
    forward pass, in the context `freeze`, here; its graph is kept, about twice the memory of a pass with gradients.
    """

    def __init__(
        self,
        model: TransformerBridge,
        embedded: Float[Tensor, "pos d_model"],
        *,
        freeze: AbstractContextManager[None] | None = None,
        rows: int = 4,
        layers: tuple[int, ...] = (0,),
    ) -> None:
        self.rows = rows
        last_layer = int(model.cfg.n_layers)
        start = embedded.detach().expand(rows, *embedded.shape).clone().requires_grad_(True)
        sites = ("final_norm", "residual_pre", "residual_post")
        with torch.enable_grad(), freeze or nullcontext(), hooks.capture(model, *sites, detach=False) as record:
            run_from(model, start, logits_to_keep=no_logits(model))
        streams = {0: start, **{layer: record["residual_pre"][layer] for layer in range(1, last_layer)}}
        streams[last_layer] = record["residual_post"][last_layer - 1]
        self._last: Tensor = record["final_norm"][:, -1]
        self._inputs = [streams[layer] for layer in layers]

    def basis(self) -> Float[Tensor, "row d_model"]:
        """The cotangents whose pulls are the rows of J."""
        return torch.eye(self._last.shape[-1], dtype=self._last.dtype, device=self._last.device)

    def pull(self, cotangents: Cotangents, progress: Progress | None = None, *, create_graph: bool = False) -> Tangents:
        """g_c^T J_i; with `create_graph` as a function of what the forward pass depended on."""
        blocks = cotangents.to(self._last).split(self.rows)
        if create_graph:
            return torch.cat([self._pulled(block, create_graph=True) for block in blocks])
        places = sum(stream.shape[1] for stream in self._inputs)
        tangents = self._last.new_empty(places, *cotangents.shape)
        for index, block in enumerate(blocks):
            start = index * self.rows
            tangents[:, start : start + len(block)] = self._pulled(block, create_graph=False).transpose(0, 1)
            tell(progress, start + len(block), len(cotangents))
        return tangents.transpose(0, 1)

    def push(self, fields: Tangents) -> Cotangents:
        """sum_i J_i t_i of each field t: the derivative of g -> g^T J with respect to g, along t. Costs a pull of each."""
        cotangent = torch.zeros_like(self._last, requires_grad=True)
        with torch.enable_grad():
            pulled = torch.cat(torch.autograd.grad(self._last, self._inputs, cotangent, create_graph=True), dim=1)
        pushed = [
            torch.autograd.grad(pulled, cotangent, self._filled(block, pulled), retain_graph=True)[0][: len(block)]
            for block in fields.to(pulled).split(self.rows)
        ]
        return torch.cat(pushed)

    def _pulled(self, block: Cotangents, *, create_graph: bool) -> Tangents:
        filled = self._filled(block, self._last)
        gradients = torch.autograd.grad(self._last, self._inputs, filled, create_graph=create_graph, retain_graph=True)
        return torch.cat(gradients, dim=1)[: len(block)]

    @staticmethod
    def _filled(block: Tensor, like: Tensor) -> Tensor:
        """A block of rows, filled up with zeros to as many as there are copies of the prompt."""
        filled = torch.zeros_like(like)
        filled[: len(block)] = block
        return filled
