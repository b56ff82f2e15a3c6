"""Typing leaks nothing: a short run of `python -m stress explorer`, in one view."""

from __future__ import annotations

import pytest

from stress.explorer import typed
from stress.memory import GROWTH, growth


@pytest.mark.slow
def test_what_the_explorer_holds_does_not_grow_with_what_is_typed() -> None:
    curve, errors = typed(60, 0, ({"view": "attention"},))
    assert errors == []
    assert growth(curve) < GROWTH
