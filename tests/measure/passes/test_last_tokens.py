"""Prompts packed into a tree, and the passes that read all of them at once; passes
whose logits nobody reads make none.
"""

import random
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

import ostools as ost
from ostools import hooks
from ostools.measure.passes.batches import Batching, batching_of
from ostools.measure.passes.contexts import no_logits, run_from
from ostools.measure.passes.last_tokens import PrefixTree, last_rows, prefix_tree
from ostools.models import lazy_cast, load_model
from ostools.models.precision import casting
from tests.checkpoints import EVERY_TEXT_FAMILY, TWO_FAMILIES, Family, tiny_model, write_checkpoint
from tests.families import SLOW
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


IDS = torch.tensor([[3, 9, 4, 17]])


@pytest.mark.parametrize("family", [family for family in EVERY_TEXT_FAMILY if family not in SLOW])
def test_no_logits_and_the_same_y(family: Family) -> None:
    model = tiny_model(family)
    with torch.no_grad(), hooks.capture(model, "final_norm") as record:
        embedded = model.input_to_embed(IDS)[0]
        run_from(model, embedded)
        y = record["final_norm"]
        logits = run_from(model, embedded, logits_to_keep=no_logits(model))
    assert logits.shape[1] == 0
    assert torch.equal(record["final_norm"], y)


@pytest.mark.parametrize("logit", [None, 7])
@pytest.mark.parametrize("family", TWO_FAMILIES)
def test_a_file_in_bfloat16_has_the_sensitivity_that_it_has_as_float32(
    family: Family, logit: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every matrix is cast in parts, of rows that add up and of columns, at each use."""
    monkeypatch.setattr(casting, "SMALL_WEIGHT", 0)
    monkeypatch.setattr(lazy_cast, "PART", 4 * 100)
    directory = write_checkpoint(tmp_path, family, dtype=torch.bfloat16)
    narrow, wide = (
        ost.sensitivity(
            load_model(directory, dtype=dtype), "abc defg", layers="all", logit=logit
        ).frame
        for dtype in ("bfloat16", "float32")
    )
    # 16 roundings of float32: parts this small add up in another order, of which a CPU without AVX
    # makes 1.1e-6.
    pd.testing.assert_frame_equal(narrow, wide, rtol=16 * torch.finfo(torch.float32).eps, atol=0)


@pytest.mark.parametrize("where", ["hook point", "unembedding", "inner model", "bridge"])
def test_a_hook_that_waits_for_logits_sees_the_last_token(where: str) -> None:
    model, seen = tiny_model("gemma", fresh=True), []

    def look(logits: Tensor, *rest: Any, **more: Any) -> None:
        seen.append(tuple(logits.shape))

    if where == "hook point":
        with torch.no_grad(), model.hooks(fwd_hooks=[("unembed.hook_out", look)]):
            model(IDS, logits_to_keep=no_logits(model))
    else:
        inner = model.original_model
        module = {"unembedding": inner.lm_head, "inner model": inner, "bridge": model}[where]
        handle = module.register_forward_hook(
            lambda module, args, out: look(getattr(out, "logits", out))
        )
        model(IDS, logits_to_keep=no_logits(model))
        handle.remove()
    assert seen == [(1, 1, int(model.cfg.d_vocab))]
