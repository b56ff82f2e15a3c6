"""Take a model that a user has in memory, and check it as a loaded one.

Nothing of the user's object is changed. A second model is built around the same weights, as
`load_model` would build it from their files: no weight is copied. Whatever else the user's object
computes with (its modules, their settings, its buffers, its logits) is held against that second
model, and a difference is refused. So the numbers of an adopted model are those of the same weights
saved with `save_pretrained` and loaded.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from ostools.ground.errors import InputError, in_words
from ostools.ground.lens import (
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TransformerBridge,
)
from ostools.hooks import SIXTEEN_BITS
from ostools.models.adopted.parts import (
    one_place,
    parts,
    refuse_hooks,
    same_parts,
    saved_tensors,
    weights,
)
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
from ostools.models.files.checks import one_line
from ostools.models.files.config import family_of_settings, quiet, without_saved, without_unread
from ostools.models.files.functions import CHOICES, configurations, require_own_functions
from ostools.models.files.offload import fill, placeholders
from ostools.models.files.shards import check_finite
from ostools.models.files.tokenizer import check_tokenizer, without_negative_ids
from ostools.models.load import check_same, give_tokenizer, probe_of, wrapped
from ostools.models.precision.scores import check_arithmetic, is_eager
from ostools.models.precision.torch_state import default_torch_state


@default_torch_state()
def adopt(
    model: Any,
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
    model, tokenizer = _unwrapped(model, tokenizer)
    user_model: Any = model.original_model if isinstance(model, TransformerBridge) else model
    modules = parts(user_model)
    refuse_hooks(model, modules)
    require_own_functions(user_model, name)
    family = family_of_settings(user_model.config.to_dict(), f"the configuration of {name}")
    config = _config(user_model, family)
    with quiet():
        weight_by_name = weights(model, modules, family, config)
        require_numbers(weight_by_name.values())
        device = one_place(weight_by_name)
        dtype = user_model.get_input_embeddings().weight.dtype
        eager = (
            dtype in SIXTEEN_BITS
            and family.not_eager != ALWAYS_FLOAT32_SCORES
            and _rounds_scores(model)
        )
        check_arithmetic(family, eager)
        rebuilt_model = _built(family, config, weight_by_name, dtype, device, name)
        rebuilt_model.generation_config = copy.deepcopy(user_model.generation_config)
        without_negative_ids(rebuilt_model.generation_config)
        same_parts(modules, parts(rebuilt_model), name)
        probe = probe_of(rebuilt_model)
        reference_logits = _logits(model, user_model, rebuilt_model, probe, name)
        if isinstance(model, PreTrainedModel):
            _require_equal(
                reference_logits,
                _logits(rebuilt_model, rebuilt_model, rebuilt_model, probe, name),
                name,
            )
        bridge = wrapped(rebuilt_model, family, name, eager)
        # A bridge of the user's has not been held against the rebuilt model yet. A Hugging Face
        # model has, by its eager attention, and `wrapped` has held the rebuilt one against float32
        # scores.
        if isinstance(model, TransformerBridge) or dtype not in SIXTEEN_BITS or eager:
            check_same(reference_logits, bridge(probe), name)
    if isinstance(model, TransformerBridge):
        _same_weights(model, bridge, name)
    if tokenizer is None and isinstance(model, TransformerBridge):
        tokenizer = model.tokenizer  # pyright: ignore[reportAssignmentType]
    if tokenizer is not None:
        _put_tokenizer(bridge, tokenizer, name)
    remember(
        bridge,
        Metadata(name=name, origin="adopted", check=_replacement_check(user_model, bridge, name)),
    )
    return bridge


def _unwrapped(model: Any, tokenizer: Any) -> tuple[Any, Any]:
    """The Hugging Face model or raw bridge, and its tokenizer. `InputError` for anything else."""
    if isinstance(
        getattr(model, "_module", None), PreTrainedModel
    ):  # nnsight's, around the model that it traces
        if any(part._edits for part in _with_children(model)):
            raise InputError(
                "expected a model of nnsight without edits, found one that has some: model.clear_edits()"
            )
        model, tokenizer = model._module, tokenizer or getattr(model, "tokenizer", None)
    model = getattr(model, "_orig_mod", model)  # what torch.compile was given
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


def _with_children(envoy: Any) -> Iterator[Any]:
    """nnsight's handle of a module, and those of the modules in it."""
    yield envoy
    for child in envoy._children:
        yield from _with_children(child)


def _remedy(model: object) -> str:
    """Advice for what is no model."""
    if hasattr(model, "merge_and_unload"):
        return ": merge its adapter first, model.merge_and_unload()"
    if type(model).__name__ == "HookedTransformer":
        return (
            ": its weights are folded and centred; give the Hugging Face model that it was made of"
        )
    return ": a name or a directory is for load_model" if isinstance(model, str | Path) else ""


def _config(user_model: PreTrainedModel, family: Family) -> PreTrainedConfig:
    """The configuration of that model, as it is read from a file."""
    kind = type(user_model)
    if kind is not getattr(transformers, family.module):
        raise InputError(
            f"expected a {family.module} of transformers, found {kind.__module__}.{kind.__name__}: save it and use load_model"
        )
    config = type(user_model.config).from_dict(
        without_saved(copy.deepcopy(user_model.config.to_dict()))
    )
    config.architectures = [family.architecture]
    without_unread(config, family)
    return config


def _rounds_scores(model: PreTrainedModel | TransformerBridge) -> bool:
    """Whether a model in 16 bits rounds attention's scores to them."""
    return (
        is_eager(model)
        if isinstance(model, TransformerBridge)
        else model.config._attn_implementation == "eager"
    )


def _built(
    family: Family,
    config: PreTrainedConfig,
    weights: dict[str, Tensor],
    dtype: torch.dtype,
    device: torch.device,
    name: str,
) -> PreTrainedModel:
    """The model of that configuration, as loading builds it, around the user's weights."""
    tensor_by_path = {path: weight.detach() for path, weight in weights.items()}
    holders = placeholders(tensor_by_path)
    with fitting(Path(name)):
        rebuilt_model = build(family, config, holders, dtype, Path(name))
        fill(rebuilt_model, holders, device, lambda stored, path: tensor_by_path[stored])
    check_finite(rebuilt_model, Path(name))
    return rebuilt_model.eval()


@contextmanager
def _as_measured(
    model: Any, user_model: PreTrainedModel, rebuilt_model: PreTrainedModel
) -> Iterator[None]:
    """The user's model in eval mode, with the functions of the rebuilt one and without gradients;
    afterwards as it was.

    Without gradients even of weights: torch multiplies in another order where a weight asks for
    one, also under `no_grad`. What was compiled computes as it was written.
    """
    modes = [(part, part.training) for part in model.modules()]
    gradients = [(weight, weight.requires_grad) for weight in model.parameters()]
    names = [
        (config, {choice: vars(config)[choice] for choice in CHOICES})
        for config in configurations(user_model)
    ]
    compiled = "torch._dynamo" in sys.modules
    try:
        model.eval()
        for weight, _ in gradients:
            weight.requires_grad_(False)
        for config, choices in names:
            vars(config).update(
                {choice: getattr(rebuilt_model.config, choice, None) for choice in choices}
            )
        with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
            yield
    finally:
        for config, choices in names:
            vars(config).update(choices)
        for weight, needs_gradient in gradients:
            weight.requires_grad_(needs_gradient)
        for part, mode in modes:
            part.training = mode


def _logits(
    model: Any, user_model: Any, rebuilt_model: PreTrainedModel, probe: Tensor, name: str
) -> Tensor:
    with torch.no_grad(), _as_measured(model, user_model, rebuilt_model):
        try:
            output = model(
                probe, **({} if isinstance(model, TransformerBridge) else {"use_cache": False})
            )
        except Exception as error:
            raise InputError(
                f"expected a model that computes, found {name}: {one_line(in_words(error))}"
            ) from None
    return output if isinstance(output, Tensor) else output.logits


def _require_equal(user_logits: Tensor, rebuilt_logits: Tensor, name: str) -> None:
    if not torch.equal(user_logits, rebuilt_logits):
        check_same(user_logits, user_logits, name)  # says so where they are not finite
        raise InputError(
            f"expected {name} to compute what its weights compute when they are saved and loaded, found logits "
            f"{float((user_logits - rebuilt_logits).abs().max()):.3g} apart: something on it was replaced in memory; undo it"
        )


def _same_weights(
    user_bridge: TransformerBridge, adopted_bridge: TransformerBridge, name: str
) -> None:
    """Every tensor that the user's bridge computes with is the new one's (of a joint q, k, v its
    copies too).
    """
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


def _replacement_check(
    user_model: PreTrainedModel, bridge: TransformerBridge, name: str
) -> Callable[[], None]:
    """Function that refuses the model once its weights were replaced: by their addresses, and by
    digests of those that TransformerLens copied."""
    model_reference = weakref.ref(user_model)
    weight_by_path = saved_tensors(parts(user_model))
    shared = {weight.data_ptr() for weight in (*bridge.parameters(), *bridge.buffers())}
    addresses = {path: weight.data_ptr() for path, weight in weight_by_path.items()}
    copied = [path for path, address in addresses.items() if address not in shared]
    digests = {path: digest(path, weight_by_path[path].detach()) for path in copied}

    def check() -> None:
        model = model_reference()
        if model is None:
            return
        now = saved_tensors(parts(model))
        changed = [
            path for path in addresses if path not in now or now[path].data_ptr() != addresses[path]
        ]
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
