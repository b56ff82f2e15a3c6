"""Edits do what they say, leave nothing behind, nest, and refuse to do nothing; what is captured is
Hugging Face's.
"""

import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import permutations
from typing import Any, Literal

import pytest
import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.modules import module as every_module
from transformer_lens.model_bridge import TransformerBridge
from transformers import DynamicCache

from ostools import hooks
from tests.checkpoints import TEXT_FAMILIES, make_model, tiny_model
from tests.sets import quick

Tokens = Int[Tensor, "batch pos"]
REFERENCE = torch.randint(10, 200, (3, 9), generator=torch.Generator().manual_seed(7))


def window(query: Tensor, key: Tensor) -> Tensor:
    return query - key < 3


EDITS: dict[str, Any] = {
    "mask_scores": lambda m: hooks.mask_scores(m, window),
    "scale_scores": lambda m: hooks.scale_scores(m, 1.7),
    "replace_pattern": lambda m: hooks.replace_pattern(
        m, lambda p, _: torch.eye(p.shape[-1]).expand_as(p)
    ),
    "ablate_zero": lambda m: hooks.ablate_heads(m, [(0, 1), (1, 0)]),
    "ablate_mean": lambda m: hooks.ablate_heads(m, [(1, 2)], method="mean", reference=REFERENCE),
    "edge_zero": lambda m: hooks.ablate_edges(m, [(0, 0, 8, 6)]),
}


@pytest.fixture(params=EDITS)
def edit(request: pytest.FixtureRequest) -> Any:
    return EDITS[request.param]


def test_an_edit_acts_inside_and_leaves_no_trace(
    model: TransformerBridge, tokens: Tokens, edit: Any
) -> None:
    before = model(tokens)
    with edit(model):
        assert hooks.active_edits(model)
        inside = model(tokens)
    assert not torch.equal(before, inside)
    assert torch.isfinite(inside).all()
    assert hooks.active_edits(model) == ()
    assert torch.equal(model(tokens), before)


def test_transformer_lens_own_reset_inside_does_not_end_an_edit(
    model: TransformerBridge, tokens: Tokens
) -> None:
    with hooks.mask_scores(model, window):
        inside = model(tokens)
        model.reset_hooks()
        assert torch.equal(model(tokens), inside)


def test_an_edit_that_no_forward_pass_reached_is_refused() -> None:
    with (
        pytest.raises(hooks.HookError, match="matched nothing"),
        hooks.mask_scores(tiny_model("llama"), window),
    ):
        pass


@pytest.mark.parametrize("family", quick(["gemma2", "gemma3"], "gemma3"))
def test_mask_equals_hugging_faces_own_sliding_window(family, tokens: Tokens) -> None:
    """The same weights configured with a narrower window on their sliding layers: bit-identical
    logits.
    """
    narrow = make_model(family, seed=1, window=3)(tokens).logits
    model = tiny_model(family, seed=1, window=5)
    assert not torch.equal(model(tokens), narrow)
    with hooks.mask_scores(model, window, layers=[0]):
        assert torch.equal(model(tokens), narrow)


def test_zero_ablation_removes_exactly_the_heads_term(
    model: TransformerBridge, tokens: Tokens
) -> None:
    with hooks.capture(model, "head_output", "attention_raw", layers=[0]) as record:
        model(tokens)
    expected = record["attention_raw"][0] - record["head_output"][0][:, :, 1]
    with (
        hooks.ablate_heads(model, [(0, 1)]),
        hooks.capture(model, "attention_raw", layers=[0]) as ablated,
    ):
        model(tokens)
    torch.testing.assert_close(ablated["attention_raw"][0], expected, rtol=1e-5, atol=1e-5)


def test_a_mean_is_that_of_the_reference(model: TransformerBridge, tokens: Tokens) -> None:
    with hooks.capture(model, "z", layers=[1]) as record:
        model(REFERENCE)
    stored = record["z"][1]
    with (
        hooks.ablate_heads(model, [(1, 2)], method="mean", reference=REFERENCE),
        hooks.capture(model, "z", layers=[1]) as mean,
    ):
        model(tokens)
    torch.testing.assert_close(mean["z"][1][:, :, 2], stored[:, :, 2].mean((0, 1)).expand(2, 9, -1))


def test_cut_edges_have_no_weight_and_all_others_theirs(
    model: TransformerBridge, tokens: Tokens
) -> None:
    with hooks.capture(model, "pattern", layers=[0]) as record:
        model(tokens)
        expected = record["pattern"][0].clone()
        assert (expected[:, 0, 8, 7] > 0).all()
        expected[:, 0, 8, 7] = 0
        with hooks.ablate_edges(model, [(0, 0, 8, 7)]):
            model(tokens)
    assert torch.equal(record["pattern"][0], expected)


@pytest.mark.parametrize("step", quick([1, 5], 5))
def test_blocks_entered_in_any_order_give_the_same_forward_pass(tokens: Tokens, step: int) -> None:
    """Recomputations, then edits, then freezing, then observers, at every hook point; in every
    order, or each fifth.
    """
    model = tiny_model("gemma3", seed=1, dtype=torch.float64)
    contexts: list[Any] = [
        lambda: hooks.exact_arithmetic(model),
        lambda: hooks.mask_scores(model, window),
        lambda: hooks.replace_pattern(model, lambda pattern, _: pattern * 0.5, layers=[1]),
        lambda: hooks.frozen(model),
    ]
    seen = []
    for order in list(permutations(range(4)))[::step]:
        with ExitStack() as stack:
            record = stack.enter_context(hooks.capture(model, "pattern"))
            for index in order:
                stack.enter_context(contexts[index]())
            seen.append((model(tokens), dict(record["pattern"])))
    for logits, pattern in seen[1:]:
        assert torch.equal(logits, seen[0][0])
        assert all(torch.equal(pattern[layer], seen[0][1][layer]) for layer in pattern)
    assert (seen[0][1][0][..., torch.ones(9, 9).tril(-3).bool()] == 0).all()
    torch.testing.assert_close(
        seen[0][1][1].sum(-1), torch.full((2, 4, 9), 0.5, dtype=torch.float64)
    )


def test_an_edge_acts_in_the_cached_pass_that_holds_its_query(tokens: Tokens) -> None:
    model = tiny_model("llama", seed=1)
    whole = model.original_model
    with (
        hooks.ablate_edges(model, [(0, 0, 8, 2), (1, 1, 3, 1)]),
        hooks.capture(model, "pattern") as record,
    ):
        cache = whole(tokens[:, :-1], use_cache=True).past_key_values
        assert (record["pattern"][1][:, 1, 3, 1] == 0).all()
        whole(tokens[:, -1:], past_key_values=cache, use_cache=True)
        assert (record["pattern"][0][:, 0, 0, 2] == 0).all()
        assert (record["pattern"][0][:, 1, 0, 2] > 0).all()


def test_hooks_of_others_are_reported(model: TransformerBridge) -> None:
    point = model.hook_dict["blocks.0.hook_mlp_out"]
    places: list[Callable[[], Any]] = [
        lambda: model.blocks[0].attn.register_forward_pre_hook(lambda module, args: None),
        lambda: point.register_forward_hook(lambda module, args, out: None),
        lambda: point.register_full_backward_hook(lambda module, before, after: None),
        lambda: model.blocks[1].mlp.register_full_backward_hook(lambda module, before, after: None),
        lambda: every_module.register_module_forward_hook(lambda module, args, out: None),
        lambda: every_module.register_module_forward_pre_hook(lambda module, args: None),
        lambda: every_module.register_module_full_backward_hook(lambda module, before, after: None),
    ]
    numbers: set[int] = set()
    for place in places:
        handle = place()
        (edit,) = hooks.active_edits(model)
        assert edit.kind == "foreign"
        assert hooks.active_edits(model) == (edit,)
        numbers.add(edit.block)
        handle.remove()
    directions: list[tuple[Literal["fwd", "bwd"], list[Any]]] = [
        ("fwd", point.fwd_hooks),
        ("bwd", point.bwd_hooks),
    ]
    for direction, kept in directions:
        theirs = point.add_hook(lambda tensor, hook: tensor * 5, dir=direction)
        (edit,) = hooks.active_edits(model)
        assert edit.kind == "foreign"
        numbers.add(edit.block)
        theirs.hook.remove()
        kept.clear()
    assert hooks.active_edits(model) == ()
    assert len(numbers) == len(places) + len(directions)  # no two are taken for the same


@pytest.mark.parametrize("family", quick(TEXT_FAMILIES, "gemma3", "gpt2"))
def test_a_hook_on_any_module_of_hugging_faces_model_is_reported(family: str) -> None:
    """Also on those that the bridge does not wrap: the whole, its base model, GPT-2's dropout."""
    model = tiny_model(family, fresh=True)
    for part in model.original_model.modules():
        handle = part.register_forward_pre_hook(lambda module, args: None)
        assert [edit.kind for edit in hooks.active_edits(model)] == ["foreign"]
        handle.remove()
    assert hooks.active_edits(model) == ()


def test_a_mean_is_that_of_the_models_own_arithmetic(model: TransformerBridge) -> None:
    """Whatever the caller's program has set: the block's reference is read in the model's dtype."""

    def words() -> list[str]:
        with hooks.ablate_heads(model, [(1, 2)], method="mean", reference=REFERENCE):
            model(REFERENCE)
            return [str(edit) for edit in hooks.active_edits(model)]

    expected = words()
    with torch.autocast("cpu", torch.bfloat16):
        assert words() == expected
    with torch.inference_mode():
        assert words() == expected


_OF_A_PROCESS = """
from ostools import hooks
from tests.checkpoints import tiny_model
model = tiny_model("llama")
with hooks.replace_pattern(model, lambda pattern, layer: pattern, layers=[0]):
    model.blocks[1].register_forward_hook(lambda module, args, output: None)
    print(*hooks.active_edits(model), sep="\\n")
    model(__import__("torch").tensor([[7, 8]]))
"""


@pytest.mark.slow
def test_edits_of_two_processes_are_never_the_same() -> None:
    first, second = (
        subprocess.check_output([sys.executable, "-c", _OF_A_PROCESS], text=True).splitlines()[-2:]
        for _ in range(2)
    )
    assert len({*first, *second}) == 4
    kinds = [[edit.partition(" (number ")[0] for edit in edits] for edits in (first, second)]
    assert kinds[0] == kinds[1]
    assert [kind.split()[0] for kind in kinds[0]] == ["replace_pattern", "foreign"]


def test_a_masked_key_stays_masked_under_any_factor(
    model: TransformerBridge, tokens: Tokens
) -> None:
    for factor in (-1.0, 0.0, 1e-6):
        with hooks.scale_scores(model, factor), hooks.capture(model, "pattern") as record:
            model(tokens)
        for pattern in record["pattern"].values():
            assert (pattern[..., torch.ones(9, 9).triu(1).bool()] == 0).all()


# What is captured.


@pytest.mark.parametrize("family", quick(TEXT_FAMILIES, "gemma3", "gpt2"))
def test_residuals_and_patterns_are_those_of_hugging_face_eager(family, tokens: Tokens) -> None:
    reference = make_model(family, seed=1)(
        tokens, output_hidden_states=True, output_attentions=True
    )
    model = tiny_model(family, seed=1)
    with hooks.capture(model, "residual_pre", "final_norm", "pattern", "embedding") as record:
        logits = model(tokens)
    # TransformerLens writes GPT-2's LayerNorm and attention out in its own order of operations:
    # equal up to rounding.
    tolerance = 1e-5 if family == "gpt2" else 0.0
    close = partial(torch.testing.assert_close, rtol=tolerance, atol=tolerance)
    close(logits, reference.logits)
    close(record["embedding"], reference.hidden_states[0])
    for layer, pattern in enumerate(reference.attentions):
        close(record["residual_pre"][layer], reference.hidden_states[layer])
        close(record["pattern"][layer], pattern)
    close(record["final_norm"], reference.hidden_states[-1])


def test_a_new_pass_clears_what_the_one_before_recorded() -> None:
    record = hooks.Record(["pattern", "final_norm"])
    for name, layer in (("pattern", 0), ("pattern", 1), ("final_norm", None), ("pattern", 0)):
        record.keep(name, layer, "seen")
    assert record == {"pattern": {0: "seen"}}


def test_a_site_that_is_not_there_is_refused_by_get_too(tokens: Tokens) -> None:
    model = tiny_model("llama", seed=1)
    with hooks.capture(model, "final_norm") as record:
        for name, words in (("final_norn", "mean 'final_norm'"), ("final_norm", "is empty")):
            with pytest.raises(hooks.HookError, match=words):
                record.get(name)
        model(tokens)
    assert record.get("final_norm") is record["final_norm"]


BY_POSITION: dict[str, Callable[[Any], Any]] = {
    "mask_scores": lambda m: hooks.mask_scores(m, lambda query, key: (key != 6) | (query == key)),
    "scale_scores": lambda m: hooks.scale_scores(m, lambda query: 1.0 + (query > 7).double()),
    "ablate_edges": lambda m: hooks.ablate_edges(m, [(0, 1, 10, 7), (1, 0, 11, 9)]),
}


@pytest.mark.parametrize("family", quick(("gemma3", "mistral", "llama"), "gemma3"))
@pytest.mark.parametrize("kind", BY_POSITION)
def test_positions_are_absolute_in_a_cached_pass_or_it_is_refused(family: str, kind: str) -> None:
    """Step by step with a cache of every key the logits are those of the whole pass; transformers'
    own cache drops keys beyond the window (5 here), and is refused from the step that misses one.
    """
    model = tiny_model(family, dtype=torch.float64)
    config: Any = model.original_model.config
    tokens = torch.randint(6, 200, (1, 12), generator=torch.Generator().manual_seed(1))

    def steps(cache: DynamicCache, start: int) -> Tensor:
        first, *later = (tokens[:, :start], *tokens[:, start:].split(1, dim=1))
        rows = [model(first, past_key_values=cache, use_cache=True)]
        rows += [model(step, past_key_values=cache, use_cache=True) for step in later]
        return torch.cat(rows, dim=1)

    plain = model(tokens)
    with BY_POSITION[kind](model):
        whole = model(tokens)
        torch.testing.assert_close(steps(DynamicCache(), 3), whole, rtol=1e-5, atol=1e-5)
        own = DynamicCache(config=config)
        if family == "llama":
            torch.testing.assert_close(steps(own, 3), whole, rtol=1e-5, atol=1e-5)
        else:
            with pytest.raises(hooks.HookError, match=f"{kind}: expected a .* cache with each"):
                steps(own, 3)
            assert own.get_seq_length() == 5
    assert not torch.allclose(whole, plain)
    assert hooks.active_edits(model) == ()
    own = DynamicCache(config=config)
    torch.testing.assert_close(steps(own, 3), plain, rtol=1e-5, atol=1e-5)
