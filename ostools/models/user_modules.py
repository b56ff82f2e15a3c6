"""Modules and weights of a user's model, held against those that its configuration gives: their kinds, settings, buffers, ties.

A difference is refused, because the model would compute something else than its weights saved and loaded.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn
from transformer_lens.model_bridge import TransformerBridge
from transformers import PreTrainedModel

from ostools.ground.errors import InputError
from ostools.models.families import Family

_WRAPPED = "_original_component."
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OBSERVERS = (
    "transformers.utils.output_capturing.",
    "transformers.modeling_utils.PreTrainedModel.enable_input_require_grads.",
    "transformer_lens.model_bridge.generalized_components.block.BlockBridge._maybe",
)
"""What output_hidden_states=True, gradient checkpointing, and a bridge's first pass, leave on modules: no number changes."""
_OF_TRAINING = {"training", "gradient_checkpointing"}
_OF_LENS = {"q", "k", "v", "gate", "in", "up"}  # what TransformerLens makes of a joint weight
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_HINT = ": merge adapters, dequantise, and undo what replaced modules before it is adopted"


def parts(model: nn.Module) -> dict[str, nn.Module]:
    """The Hugging Face modules by their names there, also where TransformerLens has wrapped them (it adds names of its own)."""
    module_by_name: dict[str, nn.Module] = {}
    for name, part in model.named_modules(remove_duplicate=False):
        if not type(part).__module__.startswith("transformer_lens"):
            module_by_name.setdefault(f"{name}.".replace(_WRAPPED, "").rstrip("."), part)
    return module_by_name


def parameters(modules: dict[str, nn.Module]) -> dict[str, nn.Parameter]:
    """Every parameter by every name that it has."""
    return {
        f"{path}.{name}".lstrip("."): weight
        for path, part in modules.items()
        for name, weight in part.named_parameters(recurse=False)
    }


def weights(
    model: PreTrainedModel | TransformerBridge, modules: dict[str, nn.Module], family: Family, config: Any
) -> dict[str, nn.Parameter]:
    """The parameters that a model of this configuration has, each of them once, and no others."""
    with torch.device("meta"):
        described = getattr(transformers, family.module)(config)
    parameter_by_path = parameters(modules)
    own_weights: dict[str, nn.Parameter] = {}
    for path, required in described.named_parameters():
        if path not in parameter_by_path or parameter_by_path[path].shape != required.shape:
            what = f"shape {tuple(parameter_by_path[path].shape)}" if path in parameter_by_path else "none"
            raise InputError(
                f"expected the weight {path} of shape {tuple(required.shape)}, as its configuration says, found {what}{_HINT}"
            )
        own_weights[path] = parameter_by_path[path]
    known_ids = {
        id(parameter_by_path[path])
        for path, _ in described.named_parameters(remove_duplicate=False)
        if path in parameter_by_path
    }
    lens = isinstance(model, TransformerBridge)
    extra = [
        path
        for path, weight in parameter_by_path.items()
        if id(weight) not in known_ids and not (lens and path.split(".")[-2] in _OF_LENS)
    ]
    if extra:
        raise InputError(f"expected only weights of its configuration, found {extra[0]}{_HINT}")
    return own_weights


def refuse_hooks(model: nn.Module, modules: dict[str, nn.Module]) -> None:
    """Hooks and methods that the user put on a module would be lost, or would act on the user's object alone."""
    for name, part in model.named_modules():
        # TransformerLens' own hooks, which show what enters and leaves an MLP that is no module (OPT).
        mirrors = {
            handle.hook.id
            for handle in getattr(part, "fwd_hooks", ())
            if getattr(handle.user_hook, "__module__", "") == "transformer_lens.model_bridge.component_setup"
        }
        for kind in _HOOKS:
            for key, hook in getattr(part, kind).items():
                origin = f"{getattr(hook, '__module__', '')}.{getattr(hook, '__qualname__', '')}"
                if key not in mirrors and not origin.startswith(_OBSERVERS):
                    raise InputError(
                        f"expected a model without hooks, found one on {name or 'the model'} ({kind.strip('_')}): remove it, "
                        "adopt the model, and edit what comes back with ostools' own hooks"
                    )
    if isinstance(model, TransformerBridge):  # TransformerLens itself replaces methods
        return
    for name, part in modules.items():
        if "forward" in vars(part):
            raise InputError(
                f"expected modules with their own forward, found another put into {name or 'the model'}: adopt the model "
                "without it (accelerate puts one there for a device map)"
            )


def one_place(weights: dict[str, nn.Parameter]) -> tuple[torch.dtype, torch.device]:
    """The dtype and the device of all weights."""
    for name, weight in weights.items():
        if type(weight) is not nn.Parameter or weight.dtype not in _DTYPES or weight.layout is not torch.strided:
            raise InputError(
                f"expected weights that are plain floating-point tensors, found {type(weight).__name__} of {weight.dtype} in "
                f"{name}: dequantise the model first"
            )
    for what, values in (
        ("dtype", {str(weight.dtype) for weight in weights.values()}),
        ("device", {str(weight.device) for weight in weights.values()}),
    ):
        if len(values) != 1 or "meta" in values:
            raise InputError(
                f"expected all weights in memory, of one {what}, found {', '.join(sorted(values)) or 'none'}: move the whole "
                "model there with model.to(...), or save it and use load_model"
            )
    first_weight = next(iter(weights.values()))
    return first_weight.dtype, first_weight.device


def same_parts(user_modules: dict[str, nn.Module], rebuilt_modules: dict[str, nn.Module], name: str) -> None:
    """The user's modules are those of the configuration: their kinds, their settings, their buffers, their weights."""
    for path, rebuilt_part in rebuilt_modules.items():
        part = user_modules.get(path)
        if part is None or type(part) is not type(rebuilt_part):
            actual = "none" if part is None else f"{type(part).__module__}.{type(part).__name__}"
            raise InputError(
                f"expected {type(rebuilt_part).__name__} in {path or name}, as its configuration says, found {actual}{_HINT}"
            )
        for setting, value in _settings(rebuilt_part).items():
            if _settings(part).get(setting, value) != value:
                raise InputError(
                    f"expected {setting} = {value!r} in {path or name}, as its configuration says, found "
                    f"{_settings(part)[setting]!r}: set it in the configuration before the model is built"
                )
        for buffer, value in rebuilt_part._buffers.items():
            actual = part._buffers.get(buffer)
            if value is not None and not (
                actual is not None and actual.dtype == value.dtype and torch.equal(actual.to(value.device), value)
            ):
                raise InputError(
                    f"expected {path}.{buffer} as the configuration says, found other numbers (`.half()` and `.to(dtype)` "
                    "round it): load the model with dtype=..., or save it and use load_model"
                )
        for weight, value in rebuilt_part._parameters.items():
            actual = part._parameters.get(weight)
            if value is not None and (actual is None or actual.data_ptr() != value.data_ptr()):
                raise InputError(
                    f"expected {path}.{weight} tied as the configuration says, found that it is not: set "
                    "tie_word_embeddings in the configuration to what the model is"
                )


def _settings(part: nn.Module) -> dict[str, Any]:
    """Settings with which a module computes, beside its tensors."""
    return {
        name: value
        for name, value in vars(part).items()
        if isinstance(value, bool | int | float) and not name.startswith("_") and name not in _OF_TRAINING
    }


def same_weights(user_bridge: TransformerBridge, adopted_bridge: TransformerBridge, name: str) -> None:
    """Every tensor that the user's bridge computes with is the new one's (of a joint q, k, v its copies too)."""
    own_parameters = dict(adopted_bridge.named_parameters())
    for path, weight in user_bridge.named_parameters():
        adopted_weight = own_parameters.get(path)
        if (
            adopted_weight is not None
            and weight.data_ptr() != adopted_weight.data_ptr()
            and not torch.equal(weight, adopted_weight)
        ):
            raise InputError(
                f"expected {path} of {name} to be part of the weight that it was made of, found it edited apart: edit the "
                "Hugging Face model before it is wrapped"
            )
