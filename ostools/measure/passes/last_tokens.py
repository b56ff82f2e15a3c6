"""The last-token representations of many prompts out of one forward pass.

A causal model's representation of a prefix does not depend on what follows, so prompts that share
prefixes are packed into one tree: each node is a token at its own position, and sees its ancestors
only. The longest prompt, the trunk, needs no mask. The others leave it at some node and go on by
themselves: in groups, each with the keys and values of the trunk's first nodes before it and a tree
attention mask, so that there are nodes x trunk scores, not nodes^2. A model whose rotation of keys
depends on the length of the prompt, or that no record describes, goes through a loop over lengths
instead (`batches.batching_of`).

Cost: every node goes through the model once: O(N) tokens where a loop over N lengths reads O(N^2).
Memory: the scores of the trunk, heads x trunk^2, and its keys and values.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ostools import hooks
from ostools.ground import TransformerBridge, chunk
from ostools.hooks.torch_state import float32_products
from ostools.measure.passes.batches import TOKENS, Batching, batches
from ostools.measure.passes.contexts import captured_pass, last_position
from ostools.measure.passes.output import logit_scale, soft_cap
from ostools.mitigations.passes import own_windows

GROUP = 192
"""Nodes of one group of branches: few enough that they do not see much of each other in vain."""


@dataclass(frozen=True)
class PrefixTree:
    """Prompts packed into a tree: node k is token `ids[k]`, its predecessor `parents[k]` (-1:
    none), its position in the prompt `positions[k]`; prompt i ends at node `ends[i]`. Every parent
    stands before its children, the trunk before all."""

    ids: tuple[int, ...]
    parents: tuple[int, ...]
    positions: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def trunk(self) -> int:
        """Number of nodes of the trunk: the length of the longest prompt."""
        return max(self.positions) + 1

    @property
    def is_chain(self) -> bool:
        return self.trunk == len(self.ids)

    def groups(self, size: int = GROUP) -> Iterator[list[int]]:
        """The nodes off the trunk in groups of about `size`, whole branches, those that leave the
        trunk early first.
        """
        branches: dict[int, list[int]] = {}  # by the node at which they begin
        begins = list(range(len(self.ids)))
        for node in range(self.trunk, len(self.ids)):
            if self.parents[node] >= self.trunk:
                begins[node] = begins[self.parents[node]]
            branches.setdefault(begins[node], []).append(node)
        nodes: list[int] = []
        for begin in sorted(branches, key=lambda node: self.positions[node]):
            if nodes and len(nodes) + len(branches[begin]) > size:
                yield nodes
                nodes = []
            nodes += branches[begin]
        if nodes:
            yield nodes

    def visible(self, nodes: Sequence[int]) -> Bool[Tensor, "query key"]:
        """The tree attention mask of a group: which of the trunk's first nodes, up to the last one
        that any of the group sees, then of its own, each node sees.
        """
        row = {node: index for index, node in enumerate(nodes)}
        reach = 1 + max(self.parents[node] for node in nodes if self.parents[node] < self.trunk)
        visible = np.zeros((len(nodes), reach + len(nodes)), dtype=bool)
        for node, index in row.items():
            parent = self.parents[node]
            if parent in row:
                visible[index] = visible[row[parent]]
            else:
                visible[index, : parent + 1] = True
            visible[index, reach + index] = True
        return torch.from_numpy(visible)


def prefix_tree(prompts: Sequence[Sequence[int]]) -> PrefixTree:
    """The tree of the prompts. The longest is its trunk, nodes 0, 1, 2, ...; the others share what
    they can.
    """
    nodes: dict[tuple[int, int], int] = {}  # by parent and token, in their order
    positions: list[int] = []
    ends: list[int] = []
    for prompt in (max(prompts, key=len), *prompts):
        node = -1
        for position, token in enumerate(prompt):
            node = nodes.setdefault((node, token), len(nodes))
            if node == len(positions):
                positions.append(position)
        ends.append(node)
    parents, ids = zip(*nodes, strict=True)
    return PrefixTree(ids, parents, tuple(positions), tuple(ends[1:]))


@dataclass(frozen=True)
class Unembedding:
    """Logits from y, as the model computes them: W_U y, times a factor (Granite), and the soft-cap
    where there is one.
    """

    component: Any
    soft_cap: float | None
    scale: float = 1.0

    @classmethod
    def of(cls, model: TransformerBridge) -> "Unembedding":
        return cls(model.unembed, soft_cap(model), logit_scale(model))

    @property
    def d_vocab(self) -> int:
        return int(self.component.W_U.shape[-1])

    def __call__(self, y: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_vocab"]:
        # A y in float32 is rounded to the weights' own dtype, where they read 16 bits.
        with torch.no_grad(), float32_products():
            logits = self.component(y.to(self.component.W_U.dtype))
        logits = logits if self.scale == 1.0 else self.scale * logits
        return (
            logits if self.soft_cap is None else torch.tanh(logits / self.soft_cap) * self.soft_cap
        )


@dataclass(frozen=True)
class LastRows:
    """The last token of each prompt: v^(l) by l, v^(L) among them, and y, in the model's dtype."""

    residuals: Mapping[int, Float[Tensor, "row d_model"]]
    y: Float[Tensor, "row d_model"]


def last_rows(
    model: TransformerBridge,
    prompts: Sequence[Sequence[int]],
    tree: PrefixTree,
    batching: Batching,
    layers: Sequence[int] = (),
) -> LastRows:
    """The representations of the prompts' last tokens, in the prompts' order, by the given way;
    `tree` is the prompts'.

    layers: of which l v^(l) is kept, beside L; 0 is the embedding. Only the rows of last tokens
        are, in every layer.
    """
    if batching.name != "loop":
        return _packed(model, tree, layers)
    # Prompts of the same length in batches: no padding, and no prompt knows of a longer one.
    index_groups = batches([len(prompt) for prompt in prompts], False, chunk(TOKENS))
    parts = [_pass(model, [prompts[index] for index in group], layers)[0] for group in index_groups]
    return _in_order(parts, [index for group in index_groups for index in group])


def own_rows(
    model: TransformerBridge,
    prompts: Sequence[Sequence[int]],
    layers: Sequence[int] = (),
    **options: Any,
) -> tuple[LastRows, Float[Tensor, "row kept d_vocab"]]:
    """Representations of the prompts' last tokens (`layers` as in `last_rows`), each in a pass of
    its own; and the logits that the model itself returns, where the options ask for them.
    """
    passes = [_pass(model, [prompt], layers, **options) for prompt in prompts]
    rows = _in_order([rows for rows, _ in passes], range(len(prompts)))
    return rows, torch.cat([logits[:, -1:] for _, logits in passes])


def _in_order(parts: Sequence[LastRows], order: Sequence[int]) -> LastRows:
    """All parts in one, row k being prompt k; `order`: which prompt each row of the parts is."""
    back = torch.argsort(torch.tensor(order))
    residuals = {
        layer: torch.cat([part.residuals[layer] for part in parts])[back]
        for layer in parts[0].residuals
    }
    return LastRows(residuals, torch.cat([part.y for part in parts])[back])


def _packed(model: TransformerBridge, tree: PrefixTree, layers: Sequence[int]) -> LastRows:
    """The trunk, in pieces where chunks are small, each on the keys and values of those before it;
    then the branches, a group at a time, with those in sight.
    """
    from transformers.cache_utils import DynamicCache

    size = chunk(tree.trunk)
    # Without a configuration no layer of the cache forgets what is beyond its window: a branch may
    # leave before that.
    cache = None if tree.is_chain and size == tree.trunk else DynamicCache()
    parts: list[LastRows] = []
    order: list[int] = []

    def read(nodes: Sequence[int], **options: Any) -> None:
        row = {node: index for index, node in enumerate(nodes)}
        prompts = [prompt for prompt, end in enumerate(tree.ends) if end in row]
        rows = [row[tree.ends[prompt]] for prompt in prompts]
        ids = [tree.ids[node] for node in nodes]
        parts.append(_pass(model, [ids], layers, rows, **options)[0])
        order.extend(prompts)

    for start in range(0, tree.trunk, size):
        piece = range(tree.trunk)[start : start + size]
        read(piece, past_key_values=cache, use_cache=cache is not None)
    for nodes in tree.groups(chunk(GROUP)):
        with _in_sight(model, tree, nodes, cache) as options:
            read(nodes, **options)
    return _in_order(parts, order)


@contextmanager
def _in_sight(
    model: TransformerBridge, tree: PrefixTree, nodes: Sequence[int], cache: Any
) -> Iterator[dict[str, Any]]:
    """Options of the model's call on a group of branches, which then sees what is before it; of the
    trunk, whose keys and values the cache has, and of itself."""
    from transformers.cache_utils import DynamicCache

    weight = next(model.parameters())
    device, dtype = weight.device, weight.dtype
    visible = tree.visible(nodes).to(device)
    reach = visible.shape[1] - len(nodes)
    positions = torch.tensor([tree.positions[node] for node in nodes], device=device)
    places = torch.cat([torch.arange(reach, device=device), positions])
    before = [(layer.keys[..., :reach, :], layer.values[..., :reach, :]) for layer in cache.layers]
    # A 4-D mask stands in for the model's own: that one counts packed tokens, not positions in the
    # prompt (and reads a step back in the position ids as the start of another document).
    hidden = torch.zeros(1, 1, *visible.shape, dtype=dtype, device=device)
    hidden = hidden.masked_fill_(~visible, torch.finfo(dtype).min)
    windows = own_windows(model)
    with ExitStack() as stack:
        for window in set(windows.values()):
            sliding = [layer for layer, own_window in windows.items() if own_window == window]
            near = positions[:, None] - places[None, :] < window
            stack.enter_context(hooks.mask_scores(model, visible & near, layers=sliding))
        yield {
            "past_key_values": DynamicCache(before),
            "use_cache": True,
            "attention_mask": hidden,
            "position_ids": positions[None],
        }


def _pass(
    model: TransformerBridge,
    prompts: Sequence[Sequence[int]],
    layers: Sequence[int],
    positions: Sequence[int] | None = None,
    **options: Any,
) -> tuple[LastRows, Tensor]:
    """One forward pass, and the logits that it was asked for. It keeps v^(l) of these layers and of
    L at these positions of the only prompt of its batch, or (None) at the last one of every prompt;
    nothing is cached, and no logits are made, unless the options say so."""
    last = int(model.cfg.n_layers)

    def keep(tensor: Tensor, layer: int | None) -> Tensor:
        if positions is None:
            return last_position(tensor, layer)
        return tensor[0, torch.tensor(positions, dtype=torch.int64, device=tensor.device)]

    sites = ["residual_post", "final_norm", *["embedding"] * (0 in layers)]
    blocks = [layer - 1 for layer in (*layers, last) if layer]
    record, logits = captured_pass(model, prompts, *sites, layers=blocks, reduce=keep, **options)
    residuals = {block + 1: rows for block, rows in record["residual_post"].items()}
    residuals |= {0: record["embedding"]} if 0 in layers else {}
    return LastRows(dict(sorted(residuals.items())), record["final_norm"]), logits
