"""Prompts of different lengths in one batch: what each gets is what it gets alone."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ostools as ost
from ostools import hooks
from ostools.measure.answers.answers import answers
from ostools.measure.passes.batches import Rows, batches, padding, shared_prefix
from ostools.measure.passes.contexts import true_arithmetic
from ostools.mitigations.passes import own_windows
from tests.checkpoints import EVERY_TEXT_FAMILY, TEXT_FAMILIES, Family, tiny_model
from tests.measure.steps import step_logits, without_ends
from tests.sets import quick

LENGTHS = (20, 3, 14, 4, 16)  # far beyond the tiny models' window of 5, and below it
STEPS = 5


def random_ids(lengths=LENGTHS, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(6, 260, (n,), generator=generator).tolist() for n in lengths]


def require_steps_are_alone(
    model, prompts: list[list[int]], shared: int, width: int, tolerance: float
) -> None:
    """The logits of every step of a batch are those of each prompt by itself."""
    steps = torch.randint(6, 260, (STEPS, len(prompts)), generator=torch.Generator().manual_seed(1))
    found = []
    with torch.no_grad(), true_arithmetic(model):
        rows = Rows(model, prompts, cached=True, shared=shared)
        assert rows.padded
        assert rows.unread.shape == (len(prompts), width)
        for tokens in steps:
            found.append(rows.logits()[:, 0])
            rows.extend(tokens)
    for row, ids in enumerate(prompts):
        expected = step_logits(model, ids, steps[:-1, row].tolist())
        error = (
            torch.stack([step[row] for step in found]) - expected
        ).abs().max() / expected.abs().max()
        assert float(error) <= tolerance


@pytest.mark.parametrize("dtype", quick([torch.float32, torch.float64], torch.float32))
@pytest.mark.parametrize("family", [*TEXT_FAMILIES, "bloom", "mpt"])
def test_padded_logits_are_those_of_each_prompt_alone_at_every_step(
    family: str, dtype: torch.dtype
) -> None:
    model = tiny_model(family, seed=4, scale=1.5, dtype=dtype)
    require_steps_are_alone(
        model, random_ids(), 0, max(LENGTHS), 1e-5 if dtype == torch.float32 else 1e-12
    )


@pytest.mark.parametrize("family", [*TEXT_FAMILIES, "bloom", "mpt"])
def test_what_all_prompts_begin_with_is_read_once(family: str) -> None:
    """Where a window slides, nothing is shared."""
    model = tiny_model(family, seed=4, scale=1.5, dtype=torch.float64)
    (prefix,) = random_ids((40,), seed=7)
    prompts = [prefix + ids for ids in random_ids((9, 3, 6))]
    shared = shared_prefix(model, prompts, steps=STEPS)
    assert shared == (0 if own_windows(model) or family in ("bloom", "mpt") else 40)
    require_steps_are_alone(model, prompts, shared, 49 - shared, 1e-12)


def test_a_prefix_is_shared_but_for_what_is_read_and_where_it_is_worth_a_pass() -> None:
    model = tiny_model("llama")
    (ids,) = random_ids((50,))
    prompts = [[ids, ids], [ids, ids[:40]], [ids, ids[:31] + [5] * 9], [ids], [ids[:3], ids]]
    assert [shared_prefix(model, these) for these in prompts] == [49, 39, 0, 0, 0]
    rounded = tiny_model("llama", dtype=torch.bfloat16)
    assert [shared_prefix(rounded, [ids, other]) for other in (ids[:40], ids)] == [0, 49]
    prompts = [ids, [*ids[:45], 7, 8, 9, 10, 11]]
    once, alone = (Rows(rounded, prompts, True, shared=n).logits() for n in (45, 0))
    torch.testing.assert_close(once, alone, rtol=0, atol=2**-6 * float(alone.abs().max()))
    windowed = tiny_model("gemma2", sliding_window=60)
    assert [shared_prefix(windowed, [ids, ids[:40]], steps=steps) for steps in (10, 11)] == [39, 0]
    assert (
        shared_prefix(windowed, [ids, ids], steps=11) == 49
    )  # without padding a window counts tokens alone
    with pytest.raises(hooks.HookError, match="matched nothing"), hooks.scale_scores(model, 2.0):
        assert shared_prefix(model, [ids, ids]) == 0


@pytest.mark.parametrize("family", ["gemma2", "gpt2"])
def test_rows_that_leave_take_nothing_with_them(family: Family) -> None:
    model = tiny_model(family, seed=6, scale=1.5)
    prompts = random_ids()
    for cached in (True, False) if family == "gemma2" else (True,):
        rows, whole = Rows(model, prompts, cached), Rows(model, prompts, cached)
        for step in range(4):
            left, everyone = rows.logits()[:, 0], whole.logits()[:, 0]
            expected = everyone if step == 0 else everyone[[1, 2, 4]]
            torch.testing.assert_close(
                left, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max())
            )
            tokens = everyone.argmax(-1)
            whole.extend(tokens)
            rows.extend(tokens if step == 0 else tokens[[1, 2, 4]])
            if step == 0:
                rows.keep([1, 2, 4])


@pytest.mark.parametrize("family", EVERY_TEXT_FAMILY)
def test_batched_answers_are_those_of_each_prompt_alone(family: Family) -> None:
    model = tiny_model(family, seed=9, scale=1.5, dtype=torch.float64, fresh=True)
    without_ends(model)
    prompts = [ost.Prompt.from_ids(model, ids) for ids in random_ids(seed=2)]
    assert padding(model).allowed
    together = answers(model, prompts, max_new_tokens=STEPS)
    assert len({answer.ids for answer in together}) > 2
    for prompt, answer in zip(prompts, together, strict=True):
        assert answers(model, [prompt], max_new_tokens=STEPS) == [answer]
    # Whatever the company: another order, another batch.
    assert answers(model, prompts[::-1], max_new_tokens=STEPS) == together[::-1]


@pytest.mark.parametrize("family", ["gemma2", "gpt2"])
@pytest.mark.parametrize(
    "edit",
    [
        lambda model: hooks.ablate_heads(model, [(0, 1), (1, 2)]),
        lambda model: hooks.ablate_heads(
            model, [(1, 0)], method="mean", reference=torch.arange(4, 40).view(2, 18)
        ),
        lambda model: hooks.ablate_layers(model, [0], part="mlp"),
    ],
)
def test_answers_under_an_edit_of_each_position_alone_are_padded_and_those_of_each_prompt_alone(
    family: Family, edit: Any
) -> None:
    model = tiny_model(family, seed=9, scale=1.5, dtype=torch.float64, fresh=True)
    without_ends(model)
    prompts = [ost.Prompt.from_ids(model, ids) for ids in random_ids(seed=2)]
    plain = answers(model, prompts, max_new_tokens=STEPS)
    with edit(model):
        assert padding(model).allowed
        together = answers(model, prompts, max_new_tokens=STEPS)
        assert together == [answers(model, [prompt], max_new_tokens=STEPS)[0] for prompt in prompts]
    assert together != plain


def foreign(model) -> AbstractContextManager[Any]:
    model.blocks[0].hook_resid_pre.add_hook(lambda tensor, hook: tensor)
    return nullcontext()


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (
            lambda model: hooks.mask_scores(model, lambda query, key: query - key < 3),
            "the active edit 'mask_scores'",
        ),
        (foreign, "the active edit 'foreign'"),
        (lambda model: hooks.capture(model, "pattern"), "being captured"),
    ],
)
def test_where_padding_could_do_harm_there_is_none(block: Any, words: str) -> None:
    model = tiny_model("llama", fresh=True)
    without_ends(model)
    with block(model):
        assert not padding(model).allowed
        assert words in padding(model).reason
        answers(
            model, [ost.Prompt.from_ids(model, ids) for ids in random_ids((4, 5))], max_new_tokens=2
        )
    model.reset_hooks()


def test_neither_in_16_bits_nor_where_rotations_depend_on_the_length_is_anything_padded() -> None:
    rope: Any = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    for model, words in (
        (ost.models.view_in(tiny_model("llama"), torch.bfloat16), "in bfloat16 the rounding"),
        (tiny_model("llama", rope_parameters=rope, fresh=True), "'dynamic' rotary embedding"),
    ):
        assert not padding(model).allowed
        assert words in padding(model).reason


@given(st.lists(st.integers(1, 600), min_size=1, max_size=40), st.booleans(), st.integers(1, 1000))
def test_batches_hold_every_prompt_once(lengths: list[int], padded: bool, tokens: int) -> None:
    found = batches(lengths, padded, tokens)
    assert sorted(index for batch in found for index in batch) == list(range(len(lengths)))
    for batch in found:
        here = [lengths[index] for index in batch]
        assert len(batch) == 1 or len(batch) * max(here) <= tokens
        assert max(here) <= 1.5 * min(here) if padded else max(here) == min(here)
    waste = sum(
        max(lengths[index] for index in batch) - lengths[index]
        for batch in found
        for index in batch
    )
    assert waste <= 0.5 * sum(lengths)


def test_refuses_logits_that_are_not_finite() -> None:
    model = tiny_model("gemma", fresh=True)
    model.blocks[0].ln1.weight.data[0] = float("inf")
    with (
        pytest.raises(ost.InputError, match="prompt of 4 tokens are not finite in float32"),
        torch.no_grad(),
    ):
        Rows(model, random_ids((3, 4)), cached=True).logits()


def test_an_embedding_that_nobody_trained_does_no_harm() -> None:
    """Padding is a token of the prompt's own: the tokenizer's may stand for anything, NaN too."""
    model = tiny_model("llama", seed=2, fresh=True)
    prompts = random_ids((3, 4))
    expected = Rows(model, prompts, cached=True).logits()
    model.embed.weight.data[model.tokenizer.pad_token_id] = float("nan")
    torch.testing.assert_close(Rows(model, prompts, cached=True).logits(), expected)
