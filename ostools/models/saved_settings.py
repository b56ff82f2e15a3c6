"""Settings of a configuration that say how some machine computed, and not which model it is: they never decide how we compute.

A config.json carries the attention kernel, the dtype, the cache, the outputs and the devices of whoever saved it. One list
names them; loading, adopting and forecasting all read a configuration through `without_saved`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KERNELS = ("attn_implementation", "experts_implementation")
SAVED = frozenset(
    {
        *_KERNELS,
        *(f"_{name}" for name in _KERNELS),
        *(f"_{name}_internal" for name in _KERNELS),
        *(
            "_attn_implementation_autoset",
            "_flash_attn_2_enabled",
            "use_kernels",
            "kernel_config",
            "disable_custom_kernels",
        ),
        *("fusion_config", "compile_config"),
        *("dtype", "torch_dtype", "_pre_quantization_dtype"),
        *("quantization_config", "compression_config"),
        *("use_cache", "cache_implementation", "cache_config"),
        *("torchscript", "return_dict", "use_return_dict", "_output_attentions"),
        *("output_attentions", "output_hidden_states", "output_router_logits"),
        *(
            "device_map",
            "tp_plan",
            "base_model_tp_plan",
            "base_model_pp_plan",
            "distributed_config",
            "transformers_weights",
        ),
        *("gradient_checkpointing", "chunk_size_feed_forward"),
    }
)
"""Kernels, dtypes, quantisation (weights are dequantised before the model sees them), caches, outputs, devices, training."""


def without_saved(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a configuration, and of the configurations in it, without those of the machine that saved it."""
    return {
        name: without_saved(value) if isinstance(value, Mapping) and name.endswith("_config") else value
        for name, value in settings.items()
        if name not in SAVED
    }
