"""What is made of TransformerLens' own classes, and those classes. Importing it imports
TransformerLens, in three seconds.
"""

# ruff: noqa: E402
from transformers.utils import logging as _transformers_logging

# TransformerLens 4.3 sets transformers' log level to ERROR for the whole process when it is
# imported (model_bridge/sources/transformers/source.py). The level is the user's: it is put back.
_level = _transformers_logging.get_verbosity()
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.architecture_adapter import ArchitectureAdapter
from transformer_lens.model_bridge.generalized_components import BlockBridge
from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent
from transformer_lens.model_bridge.sources import (
    build_bridge_from_module,
    detect_tokenizer_bos_eos,
)

_transformers_logging.set_verbosity(_level)

__all__ = [
    "ArchitectureAdapter",
    "BlockBridge",
    "GeneralizedComponent",
    "HookPoint",
    "TransformerBridge",
    "TransformerBridgeConfig",
    "build_bridge_from_module",
    "detect_tokenizer_bos_eos",
]
