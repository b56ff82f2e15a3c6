"""Models: load one that can be trusted, turn text into its tokens, say what it is, read it in another dtype, compare it with
an untrained model."""

from ostools import hooks  # noqa: F401 -- first: it keeps transformers' log level, which TransformerLens' import changes
from ostools.models.adopted.adopt import adopt
from ostools.models.chat import ORIGINS, Chat
from ostools.models.describe import ModelDescription, describe
from ostools.models.load import load_model
from ostools.models.precision.casting import view_in
from ostools.models.tokens import Prompt, context_length, encode
from ostools.models.untrained import untrained_model

__all__ = [
    "ORIGINS",
    "Chat",
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
