"""LoRA adapters in PEFT's format, written by hand, and the same merged by plain arithmetic."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

Parts = dict[str, tuple[Tensor, Tensor]]


def dyadic(shape: tuple[int, ...], seed: int) -> Tensor:
    """Whole numbers over 64: their products and sums are exact in float64, in whatever order."""
    return torch.randint(-32, 33, shape, generator=torch.Generator().manual_seed(seed)) / 64


def factors(model: PreTrainedModel, targets: list[str], rank: Callable[[str], int] = lambda name: 4) -> Parts:
    """A [r, in] and B [out, r] of each matrix whose name ends so; of a table those that PEFT calls lora_embedding."""
    found: Parts = {}
    for seed, (name, module) in enumerate(model.named_modules()):
        if name.rpartition(".")[2] in targets and "vision" not in name:
            weight: Any = module.weight
            turned = isinstance(module, Conv1D | nn.Embedding)
            n_out, n_in = reversed(weight.shape) if turned else weight.shape
            found[name] = dyadic((rank(name), n_in), seed), dyadic((n_out, rank(name)), seed + 1000)
    return found


def write_adapter(
    path: Path, base: Path, parts: Parts, targets: Any, *, more: dict[str, Tensor] | None = None, **settings: Any
) -> Path:
    """The directory that PEFT's `save_pretrained` writes."""
    path.mkdir()
    given = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "target_modules": targets}
    given |= {"base_model_name_or_path": str(base), "bias": "none", "lora_dropout": 0.1, "inference_mode": True}
    (path / "adapter_config.json").write_text(json.dumps(given | settings))
    tensors = {}
    for name, (a, b) in parts.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = a.contiguous()
        tensors[f"base_model.model.{name}.lora_B.weight"] = b.contiguous()
    save_file(tensors | (more or {}), path / "adapter_model.safetensors")
    return path


def merge(model: PreTrainedModel, parts: Parts, scale: Callable[[str], float] = lambda name: 2.0) -> PreTrainedModel:
    """W + scale B A by plain arithmetic, in place."""
    for name, (a, b) in parts.items():
        module: Any = model.get_submodule(name)
        change = scale(name) * (b.double() @ a.double())
        change = change.T if isinstance(module, Conv1D | nn.Embedding) else change
        module.weight.data = (module.weight.double() + change).to(module.weight.dtype)
    return model
