"""The five linearisations of docs/theory.md 2, and the two routes by which rows g^T J_i of their Jacobians are computed.

`Linearised` is the network linearised at a prompt, then applied to as many cotangents as one likes: matrix products only. A
row vector g at every position is carried from y_n down to each v^(l), all rows through a block before the next one
(docs/theory.md 3.2; `linear` has a block's own maps). So only one block's patterns, slopes and cast weights exist at a time:
each is read again from what the forward pass handed to it, used for every row, and dropped. The blocks of a short prompt are
kept. `AutogradRoute` gives the same numbers, and stays the oracle and the route for every model that is not read here: it takes
any that the bridge runs, under any hooks, and needs to know nothing about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import count
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import hooks
from ostools.ground.errors import OF_A_LEFT_HOOK, InputError
from ostools.ground.out_of_memory import chunk as chunk_of
from ostools.ground.progress import Progress, tell
from ostools.measure.formulas.block import AppliedNorm, Block
from ostools.measure.formulas.forward import KEPT_BYTES, Forward, forward
from ostools.measure.formulas.scores import require_softmax, strip_bounds
from ostools.measure.formulas.weights import is_parallel
from ostools.measure.jacobian.linear import LinearAttention, LinearMlp, LinearNorm, mlp_core
from ostools.measure.mitigated_prompts import MitigatedPrompts
from ostools.measure.passes.contexts import full_precision, no_logits, run_from, strip_size, true_arithmetic
from ostools.models.shape import Shape


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


@contextmanager
def differentiated(model: TransformerBridge, mitigated: MitigatedPrompts) -> Iterator[TransformerBridge]:
    """The model as its derivative is taken within the block: in float32 or float64 throughout, under the mitigation.

    Refuses, with `InputError`, the block of a freeze: each linearisation holds what it needs by itself.
    """
    work = full_precision(model, mitigated.what)
    with mitigated.acting(work), true_arithmetic(work):
        if any(edit.kind == "freeze" for edit in hooks.active_edits(work)):
            raise InputError(
                f"{mitigated.what} decides by itself what is held constant; leave the block of hooks.frozen() first"
                f"{OF_A_LEFT_HOOK}"
            )
        yield work


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


ROWS = 128
"""Rows of all tracks of `pull_by_hops` that go through a block's products at a time."""
AtPlaces = Float[Tensor, "place row d_model"]
Maps = tuple[LinearMlp, LinearAttention]


def block_bytes(shape: Shape, pos: int, live: bool) -> int:
    """Bytes that one linearised block holds beside the model: patterns and slopes, and its weights where they are cast.

    Of a long prompt no pattern is held: strips of it are made anew at every walk.
    """
    is_whole = strip_size(shape, pos) is None
    square = shape.n_heads * sum((stop - start) * stop for start, stop in strip_bounds(pos)) if is_whole else 0
    slopes = pos * ((2 if shape.gated else 1) * shape.d_mlp + 4 * shape.d_model)
    scores = square + 5 * pos * shape.n_heads * shape.d_head if live else 0
    return (square + slopes + scores + (shape.block_parameters if shape.cast else 0)) * shape.element


def cores_bytes(shape: Shape, pos: int) -> int:
    """Bytes of all blocks' `mlp_core`."""
    return shape.n_layers * pos * shape.d_model**2 * shape.element


class Linearised:
    """d y_n / d v^(l) of one prompt as a linear map, in one linearisation and the model's own dtype (a `Route`).

    `layers`: which l, 0 for the embedded tokens up to L for what the last block leaves. `chunk`: so many rows go through a
    block's products at a time. `run`: the forward pass over the prompt, where there was one already. `cores`: each block's
    `mlp_core`, filled here and read again by the next linearisation of the prompt; None, and where activations are held: rows
    go through the MLP's weights.

    Every block is checked here, once. Raises `InputError` where `forward` does: for a model or an edit that the formulas do
    not describe; and for a live pattern where an edit puts something in its place, even the same numbers: what stands there
    need not follow the scores.
    """

    def __init__(
        self,
        model: TransformerBridge,
        ids: Int[Tensor, " pos"],
        linearisation: str,
        layers: Sequence[int] = (0,),
        chunk: int | None = None,
        run: Forward | None = None,
        cores: dict[int, Tensor] | None = None,
    ) -> None:
        frozen_parts = FROZEN_PARTS[linearisation]
        # A core is of live activations.
        self._model, self._cores = model, None if frozen_parts.activations else cores
        self._parallel, self._live_activation = is_parallel(model), not frozen_parts.activations
        self._live_pattern, self._live_norms = not frozen_parts.attention, not frozen_parts.norms
        if self._live_pattern:
            instead = "measure with sensitivity(), which goes through autograd"
            require_softmax(model, "the formula of the real derivative", instead)
        self._dtype, self._chunk = next(model.parameters()).dtype, chunk
        self.pos, self.layers, self.n_layers = len(ids), tuple(layers), int(model.cfg.n_layers)
        shape = Shape.of(model)
        keep = self.n_layers * block_bytes(shape, self.pos, self._live_pattern) <= chunk_of(KEPT_BYTES)
        with torch.no_grad():
            self._run: Forward = run or forward(model, ids)
            last = slice(self.pos - 1, self.pos)
            final_norm = self._run.final_norm_scale.to(self._dtype), self._run.final_norm_direction.to(self._dtype)
            self.norm = LinearNorm.of(AppliedNorm(self._run.norms["ln_final"], *final_norm), last, self._live_norms)
            self._kept: dict[int, Maps] = {}
            for block in self._run.blocks(self._dtype):
                if self._live_pattern:
                    block.check_scores()
                maps = self._linear(block)
                if keep:
                    self._kept[block.layer] = maps
                del block, maps

    def _linear(self, block: Block) -> Maps:
        """The block's maps: of the last one, at the last position alone."""
        rows = slice(self.pos - 1 if block.layer == self.n_layers - 1 else 0, self.pos)
        core = None
        if self._cores is not None:
            if block.layer not in self._cores:
                self._cores[block.layer] = mlp_core(block, rows)
            core = self._cores[block.layer]
        mlp = LinearMlp(block, rows, self._live_norms, self._live_activation, core)
        return mlp, LinearAttention(self._model, block, rows, self._live_pattern, self._live_norms)

    def _maps(self, layer: int) -> Maps:
        return self._kept[layer] if self._kept else self._linear(self._run.block(layer, self._dtype))

    @property
    def places(self) -> int:
        """Number of inputs that the Jacobians are taken at: every token of every wanted layer, layer by layer."""
        return self.pos * len(self.layers)

    @torch.no_grad()
    def pull(
        self, cotangents: Float[Tensor, "row d_model"], progress: Progress | None = None
    ) -> Float[Tensor, "row place d_model"]:
        """w^T d y_n / d v_i^(l) for every cotangent w and place (l, i): one pass of the rows through every block.

        Memory: the result, which the rows of the lowest layer are carried in, and one block. The places lie before the rows.
        """
        top = self.norm.pull(cotangents.to(self.norm.factor)[None])
        gradient_rows = top.new_empty(len(self.layers), self.pos, *top.shape[1:])
        lowest = min(self.layers)
        carried: AtPlaces = gradient_rows[self.layers.index(lowest)]
        carried.zero_()[-1:] = top
        parts, step_counter = self._parts(len(cotangents)), count(1)
        for layer in range(self.n_layers, lowest, -1):
            if layer in self.layers:
                gradient_rows[self.layers.index(layer)] = carried
            maps = self._maps(layer - 1)
            for part in parts:
                self._carry(maps, carried, part)
                tell(progress, next(step_counter), (self.n_layers - lowest) * len(parts))
            del maps
        return gradient_rows.flatten(0, 1).transpose(0, 1)

    @torch.no_grad()
    def pull_by_hops(
        self, cotangents: Float[Tensor, "row d_model"], most: int, progress: Progress | None = None
    ) -> Float[Tensor, "track row pos d_model"]:
        """Split w^T d y_n / d v_i by the blocks in which a path changes position: tracks of 0, 1, ..., `most` hops, and of all.

        Patterns and norm scales are held, at the embeddings. What a block moves to another position is one hop: it goes on in
        the next track. What stays at its position goes on in the same one. The last track is the whole derivative.
        """
        top = self.norm.pull(cotangents.to(self.norm.factor)[None])
        carried = top.new_zeros(self.pos, most + 2, *top.shape[1:])
        carried[-1, 0] = carried[-1, -1] = top[0]
        blocks = carried.split(max(1, ROWS // (most + 2)), dim=2)
        for layer in reversed(range(self.n_layers)):
            maps = self._maps(layer)
            for block in blocks:
                self._carry_by_hops(maps, block)
            tell(progress, self.n_layers - layer, self.n_layers)
        return carried.permute(1, 2, 0, 3)

    def _carry_by_hops(self, maps: Maps, carried: Float[Tensor, "pos track row d_model"]) -> None:
        """Carry some rows of every track through one block, in place."""
        mlp, attention = maps
        at_rows = carried[attention.rows].flatten(1, 2)
        by_mlp = at_rows + mlp.pull(at_rows)
        x = at_rows if self._parallel else by_mlp
        hops, at_itself = attention.pull(x), attention.pull_own(x)
        hops[attention.rows] -= at_itself
        hops, stays = hops.view(carried.shape), (by_mlp + at_itself).view(-1, *carried.shape[1:])
        carried[:, 1:-1], carried[:, -1], carried[:, 0] = hops[:, :-2], hops[:, -1], 0.0
        carried[attention.rows] += stays

    def _carry(self, maps: Maps, gradient: AtPlaces, rows: slice) -> None:
        mlp, attention = maps
        part_gradient = gradient[attention.rows, rows].contiguous()
        by_mlp = part_gradient + mlp.pull(part_gradient)
        below = attention.pull(part_gradient if self._parallel else by_mlp)
        below[attention.rows] += by_mlp
        gradient[:, rows] = below

    def _parts(self, rows: int) -> list[slice]:
        step = self._chunk or max(1, rows)
        return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]
