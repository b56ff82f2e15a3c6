"""The check of a device's products: an exact one passes, and each known fault, put into torch on
the CPU, is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import ostools as ost
from ostools.ground.errors import InputError
from ostools.models.precision import products
from tests.checkpoints import write_checkpoint

CPU = torch.device("cpu")
_MATMUL, _LINEAR = torch.Tensor.matmul, functional.linear


def _past_long_sums(left: Tensor, right: Tensor) -> Tensor:
    """What the memory behind the operands holds joins sums of 32,767 terms: 0 in fresh memory, 9
    here.
    """
    if left.shape[-1] < 32_767:
        return _MATMUL(left, right)
    behind = left.as_strided((1,), (1,), left.storage_offset() + left.numel())
    return _MATMUL(left, right) + behind.square()


def _of_a_transposed_left(left: Tensor, right: Tensor) -> Tensor:
    return _MATMUL(left, right) if left.is_contiguous() else _MATMUL(-left, right)


def _of_transposed_keys(left: Tensor, right: Tensor) -> Tensor:
    return (
        _MATMUL(left, right) if right.is_contiguous() else _MATMUL(left, right) + right[..., :1, :]
    )


def _past_many_columns(left: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product = _LINEAR(left, weight, bias)
    return (
        product.index_fill(-1, torch.arange(1024, len(weight)), 7)
        if len(weight) > 32_768
        else product
    )


def _past_many_rows(left: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product = _LINEAR(left, weight, bias)
    return (
        torch.cat([product[-1:], product[1:]])
        if bias is not None and len(product) > 65_536
        else product
    )


def _of_a_transposed_weight(left: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return _LINEAR(left, weight if weight.is_contiguous() else weight.contiguous().roll(1, 0), bias)


def _at_a_second_call() -> Callable[..., Tensor]:
    calls: list[int] = []

    def linear(left: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if left.dtype is torch.bfloat16:
            calls.append(1)
        return _LINEAR(left, weight, bias) + (len(calls) == 2)

    return linear


FAULTS: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "sums of more than 32,766 terms": ("matmul", _past_long_sums),
    "a transposed left operand": ("matmul", _of_a_transposed_left),
    "queries and transposed keys": ("matmul", _of_transposed_keys),
    "an output layer of more than": ("linear", _past_many_columns),
    "past 65,536 rows": ("linear", _past_many_rows),
    "weight is a transposed view": ("linear", _of_a_transposed_weight),
    "a linear layer of a batch": ("linear", _at_a_second_call()),
}


def _break(monkeypatch: pytest.MonkeyPatch, operation: str, faulty: Callable[..., Tensor]) -> None:
    """In every dtype that a device computes in; float64 is the reference."""
    own = _MATMUL if operation == "matmul" else _LINEAR

    def replaced(left: Tensor, *others: Any) -> Tensor:
        return (own if left.dtype is torch.float64 else faulty)(left, *others)

    if operation == "matmul":
        monkeypatch.setattr(torch.Tensor, "__matmul__", replaced)
    else:
        monkeypatch.setattr(functional, "linear", replaced)


def test_right_products_pass() -> None:
    products.check_products(CPU, "it")


@pytest.mark.parametrize("words", FAULTS)
def test_a_wrong_product_is_named(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _break(monkeypatch, *FAULTS[words])
    with pytest.raises(InputError, match=words):
        products.check_products(CPU, "it")


def test_a_model_is_refused_on_such_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path, "llama", seed=1)
    _break(monkeypatch, *FAULTS["sums of more than 32,766 terms"])
    ost.load_model(tmp_path, device="cpu")  # no product of its own is that long
    monkeypatch.setattr("ostools.models.load.CHECKED", ("cpu",))
    with pytest.raises(
        InputError, match=r"silently wrong numbers there; use device 'cpu', or a newer torch"
    ):
        ost.load_model(tmp_path, device="cpu")
