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
from ostools.models.files.checks import one_line
from ostools.models.files.config import experts_one_by_one
from ostools.models.files.functions import require_own_functions
from ostools.models.files.offload import PlaceByModule, checked_map, fill, placed, placeholders
from ostools.models.files.shards import check_finite, check_loaded, check_stored
from ostools.models.files.tokenizer import without_negative_ids


@contextmanager
def fitting(where: Path) -> Iterator[None]:
    """Whatever a library raises while a model is built, for config values that no model can be
    built from.
    """
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
    require_own_functions(module, str(where))
    return module


def load_whole(
    checkpoint: Checkpoint,
    family: Family,
    config: PreTrainedConfig,
    dtype: torch.dtype,
    device: torch.device,
) -> PreTrainedModel:
    """The Hugging Face model with every weight in the memory of the device."""
    with fitting(checkpoint.directory):
        check_stored(config, family, checkpoint.shards, checkpoint.directory)
        tensors = {
            name: tensor for shard in checkpoint.shards for name, tensor in shard.read(dtype)
        }
        module = build(family, config, tensors, dtype, checkpoint.directory)
        for tensor in (*module.parameters(), *module.buffers()):
            if (
                tensor.dtype is not dtype
            ):  # transformers keeps it in float32, and it still lies in the file's own pages
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
    """
    _check_storage(family, checkpoint.directory)
    device = torch.device(device.type, device.index or 0) if device.type == "cuda" else device
    with fitting(checkpoint.directory):
        described = check_stored(config, family, checkpoint.shards, checkpoint.directory)
        place_by_module = checked_map(device_map, described, dtype, device)
        stored = {name: shard.tensor(name) for shard in checkpoint.shards for name in shard.tensors}
        holders = placeholders(stored, dtype)
        module = build(family, config, holders, dtype, checkpoint.directory)
        fill(module, holders, device, placed(stored, place_by_module, dtype, device))
    return _finished(module, checkpoint), place_by_module


def _finished(module: PreTrainedModel, checkpoint: Checkpoint) -> PreTrainedModel:
    """The model with finite weights, in eval mode, knowing the tokens that end an answer."""
    check_finite(module, checkpoint.directory)
    if checkpoint.generation is not None:
        try:
            module.generation_config = GenerationConfig.from_dict(dict(checkpoint.generation))
        except Exception as error:
            raise InputError(
                f"expected a generation_config.json that transformers can read in {checkpoint.directory}: {one_line(error)}"
            ) from None
    without_negative_ids(module.generation_config)
    return module.eval()


def _check_storage(family: Family, directory: Path) -> None:
    """A device map asks for weights that are computed with as the file holds them."""
    obstacle = (
        f"experts in {family.name}, which transformers stacks" if family.mlp == "experts" else None
    )
    if family.copied:
        obstacle = f"one joint weight in {family.name}, of whose parts TransformerLens computes with copies"
    if obstacle is not None:
        raise InputError(
            f"device_map: expected weights that are computed with as {directory} holds them, found {obstacle}: load the model "
            "whole"
        )
