"""Take a model that a user has in memory, and check it as a loaded one.

Nothing of the user's object is changed. A second model is built around the same weights, as `load_model` would build it from
their files: no weight is copied. Whatever else the user's object computes with (its modules, their settings, its buffers, its
logits) is held against that second model, and a difference is refused. So the numbers of an adopted model are those of the same
weights saved with `save_pretrained` and loaded.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformer_lens.model_bridge import TransformerBridge
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from hooks import SIXTEEN_BITS
from ostools.ground.errors import InputError, in_words
from ostools.models.describe import Metadata, _metadata, digest, refuse_processed, remember, require_numbers
from ostools.models.families import Family
from ostools.models.files.checkpoint import Checkpoint
from ostools.models.files.checks import one_line
from ostools.models.files.config import family_of_settings, quiet, without_saved, without_unread
from ostools.models.files.shards import check_finite
from ostools.models.files.tokenizer import check_tokenizer, without_negative_ids
from ostools.models.load import check_same, give_tokenizer, probe_of, wrapped
from ostools.models.precision.scores import check_arithmetic, is_eager
from ostools.models.precision.torch_state import default_torch_state

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


@default_torch_state()
def adopt(
    model: Any,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    name: str = "adopted",
) -> TransformerBridge:
    """A model in memory (fine-tuned, merged, edited) in the form that `load_model` gives, on the same weights without a copy.

    Args:
        model: a Hugging Face model of a family that `ostools list models` lists, in any mode, with any kind of attention. Or a
            raw `TransformerBridge`, or nnsight's `LanguageModel`. It is not changed: it trains, generates and saves as before.
        tokenizer: the tokenizer of a Hugging Face model; None: the model takes token ids alone. For a bridge
            or a `LanguageModel`, None is its own.
        name: what results call the model.

    What comes back reads the same memory: an edit of a weight in place is an edit of both. A weight that is replaced by another
    tensor (`.to(...)`, `p.data = ...`), and an edit of a joint q, k, v weight of which TransformerLens computes with copies
    (Pythia, Falcon, Bloom, MPT), is refused from then on: adopt the model again.

    Raises `InputError` for whatever `load_model` refuses; for compatibility mode and processed weights; for hooks and replaced
    methods on a module; for modules, settings, buffers and logits that differ from those that its configuration and weights
    give (adapters that are not merged, quantised layers, rotations that `.half()` has rounded); and for weights on several
    devices. Cost: four tiny forward passes.
    """
    if isinstance(model, TransformerBridge) and model in _metadata and tokenizer is None:
        return model
    model, tokenizer = _unwrapped(model, tokenizer)
    user_model: Any = model.original_model if isinstance(model, TransformerBridge) else model
    modules = parts(user_model)
    refuse_hooks(model, modules)
    family = family_of_settings(user_model.config.to_dict(), f"the configuration of {name}")
    config = _config(user_model, family)
    with quiet():
        weight_by_name = weights(model, modules, family, config)
        require_numbers(weight_by_name.values())
        dtype, device = one_place(weight_by_name)
        lens = isinstance(model, TransformerBridge)
        eager = dtype in SIXTEEN_BITS and (
            is_eager(model) if lens else user_model.config._attn_implementation == "eager"
        )
        check_arithmetic(family, eager)
        rebuilt_model = _built(family, config, weight_by_name, dtype, device, name)
        rebuilt_model.generation_config = copy.deepcopy(user_model.generation_config)
        without_negative_ids(rebuilt_model.generation_config)
        same_parts(modules, parts(rebuilt_model), name)
        probe = probe_of(rebuilt_model)
        reference_logits = _logits(model, user_model, probe, name)
        if isinstance(model, PreTrainedModel):
            _require_equal(reference_logits, _logits(rebuilt_model, rebuilt_model, probe, name), name)
        bridge = wrapped(rebuilt_model, family, name, eager)
        if dtype not in SIXTEEN_BITS or eager:  # `wrapped` has held the others against float32 scores
            check_same(reference_logits, bridge(probe), name)
    if isinstance(model, TransformerBridge):
        _same_weights(model, bridge, name)
    if tokenizer is None and isinstance(model, TransformerBridge):
        tokenizer = model.tokenizer  # pyright: ignore[reportAssignmentType]
    if tokenizer is not None:
        _put_tokenizer(bridge, tokenizer, name)
    remember(bridge, Metadata(name=name, origin="adopted", check=_replacement_check(user_model, bridge, name)))
    return bridge


def _unwrapped(model: Any, tokenizer: Any) -> tuple[Any, Any]:
    """The Hugging Face model or raw bridge, and its tokenizer. `InputError` for anything else."""
    if isinstance(
        getattr(model, "_module", None), PreTrainedModel
    ):  # nnsight's LanguageModel, around the model it traces
        model, tokenizer = model._module, tokenizer or getattr(model, "tokenizer", None)
    if not isinstance(model, PreTrainedModel | TransformerBridge):
        raise InputError(
            "expected a Hugging Face model (PreTrainedModel) or a TransformerBridge, found "
            f"{type(model).__name__}{_remedy(model)}"
        )
    if isinstance(model, TransformerBridge):
        refuse_processed(model)
        if model._weights_processed:
            raise InputError(
                "expected a raw TransformerBridge, found one whose weights were processed (folded or centred), where y_n means "
                "something else: load it again without processing"
            )
    return model, tokenizer


def _remedy(model: object) -> str:
    """Advice for what is no model."""
    if hasattr(model, "merge_and_unload"):
        return ": merge its adapter first, model.merge_and_unload()"
    if type(model).__name__ == "HookedTransformer":
        return ": its weights are folded and centred; give the Hugging Face model that it was made of"
    return ": a name or a directory is for load_model" if isinstance(model, str | Path) else ""


def _config(user_model: PreTrainedModel, family: Family) -> PreTrainedConfig:
    """The configuration of that model, as it is read from a file."""
    kind = type(user_model)
    if kind is not getattr(transformers, family.module):
        raise InputError(
            f"expected a {family.module} of transformers, found {kind.__module__}.{kind.__name__}: save it and use load_model"
        )
    config = type(user_model.config).from_dict(without_saved(copy.deepcopy(user_model.config.to_dict())))
    config.architectures = [family.architecture]
    without_unread(config, family)
    return config


def _built(
    family: Family,
    config: PreTrainedConfig,
    weights: dict[str, nn.Parameter],
    dtype: torch.dtype,
    device: torch.device,
    name: str,
) -> PreTrainedModel:
    """The model of that configuration, as loading builds it, around the user's weights."""
    checkpoint = Checkpoint(Path(name), [], family, config)
    tensor_by_path: dict[str, Tensor] = {path: weight.detach() for path, weight in weights.items()}
    with checkpoint.fitting():
        rebuilt_model = checkpoint.filled(tensor_by_path, dtype, device, lambda stored, path: tensor_by_path[stored])
    check_finite(rebuilt_model, Path(name))
    return rebuilt_model.eval()


@contextmanager
def _as_measured(model: nn.Module, config: Any) -> Iterator[None]:
    """The user's model in eval mode and with eager attention, and afterwards as it was, module by module."""
    modes = [(part, part.training) for part in model.modules()]
    attention = config._attn_implementation
    try:
        model.eval()
        config._attn_implementation = "eager"
        yield
    finally:
        config._attn_implementation = attention
        for part, mode in modes:
            part.training = mode


def _logits(model: Any, user_model: Any, probe: Tensor, name: str) -> Tensor:
    with torch.no_grad(), _as_measured(model, user_model.config):
        try:
            output = model(probe, **({} if isinstance(model, TransformerBridge) else {"use_cache": False}))
        except Exception as error:
            raise InputError(f"expected a model that computes, found {name}: {one_line(in_words(error))}") from None
    return output if isinstance(output, Tensor) else output.logits


def _require_equal(user_logits: Tensor, rebuilt_logits: Tensor, name: str) -> None:
    if not torch.equal(user_logits, rebuilt_logits):
        check_same(user_logits, user_logits, name)  # says so where they are not finite
        raise InputError(
            f"expected {name} to compute what its weights compute when they are saved and loaded, found logits "
            f"{float((user_logits - rebuilt_logits).abs().max()):.3g} apart: something on it was replaced in memory; undo it"
        )


def _same_weights(user_bridge: TransformerBridge, adopted_bridge: TransformerBridge, name: str) -> None:
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


def _replacement_check(user_model: PreTrainedModel, bridge: TransformerBridge, name: str) -> Callable[[], None]:
    """Function that refuses the model once its weights were replaced: by their addresses, and by digests of those that
    TransformerLens copied."""
    model_reference = weakref.ref(user_model)
    parameter_by_path = parameters(parts(user_model))
    shared = {weight.data_ptr() for weight in bridge.parameters()}
    addresses = {path: weight.data_ptr() for path, weight in parameter_by_path.items()}
    copied = [path for path, address in addresses.items() if address not in shared]
    digests = {path: digest(path, parameter_by_path[path].detach()) for path in copied}

    def check() -> None:
        model = model_reference()
        if model is None:
            return
        now = parameters(parts(model))
        changed = [path for path in addresses if path not in now or now[path].data_ptr() != addresses[path]]
        if not changed:
            changed = [path for path in copied if digest(path, now[path].detach()) != digests[path]]
        if changed:
            raise InputError(
                f"expected {name} as it was adopted, found {changed[0]} replaced since: what was adopted is not what "
                "the model is now; adopt it again"
            )

    return check


def _put_tokenizer(bridge: TransformerBridge, tokenizer: Any, name: str) -> None:
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise InputError(
            f"tokenizer: expected one of transformers, found {type(tokenizer).__name__}: AutoTokenizer.from_pretrained(...) "
            "gives one"
        )
    check_tokenizer(tokenizer, int(bridge.W_E.shape[0]), Path(name))
    give_tokenizer(bridge, tokenizer)


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
