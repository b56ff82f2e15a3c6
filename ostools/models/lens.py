"""What is made of TransformerLens' own classes, and those classes. Importing it imports
TransformerLens, in three seconds.

Classes that go before its attention in a 16-bit model, and transformers' attention with float32
scores: what they compute, and why, says `models/precision/scores.py`.
"""

# ruff: noqa: E402
import sys
from typing import cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask
from transformers.utils import logging as _transformers_logging

# TransformerLens 4.3 sets transformers' log level to ERROR for the whole process when it is
# imported (model_bridge/sources/transformers/source.py). The level is the user's: it is put back.
_level = _transformers_logging.get_verbosity()
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.architecture_adapter import ArchitectureAdapter
from transformer_lens.model_bridge.generalized_components import (
    AttentionBridge,
    BlockBridge,
    EmbeddingBridge,
    JointQKVAttentionBridge,
    JointQKVPositionEmbeddingsAttentionBridge,
)
from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent
from transformer_lens.model_bridge.sources import (
    build_bridge_from_module,
    detect_tokenizer_bos_eos,
)

_transformers_logging.set_verbosity(_level)

from ostools.hooks import SIXTEEN_BITS
from ostools.hooks.precision import cast_mask

__all__ = [
    "ArchitectureAdapter",
    "BlockBridge",
    "EmbeddingBridge",
    "GeneralizedComponent",
    "HookPoint",
    "TransformerBridge",
    "TransformerBridgeConfig",
    "build_bridge_from_module",
    "detect_tokenizer_bos_eos",
]

FLOAT32_SCORES = "ostools-float32-scores"
"""transformers' name for its eager attention with this arithmetic (`AttentionInterface`)."""

_HeadsAndSizes = tuple[Tensor, Tensor, Tensor, int, int, int]
"""q, k, v by heads; prompts, tokens, width of a head."""


class Float32Scores(AttentionBridge):
    """Goes before a class of TransformerLens' attention, of which it widens what enters the scores
    and rounds z.

    `eager`: nothing of that. `delegates`: Hugging Face's module computes, as it would without
    TransformerLens, and no hook inside it is called (`own_attention`). `can_delegate`: that has
    been seen to give the same model.
    """

    eager = False
    delegates = False
    can_delegate = False

    @property
    def narrow(self) -> torch.dtype | None:
        """The 16-bit dtype of q, k, v and z; None in another dtype, and if eager."""
        output = cast(nn.Module, cast(GeneralizedComponent, self.o).original_component)
        weight = cast(Tensor, output.weight)
        return weight.dtype if weight.dtype in SIXTEEN_BITS and not self.eager else None

    def widened(self, x: Tensor) -> Tensor:
        """Queries, keys or values as the model's dtype holds them, in float32."""
        return x if self.narrow is None else x.to(self.narrow).float()

    def forward(self, *args: object, **kwargs: object) -> object:
        if self.delegates:
            return cast(nn.Module, self.original_component)(*args, **kwargs)
        if self.narrow is not None:
            mask, alibi = kwargs.get("attention_mask"), kwargs.get("alibi")
            if isinstance(mask, Tensor):
                kwargs["attention_mask"] = cast_mask(mask, torch.float32)
            if isinstance(alibi, Tensor):
                kwargs["alibi"] = alibi.float()
        return super().forward(*args, **kwargs)

    # Every class of TransformerLens passes this between the rotation and the scores. The cache
    # keeps 16 bits.
    def _update_kv_cache(self, k: Tensor, v: Tensor, **kwargs: object) -> tuple[Tensor, Tensor]:
        keys, values = super()._update_kv_cache(
            k if self.narrow is None else k.to(self.narrow), v, **kwargs
        )
        return self.widened(keys), self.widened(values)


class _Joint(Float32Scores):
    """Of one weight for q, k and v."""

    def _reshape_attn_output(self, attn_output: Tensor, *sizes: int) -> Tensor:
        z = super()._reshape_attn_output(attn_output, *sizes)
        return z if self.narrow is None else z.to(self.narrow)


class _JointPlain(_Joint):
    """Without a rotation."""

    def _reshape_qkv_to_heads(
        self, q: Tensor, k: Tensor, v: Tensor, num_heads: int, num_kv_heads: int | None = None
    ) -> _HeadsAndSizes:
        parts = super()._reshape_qkv_to_heads(q, k, v, num_heads, num_kv_heads)
        return self.widened(parts[0]), *parts[1:]


class _JointRotated(_Joint):
    """With a rotation, which computes in the model's dtype."""

    def _apply_rotary_pos_emb(self, q: Tensor, k: Tensor, *angles: Tensor) -> tuple[Tensor, Tensor]:
        parent = cast(JointQKVPositionEmbeddingsAttentionBridge, super())
        q, k = parent._apply_rotary_pos_emb(q, k, *angles)
        return self.widened(q), k


class _LastOfQueries(HookPoint):
    """The last hook point of queries, which hands them over in float32 after all hooks have seen
    them.
    """

    _reader: tuple[Float32Scores]
    """In a tuple, in which it is no part of the hook point."""

    def __call__(self, x: Tensor) -> Tensor:
        return self._reader[0].widened(super().__call__(x))


def put_before(attention: AttentionBridge) -> None:
    """Put the class that fits before the attention's own. TransformerLens' rotated attention rounds
    z by itself.
    """
    kind, before = type(attention), Float32Scores
    if issubclass(kind, JointQKVPositionEmbeddingsAttentionBridge):
        before = _JointRotated
    elif issubclass(kind, JointQKVAttentionBridge):
        before = _JointPlain
    else:
        point = getattr(attention, "hook_rot_q", None) or cast(HookPoint, attention.q.hook_out)
        point.__class__ = _LastOfQueries
        cast(_LastOfQueries, point)._reader = (cast(Float32Scores, attention),)
    attention.__class__ = cast(type[AttentionBridge], type(kind.__name__, (before, kind), {}))


def _with_float32_scores(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: object,
) -> tuple[Tensor, Tensor]:
    """The eager attention of the module's own file in transformers (soft-caps, sinks), in float32;
    z in the query's dtype.
    """
    eager = sys.modules[type(module).__module__].eager_attention_forward
    mask = None if attention_mask is None else cast_mask(attention_mask, torch.float32)
    z, pattern = eager(module, query.float(), key.float(), value.float(), mask, **options)
    return z.to(query.dtype), pattern


AttentionInterface.register(FLOAT32_SCORES, _with_float32_scores)
AttentionMaskInterface.register(FLOAT32_SCORES, eager_mask)
