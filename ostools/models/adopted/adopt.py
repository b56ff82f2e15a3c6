"""Take a model that a user has in memory, and check it as a loaded one.

Nothing of the user's object is changed. A second model is built around the same weights, as `load_model` would build it from
their files: no weight is copied. Whatever else the user's object computes with (its modules, their settings, its buffers, its
logits) is held against that second model, and a difference is refused. So the numbers of an adopted model are those of the same
weights saved with `save_pretrained` and loaded.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformer_lens.model_bridge import TransformerBridge
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ostools.ground.errors import InputError, in_words
from ostools.models.adopted.parts import one_place, parameters, parts, refuse_hooks, same_parts, weights
from ostools.models.describe import Metadata, _metadata, digest, refuse_processed, remember, require_numbers
from ostools.models.families import Family
from ostools.models.files.checkpoint import Checkpoint
from ostools.models.files.checks import check_same, family_of_settings, one_line
from ostools.models.files.config import quiet, without_unread
from ostools.models.files.shards import check_finite
from ostools.models.files.vocabulary import check_tokenizer, without_negative_ids
from ostools.models.precision.casting import check_dtype
from ostools.models.precision.torch_state import default_torch_state
from ostools.models.saved_settings import without_saved
from ostools.models.wrapping import give_tokenizer, probe_of, wrapped


@default_torch_state()
def adopt(
    model: PreTrainedModel | TransformerBridge,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    name: str = "adopted",
) -> TransformerBridge:
    """A model in memory (fine-tuned, merged, edited) in the form that `load_model` gives, on the same weights without a copy.

    Args:
        model: a Hugging Face model of a family that `ostools list models` lists, in any mode, with any kind of attention. Or a
            raw `TransformerBridge`. It is not changed: it trains, generates and saves as before.
        tokenizer: the tokenizer of a Hugging Face model; None: the model takes token ids alone. For a bridge, None is its own.
        name: what results call the model.

    What comes back reads the same memory. If you edit a weight in place, it is edited in both, and the hash in every
    provenance is that of the weights at that moment. If you replace a weight by another tensor (`.to(...)`, `p.data = ...`),
    what was adopted is refused from then on: adopt the model again. In families whose q, k and v are one weight (Pythia,
    Falcon, Bloom, MPT), TransformerLens computes with copies of them, so an edit of such a weight is refused too.
    `provenance.model["origin"]` says "adopted".

    Raises `InputError` for whatever `load_model` refuses; for compatibility mode and processed weights; for hooks and replaced
    methods on a module; for modules, settings, buffers and logits that differ from those that its configuration and weights
    give (adapters that are not merged, quantised layers, rotations that `.half()` has rounded); and for weights on several
    devices. Cost: four tiny forward passes.
    """
    if isinstance(model, TransformerBridge) and model in _metadata and tokenizer is None:
        return model
    if not isinstance(model, PreTrainedModel | TransformerBridge):
        raise InputError(
            "expected a Hugging Face model (PreTrainedModel) or a TransformerBridge, found "
            f"{type(model).__name__}{_remedy(model)}"
        )
    if isinstance(model, TransformerBridge):
        _check_raw(model)
    theirs: Any = model.original_model if isinstance(model, TransformerBridge) else model
    modules = parts(theirs)
    refuse_hooks(model, modules)
    family = family_of_settings(theirs.config.to_dict(), f"the configuration of {name}")
    config = _config(theirs, family)
    with quiet():
        weight_by_name = weights(model, modules, family, config)
        require_numbers(weight_by_name.values())
        dtype, device = one_place(weight_by_name)
        check_dtype(family, dtype)
        ours = _built(family, config, weight_by_name, dtype, device, name)
        ours.generation_config = copy.deepcopy(theirs.generation_config)
        without_negative_ids(ours.generation_config)
        same_parts(modules, parts(ours), name)
        probe = probe_of(ours)
        reference_logits = _logits(model, theirs, probe, name)
        if isinstance(model, PreTrainedModel):
            _require_equal(reference_logits, _logits(ours, ours, probe, name), name)
        bridge = wrapped(ours, family, name)
        check_same(reference_logits, bridge(probe), name)
    if isinstance(model, TransformerBridge):
        _same_weights(model, bridge, name)
    chosen_tokenizer: Any = model.tokenizer if tokenizer is None and isinstance(model, TransformerBridge) else tokenizer
    if chosen_tokenizer is not None:
        _put_tokenizer(bridge, chosen_tokenizer, name)
    remember(bridge, Metadata(name, origin="adopted", check=_AdoptedWeights(theirs, bridge, name).check))
    return bridge


def _remedy(model: object) -> str:
    """What to do with what is no model."""
    if hasattr(model, "merge_and_unload"):
        return ": merge its adapter first, model.merge_and_unload()"
    return ": a name or a directory is for load_model" if isinstance(model, str | Path) else ""


def _check_raw(model: TransformerBridge) -> None:
    refuse_processed(model)
    if model._weights_processed:
        raise InputError(
            "expected a raw TransformerBridge, found one whose weights were processed (folded or centred), where y_n means "
            "something else: load it again without processing"
        )


def _config(theirs: PreTrainedModel, family: Family) -> PreTrainedConfig:
    """The configuration of that model, as it is read from a file."""
    if type(theirs) is not getattr(transformers, family.module):
        raise InputError(
            f"expected a {family.module} of transformers, found {type(theirs).__module__}.{type(theirs).__name__}: save it and "
            "use load_model"
        )
    config = type(theirs.config).from_dict(without_saved(copy.deepcopy(theirs.config.to_dict())))
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
    checkpoint = Checkpoint(Path(name), [], family, config, None)
    tensor_by_path: dict[str, Tensor] = {path: weight.detach() for path, weight in weights.items()}
    with checkpoint.fitting():
        ours = checkpoint.filled(tensor_by_path, dtype, device, lambda stored, path: tensor_by_path[stored])
    check_finite(ours, Path(name))
    return ours.eval()


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


def _logits(model: Any, theirs: Any, probe: Tensor, name: str) -> Tensor:
    with torch.no_grad(), _as_measured(model, theirs.config):
        try:
            output = model(probe, **({} if isinstance(model, TransformerBridge) else {"use_cache": False}))
        except Exception as error:
            raise InputError(f"expected a model that computes, found {name}: {one_line(in_words(error))}") from None
    return output if isinstance(output, Tensor) else output.logits


def _require_equal(theirs: Tensor, ours: Tensor, name: str) -> None:
    if not torch.equal(theirs, ours):
        check_same(theirs, theirs, name)  # says so where they are not finite
        raise InputError(
            f"expected {name} to compute what its weights compute when they are saved and loaded, found logits "
            f"{float((theirs - ours).abs().max()):.3g} apart: something on it was replaced in memory; undo it"
        )


def _same_weights(theirs: TransformerBridge, ours: TransformerBridge, name: str) -> None:
    """Every tensor that the user's bridge computes with is the new one's (of a joint q, k, v its copies too)."""
    own_parameters = dict(ours.named_parameters())
    for path, weight in theirs.named_parameters():
        mine = own_parameters.get(path)
        if mine is not None and weight.data_ptr() != mine.data_ptr() and not torch.equal(weight, mine):
            raise InputError(
                f"expected {path} of {name} to be part of the weight that it was made of, found it edited apart: edit the "
                "Hugging Face model before it is wrapped"
            )


class _AdoptedWeights:
    """What was adopted, by the addresses of its weights; of what TransformerLens copied, by its contents."""

    def __init__(self, theirs: PreTrainedModel, bridge: TransformerBridge, name: str) -> None:
        self.theirs = weakref.ref(theirs)
        self.name = name
        parameter_by_path = parameters(parts(theirs))
        shared = {weight.data_ptr() for weight in bridge.parameters()}
        self.addresses = {path: weight.data_ptr() for path, weight in parameter_by_path.items()}
        self.digests = {
            path: digest(path, weight.detach())
            for path, weight in parameter_by_path.items()
            if weight.data_ptr() not in shared
        }

    def check(self) -> None:
        """Refuse a model whose weights were replaced since it was adopted."""
        theirs = self.theirs()
        if theirs is None:
            return
        now = parameters(parts(theirs))
        changed = [path for path in self.addresses if path not in now or now[path].data_ptr() != self.addresses[path]]
        changed += [
            path for path in self.digests if not changed and digest(path, now[path].detach()) != self.digests[path]
        ]
        if changed:
            raise InputError(
                f"expected {self.name} as it was adopted, found {changed[0]} replaced since: what was adopted is not what "
                "the model is now; adopt it again"
            )


def _put_tokenizer(bridge: TransformerBridge, tokenizer: Any, name: str) -> None:
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise InputError(
            f"tokenizer: expected one of transformers, found {type(tokenizer).__name__}: AutoTokenizer.from_pretrained(...) "
            "gives one"
        )
    check_tokenizer(tokenizer, int(bridge.W_E.shape[0]), Path(name))
    give_tokenizer(bridge, tokenizer)
