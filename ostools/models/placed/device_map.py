"""Which part of a model lies where: a map of modules to places, as it is asked for or found by what is free."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import torch
from torch import nn

from ostools.ground.errors import InputError, short_repr, unknown_name
from ostools.ground.memory import free_memory
from ostools.ground.names import checked_name

DISK = "disk"
NAMED_MAPS = ("auto", DISK)
"""What stands for a map: by what is free, or everything on disk."""
SHARE = 0.6
"""How much of what is free weights may take: the rest is for computing with them."""

DeviceMap = str | Mapping[str, str | int | torch.device]
Placed = dict[str, str]
"""A place ("disk" or a torch device) by the name of a module; a longer name goes before the ones that it begins with."""


def checked_map(device_map: DeviceMap, model: nn.Module, dtype: torch.dtype, device: torch.device) -> Placed:
    """The map that was asked for, for the weights of `model`, which may be without numbers (on torch's meta device).

    Raises `InputError` for a name that is no map, an unknown module or place, a module that nothing covers, and two places of
    weights that are tied.
    """
    if isinstance(device_map, str):
        return {"": DISK} if checked_name("device map", device_map, NAMED_MAPS) == DISK else _auto(model, dtype, device)
    if not isinstance(device_map, Mapping):
        raise InputError(
            f"device map: expected {' or '.join(NAMED_MAPS)}, or places by module, found {short_repr(device_map)}"
        )
    module_names = {name for name, _ in model.named_modules()} | {name for name, _ in model.named_parameters()}
    placed = {}
    for name, place in device_map.items():
        if name not in module_names:
            raise unknown_name("module in the device map", name, module_names)
        placed[name] = _checked_place(name, place, device)
    _require_whole(placed, model)
    return placed


def place_of(name: str, placed: Mapping[str, str]) -> str | None:
    """Where a weight lies: what the map says of the longest name that its own begins with; None where it says nothing."""
    parts = name.split(".")
    names = (".".join(parts[:end]) for end in range(len(parts), -1, -1))
    return next((placed[prefix] for prefix in names if prefix in placed), None)


def _checked_place(name: str, place: str | int | torch.device, device: torch.device) -> str:
    text = f"cuda:{place}" if isinstance(place, int) else str(place)
    if text == DISK:
        return text
    devices = {"cpu", str(device), *(f"cuda:{index}" for index in range(torch.cuda.device_count()))}
    text = "cuda:0" if text == "cuda" else text
    if text not in devices:
        raise unknown_name(f"place of {name or 'the model'!r} in the device map", text, (*devices, DISK))
    return text


def _require_whole(placed: Placed, model: nn.Module) -> None:
    """Every weight has one place."""
    places: dict[int, tuple[str, str]] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        place = place_of(name, placed)
        if place is None:
            raise InputError(
                f"device map: expected a place for every module, found none for {name}: name it, one around it, or '' "
                "for all that is left"
            )
        first, where = places.setdefault(id(weight), (name, place))
        if where != place:
            raise InputError(
                f"device map: expected one place for {first} and {name}, which are one weight, found {where} and {place}"
            )


def _auto(model: nn.Module, dtype: torch.dtype, device: torch.device) -> Placed:
    """Blocks in their order where there is room: on the device, on the other GPUs, in the machine's memory, on disk."""
    rooms = {str(device): _free(device)}
    rooms |= {
        name: _free(torch.device(name))
        for name in (f"cuda:{index}" for index in range(torch.cuda.device_count()))
        if device.type == "cuda" and name not in rooms
    }
    rooms |= {"cpu": rooms.get("cpu", _free(torch.device("cpu")))}
    return filled(_sizes(model, dtype), {place: int(SHARE * room) for place, room in rooms.items()})


def filled(sizes: Iterable[tuple[str, int]], rooms: Mapping[str, int]) -> Placed:
    """Each part, in its order, in the first place that has room and lies no nearer than the last part's; else on disk."""
    places, remaining = [*rooms, DISK], dict(rooms)
    now, place_by_part = 0, {}
    for name, size in sizes:
        while now < len(rooms) and remaining[places[now]] < size:
            now += 1
        if now < len(rooms):
            remaining[places[now]] -= size
        place_by_part[name] = places[now]
    return place_by_part


def _sizes(model: nn.Module, dtype: torch.dtype) -> list[tuple[str, int]]:
    """Bytes of each block, and of each module outside them, in the order in which they compute.

    Tied weights count where they come first.
    """
    owners: dict[int, str] = {}
    sizes: dict[str, int] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        block = re.match(r".*?\.\d+(?=\.)", name)
        unit = block.group() if block else name.rpartition(".")[0]
        if owners.setdefault(id(weight), unit) == unit:
            sizes[unit] = sizes.get(unit, 0) + weight.numel() * dtype.itemsize
    return list(sizes.items())


def _free(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return free_memory().bytes
