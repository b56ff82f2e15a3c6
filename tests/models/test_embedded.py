"""The embedded models as they are in the package: small, exact, and with one tokenizer, which loses
nothing of a text.
"""

import json
from functools import cache
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from ostools.models import describe, load_model
from ostools.models.families import EMBEDDED_MODELS
from ostools.models.files.sources import EMBEDDED_DIRECTORIES
from ostools.tasks.appendix_c import NAMES, AppendixTask

SIZES = {
    "embedded": (2_000_000, 4),
    "embedded-short": (2_500_000, 2),
    "embedded-windowed": (1_000_000, 2),
}
"""The most parameters, and bytes a weight."""
PAD_ID, EOS_ID, BOS_ID = 0, 1, 2


@pytest.mark.parametrize("name", EMBEDDED_MODELS)
def test_each_loads_by_its_name_and_exactly_and_is_small(name: str) -> None:
    model, directory, (most, bytes_a_weight) = (
        load_model(name),
        EMBEDDED_DIRECTORIES[name],
        SIZES[name],
    )
    described = describe(model)
    assert described.name == name
    assert (
        described.trained_lengths
        == json.loads((directory / "card.json").read_text())["trained_lengths"]
    )
    theirs: Any = model.original_model
    stored = load_file(directory / "model.safetensors")
    assert torch.equal(
        theirs.get_input_embeddings().weight, stored["model.embed_tokens.weight"].float()
    )
    assert described.n_parameters <= most
    assert (
        directory / "model.safetensors"
    ).stat().st_size <= bytes_a_weight * described.n_parameters + 50_000
    assert (described.n_key_value_heads, model.cfg.n_ctx, theirs.config.tie_word_embeddings) == (
        1,
        8192,
        True,
    )
    files = [EMBEDDED_DIRECTORIES[each] / "tokenizer.json" for each in ("embedded", name)]
    assert files[0].read_bytes() == files[1].read_bytes()


@cache
def tokenizer():
    return AutoTokenizer.from_pretrained(EMBEDDED_DIRECTORIES["embedded"])


def encode(text: str) -> list[int]:
    return tokenizer()(text, split_special_tokens=True)["input_ids"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", [1, 200])
def test_one_more_one_is_one_more_token_and_changes_no_other(name: str, length: int) -> None:
    """The pair of Theorem 4.2 exists on ids: every run of n ones is n tokens, and the words around
    it never merge with it.
    """
    before, _, after = AppendixTask(name).parts(("1",))
    head, tail = encode(before), encode(after)[1:]
    one = tokenizer().convert_tokens_to_ids("1")
    assert encode(before + "1" * length + after) == head + [one] * length + tail
