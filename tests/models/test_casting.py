"""A copy in another dtype: what loading in that dtype gives, with the user's model bit-identical."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import hooks
from ostools.ground.errors import InputError
from ostools.models import cast_copy, describe, load_model
from tests.checkpoints import FAMILIES, TWO_FAMILIES, Family, tiny_model, write_checkpoint

IDS = torch.randint(6, 262, (1, 30), generator=torch.Generator().manual_seed(3))
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def _tensors(model: Any) -> dict[str, torch.Tensor]:
    return dict([*model.named_parameters(), *model.named_buffers()])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_copy_is_what_loading_in_that_dtype_gives(family: Family, dtype: torch.dtype, tmp_path: Path) -> None:
    # 40 is no square: sqrt(d_model) must be rounded to the new dtype, not through the old one
    model = load_model(write_checkpoint(tmp_path, family, d_model=40))
    before = {name: tensor.clone() for name, tensor in _tensors(model).items()}
    logits = model(IDS)
    copied, fresh = cast_copy(model, dtype), load_model(tmp_path, dtype=str(dtype).removeprefix("torch."))

    assert torch.equal(copied(IDS), fresh(IDS))
    assert copied(IDS).dtype == dtype
    assert copied.cfg.dtype == fresh.cfg.dtype == dtype
    assert describe(copied) == describe(fresh)
    expected = _tensors(fresh)
    for name, tensor in _tensors(copied).items():
        assert tensor.dtype == expected[name].dtype, name
        assert torch.equal(tensor, expected[name]), name

    for name, tensor in _tensors(model).items():
        assert tensor.dtype == before[name].dtype, name
        assert torch.equal(tensor, before[name]), name
    assert torch.equal(model(IDS), logits)


# What a copy holds is asked of every family above; what it shares, of one with tied weights and the one with views.
@pytest.mark.parametrize("family", TWO_FAMILIES)
def test_a_copy_shares_nothing_with_its_model_but_the_tokenizer(family: Family) -> None:
    model = tiny_model(family, fresh=True)
    copied = cast_copy(model, torch.float32)
    logits = copied(IDS)
    for tensor in _tensors(model).values():
        tensor.data.zero_()
    assert torch.equal(copied(IDS), logits)
    assert copied.tokenizer is model.tokenizer
    assert copied.cfg is not model.cfg


@pytest.mark.parametrize("family", TWO_FAMILIES)
def test_a_copy_outlives_its_model_and_writes_nothing_into_it(family: Family) -> None:
    model = tiny_model(family, fresh=True)
    logits, attention = model(IDS), model.blocks[0].attn
    copied = cast_copy(model, torch.float32)
    attention._captured_pre_ln_residual = None
    assert torch.equal(copied(IDS), logits)
    assert attention._captured_pre_ln_residual is None
    del model, attention
    gc.collect()
    assert torch.equal(copied(IDS), logits)


def test_views_stay_views_in_the_copy() -> None:
    """GPT-2's q, k and v are parts of one projection: an edit of one must reach the other, and memory is one copy."""
    copied = cast_copy(tiny_model("gpt2"), torch.bfloat16)
    weights = dict(copied.original_model.named_parameters())
    joint = next(value for name, value in weights.items() if "qkv" in name and name.endswith("weight"))
    part = next(value for name, value in weights.items() if ".q." in name and name.endswith("weight"))
    part.data.fill_(7.0)
    assert int((joint == 7).sum()) == part.numel()
    storages = {value.untyped_storage().data_ptr(): value.untyped_storage().nbytes() for value in weights.values()}
    assert sum(storages.values()) == 2 * describe(copied).n_parameters


@pytest.mark.parametrize("family", TWO_FAMILIES)
def test_hooks_work_on_the_copy_and_leave_the_model_alone(family: Family) -> None:
    model = tiny_model(family)
    copied, logits = cast_copy(model, torch.bfloat16), model(IDS)
    with hooks.capture(copied, "pattern", "residual_post") as record:
        plain = copied(IDS)
    assert all(pattern.dtype == torch.bfloat16 for pattern in record["pattern"].values())
    with hooks.ablate_heads(copied, [(0, 0)]):
        assert not torch.equal(copied(IDS), plain)
        assert torch.equal(model(IDS), logits)
    assert torch.equal(copied(IDS), plain)


def test_metadata_and_flags_go_with_the_copy(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "gemma")
    (tmp_path / "card.json").write_text('{"trained_lengths": {"sum": 60}}')
    copied = cast_copy(load_model(tmp_path), torch.float64)
    described = describe(copied)
    assert (described.name, described.trained_lengths, described.dtype) == (str(tmp_path), {"sum": 60}, "float64")
    assert not copied.training
    assert not any(parameter.requires_grad for parameter in copied.parameters())


def test_a_copy_of_a_copy_cannot_get_back_what_was_rounded() -> None:
    model = tiny_model("gemma2")
    there_and_back = cast_copy(cast_copy(model, torch.bfloat16), torch.float32)
    for name, tensor in there_and_back.named_parameters():
        assert torch.equal(tensor, dict(model.named_parameters())[name].bfloat16().float()), name


def test_a_hooked_model_is_refused() -> None:
    model = tiny_model("llama")
    with (
        hooks.capture(model, "pattern") as _,
        pytest.raises(InputError, match=r"expected a model without hooks to copy, found one at blocks\.0\.attn"),
    ):
        cast_copy(model, torch.bfloat16)
    with hooks.ablate_heads(model, [(0, 0)]):
        model(IDS)
        with pytest.raises(InputError, match="expected a model without hooks to copy"):
            cast_copy(model, torch.bfloat16)
    cast_copy(model, torch.bfloat16)


def test_copies_are_freed() -> None:
    model = tiny_model("gemma")
    copied = cast_copy(model, torch.bfloat16)
    describe(copied)
    gone = weakref.ref(copied)
    del copied
    gc.collect()
    assert gone() is None
