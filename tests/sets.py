"""Which cases `make test` tries: the others are of the same law, and slow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def quick(values: Iterable[Any], *first: Any) -> list[Any]:
    """Every value, as `pytest.mark.parametrize` takes them; all but `first` are marked slow, and `first` has to be there."""
    every = list(values)
    missing = [value for value in first if value not in every]
    assert missing == [], f"no such case: {missing}"
    return [value if value in first else pytest.param(value, marks=pytest.mark.slow) for value in every]
