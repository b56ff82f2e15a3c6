"""Change a forward pass: masks, temperatures, patterns, heads, single query-key edges.

Every edit is a context manager; after it the model is as it was, bit for bit. Positions are
absolute, also when the query block is one token long (generation with a key/value cache). A cache
that drops the oldest keys, as transformers' own does where a window slides, is refused.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from hashlib import sha256
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ostools.ground import TransformerBridge, original_model
from ostools.hooks.capture import capture
from ostools.hooks.precision import hidden, lowest, positions
from ostools.hooks.register import (
    HookBody,
    HookError,
    Order,
    attached,
    before_modules,
    model_block,
)
from ostools.hooks.sites import checked_heads, points
from ostools.hooks.torch_state import default_torch_state

Mask = Bool[Tensor, "*prompt query key"]
# Given query and key positions, which keys may be seen; broadcasts [query, 1] against [1, key].
MaskRule = Callable[[Int[Tensor, "query 1"], Int[Tensor, "1 key"]], Mask]
Pattern = Float[Tensor, "batch head query key"]


@model_block
def mask_scores(
    model: TransformerBridge,
    allowed: Mask | MaskRule,
    *,
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
) -> Iterator[None]:
    """Let each query see only the keys that `allowed` permits. What the model's own mask hides
    stays hidden.

    `allowed` is a boolean [query, key] matrix, or a rule of absolute positions such as `lambda
    query, key: query - key < 64`. A rule may be of keys alone (`lambda query, key: key != 3`).
    Either may have a batch dimension in front, with a matrix for each prompt. The scores of the
    other keys become the dtype's lowest number. Their weights are then exactly 0, and the rows
    still sum to 1.

    Raises `HookError` for a matrix that does not fit, for a query that is left without a key, and
    for a key/value cache that dropped keys.
    """

    def body(scores: Tensor, layer: int) -> Tensor:
        masked = scores.masked_fill(~_permitted(allowed, scores), lowest(scores))
        # Softmax over nothing is even over everything, the future included. A row hidden from the
        # start has nothing to lose.
        if bool((hidden(masked.amax(-1)) & ~hidden(scores.amax(-1))).any()):
            raise HookError(
                "mask_scores: a query is left without any key to attend to; let it see at least "
                "itself"
            )
        return masked

    with _edited(model, "mask_scores", "scores", body, layers, heads, by_position=True):
        yield


@model_block
def scale_scores(
    model: TransformerBridge,
    factor: float | Callable[[Int[Tensor, " query"]], Float[Tensor, " query"]],
    *,
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
) -> Iterator[None]:
    """Multiply the scores (after scaling and soft-cap) by `factor`: an inverse temperature, or a
    rule of the query.

    Masked keys stay masked. Raises `HookError` for factors that are not one finite number for each
    query, if a score overflows its dtype, and of a rule for a key/value cache that dropped keys.
    """

    def body(scores: Tensor, layer: int) -> Tensor:
        queries = positions(scores)[0][:, 0]
        factors = (
            factor(queries)
            if callable(factor)
            else torch.full(queries.shape, float(factor), dtype=torch.float64)
        )
        if factors.shape != queries.shape or not bool(torch.isfinite(factors).all()):
            raise HookError(
                f"scale_scores: expected {len(queries)} finite factors, one a query, "
                f"found {tuple(factors.shape)}: {factors.flatten()[:3].tolist()}"
            )
        masked = hidden(scores)
        scaled = torch.where(masked, scores, scores * factors.to(scores)[:, None])
        if bool(hidden(scaled).ne(masked).any()) or not bool(torch.isfinite(scaled).all()):
            raise HookError(
                f"scale_scores: the scaled scores overflow {scores.dtype}; use smaller factors"
            )
        return scaled

    heads = checked_heads(model, heads)
    is_rule = callable(factor)
    what = "" if is_rule else f"{_heads_words(heads)}by {float(factor)!r}"
    with _edited(
        model, "scale_scores", "scores", body, layers, heads, lambda _: what, by_position=is_rule
    ):
        yield


@model_block
def replace_pattern(
    model: TransformerBridge,
    pattern: Pattern | Callable[[Pattern, int], Pattern],
    *,
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
) -> Iterator[None]:
    """Put another pattern in place of the model's: a tensor, or a function of (pattern, layer).

    It has the shape of the model's own, or a batch of 1 that stands for every prompt; `HookError`
    otherwise.
    """

    def body(current: Tensor, layer: int) -> Tensor:
        new = pattern(current, layer) if callable(pattern) else pattern.to(current)
        if new.shape[:1] == (1,):
            new = new.expand(current.shape[0], *new.shape[1:])
        if new.shape != current.shape:
            raise HookError(
                f"replace_pattern: expected {tuple(current.shape)}, found {tuple(new.shape)}"
            )
        return new

    with _edited(model, "replace_pattern", "pattern", body, layers, heads):
        yield


@model_block
def ablate_heads(
    model: TransformerBridge,
    heads: Iterable[tuple[int, int]],
    *,
    method: Literal["zero", "mean"] = "zero",
    reference: Int[Tensor, "reference pos"] | None = None,
) -> Iterator[None]:
    """Take the output z of each (layer, head) out of the forward pass.

    "zero" puts 0 in its place. "mean" puts its mean over all positions of the token batch
    `reference`, which costs one forward pass, in the model's dtype: of a 16-bit model the mean is
    that of its 16-bit pass, also where a derivative is then taken in float32.

    Raises `HookError` for heads that do not exist, and for a reference that is missing or not
    needed.
    """
    heads_by_layer = _heads_by_layer(model, heads)
    if (reference is None) != (method == "zero"):
        need = (
            "takes no reference" if method == "zero" else "needs a reference, a batch of token ids"
        )
        raise HookError(f"ablate_heads: method {method!r} {need}")
    means = {} if reference is None else _means(model, heads_by_layer, reference)

    def body(z: Tensor, layer: int) -> Tensor:
        out = z.clone()
        for head in heads_by_layer[layer]:
            out[:, :, head] = means.get((layer, head), 0.0)
        return out

    def what(layer: int) -> str:
        heads = heads_by_layer[layer]
        values = [means[layer, head].tolist() for head in heads if (layer, head) in means]
        # Other means, by another reference or under other edits, are another edit.
        of_means = f" {sha256(repr(values).encode()).hexdigest()[:12]}" if values else ""
        return f"{_heads_words(heads)}by {method}{of_means}"

    with _edited(model, "ablate_heads", "z", body, heads_by_layer, what=what):
        yield


@model_block
def ablate_edges(
    model: TransformerBridge, edges: Iterable[tuple[int, int, int, int]]
) -> Iterator[None]:
    """Cut single edges (layer, head, query, key) of attention, given by absolute positions: their
    weight is 0, and the row then sums to less than 1. (`mask_scores` lets the other keys share it.)

    An edge acts in the forward pass that holds its query; with a key/value cache that is one pass
    of many. Raises `HookError` for an edge that does not exist in the model, for a cache that
    dropped keys and, at the end of the block, for an edge whose query was in no forward pass.
    """
    by_layer: dict[int, list[tuple[int, int, int]]] = {}
    for layer, head, query, key in edges:
        _heads_by_layer(model, [(layer, head)])
        if not 0 <= key <= query:
            raise HookError(
                f"ablate_edges: expected 0 <= key <= query, found query {query}, key {key}"
            )
        by_layer.setdefault(layer, []).append((head, query, key))
    if not by_layer:
        raise HookError("ablate_edges: expected at least one (layer, head, query, key), found none")
    uncut = {(layer, *edge) for layer, cut in by_layer.items() for edge in cut}

    def body(pattern: Tensor, layer: int) -> Tensor:
        out = pattern.clone()
        first_query = pattern.shape[-1] - pattern.shape[-2]
        for head, query, key in by_layer[layer]:
            if first_query <= query < pattern.shape[-1]:
                out[:, head, query - first_query, key] = 0.0
                uncut.discard((layer, head, query, key))
        return out

    def what(layer: int) -> str:
        return f"edges (head, query, key) {sorted(by_layer[layer])}"

    with _edited(model, "ablate_edges", "pattern", body, by_layer, what=what, by_position=True):
        yield
    if uncut:
        raise HookError(
            f"ablate_edges: no forward pass held the query of edge {min(uncut)}; is the prompt "
            "that long?"
        )


@contextmanager
def _edited(
    model: TransformerBridge,
    kind: str,
    site: str,
    body: Callable[[Tensor, int], Tensor],
    layers: Iterable[int] | None,
    heads: Iterable[int] | None = None,
    what: Callable[[int], str] = lambda layer: "",
    *,
    by_position: bool = False,
) -> Iterator[None]:
    """The block in which `body(tensor, layer)` stands at a site of these layers, on these heads
    alone where some are named. `what`: of a layer, which part is changed and how. `by_position`:
    it asks for absolute positions of keys.
    """
    head_indices = checked_heads(model, heads)

    def at(layer: Any) -> HookBody:
        return lambda tensor: _on_heads(tensor, body(tensor, layer), head_indices)

    places = points(model, site, layers)
    words = {str(point.name): what(int(layer or 0)) for layer, point in places.items()}
    placements = [(point, at(layer), Order.EDIT) for layer, point in places.items()]
    every_key: AbstractContextManager[None] = nullcontext()
    if by_position:
        every_key = _with_every_key(model, kind, [int(layer or 0) for layer in places])
    with every_key, attached(placements, kind, words):
        yield


def _with_every_key(
    model: TransformerBridge, kind: str, layers: Sequence[int]
) -> AbstractContextManager[None]:
    """The block in which a pass on a key/value cache is refused whose layers do not hold each token
    that was read: there a key's place is not its position.
    """

    def body(module: object, args: tuple[object, ...], options: dict[str, object]) -> None:
        for cache in (*args, *options.values()):
            by_layer = dict(enumerate(getattr(cache, "layers", ())))
            for layer in layers:
                keys = getattr(by_layer.get(layer), "keys", None)
                if keys is not None and keys.shape[-2] != by_layer[layer].get_seq_length():
                    raise HookError(
                        f"{kind}: expected a key/value cache with each token that was read, found "
                        f"one of {keys.shape[-2]} keys in layer {layer} (transformers' own drops "
                        "those beyond a window, a static one has room for more): pass "
                        "past_key_values=DynamicCache() of your own, or use_cache=False"
                    )

    return before_modules({"model": original_model(model)}, body)


def _heads_words(heads: Sequence[int] | None) -> str:
    return "all heads " if heads is None else f"heads {', '.join(map(str, sorted(set(heads))))} "


def _permitted(
    allowed: Mask | MaskRule, scores: Tensor
) -> Bool[Tensor, "*prompt_and_head query key"]:
    full = tuple(scores.shape[-2:])
    permitted: object = allowed(*positions(scores)) if callable(allowed) else allowed
    if callable(allowed) and isinstance(permitted, bool | Tensor):
        # A rule may read queries or keys alone, or neither.
        everywhere = scores.new_ones(full, dtype=torch.bool)
        permitted = torch.as_tensor(permitted, device=scores.device) & everywhere
    is_mask = isinstance(permitted, Tensor) and permitted.dtype == torch.bool
    if not is_mask or permitted.shape not in (full, (scores.shape[0], *full)):
        shape = tuple(permitted.shape) if isinstance(permitted, Tensor) else ""
        raise HookError(
            f"mask_scores: expected a boolean mask {full} or, a matrix a prompt, "
            f"{(scores.shape[0], *full)}, found "
            f"{getattr(permitted, 'dtype', type(permitted).__name__)} {shape}"
        )
    return (permitted if permitted.ndim == 2 else permitted[:, None]).to(scores.device)


def _on_heads(before: Tensor, after: Tensor, heads: Sequence[int] | None) -> Tensor:
    """`after` on the chosen heads, `before` on the others."""
    if heads is None:
        return after
    out = before.clone()
    out[:, list(heads)] = after[:, list(heads)]
    return out


def _heads_by_layer(
    model: TransformerBridge, heads: Iterable[tuple[int, int]]
) -> dict[int, list[int]]:
    by_layer: dict[int, list[int]] = {}
    for layer, head in heads:
        points(model, "z", [layer])
        checked_heads(model, [head])
        by_layer.setdefault(layer, []).append(head)
    if not by_layer:
        raise HookError("expected at least one (layer, head), found none")
    return by_layer


@default_torch_state()
def _means(
    model: TransformerBridge,
    heads_by_layer: Mapping[int, Sequence[int]],
    reference: Int[Tensor, "reference pos"],
) -> dict[tuple[int, int], Float[Tensor, " d_head"]]:
    """Mean of each head's z over the reference."""
    with torch.no_grad(), capture(model, "z", layers=list(heads_by_layer)) as record:
        model(reference)
    return {
        (layer, head): record["z"][layer][:, :, head].mean((0, 1))
        for layer, heads in heads_by_layer.items()
        for head in heads
    }
