"""The sizes of a model that decide what computing with it takes: of a loaded one, or by its
configuration before that; and the device that it is on."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from ostools.ground import (
    InputError,
    PreTrainedConfig,
    TransformerBridge,
    original_model,
    unknown_name,
)
from ostools.models.families import family_of_config
from ostools.models.lazy_cast import BLOCK, SMALL_WEIGHT, LazyCast

_EXPLICIT = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)
"""Settings that say every size of a decoder; one that is left out has a default of its class in
transformers.
"""
_Settings = PreTrainedConfig | SimpleNamespace


@dataclass(frozen=True)
class Shape:
    """A decoder in numbers. `gated`: its MLP has W_gate and W_up; `element`: bytes of one of its
    numbers; `cast`: they are made where they are read, of numbers of another dtype
    (`models.view_in`); `context`: the longest prompt."""

    n_layers: int
    d_model: int
    n_heads: int
    n_key_value_heads: int
    d_head: int
    d_mlp: int
    d_vocab: int
    gated: bool
    element: int
    device: str
    cast: bool = False
    context: int = 0

    @classmethod
    def of(cls, model: TransformerBridge) -> "Shape":
        """Shape of a loaded model, on its device and in its dtype, as they are now."""
        like = next(model.parameters())
        is_cast = any(isinstance(weight, LazyCast) for weight in model.parameters())
        config = original_model(model).config
        return cls.of_config(config, like.dtype, like.device.type, cast=is_cast)

    @classmethod
    def of_config(
        cls, config: _Settings, dtype: torch.dtype, device: str, *, cast: bool = False
    ) -> "Shape":
        """Shape by a Hugging Face configuration, or by its settings alone, for a model in `dtype`
        on that kind of device.
        """
        if isinstance(config, PreTrainedConfig):
            config = config.get_text_config()
            family = family_of_config(config.to_dict())
        else:
            family = family_of_config(vars(config))
        d_model = int(config.hidden_size)
        n_heads = _first_setting(config, "num_attention_heads") or 1
        key_value_heads = _first_setting(config, "num_key_value_heads", "num_kv_heads")
        # Falcon's new architecture has groups, whatever its setting `multi_query` says.
        has_groups = getattr(config, "new_decoder_architecture", False)
        has_one = getattr(config, "multi_query", False) and not has_groups
        return cls(
            n_layers=int(config.num_hidden_layers),
            d_model=d_model,
            n_heads=n_heads,
            n_key_value_heads=1 if has_one else key_value_heads or n_heads,
            d_head=_first_setting(config, "head_dim") or d_model // n_heads,
            d_mlp=_d_mlp(config) or 4 * d_model,
            d_vocab=int(config.vocab_size),
            gated=family is None or family.mlp != "plain",
            element=dtype.itemsize,
            device=device,
            cast=cast,
            context=context(config),
        )

    @classmethod
    def of_settings(
        cls, settings: Mapping[str, object], dtype: torch.dtype, device: str
    ) -> "Shape | None":
        """Shape by a config.json that leaves no size to transformers, which is then not imported;
        None for any other.
        """
        family = family_of_config(settings)
        is_closed = family is None or family.generic_instead or family.mlp == "experts"
        if is_closed or not settings.keys() >= {*_EXPLICIT}:
            return None
        return cls.of_config(SimpleNamespace(**settings), dtype, device)

    @property
    def block_parameters(self) -> int:
        """Parameters of the matrices of one block."""
        attention = self.d_model * self.d_head * (2 * self.n_heads + 2 * self.n_key_value_heads)
        return attention + (3 if self.gated else 2) * self.d_model * self.d_mlp

    def view_bytes(self, element: int) -> int:
        """Bytes that reading the weights as numbers of `element` bytes takes (`view_in`).

        Small ones are all cast; of large ones the largest part at a time, a matrix of a block or a
        part of the unembedding.
        """
        matrix = self.d_model * max(self.d_mlp, self.n_heads * self.d_head) * element
        table = self.d_vocab * self.d_model * element
        if max(matrix, table) <= SMALL_WEIGHT:
            return self.parameters * element
        return max(matrix, min(table, BLOCK) if self.device == "cpu" else table)

    @property
    def parameters(self) -> int:
        """Parameters of all blocks and of one embedding: those that a token is multiplied with."""
        return self.n_layers * self.block_parameters + self.d_vocab * self.d_model


def setting(config: _Settings, name: str) -> Any:
    """A setting of a configuration; None where it has none, and where layers have several."""
    try:
        return getattr(config, name, None)
    except Exception:  # transformers' own, of a setting that each layer has for itself
        return None


def _first_setting(config: _Settings, *names: str) -> int | None:
    """The first of these settings that a configuration has; of a list the largest."""
    for name in names:
        if value := setting(config, name):
            return max(value) if isinstance(value, list) else int(value)
    return None


def _d_mlp(config: _Settings) -> int | None:
    """Hidden units of an MLP; of experts, of those that a token goes through."""
    names = ("intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim")
    active = getattr(config, "num_experts_per_tok", None)
    if active is None:
        return _first_setting(config, *names)
    width = _first_setting(config, "moe_intermediate_size", "intermediate_size")
    return int(active) * (width or 4 * int(config.hidden_size))


def context(config: _Settings) -> int:
    """The longest prompt; a configuration that sets none (Bloom) is taken at what TransformerLens
    takes it at, 2048.
    """
    names = ("max_position_embeddings", "max_seq_len", "seq_length", "context_length")
    return _first_setting(config, *names) or 2048


def soft_cap_of(config: _Settings) -> float | None:
    """Bound of the logits of a model with that configuration; None where it has none."""
    names = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
    return next(
        (float(value) for name in names if (value := setting(config, name)) is not None), None
    )


def resolve_device(device: str | torch.device) -> torch.device:
    """The torch device of a name, a CPU's or a CUDA GPU's; "auto": cuda if there is one.

    No others: mps lacks float64, which formulas and references need, and multiplies some sizes
    wrongly without a word (pytorch issues 116769, 161640, 180776, 189495, 193487, 195163).
    """
    gpus = torch.cuda.device_count()
    if device == "auto":
        return torch.device("cuda" if gpus else "cpu")
    try:
        torch_device = torch.device(device)
    except (RuntimeError, TypeError):
        raise unknown_name("device", device, ("auto", "cpu", "cuda")) from None
    if (torch_device.index or 0) >= {"cpu": 1, "cuda": gpus}.get(torch_device.type, 0):
        raise InputError(
            f"expected an available device, found {str(device)!r} on a machine with {gpus} cuda "
            "devices: use device 'auto' or 'cpu'"
        )
    return torch_device
