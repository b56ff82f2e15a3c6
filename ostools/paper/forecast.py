"""What a measurement of `ostools.measure` holds in memory, for what is made of measurements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ostools as ost
from ostools.measure import Unloaded


def bytes_of(measure: Callable[..., Any], model: Unloaded, *args: Any, **options: Any) -> int:
    """Bytes that `measure`, a measurement, would hold beside a model that is not loaded yet."""
    memory = ost.measure.RECORDS[measure.__name__].memory
    if memory is None:
        raise ValueError(f"{measure.__name__} has no forecast")
    return memory()(model, *args, **options)
