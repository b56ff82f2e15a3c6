"""A Hugging Face model as a `TransformerBridge` that computes the same: raw hooks, eval mode, no gradients."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.sources import build_bridge_from_module, detect_tokenizer_bos_eos
from transformers import PreTrainedModel

from ostools.ground.errors import InputError, in_words
from ostools.models.families import Family
from ostools.models.files.checks import check_same, one_line


def unpatched(bridge: TransformerBridge) -> TransformerBridge:
    """The bridge without functions in the place of its modules' own `forward`, such as TransformerLens puts into Falcon's.

    They hold the module that they were made for, so that a copy of the model (`view_in`) would compute with its weights.
    """
    for module in bridge.modules():
        if isinstance(vars(module).get("forward"), FunctionType):
            del module.forward
    return bridge


def wrapped(module: PreTrainedModel, family: Family, name: str) -> TransformerBridge:
    """Wrap the module, which is changed in place, and see that it still computes the same.

    TransformerLens draws weights for layers that it then fills (a joint projection's parts): torch's generator is put back.
    """
    probe = probe_of(module)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        reference = _first_pass(lambda: module(probe, use_cache=False).logits, name)
        try:
            bridge = build_bridge_from_module(module, family.module, hf_config=module.config, model_name=name)
        except Exception as error:  # bare ones, of a library that does not know a setting of this architecture
            why = one_line(in_words(error)).rstrip(":")
            raise InputError(
                f"expected a model that TransformerLens can wrap, found {name}: {why}; it does not know one of its settings"
            ) from None
        bridge.eval()
        for parameter in bridge.parameters():
            parameter.requires_grad_(False)
        if family.copied:
            _let_go_of_joint(bridge)
        unpatched(bridge)
        check_same(reference, _first_pass(lambda: bridge(probe), name), name)
    return bridge


def probe_of(module: PreTrainedModel) -> Int[Tensor, "1 pos"]:
    """Token ids from all over the vocabulary, on which two forms of a model are held against each other."""
    return torch.linspace(0, module.config.vocab_size - 1, 8, device=module.device).long()[None]


def give_tokenizer(bridge: TransformerBridge, tokenizer: Any) -> None:
    """The tokenizer, and what TransformerLens asks of it; None leaves a model that takes token ids alone."""
    if tokenizer is not None:
        bridge.tokenizer = tokenizer
        bridge.cfg.tokenizer_prepends_bos, bridge.cfg.tokenizer_appends_eos = detect_tokenizer_bos_eos(tokenizer)


def _first_pass(run: Callable[[], torch.Tensor], name: str) -> torch.Tensor:
    """Its logits; an `InputError` for whatever is raised by settings that fit the weights and each other only in part."""
    try:
        return run()
    except Exception as error:
        raise InputError(
            f"expected a config.json with which {name} computes, found one that ends its first pass: "
            f"{one_line(in_words(error))}"
        ) from None


def _let_go_of_joint(bridge: TransformerBridge) -> None:
    """The joint weight of q, k and v, which have copies of it: nothing computes with it, nor would with a change of it."""
    for block in bridge.blocks:
        joint = block.attn.qkv.original_component
        for name, _ in list(joint.named_parameters()):
            setattr(joint, name, None)
