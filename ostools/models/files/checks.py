"""What a model's directory and its weights must satisfy before a number is computed from them.

Each check refuses with one line: what was expected, what was found, what to do. None repairs anything.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from torch import nn

from ostools.ground.errors import InputError
from ostools.models.families import FAMILIES, KNOWN, Family, family_of_config
from ostools.models.quantised.formats import check_quantisation

TEMPLATES = "additional_chat_templates"
"""The folder where transformers looks for chat templates too; the one that is called default is then the model's."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_PARTS_OF_ONE = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "vocab.*",
    "*.tiktoken",
    "spiece.model",
    "sentencepiece*",
    "chat_template*",
    TEMPLATES,
)
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_LARGEST_JSON = 64 << 20  # bytes; the largest known index or tokenizer has a few MB
_IN_A_WORD = 16
"""Weights that a number of a quantised checkpoint stands for, at most: 2 bits each in a word of 32."""
_CHUNK = 1 << 24  # elements looked at in one go: a check must not need a second copy of an embedding


def one_line(error: object) -> str:
    """Another library's error in one line that fits behind ours."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:297] + "..."


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or the refusal that says which file is broken and how."""
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise InputError(
                f"expected at most {_LARGEST_JSON >> 20} MiB of JSON, found more in {path}: fetch it again"
            )
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"expected {path.name} in {path.parent}, found none: is this a Hugging Face model?") from None
    except InputError:
        raise
    except (OSError, ValueError, RecursionError) as error:  # brackets a hundred thousand deep
        raise InputError(f"expected JSON in {path}, found something else: {one_line(error)}") from None
    if not isinstance(content, dict):
        raise InputError(f"expected a JSON object in {path}, found {type(content).__name__}")
    return content


def check_config(directory: Path) -> Family:
    """The family of the model in `directory`, or why ostools does not load it."""
    check_files(directory)
    config = read_json(directory / "config.json")
    check_quantisation(config, directory)
    return family_of_settings(config, str(directory / "config.json"))


def family_of_settings(config: dict[str, Any], where: str) -> Family:
    """The family of a model with these settings, or why ostools does not take it; `where`: what they are settings of."""
    kind = config.get("model_type")
    text = config.get("text_config")
    for settings in (config, text if isinstance(text, dict) else {}):
        for flag in ("is_encoder_decoder", "use_bidirectional_attention", "add_cross_attention"):
            if settings.get(flag):
                raise InputError(
                    f"expected a decoder-only model with causal attention, found {flag} = {settings[flag]!r} in "
                    f"{where}: the theory does not cover it; use one of {KNOWN}"
                )
    family = family_of_config(config)
    if family is None:
        known = [known for known in FAMILIES if known.model_type == kind]
        settings = {setting.name: setting.read(config) for family in known for setting in family.when}
        found = f"model_type {kind!r}" + "".join(f", {name} {value!r}" for name, value in settings.items())
        raise InputError(
            f"expected a model of a known family ({KNOWN}), found {found} in {where}: its hooks have not "
            "been held against Hugging Face's own model"
        )
    if family.refused is not None:
        raise InputError(
            f"expected a model whose hooks show and change what it computes, found {family.name} in "
            f"{where}: {family.refused}; `ostools models` lists what loads"
        )
    named = config.get("architectures")
    if named and named != [family.architecture]:
        raise InputError(
            f"expected architecture {family.architecture} for model_type {kind!r}, found {named} in "
            f"{where}: load the language model, not another head on it"
        )
    return family


def check_files(directory: Path) -> None:
    """No file asks for code of the checkpoint's own, and whatever the libraries may open is a file or a directory, links
    followed: a pipe would wait for ever."""
    for folder in (directory, directory / TEMPLATES):
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.exists() and not (path.is_file() or path.is_dir()):
                raise InputError(f"expected only files in {folder}, found {path.name}, a pipe or a device: remove it")
    for file in ("config.json", "tokenizer_config.json"):
        if (directory / file).exists() and "auto_map" in read_json(directory / file):
            raise InputError(
                f"expected a model that transformers itself implements, found remote code (auto_map in "
                f"{directory / file}): ostools runs no code from a checkpoint; convert it to one of {KNOWN}"
            )


def check_weight_files(directory: Path) -> list[Path]:
    """Every safetensors file that the model needs, there and whole. Reads headers, not weights."""
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if single.exists():
        shards = [single]
    elif index.exists():
        names = read_json(index).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise InputError(f"expected a weight_map in {index}, found none: fetch the file again")
        files = sorted({str(name) for name in names.values()})
        if outside := [name for name in files if Path(name).name != name or not name.strip(".")]:
            raise InputError(
                f"expected names of files beside {index}, found {outside[0][:80]!r} in its weight_map: fetch it again"
            )
        shards = [directory / name for name in files]
    else:
        pickles = sorted(file.name for pattern in _PICKLES for file in directory.glob(pattern))
        found = f"only pickles ({', '.join(pickles[:3])})" if pickles else "none"
        remedy = "convert them to safetensors: loading a pickle runs code" if pickles else "fetch the weights"
        raise InputError(f"expected model.safetensors in {directory}, found {found}: {remedy}")
    for shard in shards:
        check_safetensors(shard)
    return shards


def check_safetensors(file: Path) -> None:
    """The file is there and whole. Reads its header."""
    if not file.is_file():
        raise InputError(f"expected the weights {file.name} in {file.parent}, found no such file: fetch it again")
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(64)
    if start.startswith(b"version https://git-lfs"):
        raise InputError(f"expected weights in {file}, found a Git LFS pointer: run `git lfs pull`")
    try:
        with safe_open(file, "pt") as tensors:
            tensors.keys()
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"expected a whole safetensors file, found {file} truncated or corrupt ({size} bytes; "
            f"{one_line(error)}): fetch it again"
        ) from None


def check_size(config: Any, family: Family, shards: Iterable[Path], directory: Path, quantised: bool) -> None:
    """The model that config.json describes is about as large as its weights, before memory for it is asked for.

    Which weight is missing or of another shape, `check_loaded` says.
    """
    stored = []
    for shard in shards:
        with safe_open(shard, "pt") as file:
            stored += [math.prod(file.get_slice(name).get_shape()) for name in file.keys()]  # noqa: SIM118
    check_described(config, family, stored, directory, quantised)


def check_described(config: Any, family: Family, stored: list[int], where: Path, quantised: bool) -> None:
    """The model of the configuration is about as large as the stored tensors, whose sizes these are."""
    layers = config.num_hidden_layers
    if layers > len(stored):  # building so many would not end
        raise InputError(
            f"expected a weight for each of {layers} layers in {where}, found {len(stored)} in all: "
            "weights and config.json belong to different models"
        )
    with torch.device("meta"):  # shapes without memory
        described = sum(weight.numel() for weight in getattr(transformers, family.module)(config).parameters())
    if described > 2 * sum(stored) * (_IN_A_WORD if quantised else 1):
        raise InputError(
            f"expected {described} weights in {where} as config.json says, found {sum(stored)}: "
            "weights and config.json belong to different models"
        )


def check_loaded(info: dict[str, Any], family: Family, directory: Path) -> None:
    """Every parameter came from the checkpoint and the checkpoint had nothing else to say."""
    missing = sorted(info["missing_keys"])
    unexpected = sorted(key for key in info["unexpected_keys"] if not re.search(family.ignored or r"\A\Z", key))
    mismatched = sorted((key, tuple(found), tuple(want)) for key, found, want in info["mismatched_keys"])
    if mismatched:
        key, found, want = mismatched[0]
        raise InputError(
            f"expected {key} of shape {want} as config.json says, found {found} in {directory}"
            f"{_and_more(len(mismatched))}: weights and config.json belong to different models"
        )
    if missing:
        raise InputError(
            f"expected every weight of {family.module} in {directory}, found {len(missing)} missing "
            f"({_first(missing)}): they would be random; fetch the checkpoint again"
        )
    if unexpected:
        raise InputError(
            f"expected only weights of {family.module} in {directory}, found {len(unexpected)} more "
            f"({_first(unexpected)}): the model would ignore them; is config.json this checkpoint's own?"
        )


def _first(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _and_more(count: int) -> str:
    return "" if count == 1 else f" (and {count - 1} more)"


def check_finite(module: nn.Module, directory: Path) -> None:
    """No weight is NaN or infinite in the dtype that was asked for."""
    for name, weight in module.named_parameters():
        ends = torch.stack(
            torch.aminmax(weight.detach())
        )  # NaN wherever there is one, and no second tensor of its size
        if not bool(ends.isfinite().all()):
            bad = sum(int((~part.isfinite()).sum()) for part in weight.detach().flatten().split(_CHUNK))
            dtype = str(weight.dtype).removeprefix("torch.")
            raise InputError(
                f"expected finite weights, found {bad} NaN or infinite in {name} ({dtype}) of {directory}: "
                f"{'the checkpoint is broken' if dtype in ('float32', 'float64') else 'try dtype float32'}"
            )


def has_tokenizer(directory: Path) -> bool:
    """Whether the directory brings a tokenizer of its own: without one transformers makes up a five-token one.

    Raises `InputError` for part of a tokenizer.
    """
    if any((directory / file).exists() for file in _TOKENIZER_FILES):
        return True
    parts = sorted({path.name for pattern in _PARTS_OF_ONE for path in directory.glob(pattern)})
    if parts:
        raise InputError(
            f"expected a tokenizer ({', '.join(_TOKENIZER_FILES)}) in {directory}, found only {', '.join(parts[:3])} of one: "
            "copy the model's own there, or remove that too, and the model takes token ids alone"
        )
    return False


def check_tokenizer(tokenizer: Any, d_vocab: int, directory: Path) -> None:
    """The tokenizer's ids are rows of the embedding, and it adds at most one BOS.

    An embedding may have more rows than there are tokens (it is padded to a round number), and a token that
    text cannot produce (a multimodal placeholder) may lie outside; `encode` refuses such an id if it ever appears.
    """
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    ordinary = {token: index for token, index in tokenizer.get_vocab().items() if index not in special}
    outside = [token for token, index in ordinary.items() if index >= d_vocab]
    size = len(tokenizer)
    if outside or d_vocab - size > max(d_vocab // 10, 128):
        raise InputError(
            f"expected a tokenizer that fits an embedding of {d_vocab} rows, found one of {size} tokens in "
            f"{directory}: it belongs to another model; copy the model's own there"
        )
    start = tokenizer("a").input_ids[:2]
    if tokenizer.bos_token_id is not None and start == [tokenizer.bos_token_id] * 2:
        raise InputError(
            f"expected one leading {tokenizer.bos_token!r}, found two: the tokenizer in {directory} adds it twice; "
            "mend its post-processor"
        )


def check_same(reference: torch.Tensor, bridged: torch.Tensor, what: str) -> None:
    """The bridge computes what the checkpoint computes: bit for bit, or (GPT-2) up to the order of additions.

    TransformerLens reimplements attention and norms; a setting of config.json that it does not know would
    otherwise give wrong numbers without a word.
    """
    if not reference.isfinite().all():
        dtype = str(reference.dtype).removeprefix("torch.")
        raise InputError(
            f"expected finite logits from {what}, found NaN or infinity in {dtype}: load it in float32 or bfloat16"
        )
    # Rounding grows through the layers; a formula that differs is off by far more than these shares of the logits.
    share = min(max(8192 * torch.finfo(reference.dtype).eps, 1e-6), 0.05)
    tolerance = share * float(reference.abs().max())
    error = float((reference - bridged).abs().max())
    if not error <= tolerance:
        raise InputError(
            f"expected the hooked model's logits to equal {what}'s own, found them {error:.3g} apart: "
            "config.json has a setting that TransformerLens does not implement, so its hooks would show another model"
        )
