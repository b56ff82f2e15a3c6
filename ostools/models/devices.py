"""Torch device of a name."""

from __future__ import annotations

import torch

from ostools.ground import InputError, unknown_name


def resolve_device(device: str | torch.device) -> torch.device:
    """The torch device of a name, a CPU's or a CUDA GPU's; "auto": cuda if there is one.

    No others: mps lacks float64, which formulas and references need, and multiplies some sizes
    wrongly without a word (pytorch issues 116769, 161640, 180776, 189495, 193487, 195163).
    """
    gpus = torch.cuda.device_count()
    if device == "auto":
        return torch.device("cuda" if gpus else "cpu")
    try:
        torch_device = torch.device(device)
    except (RuntimeError, TypeError):
        raise unknown_name("device", device, ("auto", "cpu", "cuda")) from None
    if (torch_device.index or 0) >= {"cpu": 1, "cuda": gpus}.get(torch_device.type, 0):
        raise InputError(
            f"expected an available device, found {str(device)!r} on a machine with {gpus} cuda "
            "devices: use device 'auto' or 'cpu'"
        )
    return torch_device
