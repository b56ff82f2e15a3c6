"""One forward pass, read as the theorem reads it: patterns, norm scales and the local slopes of
every block.

The formulas are only as good as their reading of the model, so every block is checked on the spot:
the folded weights, applied to the captured residual stream, must give the attention and MLP outputs
that the model itself computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ostools import hooks
from ostools.ground.errors import OF_A_LEFT_HOOK, InputError
from ostools.ground.lens import Cache, TransformerBridge
from ostools.ground.out_of_memory import chunk
from ostools.hooks.register import before_modules
from ostools.measure.formulas.block import SITES, Block
from ostools.measure.formulas.weights import require_described
from ostools.measure.passes.contexts import edits_beyond_patterns, true_arithmetic
from ostools.models.shape import Shape

# Sites of all blocks are kept up to this many bytes; beyond it each block runs again when its turn
# comes.
KEPT_BYTES = 1 << 28
Call = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Arguments of one block's call by the model: run again with them, it computes the same numbers
under the same edits.
"""


@dataclass(frozen=True)
class Forward:
    """A forward pass over one prompt; blocks are read one at a time, from the last to the first.

    A short prompt's blocks are kept from the one pass; a long one's run again, so that never more
    than one block's patterns are in memory.
    """

    model: TransformerBridge
    norms: Mapping[str, hooks.Norm]
    available: tuple[str, ...]  # the sites that the model has: looked up once
    calls: list[Call]
    kept_sites: Mapping[str, Any]
    final_norm_scale: Float[Tensor, " pos"]
    final_norm_direction: Float[Tensor, "pos d_model"]

    def blocks(self) -> Iterator[Block]:
        """Blocks, last first, each checked against what the model computed."""
        for layer in reversed(range(len(self.calls))):
            block = Block(self.model, layer, self._read(layer), self.norms, self.available)
            block.check()
            yield block
            del block

    def _read(self, layer: int) -> Mapping[str, Tensor]:
        if self.kept_sites:
            return {name: layers[layer] for name, layers in self.kept_sites.items()}
        args, kwargs = self.calls[layer]
        names = [name for name in SITES if name in self.available]
        with (
            torch.no_grad(),
            true_arithmetic(self.model, [layer]),
            hooks.capture(
                self.model, *names, layers=[layer], reduce=lambda rows, _: rows[0]
            ) as record,
        ):
            self.model.blocks[layer](*args, **kwargs)
        return {name: record[name][layer] for name in names}


def forward(model: TransformerBridge, ids: Int[Tensor, " pos"]) -> Forward:
    """Run the prompt once and keep what the formulas need; two passes where all patterns would take
    over 256 MiB.

    Raises `InputError` for blocks that no formula describes (experts), under an active edit that
    the formulas do not know (an ablated head, a hook of somebody else), inside `hooks.in_strips`,
    and for numbers that are not finite.
    """
    if unknown := edits_beyond_patterns(model):
        raise InputError(
            f"bounds does not know the active edit {unknown[0].kind!r} at {unknown[0].where}: its formulas would describe "
            f"another network; leave the edit's block, or use sensitivity(), which measures whatever runs"
            f"{OF_A_LEFT_HOOK}"
        )
    available = hooks.available_sites(model)
    require_described(model, available)
    if hooks.active_strips(model) is not None:
        raise InputError(
            "attention runs in strips, so that no pattern ever exists as a whole: leave the block of hooks.in_strips(), or "
            "shorten the prompt"
        )
    is_kept = Shape.of(model).site_bytes(len(ids)) <= chunk(KEPT_BYTES)
    device = next(model.parameters()).device
    calls: list[Call] = []
    blocks = {f"blocks.{layer}": block for layer, block in enumerate(model.blocks)}
    names = [name for name in SITES if name in available] if is_kept else []
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
    # What is not finite before reaches the last block's residual stream; each block's own check
    # sees the rest.
    if not bool(torch.isfinite(logits).all() and torch.isfinite(residual).all()):
        raise InputError(
            "the forward pass on this prompt is not finite; the model's weights or its dtype are broken"
        )
    scale = record["final_norm_scale"][0].double()
    direction = norms["ln_final"].centre(residual[0].double()) / (scale * residual.shape[-1] ** 0.5)
    kept_sites = {
        name: {layer: tensor[0] for layer, tensor in record[name].items()} for name in names
    }
    return Forward(model, norms, available, calls, kept_sites, scale[:, 0], direction)


def _note(calls: list[Call]) -> Any:
    def note(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # A block that ran again with the pass's own cache would see every key twice.
        bare = {
            name: False if name == "use_cache" else _uncached(value)
            for name, value in kwargs.items()
        }
        calls.append((tuple(map(_uncached, args)), bare))

    return note


def _uncached(value: Any) -> Any:
    return None if isinstance(value, Cache) else value
