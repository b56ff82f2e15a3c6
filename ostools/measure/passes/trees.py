"""Which tokens go through a pass together: batches of prompts, and prompts that share prefixes,
packed into one tree, with what each token sees.

The longest prompt is the trunk; the others leave it at some node and go on by themselves, seeing
nothing of each other. So the branches are gone through in groups, each against the trunk's first
nodes only: nodes x trunk scores, not nodes^2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

TOKENS = 4096
"""The most tokens of a batch, padding included."""
# The longest prompt of a batch may be this much longer than its shortest: at most a third is
# padding.
_STRETCH = 1.5
# A step that generates one token reads every weight, which takes as long as a pass over so many
# tokens, at least.
_STEP = 32
GROUP = 192
"""Nodes of one group of branches: few enough that they do not see much of each other in vain."""


@dataclass(frozen=True)
class Group:
    """Branches that go through one pass: their `nodes`, which see some of the trunk's first `reach`
    nodes.
    """

    nodes: tuple[int, ...]
    reach: int


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

    def groups(self, size: int = GROUP) -> Iterator[Group]:
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
        reach = 0
        for begin in sorted(branches, key=lambda node: self.positions[node]):
            if nodes and len(nodes) + len(branches[begin]) > size:
                yield Group(tuple(nodes), reach)
                nodes = []
            nodes += branches[begin]
            reach = self.positions[begin]
        if nodes:
            yield Group(tuple(nodes), reach)

    def visible(self, group: Group) -> Bool[Tensor, "query key"]:
        """The tree attention mask of a group: which of the trunk's first `reach` nodes, then of its
        own, each node sees.
        """
        row = {node: index for index, node in enumerate(group.nodes)}
        visible = np.zeros((len(group.nodes), group.reach + len(group.nodes)), dtype=bool)
        for node, index in row.items():
            parent = self.parents[node]
            if parent in row:
                visible[index] = visible[row[parent]]
            else:
                visible[index, : parent + 1] = True
            visible[index, group.reach + index] = True
        return torch.from_numpy(visible)

    def key_positions(self, group: Group) -> Int[Tensor, " key"]:
        return torch.tensor([*range(group.reach), *(self.positions[node] for node in group.nodes)])


def prefix_tree(prompts: Sequence[Sequence[int]]) -> PrefixTree:
    """The tree of the prompts. The longest is its trunk, nodes 0, 1, 2, ...; the others share what
    they can.
    """
    ids: list[int] = []
    parents: list[int] = []
    positions: list[int] = []
    ends: list[int] = []
    children: dict[tuple[int, int], int] = {}
    for prompt in (max(prompts, key=len), *prompts):
        node = -1
        for position, token in enumerate(prompt):
            child = children.setdefault((node, token), len(ids))
            if child == len(ids):
                ids.append(token)
                parents.append(node)
                positions.append(position)
            node = child
        ends.append(node)
    return PrefixTree(tuple(ids), tuple(parents), tuple(positions), tuple(ends[1:]))


def batches(
    lengths: Sequence[int],
    padded: bool,
    tokens: int = TOKENS,
    steps: int = 0,
    most: int | None = None,
) -> list[list[int]]:
    """The indices of prompts that go through together, shortest first: at most `tokens` tokens with
    their padding, and at most `most` prompts, if that is given.

    Equal lengths only, or where `padded` lengths within half as much again, or with less padding
    than the `steps` of another batch would take.
    """
    index_groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: lengths[index]):
        length = lengths[index]
        if index_groups:
            batch = index_groups[-1]
            shortest = lengths[batch[0]]
            padding_tokens = len(batch) * length - sum(lengths[place] for place in batch)
            little_padding = length <= _STRETCH * shortest or padding_tokens <= _STEP * steps
            alike = length == shortest or (padded and little_padding)
            fits = (len(batch) + 1) * length <= tokens and (most is None or len(batch) < most)
            if alike and fits:
                batch.append(index)
                continue
        index_groups.append([index])
    return index_groups
