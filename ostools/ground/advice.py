"""Advice that fits a call: what of its arguments could be less."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any

_SEVERAL = (
    "lengths",
    "seeds",
    "samples",
    "prompts",
    "linearisations",
    "layers",
    "variants",
    "dtypes",
    "windows",
    "orders",
    "mitigations",
)
"""Arguments that hold several things, each of which takes time of its own."""


def cheaper_ways(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Ways to a call that takes less time, in words; `arguments` of a measurement by name, defaults too."""
    if arguments.get("prompt") is not None:
        yield "a shorter prompt"
    yield from (f"fewer {name}" for name in _SEVERAL if name in arguments and _is_several(arguments[name]))
    # Of a logit there is one row: it is exact. "auto" is a sketch above d_model 256, where it matters.
    if (
        "cotangents" in arguments
        and arguments.get("method") in ("exact", "estimate")
        and arguments.get("logit") is None
    ):
        yield "method='sketch'"
    if "max_new_tokens" in arguments:
        yield "a smaller max_new_tokens"


def shorter_ways(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Ways to a call that takes less memory, in words."""
    if any(arguments.get(name) is not None for name in ("prompt", "prompts")):
        yield "shorten the prompt"
    if "lengths" in arguments:
        yield "take shorter lengths"


def _is_several(value: Any) -> bool:
    """Whether an argument holds more than one thing; None stands for all that there are, or for a default of several."""
    if isinstance(value, str):
        return value == "all"
    if isinstance(value, int):
        return value > 1
    return not isinstance(value, Sized) or len(value) > 1
