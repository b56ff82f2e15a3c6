"""Whether the weights of a checkpoint are those of the model that config.json describes: their sizes, names and numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from ostools.ground.errors import InputError
from ostools.models.families import Family
from ostools.models.files.shards import check_dtypes
from ostools.models.placed.shard import Shard

_IN_A_WORD = 16
"""Weights that a number of a quantised checkpoint stands for, at most: 2 bits each in a word of 32."""
_CHUNK = 1 << 24  # elements looked at in one go: a check must not need a second copy of an embedding


def check_stored(config: Any, family: Family, shards: Sequence[Shard], directory: Path, quantised: bool) -> None:
    """The model that config.json describes is about as large as its weights, before memory for it is asked for, and their
    numbers stand for themselves unless they are quantised.

    Which weight is missing or of another shape, `check_loaded` says.
    """
    if not quantised:
        check_dtypes(shards, family, directory)
    stored = [tensor.count for shard in shards for tensor in shard.tensors.values()]
    check_described(config, family, stored, directory, quantised)


def check_described(config: Any, family: Family, stored: Sequence[int], where: Path, quantised: bool) -> None:
    """The model of the configuration is about as large as the stored tensors, whose sizes these are."""
    layers = config.num_hidden_layers
    if layers > len(stored):  # building so many would not end
        raise InputError(
            f"expected a weight for each of {layers} layers in {where}, found {len(stored)} in all: "
            "weights and config.json belong to different models"
        )
    with torch.device("meta"):  # shapes without memory
        described = sum(weight.numel() for weight in getattr(transformers, family.module)(config).parameters())
    if described > 2 * sum(stored) * (_IN_A_WORD if quantised else 1):
        raise InputError(
            f"expected {described} weights in {where} as config.json says, found {sum(stored)}: "
            "weights and config.json belong to different models"
        )


def check_loaded(info: dict[str, Any], family: Family, directory: Path) -> None:
    """Every parameter came from the checkpoint and the checkpoint had nothing else to say."""
    missing = sorted(info["missing_keys"])
    unexpected = sorted(key for key in info["unexpected_keys"] if not re.search(family.ignored or r"\A\Z", key))
    mismatched = sorted((key, tuple(found), tuple(want)) for key, found, want in info["mismatched_keys"])
    if mismatched:
        key, found, want = mismatched[0]
        raise InputError(
            f"expected {key} of shape {want} as config.json says, found {found} in {directory}"
            f"{_and_more(len(mismatched))}: weights and config.json belong to different models"
        )
    if missing:
        raise InputError(
            f"expected every weight of {family.module} in {directory}, found {len(missing)} missing "
            f"({_first(missing)}): they would be random; fetch the checkpoint again"
        )
    if unexpected:
        raise InputError(
            f"expected only weights of {family.module} in {directory}, found {len(unexpected)} more "
            f"({_first(unexpected)}): the model would ignore them; is config.json this checkpoint's own?"
        )


def _first(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _and_more(count: int) -> str:
    return "" if count == 1 else f" (and {count - 1} more)"


def check_finite(module: nn.Module, directory: Path) -> None:
    """No weight is NaN or infinite in the dtype that was asked for."""
    for name, weight in module.named_parameters():
        ends = torch.stack(
            torch.aminmax(weight.detach())
        )  # NaN wherever there is one, and no second tensor of its size
        if not bool(ends.isfinite().all()):
            bad = sum(int((~part.isfinite()).sum()) for part in weight.detach().flatten().split(_CHUNK))
            dtype = str(weight.dtype).removeprefix("torch.")
            raise InputError(
                f"expected finite weights, found {bad} NaN or infinite in {name} ({dtype}) of {directory}: "
                f"{'the checkpoint is broken' if dtype in ('float32', 'float64') else 'try dtype float32'}"
            )
