"""Models: load one that can be trusted, turn text into its tokens, say what it is, read it in another dtype, compare it with
an untrained model."""

from ostools.models.adopt import adopt as adopt
from ostools.models.chat import ORIGINS as ORIGINS
from ostools.models.chat import Chat as Chat
from ostools.models.describe import ModelDescription as ModelDescription
from ostools.models.describe import describe as describe
from ostools.models.load import load_model as load_model
from ostools.models.precision.casting import view_in as view_in
from ostools.models.tokens import Prompt as Prompt
from ostools.models.tokens import context_length as context_length
from ostools.models.tokens import encode as encode
from ostools.models.untrained import untrained_model as untrained_model

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
