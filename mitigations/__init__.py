"""Mitigations: prompt rewrites, changes of the forward pass, or both, which show that
they acted.
"""

from ostools.mitigations.base import (
    Bar,
    Composed,
    Mitigation,
    MitigationError,
    acts,
    changes_pass,
    compose,
    insert,
    parts,
    rewrite,
    running,
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
