"""Torch device of a name."""

from __future__ import annotations

import torch

from ostools.ground.errors import InputError, unknown_name


def resolve_device(device: str | torch.device, dtype: torch.dtype = torch.float32) -> torch.device:
    """The torch device of a name; "auto" is cuda, else cpu: the formulas and references need
    float64, which mps lacks.
    """
    mps = torch.backends.mps.is_available()
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device == "gpu":
        raise InputError(
            "unknown device 'gpu': torch calls it 'cuda' (NVIDIA, AMD) or 'mps' (Apple); 'auto' finds it"
        )
    try:
        torch_device = torch.device(device)
    except (RuntimeError, TypeError):
        raise unknown_name("device", device, ("auto", "cpu", "cuda", "mps")) from None
    count = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(mps)}
    if torch_device.type not in count:
        raise unknown_name("device", device, ("auto", "cpu", "cuda", "mps"))
    if (torch_device.index or 0) >= count[torch_device.type]:
        raise InputError(
            f"expected an available device, found {device!r} on a machine with {torch.cuda.device_count()} cuda and "
            f"{int(mps)} mps devices: use device 'auto' or 'cpu'"
        )
    if torch_device.type == "mps" and dtype is torch.float64:
        raise InputError(
            "expected a dtype that mps has, found float64: use dtype 'float32' or device 'cpu'"
        )
    return torch_device
