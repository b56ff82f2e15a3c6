"""The helper that every other test stands on: quick, reproducible, and not trivial."""

from __future__ import annotations

import pytest
import torch

from tests.checkpoints import D_VOCAB, TEXT_FAMILIES, Family, make_tokenizer, tiny_model


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_tiny_models_are_raw_frozen_and_reproducible(family: Family) -> None:
    first, again, other = tiny_model(family), tiny_model(family), tiny_model(family, seed=1)
    ids = torch.tensor([[2, 40, 41, 42, 43]])
    assert not any(parameter.requires_grad for parameter in first.parameters())
    assert not first.training
    assert not first.original_model.training
    assert torch.equal(first(ids), again(ids))
    assert not torch.equal(first(ids), other(ids))


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_the_same_seed_gives_the_same_weights_in_every_dtype(family: Family) -> None:
    single, double = tiny_model(family), tiny_model(family, dtype=torch.float64)
    for (name, one), (_, two) in zip(single.named_parameters(), double.named_parameters(), strict=True):
        assert torch.equal(one.double(), two), name


def test_the_tokenizer_fits_the_models_and_splits_digits() -> None:
    tokenizer = make_tokenizer()
    assert len(tokenizer) == D_VOCAB
    ids = tokenizer("1729 the héllo\n").input_ids
    assert tokenizer.decode(ids[1:5]) == "1729"
    assert tokenizer.decode(ids[1:]) == "1729 the héllo\n"
    assert ids[0] == tokenizer.bos_token_id
