"""Whether a device multiplies matrices rightly; asked at load of one that is known to be silently
wrong at some sizes.

Operands are small whole numbers, of which every partial sum is exact in every dtype and in every
order of additions: a product is right, or it is wrong to the bit, and there is no tolerance. Each
operand lies inside a larger piece of memory whose rest is not zero, because some faults add what
lies behind an operand, and in fresh memory that is 0.

torch up to 2.13 on mps is wrong for some long sums, many columns, long batches, transposed views,
and second calls in 16 bits (pytorch issues 116769, 161640, 180776, 189495, 193487, 195163). A fault
that depends on what was computed before may pass here. Cost: about 1 s of a CPU, which makes the
exact products, and 0.4 GiB for that time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ostools.ground.errors import InputError

CHECKED = ("mps",)
"""Kinds of devices whose products are checked."""


class _Product(NamedTuple):
    """A product as models compute it: its words, the sizes of both operands, how they are
    multiplied.
    """

    words: str
    inputs: tuple[int, ...]
    weights: tuple[int, ...]
    multiply: Callable[[Tensor, Tensor], Tensor]


def _linear(x: Tensor, w: Tensor) -> Tensor:
    return functional.linear(x, w)


def _with_bias(x: Tensor, w: Tensor) -> Tensor:
    return functional.linear(x, w, torch.ones_like(w[:, 0]))


def _of_transposed(x: Tensor, w: Tensor) -> Tensor:
    return x.mT @ w


_LONG = "sums of more than 32,766 terms"
_PRODUCTS = (
    _Product("a linear layer of a batch", (2, 13, 1024), (1024, 1024), _linear),
    _Product("a linear layer of a batch", (3, 28, 315), (315, 315), _linear),
    _Product(
        "a linear layer whose weight is a transposed view",
        (2, 13, 96),
        (96, 160),
        lambda x, w: functional.linear(x, w.T),
    ),
    _Product("a linear layer with a bias, past 65,536 rows", (65_537, 1, 8), (16, 8), _with_bias),
    _Product("an output layer of more than 32,768 columns", (1, 1025, 1), (32_769, 1), _linear),
    _Product("queries and transposed keys", (4, 130, 64), (4, 130, 64), lambda x, w: x @ w.mT),
    _Product("a transposed left operand", (4, 130, 64), (4, 130, 64), _of_transposed),
    _Product(_LONG, (32_767, 25), (32_767, 25), _of_transposed),
    _Product(f"{_LONG} in a batch", (2, 50_000, 20), (2, 50_000, 20), _of_transposed),
)


def check_products(device: torch.device, name: str) -> None:
    """Raise `InputError` where a product on that device is not the exact one; `name`: the model
    that was to go there.
    """
    generator = torch.Generator().manual_seed(0)
    for words, *sizes, multiply in _PRODUCTS:
        operands = [_whole_numbers(size, generator) for size in sizes]
        expected = multiply(*(operand.double() for operand in operands)).to(torch.int16)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            inputs, weights = (
                _inside_other_memory(operand.to(dtype), device) for operand in operands
            )
            for _ in range(2):  # a second call in 16 bits has been another
                if torch.equal(multiply(inputs, weights).cpu().to(torch.int16), expected):
                    continue
                raise InputError(
                    "expected exact products of small whole numbers on "
                    f"{device.type}, found a wrong one in {str(dtype).removeprefix('torch.')} "
                    f"({words}: {sizes}; torch {torch.__version__}): {name} would give silently "
                    "wrong numbers there; use device 'cpu', or a newer torch"
                )


def _whole_numbers(size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Numbers of {-1, 0, 1}, as few beside 0 as keep every partial sum below 256 (bfloat16 has all
    whole numbers to there).
    """
    terms = max(size)
    nonzero = min(1.0, (400 / terms) ** 0.5)
    signs = torch.randint(0, 2, size, generator=generator) * 2 - 1
    return (signs * (torch.rand(size, generator=generator) < nonzero)).to(torch.int8)


def _inside_other_memory(operand: Tensor, device: torch.device) -> Tensor:
    """The operand on the device, with numbers other than 0 in the memory before and behind it."""
    margin = 4096
    memory = torch.full((operand.numel() + 2 * margin,), 3.0, dtype=operand.dtype)
    memory[margin:-margin] = operand.flatten()
    return memory.to(device)[margin:-margin].view(operand.shape)
