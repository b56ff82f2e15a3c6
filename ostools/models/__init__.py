"""Models: load one that can be trusted, turn text into its tokens, say what it is, read it in
another dtype, compare it with an untrained model."""

import importlib
from typing import TYPE_CHECKING

from ostools.models.chat import ORIGINS, Chat
from ostools.models.describe import ModelDescription, describe
from ostools.models.tokens import EncodingOptions, Prompt, context_length, encode

if TYPE_CHECKING:
    from ostools.models.adopted import adopt
    from ostools.models.load import load_model
    from ostools.models.precision.casting import view_in
    from ostools.models.untrained import untrained_model

_LATER = {
    "adopt": "ostools.models.adopted",
    "load_model": "ostools.models.load",
    "untrained_model": "ostools.models.untrained",
    "view_in": "ostools.models.precision.casting",
}
"""Module of each function that is imported when it is first used: some import transformers and
TransformerLens, in seconds.
"""

__all__ = [
    "ORIGINS",
    "Chat",
    "EncodingOptions",
    "ModelDescription",
    "Prompt",
    "adopt",
    "context_length",
    "describe",
    "encode",
    "load_model",
    "untrained_model",
    "view_in",
]


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
