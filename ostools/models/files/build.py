"""The Hugging Face model that the files of a checkpoint make: whole in memory, or in several
places.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
import transformers
from transformers import GenerationConfig

from ostools.ground.errors import InputError
from ostools.ground.lens import PreTrainedConfig, PreTrainedModel
from ostools.models.families import Family
from ostools.models.files.checkpoint import Checkpoint
from ostools.models.files.checks import (
    check_dtypes,
    check_finite,
    check_loaded,
    check_tied,
    one_line,
    require_own_functions,
    without_negative_ids,
)
from ostools.models.files.config import experts_one_by_one
from ostools.models.files.offload import PlaceByModule, fill, map_named, placed, placeholders


@contextmanager
def fitting(where: Path) -> Iterator[None]:
    """Refuse, in one line, config values that no model can be built from."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"expected weights that fit config.json in {where}: {one_line(error)}"
        ) from None


def build(
    family: Family,
    config: PreTrainedConfig,
    weights: Mapping[str, torch.Tensor],
    dtype: torch.dtype,
    where: Path,
) -> PreTrainedModel:
    """The Hugging Face model in `dtype`, every parameter one of the `weights`; `where`: what errors
    call it.
    """
    experts_one_by_one(config, family)
    require_own_functions(str(where), config)
    module, info = getattr(transformers, family.module).from_pretrained(
        None,
        state_dict=dict(weights),
        config=config,
        dtype=dtype,
        attn_implementation="eager",
        # Reported in `info` and refused there, with both shapes; otherwise the shapes are lost in
        # the log.
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
    """The Hugging Face model with every weight in the memory of the device."""
    directory = checkpoint.directory
    with fitting(directory):
        check_dtypes(checkpoint.dtypes, family, directory)
        tensors = {name: weight.read() for name, weight in checkpoint.weights.items()}
        # Those of `dtype` in memory of their own; others in the file's pages, and transformers
        # casts them: it keeps some in float32 whatever dtype it is asked for.
        tensors = {
            name: tensor.clone() if tensor.dtype is dtype else tensor
            for name, tensor in tensors.items()
        }
        module = build(family, config, tensors, dtype, directory)
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.dtype is not dtype:  # kept in float32, and still in the file's own pages
                tensor.data = tensor.data.clone()
    module = _finished(module, checkpoint)
    module.to(device)  # pyright: ignore[reportArgumentType]
    return module


def load_in_places(
    checkpoint: Checkpoint,
    family: Family,
    config: PreTrainedConfig,
    dtype: torch.dtype,
    device: torch.device,
    device_map: str,
) -> tuple[PreTrainedModel, PlaceByModule]:
    """The Hugging Face model with its weights where the map says, and the map with nothing left to
    be found out.

    Raises `InputError` for weights that are not computed with as the file holds them.
    """
    directory = checkpoint.directory
    if family.mlp == "experts" or family.copied:
        what = (
            "one joint weight, of whose parts TransformerLens computes with copies"
            if family.copied
            else "experts, which transformers stacks"
        )
        raise InputError(
            f"device_map: expected weights that are computed with as {directory} holds them, found "
            f"{what}, in {family.name}: load the model whole"
        )
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
    with fitting(directory):
        check_dtypes(checkpoint.dtypes, family, directory)
        stored = {name: weight.read() for name, weight in checkpoint.weights.items()}
        holders = placeholders(stored, dtype)
        module = build(family, config, holders, dtype, directory)
        place_by_module = map_named(device_map, module, dtype, device)
        fill(module, holders, device, placed(stored, place_by_module, dtype, device))
    return _finished(module, checkpoint), place_by_module


def _finished(module: PreTrainedModel, checkpoint: Checkpoint) -> PreTrainedModel:
    """The model with finite weights, in eval mode, knowing the tokens that end an answer."""
    check_tied(module, checkpoint.directory)
    check_finite(module, checkpoint.directory)
    if checkpoint.generation is not None:
        try:
            module.generation_config = GenerationConfig.from_dict(dict(checkpoint.generation))
        except Exception as error:
            raise InputError(
                "expected a generation_config.json that transformers can read in "
                f"{checkpoint.directory}: {one_line(error)}"
            ) from None
    without_negative_ids(module.generation_config)
    return module.eval()
