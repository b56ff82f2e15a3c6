"""One forward pass, read as the theorem reads it: patterns, norm scales and the local slopes of every block.

The formulas are only as good as their reading of the model, so every block is checked on the spot: the folded weights,
applied to the captured residual stream, must give the attention and MLP outputs that the model itself computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformers.cache_utils import Cache

import hooks
from hooks.register import before_modules
from ostools.ground.errors import OF_A_LEFT_HOOK, InputError
from ostools.ground.out_of_memory import chunk
from ostools.measure.formulas.block import IN_STRIPS, LIVE_SITES, SITES, Block, BlockSites
from ostools.measure.formulas.weights import BlockWeights, Layout, block_weights, position_bias, require_described
from ostools.measure.passes.contexts import true_arithmetic
from ostools.models.shape import Shape

# What the formulas know: they enter through the pattern alone. Freezing changes no value.
KNOWN_EDITS = frozenset(
    {"mask_scores", "scale_scores", "replace_pattern", "ablate_edges", "freeze", "exact-arithmetic"}
)
# Sites of all blocks are kept up to this many bytes; beyond it each block runs again when its turn comes.
KEPT_BYTES = 1 << 28
# Operators of all blocks are kept, for the linearisations of a prompt, up to this many bytes.
KEPT_WEIGHTS = 1 << 25


def kept_weights(shape: Shape, element: int) -> int:
    """Bytes of the blocks' operators that are kept, in numbers of `element` bytes; 0 where each block is read anew."""
    size = shape.n_layers * shape.block_parameters * element
    return size if size <= chunk(KEPT_WEIGHTS) else 0


Call = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Arguments of one block's call by the model: run again with them, it computes the same numbers under the same edits."""


@dataclass(frozen=True)
class Forward:
    """A forward pass over one prompt; blocks are read one at a time, from the last to the first.

    A short prompt's blocks are kept from the one pass; a long one's run again, so that never more than one block's
    patterns are in memory.
    """

    model: TransformerBridge
    norms: Mapping[str, hooks.Norm]
    available: tuple[str, ...]  # the sites that the model has: looked up once
    scaled: bool  # a temperature edit is active
    calls: list[Call]
    kept_sites: Mapping[str, Any]
    logits: Float[Tensor, "1 d_vocab"]  # of the last token
    final_norm_scale: Float[Tensor, " pos"]
    final_norm_direction: Float[Tensor, "pos d_model"]
    shape: Shape
    weights: dict[tuple[int, torch.dtype], BlockWeights]  # those that are kept
    checked: set[tuple[int, torch.dtype]] = field(default_factory=set)

    def blocks(self, dtype: torch.dtype = torch.float64) -> Iterator[Block]:
        """Blocks in that dtype, last first, each checked against what the model computed when it is read first."""
        for layer in reversed(range(len(self.calls))):
            block = self.block(layer, dtype)
            if (layer, dtype) not in self.checked:
                block.check()
                self.checked.add((layer, dtype))
            yield block
            del block

    def block(self, layer: int, dtype: torch.dtype = torch.float64) -> Block:
        """One block in that dtype; whoever reads it first has to `check` it."""
        read, weights = partial(self._read, layer), partial(self._weights, layer, dtype)
        return Block(self.model, layer, read, weights, self.norms, self.available, dtype, self.scaled)

    def _weights(self, layer: int, dtype: torch.dtype, layout: Layout) -> BlockWeights:
        weights = self.weights.get((layer, dtype)) or block_weights(self.model, layer, layout, dtype)
        if kept_weights(self.shape, dtype.itemsize):
            self.weights[layer, dtype] = weights
        return weights

    def _read(self, layer: int, site_names: Sequence[str]) -> BlockSites:
        args, kwargs = self.calls[layer]
        bias = position_bias(self.model, kwargs, len(self.final_norm_scale))
        if self.kept_sites and all(name in self.kept_sites for name in site_names if name in self.available):
            return BlockSites(
                {name: self.kept_sites[name][layer] for name in site_names if name in self.kept_sites}, bias=bias
            )
        strips = hooks.active_strips(self.model)
        names = [name for name in (site_names if strips is None else IN_STRIPS) if name in self.available]
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(true_arithmetic(self.model, [layer]))
            record = stack.enter_context(
                hooks.capture(self.model, *names, layers=[layer], reduce=lambda rows, _: rows[0])
            )
            calls = [] if strips is None else stack.enter_context(strips.noting(layer))
            self.model.blocks[layer](*args, **kwargs)
        sites = {name: record[name][layer] for name in names}
        return BlockSites(sites, bias=bias) if strips is None else BlockSites(sites, calls[0], strips.size)


def forward(model: TransformerBridge, ids: Int[Tensor, " pos"], *, live: bool = True) -> Forward:
    """Run the prompt once and keep what the formulas need; two passes where all patterns would take over 256 MiB.

    Without `live` what the real derivative needs is not kept: a block runs again where that is asked for. Inside
    `hooks.in_strips` nothing is kept, and blocks have no whole pattern: strips of it are made when they are asked for.
    Raises `InputError` for blocks that no formula describes (experts), under an active edit that the formulas do not know (an
    ablated head, a hook of somebody else), and for numbers that are not finite.
    """
    edits = hooks.active_edits(model)
    unknown = [edit for edit in edits if edit.kind not in KNOWN_EDITS]
    if unknown:
        raise InputError(
            f"bounds does not know the active edit {unknown[0].kind!r} at {unknown[0].where}: its formulas would describe "
            f"another network; leave the edit's block, or use sensitivity(), which measures whatever runs"
            f"{OF_A_LEFT_HOOK}"
        )
    available = hooks.available_sites(model)
    require_described(model, available)
    in_strips = hooks.active_strips(model) is not None
    shape = Shape.of(model)
    is_kept = not in_strips and shape.site_bytes(len(ids)) <= chunk(KEPT_BYTES)
    device = next(model.parameters()).device
    calls: list[Call] = []
    blocks = {f"blocks.{layer}": block for layer, block in enumerate(model.blocks)}
    site_names = SITES + LIVE_SITES if live else SITES
    names = [name for name in site_names if name in available] if is_kept else []
    norms = hooks.norms(model)
    with (
        torch.no_grad(),
        true_arithmetic(model),
        before_modules(blocks, _note(calls)),
        hooks.capture(model, *names, "final_norm_scale") as record,
        hooks.capture(model, "residual_post", layers=[int(model.cfg.n_layers) - 1]) as last,
    ):
        logits = model(ids[None].to(device), logits_to_keep=1)
    (residual,) = last["residual_post"].values()
    # What is not finite before reaches the last block's residual stream; each block's own check sees the rest.
    if not bool(torch.isfinite(logits).all() and torch.isfinite(residual).all()):
        raise InputError("the forward pass on this prompt is not finite; the model's weights or its dtype are broken")
    scale, scaled = record["final_norm_scale"][0].double(), any(edit.kind == "scale_scores" for edit in edits)
    direction = norms["ln_final"].centre(residual[0].double()) / (scale * residual.shape[-1] ** 0.5)
    kept_sites = {name: {layer: tensor[0] for layer, tensor in record[name].items()} for name in names}
    final = logits[0], scale[:, 0], direction
    return Forward(model, norms, available, scaled, calls, kept_sites, *final, shape, {})


def _note(calls: list[Call]) -> Any:
    def note(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # A block that ran again with the pass's own cache would see every key twice.
        bare = {name: False if name == "use_cache" else _uncached(value) for name, value in kwargs.items()}
        calls.append((tuple(map(_uncached, args)), bare))

    return note


def _uncached(value: Any) -> Any:
    return None if isinstance(value, Cache) else value
