"""What a model in memory is made of: modules, saved tensors, hooks; and what of them no
configuration gives is refused.
"""

from __future__ import annotations

import re
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from ostools.ground.errors import InputError
from ostools.ground.lens import GeneralizedComponent, PreTrainedModel, TransformerBridge
from ostools.models.families import Family

_WRAPPER = re.compile(r"\b(_original_component|_orig_mod)\.")
"""What TransformerLens and torch.compile put between the names of modules."""
_WRAPPERS = ("transformer_lens", "torch._dynamo")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OBSERVERS = (
    "transformers.utils.output_capturing.",
    "transformers.modeling_utils.PreTrainedModel.enable_input_require_grads.",
    "transformer_lens.model_bridge.generalized_components.block.BlockBridge._maybe",
)
"""What output_hidden_states=True, gradient checkpointing, and a bridge's first pass, leave on
modules: no number changes.
"""
_NOT_COMPUTED_WITH = {"training", "gradient_checkpointing", "vocab_size"}
"""Settings of modules that change no logits. `resize_token_embeddings` leaves the old vocab_size on
the inner model, where transformers reads none but for a loss."""
_OF_LENS = {
    "q",
    "k",
    "v",
    "gate",
    "in",
    "up",
}  # what TransformerLens makes of a joint weight; it adds buffers too
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_HINT = ": merge adapters, dequantise, and undo what replaced modules before it is adopted"


def parts(model: nn.Module) -> dict[str, nn.Module]:
    """The Hugging Face modules by their names there, also where TransformerLens or torch.compile
    has wrapped them.
    """
    module_by_name: dict[str, nn.Module] = {}
    for name, part in model.named_modules(remove_duplicate=False):
        if not any(kind.__module__.startswith(_WRAPPERS) for kind in type(part).__mro__):
            module_by_name.setdefault(_WRAPPER.sub("", f"{name}.").rstrip("."), part)
    return module_by_name


def saved_tensors(modules: dict[str, nn.Module]) -> dict[str, Tensor]:
    """Every parameter, and every buffer that is saved with them, by every name that it has."""
    return {
        f"{path}.{name}".lstrip("."): tensor
        for path, part in modules.items()
        for name, tensor in (
            *part.named_parameters(recurse=False),
            *part.named_buffers(recurse=False),
        )
        if name not in part._non_persistent_buffers_set
    }


def weights(
    model: PreTrainedModel | TransformerBridge,
    modules: dict[str, nn.Module],
    family: Family,
    config: Any,
) -> dict[str, Tensor]:
    """The saved tensors that a model of this configuration has, each of them once, and no others."""
    with torch.device("meta"):
        described = saved_tensors(parts(getattr(transformers, family.module)(config)))
    saved = saved_tensors(modules)
    own_weights: dict[str, Tensor] = {}
    seen: set[int] = set()
    for path, required in described.items():
        if id(required) in seen:
            continue
        if path not in saved or saved[path].shape != required.shape:
            what = f"shape {tuple(saved[path].shape)}" if path in saved else "none"
            raise InputError(
                f"expected the weight {path} of shape {tuple(required.shape)}, as its configuration says, found {what}{_HINT}"
            )
        seen.add(id(required))
        own_weights[path] = saved[path]
    known_ids = {id(saved[path]) for path in described if path in saved}
    # A bridge, or a Hugging Face model inside of one: TransformerLens gives its output layer a bias
    # of zeros, a buffer.
    lens = any(isinstance(part, GeneralizedComponent) for part in model.modules())
    extra = [
        path
        for path, weight in saved.items()
        if id(weight) not in known_ids
        and not (lens and (path.split(".")[-2] in _OF_LENS or not isinstance(weight, nn.Parameter)))
    ]
    if extra:
        raise InputError(f"expected only weights of its configuration, found {extra[0]}{_HINT}")
    return own_weights


def refuse_hooks(model: nn.Module, modules: dict[str, nn.Module]) -> None:
    """Hooks and methods that the user put on a module would be lost, or would act on the user's
    object alone.
    """
    for name, part in model.named_modules():
        # TransformerLens' own hooks, which show what enters and leaves an MLP that is no module
        # (OPT).
        mirrors = {
            handle.hook.id
            for handle in getattr(part, "fwd_hooks", ())
            if getattr(handle.user_hook, "__module__", "")
            == "transformer_lens.model_bridge.component_setup"
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
        forward = vars(part).get("forward")
        if forward is not None and not _is_nnsights(forward, part):
            raise InputError(
                f"expected modules with their own forward, found another put into {name or 'the model'}: adopt the model "
                "without it (accelerate puts one there for a device map)"
            )


def _is_nnsights(forward: Any, part: nn.Module) -> bool:
    """Whether it is what nnsight puts around the class's own forward, which runs as it is outside
    of a trace.
    """
    of_nnsight = type(forward).__module__.startswith("nnsight.") and "_hf_hook" not in vars(part)
    return (
        of_nnsight
        and getattr(getattr(forward, "state", None), "original", None) is type(part).forward
    )


def one_place(weights: dict[str, Tensor]) -> torch.device:
    """The device of all weights, which are plain tensors."""
    for name, weight in weights.items():
        floating = weight.dtype in _DTYPES or (
            not weight.is_floating_point() and type(weight) is Tensor
        )
        if (
            type(weight) not in (nn.Parameter, Tensor)
            or not floating
            or weight.layout is not torch.strided
        ):
            raise InputError(
                f"expected weights that are plain floating-point tensors, found {type(weight).__name__} of {weight.dtype} in "
                f"{name}: dequantise the model first"
            )
    devices = {str(weight.device) for weight in weights.values()}
    if len(devices) != 1 or "meta" in devices:
        raise InputError(
            f"expected all weights in memory, of one device, found {', '.join(sorted(devices)) or 'none'}: move the whole "
            "model there with model.to(...), or save it and use load_model"
        )
    return next(iter(weights.values())).device


def same_parts(
    user_modules: dict[str, nn.Module], rebuilt_modules: dict[str, nn.Module], name: str
) -> None:
    """The user's modules are those of the configuration: their kinds, their settings, their
    buffers, their weights.
    """
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
                actual is not None
                and actual.dtype == value.dtype
                and torch.equal(actual.to(value.device), value)
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
        if isinstance(value, bool | int | float)
        and not name.startswith("_")
        and name not in _NOT_COMPUTED_WITH
    }
