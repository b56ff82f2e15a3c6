"""The embedded models as they are in the package: small, exact, and with one tokenizer."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from ostools.models import describe, load_model
from ostools.models.families import EMBEDDED_MODELS
from ostools.models.files.sources import EMBEDDED_DIRECTORIES

SIZES = {"embedded": (2_000_000, 4), "embedded-short": (2_500_000, 2), "embedded-windowed": (1_000_000, 2)}
"""The most parameters, and bytes a weight."""


@pytest.mark.parametrize("name", EMBEDDED_MODELS)
def test_each_loads_by_its_name_and_exactly(name: str) -> None:
    model, directory = load_model(name), EMBEDDED_DIRECTORIES[name]
    described = describe(model)
    assert described.name == name
    assert described.trained_lengths == json.loads((directory / "card.json").read_text())["trained_lengths"]
    theirs: Any = model.original_model
    stored = load_file(directory / "model.safetensors")
    assert torch.equal(theirs.get_input_embeddings().weight, stored["model.embed_tokens.weight"].float())


@pytest.mark.parametrize("name", EMBEDDED_MODELS)
def test_each_is_small_and_of_the_paper_s_architecture(name: str) -> None:
    directory, (most, bytes_a_weight) = EMBEDDED_DIRECTORIES[name], SIZES[name]
    model = AutoModelForCausalLM.from_pretrained(directory)
    assert model.num_parameters() <= most
    assert (directory / "model.safetensors").stat().st_size <= bytes_a_weight * model.num_parameters() + 50_000
    assert (model.config.num_key_value_heads, model.config.tie_word_embeddings) == (1, True)
    assert model.config.max_position_embeddings == 8192
    files = [EMBEDDED_DIRECTORIES[each] / "tokenizer.json" for each in ("embedded", name)]
    assert files[0].read_bytes() == files[1].read_bytes()
