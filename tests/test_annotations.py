"""What is run in tests is held to its annotations: types, axes of tensors, kinds of numbers."""

from typing import Any

import pytest
import torch
from jaxtyping import TypeCheckError

from ostools.theory import distances

ONES = torch.ones(3)


@pytest.mark.parametrize("other", [torch.ones(4), torch.ones(3, 1), torch.ones(3).int(), 1.0])
def test_the_functions_of_the_house_are_checked(other: Any) -> None:
    with pytest.raises(TypeCheckError):
        distances.total_variation(ONES, other)
