"""Change a forward pass: masks, temperatures, patterns, heads, single query-key edges.

Every edit is a context manager; after it the model is as it was, bit for bit. Positions are absolute, also when the
query block is one token long (generation with a key/value cache).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from hooks.capture import capture
from hooks.errors import HookError
from hooks.register import HookBody, attached, hidden, lowest
from hooks.sites import points

Mask = Bool[Tensor, "query key"]
# Given query and key positions, which keys may be seen; broadcasts [query, 1] against [1, key].
MaskRule = Callable[[Int[Tensor, "query 1"], Int[Tensor, "1 key"]], Bool[Tensor, "query key"]]
Pattern = Float[Tensor, "batch head query key"]


@contextmanager
def mask_scores(
    model: TransformerBridge,
    allowed: Mask | MaskRule,
    *,
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
) -> Iterator[None]:
    """Let each query see only the keys that `allowed` permits; what the model's own mask hides stays hidden.

    `allowed` is a boolean [query, key] matrix, or a rule such as `lambda query, key: query - key < 64` on absolute
    positions. The scores of the other keys become the dtype's lowest number, so their weights are exactly 0 and the
    rows still sum to 1. Raises `HookError` for a matrix that does not fit, and for a query left without any key.
    """
    chosen = _checked_heads(model, heads)

    def body(scores: Tensor) -> Tensor:
        permitted = _permitted(allowed, scores)
        masked = scores.masked_fill(~permitted, lowest(scores))
        # A row that the model itself hides whole (left padding) has nothing to lose.
        if bool((hidden(masked.amax(-1)) & ~hidden(scores.amax(-1))).any()):
            raise HookError("mask_scores: a query is left without any key to attend to; let it see at least itself")
        return _on_heads(scores, masked, chosen)

    with attached([(point, body) for point in points(model, "scores", layers).values()], kind="mask_scores"):
        yield


@contextmanager
def scale_scores(
    model: TransformerBridge,
    factor: float | Callable[[Int[Tensor, " query"]], Float[Tensor, " query"]],
    *,
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
) -> Iterator[None]:
    """Multiply the scores (after scaling and soft-cap) by `factor`, an inverse temperature or a rule of the query.

    Masked keys stay masked. Raises `HookError` for a factor that is not finite.
    """
    chosen = _checked_heads(model, heads)

    def body(scores: Tensor) -> Tensor:
        queries, _ = _positions(scores)
        values = (
            factor(queries[:, 0]) if callable(factor) else torch.full_like(queries[:, 0], factor, dtype=torch.float64)
        )
        if not bool(torch.isfinite(values).all()):
            raise HookError(f"scale_scores: expected finite factors, found {values.tolist()[:3]}")
        scaled = torch.where(hidden(scores), scores, scores * values.to(scores)[:, None])
        return _on_heads(scores, scaled, chosen)

    with attached([(point, body) for point in points(model, "scores", layers).values()], kind="scale_scores"):
        yield


@contextmanager
def replace_pattern(
    model: TransformerBridge,
    pattern: Pattern | Callable[[Pattern, int], Pattern],
    *,
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
) -> Iterator[None]:
    """Put another pattern in place of the model's: a tensor of the same shape, or a function of (pattern, layer)."""
    chosen = _checked_heads(model, heads)

    def body_of(layer: int) -> HookBody:
        def body(current: Tensor) -> Tensor:
            new = pattern(current, layer) if callable(pattern) else pattern.to(current)
            if new.shape != current.shape:
                raise HookError(f"replace_pattern: expected {tuple(current.shape)}, found {tuple(new.shape)}")
            return _on_heads(current, new, chosen)

        return body

    placements = [
        (point, body_of(layer)) for layer, point in points(model, "pattern", layers).items() if layer is not None
    ]
    with attached(placements, kind="replace_pattern"):
        yield


@contextmanager
def ablate_heads(
    model: TransformerBridge,
    heads: Iterable[tuple[int, int]],
    *,
    method: Literal["zero", "mean", "resample"] = "zero",
    reference: Int[Tensor, "reference pos"] | None = None,
    seed: int = 0,
) -> Iterator[None]:
    """Take the output z of each (layer, head) out of the forward pass.

    "zero" puts 0 in its place; "mean" its mean over all positions of the token batch `reference`; "resample" what it
    was on a row of `reference`, position by position, the row drawn from `seed` for each prompt of the batch (that
    needs a reference of the prompt's own length). `reference` costs one forward pass when the block is entered.

    Raises `HookError` for heads that do not exist, and for a reference that is missing, superfluous or does not fit.
    """
    wanted = _heads_by_layer(model, heads)
    if method not in ("zero", "mean", "resample"):
        raise HookError(f"ablate_heads: expected method 'zero', 'mean' or 'resample', found {method!r}")
    if (reference is None) != (method == "zero"):
        need = "takes no reference" if method == "zero" else "needs a reference, a batch of token ids"
        raise HookError(f"ablate_heads: method {method!r} {need}")
    kept = None
    if reference is not None:
        with torch.no_grad(), capture(model, "z", layers=wanted) as record:
            model(reference)
        kept = record["z"]
    generator = torch.Generator().manual_seed(seed)

    def body_of(layer: int) -> HookBody:
        def body(z: Tensor) -> Tensor:
            out = z.clone()
            for head in wanted[layer]:
                source = None if kept is None else kept[layer][:, :, head]
                out[:, :, head] = _substitute(z[:, :, head], source, method, generator)
            return out

        return body

    z_points = points(model, "z", wanted)
    with attached([(z_points[layer], body_of(layer)) for layer in wanted], kind="ablate_heads"):
        yield


@contextmanager
def ablate_edges(
    model: TransformerBridge,
    edges: Iterable[tuple[int, int, int, int]],
    *,
    method: Literal["zero", "renormalise"] = "zero",
) -> Iterator[None]:
    """Cut single (layer, head, query, key) edges of attention, absolute positions.

    "zero" sets the weight to 0 and leaves the row short of 1; "renormalise" masks the score, so that the other keys
    share the weight. Raises `HookError` for an edge that does not exist in the model or in a prompt.
    """
    by_layer: dict[int, list[tuple[int, int, int]]] = {}
    for layer, head, query, key in edges:
        _heads_by_layer(model, [(layer, head)])
        if not 0 <= key <= query:
            raise HookError(f"ablate_edges: expected 0 <= key <= query, found query {query}, key {key}")
        by_layer.setdefault(layer, []).append((head, query, key))
    if not by_layer:
        raise HookError("ablate_edges: expected at least one (layer, head, query, key), found none")
    if method not in ("zero", "renormalise"):
        raise HookError(f"ablate_edges: expected method 'zero' or 'renormalise', found {method!r}")

    def body_of(layer: int) -> HookBody:
        def body(tensor: Tensor) -> Tensor:
            out = tensor.clone()
            first = tensor.shape[-1] - tensor.shape[-2]
            for head, query, key in by_layer[layer]:
                if not first <= query < tensor.shape[-1]:
                    raise HookError(
                        f"ablate_edges: query {query} is not among positions {first}..{tensor.shape[-1] - 1}"
                    )
                out[:, head, query - first, key] = 0.0 if method == "zero" else lowest(tensor)
            return out

        return body

    sites = points(model, "pattern" if method == "zero" else "scores", by_layer)
    with attached([(sites[layer], body_of(layer)) for layer in by_layer], kind="ablate_edges"):
        yield


def _positions(scores: Tensor) -> tuple[Int[Tensor, "query 1"], Int[Tensor, "1 key"]]:
    """Absolute positions of queries and keys; with a cache the queries are the last of the keys."""
    keys = torch.arange(scores.shape[-1], device=scores.device)
    return keys[scores.shape[-1] - scores.shape[-2] :, None], keys[None, :]


def _permitted(allowed: Mask | MaskRule, scores: Tensor) -> Mask:
    permitted = allowed(*_positions(scores)) if callable(allowed) else allowed.to(scores.device)
    if permitted.shape != scores.shape[-2:] or permitted.dtype != torch.bool:
        raise HookError(
            f"mask_scores: expected a boolean mask {tuple(scores.shape[-2:])}, "
            f"found {permitted.dtype} {tuple(permitted.shape)}"
        )
    return permitted


def _on_heads(before: Tensor, after: Tensor, heads: Sequence[int] | None) -> Tensor:
    """`after` on the chosen heads, `before` on the others."""
    if heads is None:
        return after
    out = before.clone()
    out[:, list(heads)] = after[:, list(heads)]
    return out


def _checked_heads(model: TransformerBridge, heads: Iterable[int] | None) -> tuple[int, ...] | None:
    if heads is None:
        return None
    chosen = tuple(heads)
    wrong = [head for head in chosen if not 0 <= head < model.cfg.n_heads]
    if wrong or not chosen:
        raise HookError(f"expected heads out of 0..{model.cfg.n_heads - 1}, found {wrong or 'none'}")
    return chosen


def _heads_by_layer(model: TransformerBridge, heads: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    by_layer: dict[int, list[int]] = {}
    for layer, head in heads:
        points(model, "z", [layer])
        _checked_heads(model, [head])
        by_layer.setdefault(layer, []).append(head)
    if not by_layer:
        raise HookError("expected at least one (layer, head), found none")
    return by_layer


def _substitute(z: Tensor, source: Tensor | None, method: str, generator: torch.Generator) -> Tensor:
    """What stands in for one head's z [batch, pos, d_head]."""
    if source is None:
        return torch.zeros_like(z)
    if method == "mean":
        return source.mean((0, 1)).expand_as(z)
    if source.shape[1] != z.shape[1]:
        raise HookError(f"ablate_heads: the reference has {source.shape[1]} positions, the prompt {z.shape[1]}")
    rows = torch.randint(source.shape[0], (z.shape[0],), generator=generator)
    return source[rows.to(source.device)]
