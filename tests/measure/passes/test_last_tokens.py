"""Prompts packed into a tree, and the passes that read all of them at once."""

import random

import pytest
import torch

from ostools.measure.passes.batches import Batching, batching_of
from ostools.measure.passes.last_tokens import PrefixTree, last_rows, prefix_tree
from tests.checkpoints import EVERY_TEXT_FAMILY, Family, tiny_model
from tests.sets import quick


def path(tree: PrefixTree, node: int) -> list[int]:
    """The nodes from the root to this one, by the parents."""
    found = [node]
    while tree.parents[found[0]] >= 0:
        found.insert(0, tree.parents[found[0]])
    return found


def random_prompts(seed: int, n: int = 40, longest: int = 30) -> list[tuple[int, ...]]:
    """Few tokens, so that prefixes are shared; branches of branches, and prompts that share
    nothing.
    """
    stream = random.Random(seed)
    trunk = [stream.randint(6, 8) for _ in range(longest)]
    prompts = set()
    for _ in range(n):
        kept = stream.randint(0, longest - 1)
        prompts.add((*trunk[:kept], *(stream.randint(6, 9) for _ in range(stream.randint(1, 8)))))
    return sorted(prompts)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_tree_of_prompts(seed: int, size: int) -> None:
    """Every prompt is a path of the tree, and every node sees its own path and nothing else."""
    prompts = random_prompts(seed)
    tree = prefix_tree(prompts)
    for prompt, end in zip(prompts, tree.ends, strict=True):
        nodes = path(tree, end)
        assert tuple(tree.ids[node] for node in nodes) == prompt
        assert [tree.positions[node] for node in nodes] == list(range(len(prompt)))
    assert [tree.parents[node] for node in range(tree.trunk)] == list(range(-1, tree.trunk - 1))
    groups = list(tree.groups(size))
    assert sorted(node for nodes in groups for node in nodes) == list(
        range(tree.trunk, len(tree.ids))
    )
    for nodes in groups:
        mask = tree.visible(nodes)
        keys = [*range(mask.shape[1] - len(nodes)), *nodes]
        for node, seen in zip(nodes, mask, strict=True):
            assert [
                key for key, visible in zip(keys, seen.tolist(), strict=True) if visible
            ] == path(tree, node)


def test_groups_hold_whole_branches_of_about_the_size() -> None:
    tree = prefix_tree(
        [(7, *range(20, 20 + n), *branch) for n in range(10) for branch in ((1, 1), (2,), (3,))]
    )
    groups = list(tree.groups(8))
    assert all(len(nodes) <= 8 for nodes in groups)
    reaches = [tree.visible(nodes).shape[1] - len(nodes) for nodes in groups]
    assert reaches == sorted(reaches)
    assert len(list(tree.groups(1000))) == 1
    assert list(prefix_tree([(1, 2, 3, 4, 5), (1, 9, 9)]).groups(1)) == [[5, 6]]


@pytest.mark.parametrize("size", quick([5, 1000], 5))
@pytest.mark.parametrize(
    "family", [family for family in EVERY_TEXT_FAMILY if family not in ("bloom", "mpt")]
)
def test_random_trees_are_the_loop(
    family: Family, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Branches of any length, from the first token on, and prompts of unequal beginnings; windows
    of 5 tokens.
    """
    monkeypatch.setattr(PrefixTree.groups, "__defaults__", (size,))
    model = tiny_model(family, seed=2, scale=2.0, context=40, dtype=torch.float64)
    prompts = random_prompts(1)
    everything = prefix_tree(prompts)
    assert len(everything.ids) > 40  # more than the context and GPT-2's table of positions hold
    way = batching_of(model, is_chain=everything.is_chain)
    assert way.name == ("packed pass")
    packed = last_rows(model, prompts, everything, way, (0, 1))
    looped = last_rows(model, prompts, everything, Batching("loop", "test"), (0, 1))
    assert list(packed.residuals) == list(looped.residuals) == [0, 1, 2]
    torch.testing.assert_close(packed.y, looped.y, rtol=1e-9, atol=1e-9)
    for layer, rows in looped.residuals.items():
        torch.testing.assert_close(packed.residuals[layer], rows, rtol=1e-9, atol=1e-9)
