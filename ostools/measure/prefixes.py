"""The last-token representations of many prompts out of one forward pass.

A causal model's representation of a prefix does not depend on what follows, so prompts that share prefixes are packed
into one tree: each node is a token at its own position, and sees its ancestors only (a tree attention mask). Prompts that
are each other's prefixes make a chain, and need no mask at all. A model whose rotation of keys depends on the length of the
prompt, or that is not one of the known families, goes through a loop over lengths instead (`route`).

Cost: one pass over the tree's nodes, or two where branches outnumber the trunk: O(N) tokens where a loop over N lengths reads
O(N^2). Memory: the scores of the nodes among themselves, heads x nodes^2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import hooks
from ostools.measure.precision import true_arithmetic

_SITES = ("residual_post", "final_norm", "z")
_FAMILIES = ("GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM", "LlamaForCausalLM", "GPT2LMHeadModel")
_STATIC_ROPE = ("default", "linear", "llama3", "yarn")
_LOOP_TOKENS = 4096  # tokens in one batch of the loop


@dataclass(frozen=True)
class PrefixTree:
    """Prompts packed into a tree: node k is token `ids[k]`, its predecessor `parents[k]` (-1: none), its position in the
    prompt `positions[k]`; prompt i ends at node `ends[i]`. Every parent stands before its children."""

    ids: tuple[int, ...]
    parents: tuple[int, ...]
    positions: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def trunk(self) -> int:
        """How many nodes the trunk has: the length of the longest prompt."""
        return max(self.positions) + 1

    @property
    def is_chain(self) -> bool:
        """Whether every prompt is a prefix of the longest."""
        return self.trunk == len(self.ids)

    def ancestors(self) -> Bool[Tensor, "query key"]:
        """The tree attention mask: which nodes each node sees, itself among them."""
        seen = np.eye(len(self.ids), dtype=bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                seen[node] |= seen[parent]
        return torch.from_numpy(seen)


def prefix_tree(prompts: Sequence[Sequence[int]]) -> PrefixTree:
    """The tree of the prompts. The longest is its trunk, nodes 0, 1, 2, ...; the others share what they can."""
    trunk = max(prompts, key=len)
    ids, parents = list(trunk), list(range(-1, len(trunk) - 1))
    children = {(parent, token): node for node, (parent, token) in enumerate(zip(parents, ids, strict=True))}
    ends = []
    trunk_ids = np.asarray(trunk)
    for prompt in prompts:
        differs = np.flatnonzero(np.asarray(prompt) != trunk_ids[: len(prompt)])
        shared = int(differs[0]) if len(differs) else len(prompt)
        node = shared - 1
        for token in prompt[shared:]:
            child = children.get((node, token))
            if child is None:
                child = children[node, token] = len(ids)
                ids.append(token)
                parents.append(node)
            node = child
        ends.append(node)
    positions: list[int] = []
    for parent in parents:
        positions.append(0 if parent < 0 else positions[parent] + 1)
    return PrefixTree(tuple(ids), tuple(parents), tuple(positions), tuple(ends))


@dataclass(frozen=True)
class Pack:
    """What goes through one forward pass: some of the prompts (by their index), and their tree."""

    chosen: tuple[int, ...]
    tree: PrefixTree


def packs(prompts: Sequence[Sequence[int]]) -> tuple[Pack, ...]:
    """All prompts in one tree; in two, the shorter and the longer ones, where branches outnumber the trunk.

    Attention costs nodes^2, and branches see nothing of each other: two trees are then the cheaper ones.
    """
    everything = tuple(range(len(prompts)))
    tree = prefix_tree(prompts)
    if len(tree.ids) <= 2 * tree.trunk or len(prompts) < 2:
        return (Pack(everything, tree),)
    by_length = sorted(everything, key=lambda index: len(prompts[index]))
    half = len(by_length) // 2
    halves = (tuple(by_length[:half]), tuple(by_length[half:]))
    return tuple(Pack(chosen, prefix_tree([prompts[index] for index in chosen])) for chosen in halves)


@dataclass(frozen=True)
class Unembedding:
    """Logits from y, as the model computes them: W_U y, and the soft-cap where there is one."""

    component: Any
    soft_cap: float | None

    @classmethod
    def of(cls, model: TransformerBridge) -> Unembedding:
        """A model's own; holds its unembedding weights, and nothing else of it."""
        return cls(model.unembed, getattr(model.original_model.config, "final_logit_softcapping", None))

    @property
    def d_vocab(self) -> int:
        return int(self.component.W_U.shape[-1])

    def __call__(self, y: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_vocab"]:
        with torch.no_grad():
            logits = self.component(y)
        return logits if self.soft_cap is None else torch.tanh(logits / self.soft_cap) * self.soft_cap


@dataclass(frozen=True)
class LastRows:
    """The last token of each prompt: v^(L), y, and z of the last block's heads, in the model's dtype."""

    residual: Float[Tensor, "row d_model"]
    y: Float[Tensor, "row d_model"]
    z: Float[Tensor, "row head d_head"]


@dataclass(frozen=True)
class Route:
    """How the representations were computed: "one pass", "packed pass" or "loop", and why."""

    name: str
    reason: str


def route(model: TransformerBridge, trees: Sequence[PrefixTree]) -> Route:
    """A pass per tree wherever the model's causality is known to allow it, the loop otherwise."""
    config = model.original_model.config
    architecture = str(model.cfg.architecture)
    if architecture not in _FAMILIES:
        return Route("loop", f"{architecture} is not a family whose masks and positions are known")
    unknown = sorted(set(_rope_types(config)) - set(_STATIC_ROPE))
    if unknown:
        return Route("loop", f"the {unknown[0]!r} rotary embedding depends on the length of the prompt")
    if all(tree.is_chain for tree in trees):
        return Route("one pass", "every prompt is a prefix of the longest")
    return Route("packed pass", "the prompts share prefixes: packed with a tree attention mask and position ids")


def _rope_types(config: Any) -> Iterator[str]:
    """The kinds of rotary embedding in a Hugging Face configuration; Gemma 3 has one per kind of layer."""
    rope = getattr(config, "rope_parameters", None) or {}
    for value in [rope, *rope.values()]:
        if isinstance(value, dict) and "rope_type" in value:
            yield str(value["rope_type"])


def last_rows(
    model: TransformerBridge, prompts: Sequence[Sequence[int]], packed: Sequence[Pack], way: Route
) -> LastRows:
    """The representations of the prompts' last tokens, in the prompts' order, by the given route."""
    if way.name == "loop":
        return _loop(model, prompts)
    return _in_order(
        [_one_pass(model, pack.tree) for pack in packed], [index for pack in packed for index in pack.chosen]
    )


def _in_order(parts: Sequence[LastRows], order: Sequence[int]) -> LastRows:
    """All parts in one, row k being prompt k; `order` says which prompt each row of the parts is."""
    back = torch.argsort(torch.tensor(order))
    return LastRows(*(torch.cat([getattr(part, name) for part in parts])[back] for name in ("residual", "y", "z")))


def separate_rows(model: TransformerBridge, prompt: Sequence[int]) -> tuple[LastRows, Float[Tensor, " d_vocab"]]:
    """One prompt in a pass of its own: its representations, and the logits that the model itself returns."""
    with torch.no_grad(), true_arithmetic(model), _recording(model, None) as record:
        logits = model(_batch(model, [prompt]), use_cache=False, logits_to_keep=1)
    return _rows(record), logits[0, -1]


def _one_pass(model: TransformerBridge, tree: PrefixTree) -> LastRows:
    batch = _batch(model, [tree.ids])
    options: dict[str, Any] = {}
    with ExitStack() as stack:
        if not tree.is_chain:
            seen = tree.ancestors().to(batch.device)
            positions = torch.tensor([tree.positions], device=batch.device)
            # A 4-D mask stands in for the model's own: that one counts packed tokens, not positions in the prompt (and
            # reads a step back in the position ids as the start of another document).
            dtype = next(model.parameters()).dtype
            hidden = torch.zeros(1, 1, *seen.shape, dtype=dtype, device=batch.device)
            options = {
                "position_ids": positions,
                "attention_mask": hidden.masked_fill_(~seen, torch.finfo(dtype).min),
            }
            window, layers = sliding_window(model)
            if layers:
                near = positions[0][:, None] - positions[0][None, :] < window
                stack.enter_context(hooks.mask_scores(model, seen & near, layers=layers))
        stack.enter_context(true_arithmetic(model))
        record = stack.enter_context(_recording(model, torch.tensor(tree.ends)))
        with torch.no_grad():
            model(batch, use_cache=False, logits_to_keep=1, **options)
    return _rows(record)


def sliding_window(model: TransformerBridge) -> tuple[int, list[int]]:
    """The window in tokens, and the layers that have it."""
    config = model.original_model.config
    kinds = getattr(config, "layer_types", None) or []
    return getattr(config, "sliding_window", None) or 0, [
        i for i, kind in enumerate(kinds) if kind == "sliding_attention"
    ]


def _loop(model: TransformerBridge, prompts: Sequence[Sequence[int]]) -> LastRows:
    """Prompts of the same length in batches: no padding, and no prompt knows of a longer one."""
    by_length: dict[int, list[int]] = {}
    for index, prompt in enumerate(prompts):
        by_length.setdefault(len(prompt), []).append(index)
    parts, order = [], []
    for length, indices in sorted(by_length.items()):
        step = max(1, _LOOP_TOKENS // length)
        for start in range(0, len(indices), step):
            chosen = indices[start : start + step]
            with torch.no_grad(), true_arithmetic(model), _recording(model, None) as record:
                model(_batch(model, [prompts[index] for index in chosen]), use_cache=False, logits_to_keep=1)
            parts.append(_rows(record))
            order.extend(chosen)
    return _in_order(parts, order)


def _recording(model: TransformerBridge, rows: Int[Tensor, " row"] | None) -> AbstractContextManager[hooks.Record]:
    """Keep the given positions of the only prompt of a batch, or (None) the last position of every prompt."""

    def keep(tensor: Tensor, layer: int | None) -> Tensor:
        # A copy, since a view would hold every position of the pass in memory.
        return tensor[:, -1].clone() if rows is None else tensor[0, rows.to(tensor.device)]

    return hooks.capture(model, *_SITES, layers=[int(model.cfg.n_layers) - 1], reduce=keep)


def _rows(record: hooks.Record) -> LastRows:
    (residual,), (z,) = record["residual_post"].values(), record["z"].values()
    return LastRows(residual, record["final_norm"], z)


def _batch(model: TransformerBridge, prompts: Sequence[Sequence[int]]) -> Int[Tensor, "batch pos"]:
    return torch.tensor(prompts, device=next(model.parameters()).device)
