"""Weights that lie elsewhere than where they are computed with: on disk, in the machine's memory,
on another device.

A weight that lies on the device that computes is a tensor like any other. One that lies elsewhere
is a `LazyCast`: each operation brings what it reads to the device, uses it and drops it. Results
are those of the model loaded whole, to the bit on a CPU. accelerate's hooks do otherwise: a
module's weights are empty but while its `forward` runs, so that the hash of the weights and the
formulas, which read them outside of it, find nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from ostools.ground.errors import InputError
from ostools.ground.memory import available_memory
from ostools.models.lazy_cast import LazyCast

DISK = "disk"
SHARE = 0.6
"""How much of what is free weights may take: the rest is for computing with them."""

Weigh = Callable[[str, str], Tensor]
PlaceByModule = dict[str, str]
"""A place ("disk" or a torch device) by the name of a module; a longer name goes before the ones
that it begins with.
"""


def map_named(
    name: str, model: nn.Module, dtype: torch.dtype, device: torch.device
) -> PlaceByModule:
    """Places of the weights of `model` by the map of that name: "disk", or "auto", which fills the
    device, the other GPUs, the machine's memory and the disk in that order.
    """
    if name == DISK:
        return {"": DISK}
    others = range(torch.cuda.device_count()) if device.type == "cuda" else ()
    places = dict.fromkeys([str(device), *(f"cuda:{index}" for index in others), "cpu"])
    rooms = {place: int(SHARE * available_memory(torch.device(place))) for place in places}
    return first_fit(_sizes(model, dtype), rooms)


def place_of(name: str, place_by_module: Mapping[str, str]) -> str:
    """Where a weight lies: what the map says of the longest name that its own begins with."""
    while name and name not in place_by_module:
        name = name.rpartition(".")[0]
    return place_by_module.get(name, DISK)


def first_fit(sizes: Iterable[tuple[str, int]], rooms: Mapping[str, int]) -> PlaceByModule:
    """Place of each part, in order: the first with room that lies no nearer than the last part's;
    else the disk.
    """
    remaining, places = dict(rooms), iter(rooms)
    place, place_by_part = next(places, DISK), {}
    for name, size in sizes:
        while place != DISK and remaining[place] < size:
            place = next(places, DISK)
        if place != DISK:
            remaining[place] -= size
        place_by_part[name] = place
    return place_by_part


def _sizes(model: nn.Module, dtype: torch.dtype) -> list[tuple[str, int]]:
    """Bytes of each block, and of each module outside them, in the order in which they compute.

    Tied weights count where they come first.
    """
    sizes: dict[str, int] = {}
    for name, weight in model.named_parameters():
        block = re.match(r".*?\.\d+(?=\.)", name)
        unit = block.group() if block else name.rpartition(".")[0]
        sizes[unit] = sizes.get(unit, 0) + weight.numel() * dtype.itemsize
    return list(sizes.items())


_LINE = 64
"""Bytes at whose multiples torch's own memory begins."""


def brought(part: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A stored weight, or a view of one, as the same tensor in `dtype` on `device`, in memory of
    its own.

    Same strides, and the same place within a cache line: a matrix product sums in another order
    where a matrix begins at another place, and what comes out would differ from a loaded model's in
    its last bits. Memory: what lies between the first and the last number of the view.
    """
    if part.numel() == 0:
        return part.to(device, dtype, copy=True)
    span = 1 + sum(
        (size - 1) * stride for size, stride in zip(part.shape, part.stride(), strict=True)
    )
    lead = part.storage_offset() % _LINE
    buffer = torch.empty(lead + span, dtype=dtype, device=device)
    buffer[lead:].copy_(part.as_strided((span,), (1,), part.storage_offset()))
    return buffer.as_strided(part.shape, part.stride(), lead)


def placeholders(
    weights: Mapping[str, Tensor], dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """For each weight NaN in its shape, in `dtype` (None: its own), which takes no memory: so that
    the model can be built before it is filled.

    Each has a place of its own in memory, by which `fill` knows it again under whatever name the
    model gives it.
    """
    return {
        name: torch.full((), math.nan, dtype=dtype or weight.dtype).expand(weight.shape)
        if weight.is_floating_point()
        else torch.zeros((), dtype=weight.dtype).expand(weight.shape)
        for name, weight in weights.items()
    }


def placed(
    weights: Mapping[str, Tensor],
    place_by_module: PlaceByModule,
    dtype: torch.dtype,
    device: torch.device,
) -> Weigh:
    """Function from a stored weight's name and a parameter's path to the weight, where the map says
    that it lies.

    Memory: what is not on disk; of what is, gains and biases, which are little and read all the
    time.
    """
    reading = partial(brought, dtype=dtype, device=device)

    def weight(name: str, path: str) -> Tensor:
        stored, place = weights[name], place_of(path, place_by_module)
        if place == str(device) or stored.ndim < 2:
            return brought(stored, dtype, device)
        stored = stored if place == DISK else brought(stored, dtype, torch.device(place))
        return LazyCast(reading, (stored,), dtype, device=device, one_piece=True)  # pyright: ignore[reportCallIssue]

    return weight


def fill(
    module: nn.Module, holders: Mapping[str, Tensor], device: torch.device, weight: Weigh
) -> None:
    """Put `weight(name, path)` in the place of each placeholder in `holders`, which `module` was
    built with.

    `name`: of the placeholder; `path`: of the parameter or buffer. Raises `InputError` for a
    parameter that the libraries converted.
    """
    names = {holder.data_ptr(): name for name, holder in holders.items()}
    for path, part in module.named_modules():
        for name, buffer in part._buffers.items():
            if buffer is not None:
                stored = names.get(buffer.data_ptr())
                part._buffers[name] = (
                    buffer.to(device) if stored is None else weight(stored, f"{path}.{name}")
                )
    parameter_by_id: dict[int, nn.Parameter] = {}
    for path, parameter in list(module.named_parameters(remove_duplicate=False)):
        stored = names.get(parameter.data_ptr())
        if stored is None:
            dtype = str(parameter.dtype).removeprefix("torch.")
            raise InputError(
                f"expected {path} in {dtype}, in which transformers computes with it, found it in "
                "another dtype or form: move the whole model there with model.to(...), or save it "
                "and use load_model"
            )
        if id(parameter) not in parameter_by_id:
            parameter_by_id[id(parameter)] = nn.Parameter(weight(stored, path), requires_grad=False)
        owner, _, name = path.rpartition(".")
        module.get_submodule(owner)._parameters[name] = parameter_by_id[id(parameter)]
