"""Things that may help: each a prompt rewrite, a change of the forward pass, or both, with a proof that it acted."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mitigations.base import Composed as Composed
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
from mitigations.prompts import Hint as Hint
from mitigations.prompts import Interleave as Interleave
from mitigations.prompts import RepeatPrompt as RepeatPrompt
from mitigations.prompts import Separator as Separator

if TYPE_CHECKING:
    from mitigations.contract import acts as acts
    from mitigations.contract import changes_pass as changes_pass
    from mitigations.contract import running as running
    from mitigations.temperature import AttentionTemperature as AttentionTemperature
    from mitigations.upcast import Upcast as Upcast
    from mitigations.window import SlidingWindow as SlidingWindow

# They change a forward pass, so they import torch: a prompt rewrite should not have to wait for it.
_HOME = {
    "AttentionTemperature": "mitigations.temperature",
    "SlidingWindow": "mitigations.window",
    "Upcast": "mitigations.upcast",
    "acts": "mitigations.contract",
    "changes_pass": "mitigations.contract",
    "running": "mitigations.contract",
}

__all__ = [
    "BUILT_IN",
    "AttentionTemperature",
    "Composed",
    "Hint",
    "Interleave",
    "Mitigation",
    "MitigationError",
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
    "parts",
    "rewrite",
    "running",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'mitigations' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
