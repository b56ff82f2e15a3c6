"""What is run in tests is held to its annotations: types, axes of tensors, results; also in
closures and dataclasses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from beartype import beartype
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from ostools.theory import distances
from tests import annotations

if TYPE_CHECKING:
    from nowhere import Unknown  # pyright: ignore[reportMissingImports]

checked = annotations._jaxtyped(typechecker=beartype)


@checked
def together(
    x: Float[Tensor, "n d"], y: Float[Tensor, "n d"], times: int = 1
) -> Float[Tensor, "n d"]:
    """The sum, of one row too few where `times` is 2."""
    return (x + y)[times - 1 :]


X = torch.ones(3, 2)


def test_what_is_not_as_annotated_is_refused() -> None:
    """A type, axes of one name, the number of axes, the kind of numbers, the axes of the result."""
    for given in ((X, X, 1.0), (X, X[:, :1]), (X, X[0]), (X.int(), X), (X, X, 2), (X, X, 2)):
        with pytest.raises(TypeCheckError):
            together(*given)


def test_of_a_closure_the_first_are_checked() -> None:
    def made() -> Any:
        @checked
        def closure(n: int) -> int:
            return n

        return closure

    for _ in range(annotations.CLOSURES):
        with pytest.raises(TypeCheckError):
            made()("one")
    assert made()("one") == "one"


def test_a_generator_and_a_dataclass_are_checked_and_an_unknown_name_is_not() -> None:
    @checked
    def count(n: int) -> Iterator[int]:
        yield n

    @checked
    @dataclass
    class Pair:
        n: int

    @checked
    def anything(n: Unknown, m: int) -> None: ...

    anything("whatever", 1)
    for call in (lambda: count("1"), lambda: Pair("1"), lambda: anything(1, "1")):
        with pytest.raises(TypeCheckError):
            call()


def test_the_functions_of_the_house_are_checked() -> None:
    with pytest.raises(TypeCheckError):
        distances.total_variation(torch.ones(3), torch.ones(4))
