"""Take a model that a user has in memory, and check it as a loaded one.

Nothing of the user's object is changed. A second model is built of its configuration, as
`load_model` would build it, and given the same weights: none is copied. Whatever else the user's
object computes with (its modules, their settings, its buffers) is held against that second model,
and a difference is refused. So the numbers of an adopted model are those of the same weights saved
with `save_pretrained` and loaded.
"""

from __future__ import annotations

import copy
import re
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import FunctionType
from typing import cast

import torch
import transformers
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.initialization import no_init_weights

from ostools.ground.arguments import checked_arguments
from ostools.ground.errors import InputError, refusal
from ostools.ground.lens import (
    GeneralizedComponent,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TransformerBridge,
    original_model,
)
from ostools.hooks import SIXTEEN_BITS
from ostools.models.describe import (
    IN_WORDS,
    Metadata,
    _metadata,
    digest,
    refuse_processed,
    remember,
    require_numbers,
)
from ostools.models.devices import resolve_device
from ostools.models.families import Family
from ostools.models.files.checks import (
    check_finite,
    check_tied,
    check_tokenizer,
    check_versions,
    require_own_functions,
    without_negative_ids,
)
from ostools.models.files.config import (
    built,
    family_of_settings,
    quiet,
    without_saved,
    without_unread,
)
from ostools.models.load import check_same, give_tokenizer, probe_of, wrapped
from ostools.models.precision.scores import check_arithmetic, is_eager
from ostools.models.precision.torch_state import default_torch_state

Modules = Mapping[str, nn.Module]

_WRAPPER = re.compile(r"\b_original_component\.")
"""What TransformerLens puts between the names of modules."""
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
_CHOICES = ("_attn_implementation_internal", "_experts_implementation_internal")
"""Where a configuration in memory holds the names of the functions that it computes with."""
_HINT = ": merge adapters, dequantise, and undo what replaced modules before it is adopted"


@checked_arguments(InputError, IN_WORDS)
@default_torch_state()
def adopt(
    model: object,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    name: str = "adopted",
) -> TransformerBridge:
    """A model in memory (fine-tuned, merged, edited) in the form that `load_model` gives, on the
    same weights without a copy.

    Args:
        model: a Hugging Face model that `load_model` would load, in any mode, with any attention
            that is transformers' own; or a raw `TransformerBridge`. It is not changed: it trains,
            generates and saves as before.
        tokenizer: the tokenizer of a Hugging Face model; None: the model takes token ids alone. For
            a bridge, None is its own.
        name: what results call the model.

    What comes back reads the same memory: an edit of a weight in place is an edit of both. A weight
    that is replaced by another tensor (`.to(...)`, `p.data = ...`), and an edit of a joint q, k, v
    weight of which TransformerLens computes with copies (Pythia, Falcon, Bloom, MPT), is refused
    from then on: adopt the model again.

    Raises `InputError` for whatever `load_model` refuses; for processed weights; for hooks and
    replaced methods; for attention, masks and experts that others registered; for a module with
    another configuration than the model's; for modules, settings, buffers and logits that its
    configuration and weights do not give (adapters that are not merged, quantised layers, rotations
    that `.half()` has rounded). Cost: a few tiny forward passes.
    """
    check_versions()
    if isinstance(model, TransformerBridge) and model in _metadata and tokenizer is None:
        return model
    source = _raw(model)
    if isinstance(source, TransformerBridge):
        user_model, rounds_scores = original_model(source), is_eager(source)
        tokenizer = tokenizer or source.tokenizer
    else:
        user_model, rounds_scores = source, source.config._attn_implementation == "eager"
    _refuse_hooks(source)
    family = family_of_settings(user_model.config.to_dict(), f"the configuration of {name}")
    require_own_functions(name, *_configs(user_model))
    _require_one_config(user_model, name)
    dtype = cast(Tensor, user_model.get_input_embeddings().weight).dtype
    eager = dtype in SIXTEEN_BITS and rounds_scores
    check_arithmetic(family, eager)
    with quiet():
        bridge = _bridged(source, user_model, family, eager, name)
    if tokenizer is not None:
        check_tokenizer(tokenizer, int(bridge.W_E.shape[0]), Path(name))
    give_tokenizer(bridge, tokenizer)
    check = _replacement_check(user_model, bridge, name)
    remember(bridge, Metadata(name=name, origin="adopted", check=check))
    return bridge


def _bridged(
    source: PreTrainedModel | TransformerBridge,
    user_model: PreTrainedModel,
    family: Family,
    eager: bool,
    name: str,
) -> TransformerBridge:
    """The bridge around a second model of the same weights; `source`: the user's object, of which
    `user_model` is the Hugging Face model.
    """
    modules, is_wrapped = _modules(user_model), _is_wrapped(source)
    dtype = cast(Tensor, user_model.get_input_embeddings().weight).dtype
    rebuilt_model = _rebuilt(user_model, family, dtype, name)
    _share(modules, rebuilt_model, name)
    more = modules.keys() - _modules(rebuilt_model).keys()
    # TransformerLens adds modules to a model that it wraps.
    if more and not is_wrapped:
        raise InputError(
            f"expected the modules of a {type(user_model).__name__} in {name}, found {min(more)} "
            f"too{_HINT}"
        )
    check_tied(rebuilt_model, Path(name))
    check_finite(rebuilt_model, Path(name))
    probe = probe_of(rebuilt_model)
    # Whatever was replaced in memory, and is no module, setting or weight, is in the logits.
    user_logits = _logits(source, rebuilt_model.config, probe, name)
    if not is_wrapped:
        _require_equal(user_logits, _logits(rebuilt_model, None, probe, name), name)
    bridge = wrapped(rebuilt_model.eval(), family, name, eager)
    if is_wrapped:
        with torch.no_grad():
            check_same(user_logits, bridge(probe), name)
    if isinstance(source, TransformerBridge):
        _require_same_copies(source, bridge, name)
    return bridge


def _raw(model: object) -> PreTrainedModel | TransformerBridge:
    """The model, which is a Hugging Face model or a raw bridge. `InputError` for anything else."""
    if isinstance(model, PreTrainedModel):
        return model
    if not isinstance(model, TransformerBridge):
        raise InputError(
            "expected a Hugging Face model (PreTrainedModel) or a TransformerBridge, found "
            f"{type(model).__name__}: give the Hugging Face model that it was made of; of one with "
            "an adapter, merge its adapter first, model.merge_and_unload()"
        )
    refuse_processed(model)
    if model._weights_processed:
        raise InputError(
            "expected a raw TransformerBridge, found one whose weights were processed (folded or "
            "centred), where y_n means something else: load it again without processing"
        )
    return model


# ---- what a model in memory is made of


def _modules(model: nn.Module) -> dict[str, nn.Module]:
    """The Hugging Face modules by their names there, also where TransformerLens wraps them."""
    module_by_name: dict[str, nn.Module] = {}
    for name, part in model.named_modules(remove_duplicate=False):
        if not any(kind.__module__.startswith("transformer_lens") for kind in type(part).__mro__):
            module_by_name.setdefault(_WRAPPER.sub("", f"{name}.").rstrip("."), part)
    return module_by_name


def _is_wrapped(model: nn.Module) -> bool:
    """Whether TransformerLens has put its parts into the model."""
    return any(isinstance(part, GeneralizedComponent) for part in model.modules())


def _configs(model: nn.Module) -> list[PreTrainedConfig]:
    """Every configuration that a module of the model computes by."""
    configs = [getattr(part, "config", None) for part in model.modules()]
    return list({id(it): it for it in configs if isinstance(it, PreTrainedConfig)}.values())


def _require_one_config(model: PreTrainedModel, name: str) -> None:
    """Refuse a module with a configuration of its own: it may compute otherwise beyond the few
    tokens on which the model is tried.
    """
    settings = model.config.to_dict()
    for config in _configs(model):
        if config.to_dict() != settings:
            raise InputError(
                f"expected one configuration in {name}, found a module with another: set it in the "
                "model's configuration before the model is built"
            )


def _refuse_hooks(model: nn.Module) -> None:
    """Refuse hooks and methods that the user put on a module: they would be lost, or would act on
    the user's object alone.
    """
    is_wrapped = _is_wrapped(model)
    for name, part in model.named_modules():
        for kind in _HOOKS:
            for hook in getattr(part, kind).values():
                origin = f"{getattr(hook, '__module__', '')}.{getattr(hook, '__qualname__', '')}"
                if not origin.startswith(_OBSERVERS):
                    raise InputError(
                        f"expected a model without hooks, found one on {name or 'the model'} "
                        f"({kind.strip('_')}): remove it, adopt the model, and edit what comes "
                        "back with ostools' own hooks"
                    )
        for method, function in vars(part).items():
            is_replaced = callable(function) and isinstance(
                getattr(type(part), method, None), FunctionType
            )
            # TransformerLens itself replaces methods.
            if is_replaced and not is_wrapped:
                raise InputError(
                    f"expected modules with their own {method}, found another put into "
                    f"{name or 'the model'}: adopt the model without it (accelerate puts one there "
                    "for a device map)"
                )


# ---- the second model, around the same weights


def _logits(
    model: PreTrainedModel | TransformerBridge,
    config: PreTrainedConfig | None,
    probe: Int[Tensor, "1 pos"],
    name: str,
) -> Float[Tensor, "1 pos d_vocab"]:
    """The model's logits in eval mode, with the functions that `config` names; afterwards the model
    is as it was.

    Without gradients even of weights: torch multiplies in another order where a weight asks for
    one, also under `no_grad`.
    """
    options = {} if isinstance(model, TransformerBridge) else {"use_cache": False}
    with ExitStack() as stack, torch.no_grad():
        for part in model.modules():
            stack.callback(setattr, part, "training", part.training)
        for weight in model.parameters():
            stack.callback(weight.requires_grad_, weight.requires_grad)
            weight.requires_grad_(False)
        for user_config in _configs(model) if config is not None else ():
            own_choices = {choice: vars(user_config).get(choice) for choice in _CHOICES}
            stack.callback(vars(user_config).update, own_choices)
            vars(user_config).update({choice: getattr(config, choice, None) for choice in _CHOICES})
        with refusal(f"a model {name} that computes"):
            output = model.eval()(probe, **options)
    return output if isinstance(output, Tensor) else output.logits


def _require_equal(user_logits: Tensor, rebuilt_logits: Tensor, name: str) -> None:
    if not torch.equal(user_logits, rebuilt_logits):
        check_same(user_logits, user_logits, name)  # says so where they are not finite
        raise InputError(
            f"expected {name} to compute what its weights compute when they are saved and loaded, "
            f"found logits {float((user_logits - rebuilt_logits).abs().max()):.3g} apart: "
            "something on it was replaced in memory; undo it"
        )


def _rebuilt(
    user_model: PreTrainedModel, family: Family, dtype: torch.dtype, name: str
) -> PreTrainedModel:
    """The model of the user's configuration, as loading builds it, with weights that take no
    memory: nothing has been written to them.
    """
    kind = type(user_model)
    if kind is not getattr(transformers, family.module):
        raise InputError(
            f"expected a {family.module} of transformers, found {kind.__module__}.{kind.__name__}: "
            "save it and use load_model"
        )
    settings = without_saved(copy.deepcopy(user_model.config.to_dict()))
    config = type(user_model.config).from_dict(settings)
    config.architectures = [family.architecture]
    without_unread(config, family)
    with refusal(f"a configuration from which {name} can be built"), no_init_weights():
        rebuilt_model = built(config, family, dtype)
    rebuilt_model.generation_config = copy.deepcopy(user_model.generation_config)
    without_negative_ids(rebuilt_model.generation_config)
    return rebuilt_model


def _share(modules: Modules, rebuilt_model: PreTrainedModel, name: str) -> None:
    """Put the user's weights into the rebuilt model. Refuse modules, settings, weights or buffers
    that are not those of the configuration: they compute something else, perhaps beyond the few
    tokens on which a bridge is tried.
    """
    shared: dict[int, nn.Parameter] = {}
    device = _device_of(modules)
    for path, rebuilt_part in _modules(rebuilt_model).items():
        part = modules.get(path)
        if part is None or type(part) is not type(rebuilt_part):
            raise InputError(
                f"expected {type(rebuilt_part).__name__} in {path or name}, as its configuration "
                f"says, found {type(part).__name__}{_HINT}"
            )
        user_settings = _settings_of(part)
        for setting, value in _settings_of(rebuilt_part).items():
            if (user_value := user_settings.get(setting, value)) != value:
                raise InputError(
                    f"expected {setting} = {value!r} in {path or name}, as its configuration says, "
                    f"found {user_value!r}: set it in the configuration before the model is built"
                )
        for key, weight in rebuilt_part._parameters.items():
            if weight is not None:
                user_weight = _like(part._parameters.get(key), weight, f"{path}.{key}")
                view = nn.Parameter(user_weight.detach(), requires_grad=False)
                rebuilt_part._parameters[key] = shared.setdefault(id(user_weight), view)
        _share_buffers(part, rebuilt_part, path, device)


def _share_buffers(
    part: nn.Module, rebuilt_part: nn.Module, path: str, device: torch.device
) -> None:
    """The same of the buffers that are saved with the weights; the others have to be equal."""
    for key, buffer in rebuilt_part._buffers.items():
        user_buffer = part._buffers.get(key)
        if buffer is None:
            continue
        if key not in rebuilt_part._non_persistent_buffers_set and user_buffer is not None:
            rebuilt_part._buffers[key] = user_buffer
        elif _are_equal(user_buffer, buffer):
            rebuilt_part._buffers[key] = buffer.to(device)
        else:
            raise InputError(
                f"expected {path}.{key} as the configuration says, found other numbers "
                "(`.half()` and `.to(dtype)` round it): load the model with dtype=..., or save "
                "it and use load_model"
            )


def _device_of(modules: Modules) -> torch.device:
    """The device of all weights, which are plain tensors."""
    weights = dict(_saved_tensors(modules))
    require_numbers(weights.values())
    devices = {weight.device for weight in weights.values()}
    if len(devices) != 1:
        raise InputError(
            "expected all weights in memory, of one device, found "
            f"{', '.join(sorted(map(str, devices)))}: move the whole model there with "
            "model.to(...), or save it and use load_model"
        )
    return resolve_device(devices.pop())


def _saved_tensors(modules: Modules) -> Iterable[tuple[str, Tensor]]:
    """Every parameter, and every buffer that is saved with them, by every name that it has."""
    for path, part in modules.items():
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and name not in part._non_persistent_buffers_set:
                    yield f"{path}.{name}".lstrip("."), tensor


def _like(user_weight: Tensor | None, weight: Tensor, path: str) -> Tensor:
    """The user's weight, of the dtype and the shape that loading gives it. Others are refused: in
    few bits, where numbers stand for others; or rounded by `.half()`.
    """
    is_plain = type(user_weight) in (nn.Parameter, Tensor)
    # transformers keeps some weights in float32 whatever dtype it is asked for.
    dtypes = (weight.dtype, torch.float32)
    if user_weight is None or not is_plain or user_weight.dtype not in dtypes:
        raise InputError(
            f"expected {path} in {str(weight.dtype).removeprefix('torch.')}, in which transformers "
            f"computes with it, found {type(user_weight).__name__} of "
            f"{getattr(user_weight, 'dtype', None)}: dequantise the model first, move all of it "
            "there with model.to(...), or save it and use load_model"
        )
    if user_weight.shape != weight.shape:
        raise InputError(
            f"expected {path} of shape {tuple(weight.shape)}, as its configuration says, found "
            f"{tuple(user_weight.shape)}{_HINT}"
        )
    return user_weight


def _settings_of(part: nn.Module) -> dict[str, object]:
    """Settings with which a module computes, beside its tensors; of a function its place."""
    return {
        name: f"{value.__module__}.{value.__qualname__}" if callable(value) else value
        for name, value in vars(part).items()
        if isinstance(value, bool | int | float | str | FunctionType)
        and not name.startswith("_")
        and name not in _NOT_COMPUTED_WITH
    }


def _are_equal(first: Tensor | None, second: Tensor) -> bool:
    if first is None or first.dtype != second.dtype:
        return False
    return torch.equal(first.to(second.device), second)


def _require_same_copies(
    user_bridge: TransformerBridge, bridge: TransformerBridge, name: str
) -> None:
    """Refuse a bridge that computes with another tensor than the new one, of which a joint weight's
    copies are some.
    """
    weight_by_path = dict(bridge.named_parameters())
    for path, weight in user_bridge.named_parameters():
        if not torch.equal(weight, weight_by_path.get(path, weight)):
            raise InputError(
                f"expected {path} of {name} to be part of the weight that it was made of, found it "
                "edited apart: edit the Hugging Face model before it is wrapped"
            )


def _replacement_check(
    user_model: PreTrainedModel, bridge: TransformerBridge, name: str
) -> Callable[[], None]:
    """Function that refuses the model once its weights were replaced: by their addresses, and by
    digests of those that TransformerLens copied."""
    model_reference = weakref.ref(user_model)
    shared = {weight.data_ptr() for weight in (*bridge.parameters(), *bridge.buffers())}

    def state(model: PreTrainedModel) -> dict[str, object]:
        weights = dict(_saved_tensors(_modules(model)))
        return {
            path: (weight.data_ptr(), weight.data_ptr() in shared or digest("", weight.detach()))
            for path, weight in weights.items()
        }

    before = state(user_model)

    def check() -> None:
        model = model_reference()
        now = before if model is None else state(model)
        changed = [path for path in before if now.get(path) != before[path]]
        if changed:
            raise InputError(
                f"expected {name} as it was adopted, found {changed[0]} replaced since: what was "
                "adopted is not what the model is now; adopt it again"
            )

    return check
