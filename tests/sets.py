"""Which cases `make test` tries: the others are of the same law, and slow."""

from collections.abc import Iterable
from typing import Any

import pytest


def quick(values: Iterable[Any], *first: Any) -> list[Any]:
    """Every value, as `pytest.mark.parametrize` takes them; all but `first` are marked slow, and
    `first` has to be there.

    A tuple is a case of several arguments.
    """
    every = list(values)
    missing = [value for value in first if value not in every]
    assert missing == [], f"no such case: {missing}"
    cases = [value if isinstance(value, tuple) else (value,) for value in every]
    return [
        pytest.param(*case, marks=[] if value in first else pytest.mark.slow)
        for value, case in zip(every, cases, strict=True)
    ]
