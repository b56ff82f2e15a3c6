"""The arithmetic of a training step: float32, or the mixed precision of bfloat16 with float32 master weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers import Qwen2ForCausalLM

DTYPES = ("float32", "bfloat16")
_ADDED_UP = {functional.linear, functional.embedding, functional.scaled_dot_product_attention, torch.matmul}
"""What adds up many products, forwards or backwards."""


def logits_in(dtype: str, model: Qwen2ForCausalLM, ids: Int[Tensor, "row pos"]) -> Float[Tensor, "row pos token"]:
    """The model's logits in float32, from a pass in `dtype`; gradients go to the float32 weights of the model.

    "bfloat16" is what transformers computes with a model whose weights and activations are bfloat16. Every weight is rounded
    to it at each step. What each operation returns is rounded to it: residual stream, queries, keys and values after rotation,
    and logits. RMS norms are float32 inside, as in transformers. A sum of products (`AddedUp`) is float32 inside and
    rounded once. The attention of a layer counts as one of them: scores and softmax are float32 inside. Gradients are rounded
    where their tensors are. The loss, the weights that are stepped and the optimiser are float32.

    Cost: 1.5 times a step in float32 (process time, one thread) on a CPU without units for bfloat16; torch's own products in
    it took 7 times as long there.
    """
    if dtype == "float32":
        return model(ids, use_cache=False).logits
    rounded = {name: weight.bfloat16() for name, weight in model.named_parameters()}
    with AddedUp():
        return torch.func.functional_call(model, rounded, (ids,), {"use_cache": False}).logits.float()


class AddedUp(TorchFunctionMode):
    """Inside it a sum of products of bfloat16 numbers is added up in float32 and rounded once, as matrix units do it."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func not in _ADDED_UP or not any(_narrow(one) for one in (*args, *named.values())):
            return func(*args, **named)
        wide = [one.float() if _narrow(one) else one for one in args]
        return func(*wide, **{name: one.float() if _narrow(one) else one for name, one in named.items()}).bfloat16()


def _narrow(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.bfloat16
