"""The Hugging Face model that the files of a checkpoint make: whole in memory, or in several places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

from ostools.ground.errors import InputError
from ostools.models.families import Family
from ostools.models.files.checks import one_line, read_json
from ostools.models.files.config import experts_one_by_one
from ostools.models.files.functions import require_own_functions
from ostools.models.files.offload import (
    MappedWeights,
    PlaceByModule,
    Weigh,
    checked_map,
    fill,
    placed,
    placeholders,
)
from ostools.models.files.shards import Shard, check_finite, check_loaded, check_stored
from ostools.models.files.tokenizer import without_negative_ids


@dataclass(frozen=True)
class Checkpoint:
    """The files of a model, which have been looked at, and what config.json says."""

    directory: Path
    shards: Sequence[Shard]
    family: Family
    config: PreTrainedConfig

    @contextmanager
    def fitting(self) -> Iterator[None]:
        """Whatever a library raises while the model is built, for config values that no model can be built from."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"expected weights that fit config.json in {self.directory}: {one_line(error)}") from None

    def built(self, weights: dict[str, torch.Tensor], dtype: torch.dtype) -> PreTrainedModel:
        """The Hugging Face model in `dtype`, every parameter one of the `weights`."""
        experts_one_by_one(self.config, self.family)
        module, info = getattr(transformers, self.family.module).from_pretrained(
            None,
            state_dict=weights,
            config=self.config,
            dtype=dtype,
            attn_implementation="eager",
            # Reported in `info` and refused there, with both shapes; otherwise the shapes are lost in the log.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            key_mapping=dict(self.family.renames) or None,
        )
        check_loaded(info, self.family, self.directory)
        require_own_functions(module, str(self.directory))
        return module

    def filled(
        self,
        holders: Mapping[str, torch.Tensor],
        dtype: torch.dtype,
        device: torch.device,
        weight: Weigh,
    ) -> PreTrainedModel:
        """The Hugging Face model in `dtype`, built of placeholders and then filled with what `weight` makes of each."""
        module = self.built(dict(holders), dtype)
        fill(module, holders, device, weight)
        return module

    def finished(self, module: PreTrainedModel) -> PreTrainedModel:
        """The model with finite weights, in eval mode, knowing the tokens that end an answer."""
        check_finite(module, self.directory)
        if (self.directory / "generation_config.json").exists():
            read_json(self.directory / "generation_config.json")
            try:
                module.generation_config = GenerationConfig.from_pretrained(self.directory, local_files_only=True)
            except Exception as error:
                raise InputError(
                    f"expected a generation_config.json that transformers can read in {self.directory}: {one_line(error)}"
                ) from None
        without_negative_ids(module.generation_config)
        return module.eval()


def load_whole(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """The Hugging Face model with every weight in the memory of the device."""
    with checkpoint.fitting():
        check_stored(checkpoint.config, checkpoint.family, checkpoint.shards, checkpoint.directory)
        tensors = {name: tensor for shard in checkpoint.shards for name, tensor in shard.read(dtype)}
        module = checkpoint.built(tensors, dtype)
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.dtype is not dtype:  # transformers keeps it in float32, and it still lies in the file's own pages
                tensor.data = tensor.data.clone()
    module = checkpoint.finished(module)
    module.to(device)  # pyright: ignore[reportArgumentType]
    return module


def in_places(
    checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, device_map: str
) -> tuple[PreTrainedModel, PlaceByModule]:
    """The Hugging Face model with its weights where the map says, and the map with nothing left to be found out."""
    device = torch.device(device.type, device.index or 0) if device.type == "cuda" else device
    with checkpoint.fitting():
        described = check_stored(checkpoint.config, checkpoint.family, checkpoint.shards, checkpoint.directory)
        place_by_module = checked_map(device_map, described, dtype, device)
        weights = MappedWeights.of(checkpoint.shards)
        holders = placeholders(weights.by_name, dtype)
        module = checkpoint.filled(holders, dtype, device, placed(weights, place_by_module, dtype, device))
    module = checkpoint.finished(module)
    weights.let_go()
    return module, place_by_module


def check_storage(family: Family, directory: Path) -> None:
    """A device map asks for weights that are computed with as the file holds them."""
    obstacle = f"experts in {family.name}, which transformers stacks" if family.mlp == "experts" else None
    if family.copied:
        obstacle = f"one joint weight in {family.name}, of whose parts TransformerLens computes with copies"
    if obstacle is not None:
        raise InputError(
            f"device_map: expected weights that are computed with as {directory} holds them, found {obstacle}: load the model "
            "whole"
        )
