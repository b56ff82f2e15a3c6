"""Rows of cotangents over several GPUs. Rows are independent: each GPU carries a block of them through the whole network.

The model computes on one device. Where its device map put weights on more GPUs, those take their part of the rows: a block's
maps are made once, and copied to each.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from ostools.measure.formulas.strips import RemadeStrips, Strip
from ostools.models.describe import metadata_of

Maps = TypeVar("Maps")


def row_devices(model: TransformerBridge) -> tuple[torch.device, ...]:
    """The device that computes, and the other GPUs that hold weights of the model."""
    computing = next(model.parameters()).device
    places = (metadata_of(model).device_map or {}).values()
    other_devices = sorted({place for place in places if place.startswith("cuda")} - {str(computing)})
    return computing, *(torch.device(place) for place in other_devices if computing.type == "cuda")


def shares(rows: int, devices: int) -> list[slice]:
    """Blocks of rows, as even as can be and none empty: at most one a device."""
    sizes = [rows // devices + (index < rows % devices) for index in range(devices)]
    return [slice(sum(sizes[:index]), sum(sizes[: index + 1])) for index, size in enumerate(sizes) if size]


def at(maps: Maps, device: torch.device) -> Maps:
    """The maps with every tensor of theirs on the device; those that lie there are not copied."""
    copied: Any
    if isinstance(maps, Tensor):
        copied = maps.to(device, non_blocking=True)
    elif isinstance(maps, RemadeStrips):
        copied = _StripsAt(maps, device)
    elif isinstance(maps, list | tuple):
        copied = type(maps)(at(part, device) for part in maps)
    elif hasattr(maps, "__dict__"):
        copied = copy.copy(maps)
        # The dictionary itself: frozen dataclasses set no attribute.
        vars(copied).update({name: at(part, device) for name, part in vars(maps).items()})
    else:
        copied = maps
    return copied


@dataclass(frozen=True)
class _StripsAt:
    """Strips that are made anew where the model computes, and copied."""

    strips: RemadeStrips
    device: torch.device

    def __iter__(self) -> Iterator[Strip]:
        for strip in self.strips:
            yield at(strip, self.device)
