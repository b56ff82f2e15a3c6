"""How products with the Jacobians are computed: `pull`, rows g^T J_i, and `push`, sum_i J_i t_i.

`AutogradRoute` takes any model that the bridge runs, under any hooks, and needs to know nothing about it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import hooks

Cotangents = Float[Tensor, "row d_model"]
Tangents = Float[Tensor, "row pos d_model"]


class Route(Protocol):
    """Products with the Jacobians J_i of one output of d_model components with respect to inputs at `pos` places.

    The places may be the tokens of a layer, or of several layers end to end. Both take any float dtype on any device, and
    answer in the model's own; a row costs one pass over the prompt.
    """

    def pull(self, cotangents: Cotangents) -> Tangents:
        """g_c^T J_i for every row c and place i."""
        ...

    def push(self, tangents: Tangents) -> Cotangents:
        """sum_i J_i t_ci for every row c."""
        ...


class AutogradRoute:
    """J_i = d y_n / d v_i^(0) by automatic differentiation; `rows` copies of the prompt go through a pass side by side.

    One forward pass, in the context `freeze`, here; its graph is kept, about twice the memory of a pass with gradients.
    pull: the backward pass. push: the backward pass of the backward pass, which is linear in its cotangent u, so that its
    own derivative with respect to u is the transpose of J^T; at the cost of a pull, a third of a forward-mode pass.
    """

    def __init__(
        self,
        model: TransformerBridge,
        embedded: Float[Tensor, "pos d_model"],
        *,
        freeze: AbstractContextManager[None] | None = None,
        rows: int = 4,
    ) -> None:
        self._rows = rows
        self._inputs = embedded.detach().expand(rows, *embedded.shape).clone().requires_grad_(True)
        with torch.enable_grad():
            with freeze or nullcontext(), hooks.capture(model, "final_norm", detach=False) as record:
                model(self._inputs, start_at_layer=0)
            self._last = record["final_norm"][:, -1]
            self._cotangents = torch.zeros_like(self._last, requires_grad=True)
            (self._pulled,) = torch.autograd.grad(self._last, self._inputs, self._cotangents, create_graph=True)

    def pull(self, cotangents: Cotangents) -> Tangents:
        return self._by_blocks(self._last, self._inputs, cotangents)

    def push(self, tangents: Tangents) -> Cotangents:
        return self._by_blocks(self._pulled, self._cotangents, tangents)

    def _by_blocks(self, outputs: Tensor, inputs: Tensor, vectors: Tensor) -> Tensor:
        """The gradient of `outputs` for every row of `vectors`, as many at a time as there are copies."""
        found = []
        for block in vectors.to(outputs).split(self._rows):
            filled = torch.zeros_like(outputs)
            filled[: len(block)] = block
            (gradient,) = torch.autograd.grad(outputs, inputs, filled, retain_graph=True)
            found.append(gradient[: len(block)])
        return torch.cat(found)
