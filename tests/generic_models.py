"""Tiny configurations of model types that no record of a family describes: `GENERIC`, by
`model_type`.
"""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

COMMON: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 268,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 1,
}
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_LATENT: dict[str, Any] = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "num_key_value_heads": 4,
}
_DELTA: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
    "head_dim": 8,
}
_MAMBA_2: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 16,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
}
GENERIC: dict[str, dict[str, Any]] = {
    "apertus": {},
    "arcee": {},
    "bamba": {**_MAMBA_2, "attn_layer_indices": [1]},
    "biogpt": {},
    "bitnet": {},
    "codegen": {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "n_positions": 256},
    "cohere": {"logit_scale": 0.25},
    "cohere2": {"logit_scale": 0.25},
    "cwm": {"head_dim": 8},
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "diffllama": {},
    "doge": {},
    "dots1": {**_LATENT, "head_dim": 8},
    "ernie4_5": {"head_dim": 8},
    "exaone4": {"head_dim": 8},
    "falcon_h1": {**_MAMBA_2, "mamba_d_ssm": 64, "head_dim": 8, "lm_head_multiplier": 0.5},
    "falcon_mamba": {"state_size": 8},
    "gemma4_text": {"head_dim": 8, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0},
    "glm": {"head_dim": 8},
    "glm4": {"head_dim": 8},
    "gpt_bigcode": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "gpt_neo": {
        "num_layers": 2,
        "num_heads": 4,
        "num_key_value_heads": 4,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 5,
    },
    "gpt_oss": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "head_dim": 8,
        "sliding_window": 5,
    },
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "n_positions": 256},
    "granite": {"logits_scaling": 4.0, "residual_multiplier": 0.5, "embedding_multiplier": 3.0},
    "granitemoe": {"num_local_experts": 4, "num_experts_per_tok": 2, "logits_scaling": 4.0},
    "granitemoehybrid": {
        **_MAMBA_2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 24,
        "layer_types": ["mamba", "attention"],
    },
    "helium": {"head_dim": 8},
    "hunyuan_v1_dense": {"head_dim": 8},
    "jamba": {
        "num_experts": 2,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
    },
    "jetmoe": {"num_local_experts": 4, "num_experts_per_tok": 2, "kv_channels": 8},
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_multiple_of": 8},
    "mamba": {"state_size": 8},
    "mamba2": {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8},
    "minimax": {
        "num_local_experts": 4,
        "layer_types": ["linear_attention", "full_attention"],
        "head_dim": 8,
    },
    "ministral": {"head_dim": 8, "sliding_window": 5},
    "nanochat": {"head_dim": 8},
    "nemotron": {"head_dim": 8},
    "nemotron_h": {
        "layers_block_type": ["mamba", "attention"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "ssm_state_size": 8,
        "n_groups": 1,
        "head_dim": 8,
        "chunk_size": 8,
    },
    "olmo": {},
    "olmo3": {"sliding_window": 5},
    "olmo_hybrid": _DELTA,
    "openai-gpt": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32, "num_key_value_heads": 4},
    "persimmon": {},
    "phimoe": {"num_local_experts": 4},
    "qwen2_moe": {**_EXPERTS, "shared_expert_intermediate_size": 24},
    "qwen3_5_text": _DELTA,
    "qwen3_5_moe_text": {**_DELTA, **_EXPERTS, "shared_expert_intermediate_size": 24},
    "qwen3_next": {**_DELTA, **_EXPERTS, "shared_expert_intermediate_size": 24},
    "recurrent_gemma": {
        "lru_width": 32,
        "attention_window_size": 16,
        "num_hidden_layers": 3,
        "head_dim": 8,
    },
    "rwkv": {"attention_hidden_size": 32, "context_length": 256},
    "seed_oss": {"head_dim": 8},
    "smollm3": {},
    "stablelm": {},
    "starcoder2": {},
    "vaultgemma": {"head_dim": 8},
    "xglm": {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48},
    "xlstm": {"num_heads": 4, "num_blocks": 2},
    "zamba2": {
        "mamba_d_state": 8,
        "n_mamba_heads": 8,
        "chunk_size": 8,
        "layers_block_type": ["mamba", "hybrid"],
    },
}


def generic_model(kind: str, seed: int = 1) -> PreTrainedModel:
    """A random Hugging Face model of that type, in float32 and eval mode, with weights that are no
    constants.
    """
    torch.manual_seed(seed)
    own = {} if "n_embd" in GENERIC[kind] else COMMON
    tokens = {
        name: COMMON[name]
        for name in ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")
    }
    config = AutoConfig.for_model(kind, **{**own, **tokens, **GENERIC[kind]})
    model = (
        AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        .eval()
        .requires_grad_(False)
    )
    for weight in model.parameters():
        weight.add_(torch.randn_like(weight) * (0.1 if weight.ndim == 1 else 0.05))
    return model
