"""Configurations of tiny models of every family, by name: what each has of its own, and how it
spells the sizes of all.
"""

from typing import Any

import transformers
from transformers import PreTrainedConfig


def _alternating(settings: dict[str, Any]) -> list[str]:
    """Windows in every other layer, the first among them."""
    layers = range(settings["num_hidden_layers"])
    return ["full_attention" if layer % 2 else "sliding_attention" for layer in layers]


_TIED: dict[str, Any] = {"tie_word_embeddings": True}
_WINDOWS: dict[str, Any] = {
    "sliding_window": lambda settings: settings["window"],
    "layer_types": _alternating,
    "query_pre_attn_scalar": lambda settings: 2 * settings["head_dim"],
}

FIRST: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma": ("Gemma", _TIED),
    # Soft-caps low enough to matter.
    "gemma2": (
        "Gemma2",
        {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0, **_WINDOWS, **_TIED},
    ),
    "gemma3": ("Gemma3Text", _WINDOWS | _TIED),
    "llama": ("Llama", {}),
    "gpt2": ("GPT2", _TIED),
}
"""The families that most tests walk: as `OTHERS`, which one law file walks."""

OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("Mistral", {"sliding_window": 5}),
    "qwen2": ("Qwen2", {}),
    "qwen2-windows": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {}),
    "phi3": ("Phi3", {"sliding_window": 5}),
    "olmo2": ("Olmo2", {}),
    "olmo3": ("Olmo3", {"sliding_window": 5, "layer_types": _alternating}),
    "granite": (
        "Granite",
        {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.2,
            "logits_scaling": 2.0,
        },
    ),
    "neox": ("GPTNeoX", {"rotary_pct": 0.25}),
    "neox-sequential": ("GPTNeoX", {"rotary_pct": 0.25, "use_parallel_residual": False}),
    "phi": ("Phi", {"partial_rotary_factor": 0.5}),
    "falcon": ("Falcon", {"multi_query": True, "bias": False}),
    "bloom": ("Bloom", {}),
    "mpt": ("Mpt", {}),
    "starcoder2": ("Starcoder2", {"sliding_window": 5, "norm_epsilon": 1e-3}),
    "stablelm": ("StableLm", {"partial_rotary_factor": 0.5}),
    "stablelm-parallel": (
        "StableLm",
        {"partial_rotary_factor": 0.5, "use_parallel_residual": True},
    ),
    "mixtral": ("Mixtral", {"num_local_experts": 4}),
    "gpt-oss": (
        "GptOss",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 5,
            "layer_types": _alternating,
        },
    ),
    "olmoe": ("Olmoe", {"num_experts": 4, "num_experts_per_tok": 2}),
    "qwen3-moe": (
        "Qwen3Moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    ),
}
"""Name -> the configuration's class in transformers (without "Config"), and settings of its own; a
function makes one from the sizes."""

REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "falcon-alibi": (
        "Falcon",
        {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
    ),
    "falcon-40b": ("Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "phi-qk-norm": ("Phi", {"qk_layernorm": True}),
    "stablelm-qk-norm": ("StableLm", {"qk_layernorm": True}),
}
"""The same of models that `load_model` refuses, because TransformerLens does not compute what
Hugging Face computes.
"""

SLOW = ("olmo3", "granite", "gpt-oss")
"""Families of which one law is in the quick set, and all are in the slow one."""

NOT_EAGER = ("olmo2", "olmo3")
EXPERTS = ("gpt-oss", "mixtral", "olmoe", "qwen3-moe")

_ONE_WIDTH: dict[str, str | None] = {"num_key_value_heads": None, "head_dim": None}
_GPT: dict[str, str | None] = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    **_ONE_WIDTH,
}
_SPELLINGS: dict[str, dict[str, str | None]] = {
    "GPT2": _GPT | {"pad_token_id": None},
    "GPTNeoX": _ONE_WIDTH,
    "Falcon": _ONE_WIDTH | {"intermediate_size": "ffn_hidden_size"},
    "Bloom": _GPT
    | {
        "hidden_size": "hidden_size",
        "intermediate_size": None,
        "max_position_embeddings": "seq_length",
    },
    "Mpt": _GPT
    | {"hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
    | {"intermediate_size": None, "max_position_embeddings": "max_seq_len"},
    **{
        key: {"head_dim": None}
        for key in (
            "Qwen2",
            "Phi3",
            "Phi",
            "Olmo2",
            "Olmo3",
            "Granite",
            "Olmoe",
            "Starcoder2",
            "StableLm",
        )
    },
}
"""How a family's configuration spells a size; None: it has no such setting."""


def architecture(family: str) -> str:
    """The class of a family's model in transformers."""
    name = (FIRST | OTHERS | REFUSED)[family][0].removesuffix("Text")
    return "GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM"


def named_config(
    family: str, settings: dict[str, Any], overrides: dict[str, Any]
) -> PreTrainedConfig:
    """The configuration of a family from sizes in Llama's spelling (and its "window"), and the
    family's own `overrides`.
    """
    name, own = (FIRST | OTHERS | REFUSED)[family]
    spelling = _SPELLINGS.get(name, {}) | {"window": None}
    named = ((spelling.get(key, key), value) for key, value in settings.items())
    spelled = {key: value for key, value in named if key is not None}
    own = {key: value(settings) if callable(value) else value for key, value in own.items()}
    return getattr(transformers, f"{name}Config")(
        **(spelled | {"tie_word_embeddings": False} | own | overrides)
    )
