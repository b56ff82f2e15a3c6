"""Mitigations: prompt rewrites, changes of the forward pass, or both, which show that they acted."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mitigations.base import Composed as Composed
from mitigations.base import Label as Label
from mitigations.base import Mitigation as Mitigation
from mitigations.base import MitigationError as MitigationError
from mitigations.base import compose as compose
from mitigations.base import insert as insert
from mitigations.base import parts as parts
from mitigations.base import rewrite as rewrite
from mitigations.named import BUILT_IN as BUILT_IN
from mitigations.named import label as label
from mitigations.named import mitigation as mitigation
from mitigations.named import names as names
from mitigations.named import optional as optional
from mitigations.prompts import Hint as Hint
from mitigations.prompts import Interleave as Interleave
from mitigations.prompts import Numbered as Numbered
from mitigations.prompts import PositionalHint as PositionalHint
from mitigations.prompts import RepeatPrompt as RepeatPrompt
from mitigations.prompts import Separator as Separator
from mitigations.temperature import AttentionTemperature as AttentionTemperature
from mitigations.upcast import Upcast as Upcast
from mitigations.window import SlidingWindow as SlidingWindow

if TYPE_CHECKING:  # loaded on first use: they run a model, so they import torch, and a name with its options needs none
    from mitigations.contract import acts as acts
    from mitigations.contract import changes_pass as changes_pass
    from mitigations.contract import running as running

__all__ = [
    "BUILT_IN",
    "AttentionTemperature",
    "Composed",
    "Hint",
    "Interleave",
    "Label",
    "Mitigation",
    "MitigationError",
    "Numbered",
    "PositionalHint",
    "RepeatPrompt",
    "Separator",
    "SlidingWindow",
    "Upcast",
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


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'mitigations' has no attribute {name!r}")
    return getattr(importlib.import_module("mitigations.contract"), name)
