"""Representations of the last token of every prompt: at the embedding, after every attention and MLP, at y, and its logits.

Cost: one pass over every prompt, those of one length in batches. Memory: of each prompt the last token alone is kept, d_model
numbers a site and d_vocab logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import hooks
from ostools.ground.errors import InputError
from ostools.ground.out_of_memory import chunk
from ostools.ground.progress import Progress, tell
from ostools.measure.answers.prefilled import PrefilledPrompt
from ostools.measure.passes.batches import TOKENS, batches
from ostools.measure.passes.contexts import true_arithmetic

EMBEDDING, MIDDLE, RESIDUAL, FINAL, LOGITS = "embedding", "residual_mid", "residual", "y", "logits"
SUBLAYERS = {MIDDLE: "attention", RESIDUAL: "mlp", FINAL: "final norm"}
"""Sublayer that wrote to the stream last, by site."""
_SITES = {"embedding": EMBEDDING, "residual_mid": MIDDLE, "residual_post": RESIDUAL, "final_norm": FINAL}


@dataclass(frozen=True, order=True)
class Place:
    """Place where a representation is read. `depth` orders places as the forward pass does. `layer` counts the blocks that are
    complete before it: 0 is the embedding, l is v^(l), and `residual_mid` of layer l lies after the attention of block l
    (counted from 0) and before its MLP."""

    depth: int
    site: str
    layer: int


Captured = Mapping[Place, Float[Tensor, "prompt _"]]
"""The representations by place, in the order of the forward pass; rows are the prompts in their order."""


def captured(
    model: TransformerBridge, prompts: Sequence[PrefilledPrompt], progress: Progress | None = None
) -> Captured:
    """Every place at the last token of every prompt, under whatever is active, on the CPU, as the dtype rounded it.

    A model without a place between attention and MLP (parallel blocks) has none of those. Raises `InputError` for numbers that
    are not finite.
    """
    sites = [name for name in _SITES if name in hooks.available_sites(model)]
    parts: dict[Place, list[Tensor]] = {}
    order: list[int] = []
    for batch in batches([len(prompt.ids) for prompt in prompts], False, chunk(TOKENS)):
        ids = torch.tensor([prompts[index].ids for index in batch], device=next(model.parameters()).device)
        for place, rows in _last(model, ids, sites):
            parts.setdefault(place, []).append(rows.cpu())
        order += batch
        tell(progress, len(order), len(prompts))
    back = torch.argsort(torch.tensor(order))
    rows_by_place = {place: torch.cat(parts[place])[back] for place in sorted(parts)}
    for place, rows in rows_by_place.items():
        if not bool(torch.isfinite(rows).all()):
            raise InputError(
                f"the representations at {place.site} (layer {place.layer}) are not finite in {rows.dtype}: use another dtype"
            )
    return rows_by_place


def _last(
    model: TransformerBridge, ids: Int[Tensor, "batch pos"], sites: Sequence[str]
) -> Iterator[tuple[Place, Float[Tensor, "batch _"]]]:
    last = int(model.cfg.n_layers)
    with (
        torch.no_grad(),
        true_arithmetic(model),
        hooks.capture(model, *sites, reduce=lambda tensor, _: tensor[:, -1].clone()) as record,
    ):
        logits = model(ids, use_cache=False, logits_to_keep=1)[:, -1]
    for name in sites:
        rows = record[name] if hooks.SITES[name].per_layer else {0: record[name]}
        for layer, values in rows.items():
            depth, blocks = {
                EMBEDDING: (0, 0),
                MIDDLE: (2 * layer + 1, layer),
                RESIDUAL: (2 * layer + 2, layer + 1),
                FINAL: (2 * last + 1, last),
            }[_SITES[name]]
            yield Place(depth, _SITES[name], blocks), values
    yield Place(2 * last + 2, LOGITS, last), logits
