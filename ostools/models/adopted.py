"""Take a model that a user has in memory, and check it as a loaded one.

Nothing of the user's object is changed. A second model is built around the same weights, as
`load_model` would build it from their files: no weight is copied. Whatever else the user's object
computes with (its modules, their settings, its buffers, its logits) is held against that second
model, and a difference is refused. So the numbers of an adopted model are those of the same weights
saved with `save_pretrained` and loaded.
"""

from __future__ import annotations

import copy
import re
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import transformers
from jaxtyping import Float, Int
from torch import Tensor, nn

from ostools.ground.errors import InputError, in_words
from ostools.ground.lens import (
    GeneralizedComponent,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TransformerBridge,
)
from ostools.hooks import SIXTEEN_BITS
from ostools.models.describe import (
    Metadata,
    _metadata,
    digest,
    refuse_processed,
    remember,
    require_numbers,
)
from ostools.models.families import ALWAYS_FLOAT32_SCORES, Family
from ostools.models.files.build import build, fitting
from ostools.models.files.checks import (
    check_finite,
    check_tied,
    check_tokenizer,
    one_line,
    require_own_functions,
    without_negative_ids,
)
from ostools.models.files.config import family_of_settings, quiet, without_saved, without_unread
from ostools.models.files.offload import fill, placeholders
from ostools.models.load import check_same, give_tokenizer, probe_of, wrapped
from ostools.models.precision.scores import check_arithmetic, is_eager
from ostools.models.precision.torch_state import default_torch_state

Modules = Mapping[str, nn.Module]

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
_CHOICES = ("_attn_implementation_internal", "_experts_implementation_internal")
"""Where a configuration in memory holds the names of the functions that it computes with."""
_HINT = ": merge adapters, dequantise, and undo what replaced modules before it is adopted"


@default_torch_state()
def adopt(
    model: object,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    name: str = "adopted",
) -> TransformerBridge:
    """A model in memory (fine-tuned, merged, edited) in the form that `load_model` gives, on the
    same weights without a copy.

    Args:
        model: a Hugging Face model of a family that `ostools list models` lists, in any mode, with
            any attention that is transformers' own. Or a raw `TransformerBridge`; nnsight's
            `LanguageModel` or `TransformersModel`; or what `torch.compile` made of a model. It is
            not changed: it trains, generates and saves as before.
        tokenizer: the tokenizer of a Hugging Face model; None: the model takes token ids alone. For
            a bridge or a `LanguageModel`, None is its own.
        name: what results call the model.

    What comes back reads the same memory: an edit of a weight in place is an edit of both. A weight
    that is replaced by another tensor (`.to(...)`, `p.data = ...`), and an edit of a joint q, k, v
    weight of which TransformerLens computes with copies (Pythia, Falcon, Bloom, MPT), is refused
    from then on: adopt the model again.

    Raises `InputError` for whatever `load_model` refuses; for compatibility mode and processed
    weights; for hooks and replaced methods on a module; for attention, masks and experts that
    others registered; for modules, settings, buffers and logits that differ from those that its
    configuration and weights give (adapters that are not merged, quantised layers, rotations that
    `.half()` has rounded); and for weights on several devices. Cost: four tiny forward passes.
    """
    if isinstance(model, TransformerBridge) and model in _metadata and tokenizer is None:
        return model
    source, tokenizer = _unwrapped(model, tokenizer)
    is_bridge = isinstance(source, TransformerBridge)
    user_model: Any = source.original_model if is_bridge else source
    modules = _modules(user_model)
    _refuse_hooks(source, modules)
    family = family_of_settings(user_model.config.to_dict(), f"the configuration of {name}")
    require_own_functions(name, *_configs(user_model))
    dtype = user_model.get_input_embeddings().weight.dtype
    rounds_scores = (
        is_eager(source) if is_bridge else user_model.config._attn_implementation == "eager"
    )
    has_choice = dtype in SIXTEEN_BITS and family.not_eager != ALWAYS_FLOAT32_SCORES
    eager = has_choice and rounds_scores
    check_arithmetic(family, eager)
    with quiet():
        rebuilt_model = _rebuilt(user_model, modules, family, dtype, name)
        _require_same_parts(modules, rebuilt_model, name)
        probe = probe_of(rebuilt_model)
        user_logits = _logits(source, rebuilt_model.config, probe, name)
        if not is_bridge:
            _require_equal(user_logits, _logits(rebuilt_model, None, probe, name), name)
        bridge = wrapped(rebuilt_model, family, name, eager)
        if isinstance(source, TransformerBridge):
            check_same(user_logits, bridge(probe), name)
            _require_same_copies(source, bridge, name)
    if tokenizer is not None:
        if not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise InputError(
                f"tokenizer: expected one of transformers, found {type(tokenizer).__name__}: "
                "AutoTokenizer.from_pretrained(...) gives one"
            )
        check_tokenizer(tokenizer, int(bridge.W_E.shape[0]), Path(name))
    give_tokenizer(bridge, tokenizer)
    check = _replacement_check(user_model, bridge, name)
    remember(bridge, Metadata(name=name, origin="adopted", check=check))
    return bridge


def _unwrapped(
    model: Any, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[PreTrainedModel | TransformerBridge, PreTrainedTokenizerBase | None]:
    """The Hugging Face model or raw bridge, and its tokenizer. `InputError` for anything else."""
    if isinstance(getattr(model, "_module", None), PreTrainedModel):  # nnsight's, around a model
        if any(envoy._edits for envoy in _envoys(model)):
            raise InputError(
                "expected a model of nnsight without edits, found one that has some: "
                "model.clear_edits()"
            )
        tokenizer = tokenizer or getattr(model, "tokenizer", None)
        model = model._module
    model = getattr(model, "_orig_mod", model)  # what torch.compile was given
    if isinstance(model, PreTrainedModel):
        return model, tokenizer
    if not isinstance(model, TransformerBridge):
        remedy = ""
        if hasattr(model, "merge_and_unload"):
            remedy = ": merge its adapter first, model.merge_and_unload()"
        if type(model).__name__ == "HookedTransformer":
            remedy = (
                ": its weights are folded and centred; give the Hugging Face model that it was "
                "made of"
            )
        raise InputError(
            "expected a Hugging Face model (PreTrainedModel) or a TransformerBridge, found "
            f"{type(model).__name__}{remedy}"
        )
    refuse_processed(model)
    if model._weights_processed:
        raise InputError(
            "expected a raw TransformerBridge, found one whose weights were processed (folded or "
            "centred), where y_n means something else: load it again without processing"
        )
    return model, tokenizer or model.tokenizer  # pyright: ignore[reportReturnType]


def _envoys(envoy: Any) -> Iterator[Any]:
    """nnsight's handle of a module, and those of the modules in it."""
    yield envoy
    for child in envoy._children:
        yield from _envoys(child)


# ---- what a model in memory is made of


def _modules(model: nn.Module) -> dict[str, nn.Module]:
    """The Hugging Face modules by their names there, also where TransformerLens or torch.compile
    has wrapped them.
    """
    module_by_name: dict[str, nn.Module] = {}
    for name, part in model.named_modules(remove_duplicate=False):
        if not any(kind.__module__.startswith(_WRAPPERS) for kind in type(part).__mro__):
            module_by_name.setdefault(_WRAPPER.sub("", f"{name}.").rstrip("."), part)
    return module_by_name


def _saved_tensors(modules: Modules) -> dict[str, Tensor]:
    """Every parameter, and every buffer that is saved with them, by every name that it has."""
    return {
        f"{path}.{name}".lstrip("."): tensor
        for path, part in modules.items()
        for tensors in (part._parameters, part._buffers)
        for name, tensor in tensors.items()
        if tensor is not None and name not in part._non_persistent_buffers_set
    }


def _configs(model: nn.Module) -> list[PreTrainedConfig]:
    """Every configuration that a module of the model computes by."""
    configs = [getattr(part, "config", None) for part in model.modules()]
    return list({id(it): it for it in configs if isinstance(it, PreTrainedConfig)}.values())


def _refuse_hooks(model: nn.Module, modules: Modules) -> None:
    """Refuse hooks and methods that the user put on a module: they would be lost, or would act on
    the user's object alone.
    """
    for name, part in model.named_modules():
        # TransformerLens' own hooks, which show what enters and leaves an MLP that is no module
        # (OPT).
        mirrors = {
            handle.hook.id
            for handle in getattr(part, "fwd_hooks", ())
            if getattr(handle.user_hook, "__module__", "").endswith(".component_setup")
        }
        for kind in _HOOKS:
            for key, hook in getattr(part, kind).items():
                origin = f"{getattr(hook, '__module__', '')}.{getattr(hook, '__qualname__', '')}"
                if key not in mirrors and not origin.startswith(_OBSERVERS):
                    raise InputError(
                        f"expected a model without hooks, found one on {name or 'the model'} "
                        f"({kind.strip('_')}): remove it, adopt the model, and edit what comes "
                        "back with ostools' own hooks"
                    )
    # TransformerLens itself replaces methods.
    for name, part in () if isinstance(model, TransformerBridge) else modules.items():
        _refuse_forward(part, name)


def _refuse_forward(part: nn.Module, name: str) -> None:
    """Refuse another forward than the class's own. nnsight puts one around it, which runs as it is
    outside of a trace.
    """
    forward = vars(part).get("forward")
    original = getattr(getattr(forward, "state", None), "original", None)
    is_nnsights = original is type(part).forward and "_hf_hook" not in vars(part)
    if forward is not None and not is_nnsights:
        raise InputError(
            f"expected modules with their own forward, found another put into "
            f"{name or 'the model'}: adopt the model without it (accelerate puts one there for "
            "a device map)"
        )


# ---- the second model, around the same weights


def _rebuilt(
    user_model: PreTrainedModel,
    modules: Modules,
    family: Family,
    dtype: torch.dtype,
    name: str,
) -> PreTrainedModel:
    """The model of the user's configuration, as loading builds it, around the user's weights."""
    kind, where = type(user_model), Path(name)
    if kind is not getattr(transformers, family.module):
        raise InputError(
            f"expected a {family.module} of transformers, found {kind.__module__}.{kind.__name__}: "
            "save it and use load_model"
        )
    settings = without_saved(copy.deepcopy(user_model.config.to_dict()))
    config = type(user_model.config).from_dict(settings)
    config.architectures = [family.architecture]
    without_unread(config, family)
    with torch.device("meta"):
        described = kind(config)
    weights = _saved_tensors(modules)
    if any(isinstance(part, GeneralizedComponent) for part in user_model.modules()):
        # TransformerLens adds what it makes of a joint weight, and biases of zeros.
        weights = {path: weights[path] for path in described.state_dict() if path in weights}
    for path, tied_path in described.all_tied_weights_keys.items():
        if weights.get(path) is weights.get(tied_path):
            weights.pop(path, None)
    device = _device_of(weights)
    tensor_by_path = {path: weight.detach() for path, weight in weights.items()}
    holders = placeholders(tensor_by_path)
    with fitting(where):
        rebuilt_model = build(family, config, holders, dtype, where)
        fill(rebuilt_model, holders, device, lambda stored, path: tensor_by_path[stored])
    check_tied(rebuilt_model, where)
    check_finite(rebuilt_model, where)
    rebuilt_model.generation_config = copy.deepcopy(user_model.generation_config)
    without_negative_ids(rebuilt_model.generation_config)
    return rebuilt_model.eval()


def _device_of(weights: Mapping[str, Tensor]) -> torch.device:
    """The device of all weights, which are plain tensors."""
    require_numbers(weights.values())
    for name, weight in weights.items():
        is_plain = type(weight) in (nn.Parameter, Tensor) and weight.layout is torch.strided
        is_number = weight.is_floating_point() and weight.dtype.itemsize > 1
        is_buffer = type(weight) is Tensor and not weight.is_floating_point()
        if not is_plain or not (is_number or is_buffer):
            raise InputError(
                "expected weights that are plain floating-point tensors, found "
                f"{type(weight).__name__} of {weight.dtype} in {name}: dequantise the model first"
            )
    devices = {weight.device for weight in weights.values()}
    if len(devices) != 1:
        raise InputError(
            "expected all weights in memory, of one device, found "
            f"{', '.join(sorted(map(str, devices)))}: move the whole model there with "
            "model.to(...), or save it and use load_model"
        )
    return devices.pop()


# ---- the two held against each other


def _require_same_parts(modules: Modules, rebuilt_model: PreTrainedModel, name: str) -> None:
    """Refuse modules, settings or buffers that are not those of the configuration: they compute
    something else, perhaps beyond the few tokens of the probe.
    """
    for path, rebuilt_part in _modules(rebuilt_model).items():
        part = modules.get(path)
        if part is None or type(part) is not type(rebuilt_part):
            raise InputError(
                f"expected {type(rebuilt_part).__name__} in {path or name}, as its configuration "
                f"says, found {type(part).__name__}{_HINT}"
            )
        for setting, value in _settings_of(rebuilt_part).items():
            if (user_value := vars(part).get(setting, value)) != value:
                raise InputError(
                    f"expected {setting} = {value!r} in {path or name}, as its configuration says, "
                    f"found {user_value!r}: set it in the configuration before the model is built"
                )
        for buffer, value in rebuilt_part._buffers.items():
            if value is not None and not _are_equal(part._buffers.get(buffer), value):
                raise InputError(
                    f"expected {path}.{buffer} as the configuration says, found other numbers "
                    "(`.half()` and `.to(dtype)` round it): load the model with dtype=..., or save "
                    "it and use load_model"
                )


def _settings_of(part: nn.Module) -> dict[str, bool | int | float]:
    """Settings with which a module computes, beside its tensors."""
    return {
        name: value
        for name, value in vars(part).items()
        if isinstance(value, bool | int | float)
        and not name.startswith("_")
        and name not in _NOT_COMPUTED_WITH
    }


def _are_equal(first: Tensor | None, second: Tensor) -> bool:
    if first is None or first.dtype != second.dtype:
        return False
    return torch.equal(first.to(second.device), second)


def _logits(
    model: PreTrainedModel | TransformerBridge,
    config: PreTrainedConfig | None,
    probe: Int[Tensor, "1 pos"],
    name: str,
) -> Float[Tensor, "1 pos d_vocab"]:
    """The model's logits in eval mode, with the functions that `config` names; afterwards the model
    is as it was.

    Without gradients even of weights: torch multiplies in another order where a weight asks for
    one, also under `no_grad`. What was compiled computes as it was written.
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
            vars(user_config).update({each: getattr(config, each, None) for each in _CHOICES})
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        try:
            output = model.eval()(probe, **options)
        except Exception as error:
            raise InputError(
                f"expected a model that computes, found {name}: {one_line(in_words(error))}"
            ) from None
    return output if isinstance(output, Tensor) else output.logits


def _require_equal(user_logits: Tensor, rebuilt_logits: Tensor, name: str) -> None:
    if not torch.equal(user_logits, rebuilt_logits):
        check_same(user_logits, user_logits, name)  # says so where they are not finite
        raise InputError(
            f"expected {name} to compute what its weights compute when they are saved and loaded, "
            f"found logits {float((user_logits - rebuilt_logits).abs().max()):.3g} apart: "
            "something on it was replaced in memory; undo it"
        )


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
        weights = _saved_tensors(_modules(model))
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
