"""A trained model of the laboratory, or the same before its first step, behind the hooks of every loaded model."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from transformer_lens.model_bridge import TransformerBridge

from ostools.ground.errors import InputError, in_words
from ostools.models.describe import Metadata, remember
from ostools.models.families import FAMILIES
from ostools.models.files.config import quiet
from ostools.models.load import give_tokenizer, wrapped
from studies.laboratory.config import LabConfig, read_config
from studies.laboratory.decoder import lab_decoder
from studies.laboratory.prompts import lab_tokenizer
from studies.laboratory.training import WEIGHTS

_FAMILY = next(family for family in FAMILIES if family.model_type == "qwen2")


def load_lab(folder: Path) -> TransformerBridge:
    """The trained model in a directory that `train_lab` wrote, with its tokenizer of characters, float32.

    Every measurement runs on it. Raises `InputError` for a directory without a finished model, and for weights that are not
    those of its config.
    """
    config = read_config(folder)
    if not (folder / WEIGHTS).is_file():
        raise InputError(f"expected a finished model in {str(folder)!r}, found no {WEIGHTS}: train it to the end first")
    model = lab_decoder(config, "eager")
    try:
        model.load_state_dict(load_file(folder / WEIGHTS))
    except Exception as error:  # bare ones, for a broken file and for weights that do not fit
        raise InputError(f"expected the weights of {config.name} in {str(folder)!r}: {in_words(error)}") from None
    return _bridge(model, config, config.name, {f"lab-{task}": config.longest for task in config.tasks})


def untrained_lab(config: LabConfig) -> TransformerBridge:
    """The model of a config with the weights that its training begins with."""
    return _bridge(lab_decoder(config, "eager"), config, f"{config.name} (untrained)", None)


def _bridge(model: torch.nn.Module, config: LabConfig, name: str, lengths: dict[str, int] | None) -> TransformerBridge:
    with quiet():
        bridge = wrapped(model.eval(), _FAMILY, name)  # pyright: ignore[reportArgumentType]
    give_tokenizer(bridge, lab_tokenizer(config.context))
    remember(bridge, Metadata(name, trained_lengths=lengths))
    return bridge
