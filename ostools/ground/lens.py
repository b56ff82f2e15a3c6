"""Classes of TransformerLens and transformers by name, for annotations and `isinstance`, without
importing the libraries.

Importing them takes three seconds, which a refused option and a dry run do not need. A type checker
sees the classes themselves. At run time each name here is a class that has no instances before its
library is imported, and those of the library's class afterwards. Whoever makes one, or derives from
it, imports it from the library.
"""

from __future__ import annotations

import sys
from abc import ABCMeta
from typing import TYPE_CHECKING, cast

__all__ = [
    "BloomBlockBridge",
    "Cache",
    "Conv1D",
    "HookPoint",
    "JointQKVPositionEmbeddingsAttentionBridge",
    "MoEBridge",
    "PreTrainedConfig",
    "PreTrainedModel",
    "PreTrainedTokenizerBase",
    "TransformerBridge",
    "original_model",
]

if TYPE_CHECKING:
    from transformer_lens.hook_points import HookPoint
    from transformer_lens.model_bridge import TransformerBridge
    from transformer_lens.model_bridge.generalized_components import (
        BloomBlockBridge,
        JointQKVPositionEmbeddingsAttentionBridge,
        MoEBridge,
    )
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
    from transformers.cache_utils import Cache
    from transformers.pytorch_utils import Conv1D
else:

    class _StandIn(ABCMeta):
        """Class of a class that stands for the one of the same name in `home`, a module that may
        not be imported.
        """

        home: str

        def __subclasscheck__(cls, kind: type) -> bool:
            library_class = getattr(sys.modules.get(cls.home), cls.__name__, None)
            return kind is cls or (library_class is not None and issubclass(kind, library_class))

    _COMPONENTS = "transformer_lens.model_bridge.generalized_components"
    for _home, _name in (
        ("transformer_lens.hook_points", "HookPoint"),
        ("transformer_lens.model_bridge.transformer_bridge", "TransformerBridge"),
        (f"{_COMPONENTS}.bloom_block", "BloomBlockBridge"),
        (
            f"{_COMPONENTS}.joint_qkv_position_embeddings_attention",
            "JointQKVPositionEmbeddingsAttentionBridge",
        ),
        (f"{_COMPONENTS}.moe", "MoEBridge"),
        ("transformers.configuration_utils", "PreTrainedConfig"),
        ("transformers.modeling_utils", "PreTrainedModel"),
        ("transformers.tokenization_utils_base", "PreTrainedTokenizerBase"),
        ("transformers.cache_utils", "Cache"),
        ("transformers.pytorch_utils", "Conv1D"),
    ):
        globals()[_name] = _StandIn(_name, (), {"home": _home, "__module__": _home})


def original_model(model: TransformerBridge) -> PreTrainedModel:
    """The Hugging Face model that a bridge computes with."""
    return cast("PreTrainedModel", model.original_model)
