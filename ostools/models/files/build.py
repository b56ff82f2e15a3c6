"""The Hugging Face model that the files of a checkpoint make."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import transformers
from transformers import GenerationConfig

from ostools.ground.errors import refusal
from ostools.ground.lens import PreTrainedConfig, PreTrainedModel
from ostools.models.families import Family
from ostools.models.files.checkpoint import Checkpoint
from ostools.models.files.checks import (
    check_dtypes,
    check_finite,
    check_loaded,
    check_tied,
    require_own_functions,
    without_negative_ids,
)
from ostools.models.files.config import experts_one_by_one


def build(
    family: Family,
    config: PreTrainedConfig,
    weights: Mapping[str, torch.Tensor],
    dtype: torch.dtype,
    where: Path,
) -> PreTrainedModel:
    """The Hugging Face model in `dtype`, every parameter one of the `weights`; `where`: what errors
    call it. Refuses, in one line, config values that no model can be built from.
    """
    experts_one_by_one(config, family)
    require_own_functions(str(where), config)
    with refusal(f"weights that fit config.json in {where}"):
        module, info = getattr(transformers, family.module).from_pretrained(
            None,
            state_dict=dict(weights),
            config=config,
            dtype=dtype,
            attn_implementation="eager",
            # Reported in `info` and refused there, with both shapes; otherwise the shapes are lost
            # in the log.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            key_mapping=dict(family.renames) or None,
        )
    check_loaded(info, family, where)
    return module


def load_whole(
    checkpoint: Checkpoint,
    family: Family,
    config: PreTrainedConfig,
    dtype: torch.dtype,
    device: torch.device,
) -> PreTrainedModel:
    """The Hugging Face model with every weight in the memory of the device: finite, in eval mode,
    knowing the tokens that end an answer.
    """
    directory = checkpoint.directory
    check_dtypes(checkpoint.dtypes, family, directory)
    tensors = {name: weight.read() for name, weight in checkpoint.weights.items()}
    # Those of `dtype` in memory of their own; others in the file's pages, and transformers casts
    # them: it keeps some in float32 whatever dtype it is asked for.
    tensors = {
        name: tensor.clone() if tensor.dtype is dtype else tensor
        for name, tensor in tensors.items()
    }
    module = build(family, config, tensors, dtype, directory)
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.dtype is not dtype:  # kept in float32, and still in the file's own pages
            tensor.data = tensor.data.clone()
    check_tied(module, directory)
    check_finite(module, directory)
    if checkpoint.generation is not None:
        with refusal(f"a generation_config.json that transformers can read in {directory}"):
            module.generation_config = GenerationConfig.from_dict(checkpoint.generation)
    without_negative_ids(module.generation_config)
    module.eval().to(device)  # pyright: ignore[reportArgumentType]
    return module
