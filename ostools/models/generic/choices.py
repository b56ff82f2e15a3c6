"""What a result says of closed blocks, and a router's choices: noted in one pass, and held in
others.

A router sends a token to the k experts of the highest scores. A derivative holds that choice: it is
the network's as far as no choice changes. The margin of a choice is the k-th score minus the
(k+1)-th. Where it is within the rounding of the arithmetic, another order of additions may choose
other experts, with another derivative. Every `torch.topk` in a block is taken for a
choice: of experts, of groups of experts, of the keys of a sparse attention. Cost: the sorting of
the scores.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, repeat
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ostools.ground import TransformerBridge, original_model
from ostools.hooks.register import before_modules
from ostools.hooks.sites import unknown_inside
from ostools.models.shape import setting

_ROUTERS = ("experts", "router", "gating")
"""What classes of a mixture of experts have in their names."""
_ROUNDING = 64
"""Units of rounding, of the dtype of the scores: a margin below them is noise of the arithmetic."""
_Place = tuple[int, int]
_TopK = tuple[Tensor, Tensor]
"""What torch.topk gives: values and indices."""


@dataclass
class Choices:
    """Choices of one pass over a prompt of `pos` tokens; by block, and by their order in it.

    `indices`: what was chosen. `margins`: each token's margin, as a share of its k-th score where
    the scores are probabilities (none is negative), else of its largest. `noise`: what rounding
    makes of such a share.
    """

    pos: int
    indices: dict[_Place, Int[Tensor, "... k"]] = field(default_factory=dict)
    margins: dict[_Place, Float[Tensor, " pos"]] = field(default_factory=dict)
    noise: float = 0.0

    def add(self, place: _Place, scores: Float[Tensor, "... choice"], indices: Tensor) -> None:
        """Note one choice along the last axis; one of all that there are is none, and has no
        margin.
        """
        self.indices[place] = indices
        k = indices.shape[-1]
        if k == scores.shape[-1] or self.pos not in scores.shape[:-1]:
            return
        scores = scores.detach()
        self.noise = max(self.noise, _ROUNDING * torch.finfo(scores.dtype).eps)
        ordered = scores.double().topk(k + 1, dim=-1).values
        sizes = scores.double().masked_fill(~scores.isfinite(), 0).abs().amax(-1)
        size = ordered[..., -2] if bool((scores >= 0).all()) else sizes
        margins = (ordered[..., -2] - ordered[..., -1]) / size.clamp_min(1e-300)
        by_token = margins.movedim(margins.shape.index(self.pos), 0).reshape(self.pos, -1)
        self.margins[place] = by_token.amin(1).cpu()

    @property
    def account(self) -> dict[str, object]:
        """For the provenance: the token nearest to another choice, and every token within rounding
        of one.
        """
        if not self.margins:
            return {"nearest": None, "within_rounding": []}
        places = list(self.margins)
        margins = torch.stack([self.margins[place] for place in places])
        row, position = divmod(int(margins.argmin()), self.pos)
        nearest = {"position": position, "block": places[row][0], "margin": float(margins.min())}
        near = (margins <= self.noise).any(0).nonzero().flatten().tolist()
        return {"nearest": nearest, "within_rounding": near}


@contextmanager
def _at_each_choice(
    model: TransformerBridge, choose: Callable[[_Place, Tensor, _TopK], _TopK]
) -> Iterator[None]:
    """Run every topk in a block through `choose(place, scores, what topk gave)`."""
    from ostools.models.generic.parts import AtEachFunction

    blocks = {f"blocks.{layer}": block for layer, block in enumerate(model.blocks)}
    layers = {id(block): layer for layer, block in enumerate(model.blocks)}
    places: Iterator[_Place] | None = None

    def enter(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        nonlocal places
        places = zip(repeat(layers[id(module)]), count(), strict=False)

    def at_function(func: object, args: tuple[Any, ...], output: Any) -> object:
        if places is None or func not in (torch.topk, Tensor.topk):
            return output
        is_along_last = output[1].shape[:-1] == args[0].shape[:-1]
        return choose(next(places), args[0], output) if is_along_last else output

    with before_modules(blocks, enter), AtEachFunction(at_function):
        yield


@contextmanager
def noted_choices(model: TransformerBridge, pos: int) -> Iterator[Choices | None]:
    """Note the choices of the last pass in the block, over one prompt; None for a model without
    experts.
    """
    kinds = {type(part).__name__.lower() for block in model.blocks for part in block.modules()}
    if not any(word in kind for kind in kinds for word in _ROUTERS):
        yield None
        return
    choices = Choices(pos)

    def note(place: _Place, scores: Tensor, output: _TopK) -> _TopK:
        choices.add(place, scores, output[1])
        return output

    with _at_each_choice(model, note):
        yield choices


@contextmanager
def held_choices(
    model: TransformerBridge,
    choices: Choices | None,
    note: Callable[[int, Float[Tensor, "copy token choice"]], None] = lambda *_: None,
) -> Iterator[None]:
    """Run passes over copies of the prompt, moved or not, in which every token is sent where it
    was.

    `note` is told the block of each choice, and its scores in every copy.
    """
    if choices is None:
        yield
        return

    def hold(place: _Place, scores: Tensor, output: _TopK) -> _TopK:
        indices = choices.indices[place]
        copies = scores.shape[0] // indices.shape[0]
        note(place[0], scores.reshape(copies, -1, scores.shape[-1]))
        indices = indices.repeat(copies, *[1] * (indices.ndim - 1))
        return type(output)((scores.gather(-1, indices), indices))

    with _at_each_choice(model, hold):
        yield


# ---- what a result says of closed blocks

_SOFTMAX = ("full_attention", "sliding_attention", "chunked_attention", "attention")
"""What `layer_types` of a configuration calls layers whose attention is a softmax, and nothing
else.
"""
_NO_SOFTMAX = ("mamba", "rwkv", "recurrent", "lstm")
"""What classes of blocks without softmax attention have in their names; of a model without
`layer_types`.
"""
_HELD_PARTS = {
    "frozen": ("patterns", "norms"),
    "frozen-attention": ("patterns",),
    "frozen-norm": ("norms",),
    "detached": ("patterns", "norms", "activations"),
}
"""What a linearisation holds inside a block."""


def block_notes(model: TransformerBridge) -> dict[str, str]:
    """What a derivative on closed blocks (`sites.is_closed`) means, for the provenance."""
    reasons = {part: unknown_inside(model, part) for part in ("patterns", "norms")}
    known_parts = "".join(f", {part}" for part, reason in reasons.items() if reason is None)
    missing = ", ".join(
        name for name, parts in _HELD_PARTS.items() if unknown_inside(model, *parts)
    )
    why = "".join(f"; {reason}" for reason in reasons.values() if reason is not None)
    notes = {
        "blocks": f"closed: known of them: the residual stream between them{known_parts}; `full` "
        "is the real derivative, and linearisations that hold what else is inside a block "
        f"({missing}) are missing{why}"
    }
    if kinds := without_softmax(model):
        notes["no_softmax"] = (
            f"{kinds}: the paper's statements on softmax attention are not about these blocks"
        )
    return notes


def without_softmax(model: TransformerBridge) -> str:
    """Blocks that are not of softmax attention alone: by the configuration where it says so, else
    by the names of classes.
    """
    layer_types = setting(original_model(model).config.get_text_config(), "layer_types")
    if layer_types:
        return ", ".join(sorted({*layer_types} - {*_SOFTMAX}))
    kinds = sorted({type(part).__name__ for block in model.blocks for part in block.modules()})
    return ", ".join(kind for kind in kinds if any(word in kind.lower() for word in _NO_SOFTMAX))
