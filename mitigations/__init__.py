"""Mitigations: prompt rewrites, changes of the forward pass, or both, which show that
they acted.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ostools.mitigations.base import (
    Bar,
    Composed,
    Mitigation,
    MitigationError,
    compose,
    insert,
    parts,
    rewrite,
)
from ostools.mitigations.named import BUILT_IN, label, mitigation, names, optional
from ostools.mitigations.passes import AttentionTemperature, SlidingWindow
from ostools.mitigations.prompts import (
    Hint,
    Interleave,
    Partition,
    RepeatPrompt,
    Separator,
)

# Loaded on first use: they run a model, so they import torch; a name with its options needs none.
if TYPE_CHECKING:
    from ostools.mitigations.contract import acts as acts
    from ostools.mitigations.contract import changes_pass as changes_pass
    from ostools.mitigations.contract import running as running

__all__ = [
    "BUILT_IN",
    "AttentionTemperature",
    "Bar",
    "Composed",
    "Hint",
    "Interleave",
    "Mitigation",
    "MitigationError",
    "Partition",
    "RepeatPrompt",
    "Separator",
    "SlidingWindow",
    "acts",
    "changes_pass",
    "compose",
    "insert",
    "label",
    "mitigation",
    "names",
    "optional",
    "parts",
    "rewrite",
    "running",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'mitigations' has no attribute {name!r}")
    return getattr(importlib.import_module("ostools.mitigations.contract"), name)
