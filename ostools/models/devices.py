"""Torch device of a name."""

from __future__ import annotations

import torch

from ostools.ground.errors import InputError, unknown_name


def resolve_device(device: str | torch.device, dtype: torch.dtype = torch.float32) -> torch.device:
    """The torch device of a name; "auto" is cuda, else cpu: the formulas and references need
    float64, which mps lacks.
    """
    count = {
        "cpu": 1,
        "cuda": torch.cuda.device_count(),
        "mps": int(torch.backends.mps.is_available()),
    }
    if device == "auto":
        return torch.device("cuda" if count["cuda"] else "cpu")
    try:
        torch_device = torch.device(device)
        available = count[torch_device.type]
    except (RuntimeError, TypeError, KeyError):
        raise unknown_name("device", device, ("auto", *count)) from None
    if (torch_device.index or 0) >= available:
        raise InputError(
            f"expected an available device, found {str(device)!r} on a machine with "
            f"{count['cuda']} cuda and {count['mps']} mps devices: use device 'auto' or 'cpu'"
        )
    if torch_device.type == "mps" and dtype is torch.float64:
        raise InputError(
            "expected a dtype that mps has, found float64: use dtype 'float32' or device 'cpu'"
        )
    return torch_device
