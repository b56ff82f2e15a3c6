"""What every format asks of the tensors of a file: parts by name, of the dtype and shape that its library writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ostools.ground.errors import InputError

Tensors = dict[str, Tensor]
"""Those of a checkpoint by name. A format takes out the parts of the matrices that it reads; what is left is no part."""


def owners(tensors: Mapping[str, Tensor], ending: str) -> list[str]:
    """The names of the modules that have a tensor of that name: "a.b" of "a.b.qweight"."""
    return [name.removesuffix(f".{ending}") for name in tensors if name.endswith(f".{ending}")]


def taken(tensors: Tensors, owner: str, *endings: str) -> list[Tensor]:
    """These tensors of one module; `InputError` for one that there is not."""
    missing = [f"{owner}.{ending}" for ending in endings if f"{owner}.{ending}" not in tensors]
    if missing:
        raise refusal(f"{owner}.weight", f"stored in {' and '.join(endings)}", f"no {missing[0]}")
    return [tensors.pop(f"{owner}.{ending}") for ending in endings]


def require(good: bool, name: str, expected: str, *parts: Tensor) -> None:
    """Refuse a matrix whose parts are not as the format has them."""
    if not good:
        found = ", ".join(f"{str(part.dtype).removeprefix('torch.')} {tuple(part.shape)}" for part in parts)
        raise refusal(name, expected, found)


def refusal(name: str, expected: str, found: object) -> InputError:
    return InputError(
        f"expected {name} {expected}, found {found}: fetch the checkpoint again, or dequantise the model with the library "
        "that wrote it and save it in full precision"
    )


def spread(
    scale: Float[Tensor, "down across"], block: Sequence[int], low: int, high: int, width: int
) -> Float[Tensor, "rows width"]:
    """Of a grid with a number for each block of a matrix, the numbers of rows low to high, in float32."""
    rows = torch.arange(low, high, device=scale.device) // block[0]
    return scale[rows].float().repeat_interleave(block[1], 1)[:, :width]


def unpacked(words: Shaped[Tensor, "rows words"], shifts: Sequence[int], bits: int) -> Shaped[Tensor, "rows numbers"]:
    """The numbers of `bits` bits in each word, in the order of the shifts that bring them down; 0 to 2^bits - 1."""
    by = torch.tensor(shifts, dtype=words.dtype, device=words.device)
    return ((words[..., None] >> by) & (2**bits - 1)).flatten(-2)
