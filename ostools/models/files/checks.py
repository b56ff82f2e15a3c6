"""What a model's directory must satisfy before its weights are read, and its bridge before a number is computed with it.

Each check refuses with one line: what was expected, what was found, what to do. None repairs anything.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from ostools.ground.errors import InputError
from ostools.ground.files import JSON_LIMIT, read_text
from ostools.models.families import FAMILIES, KNOWN_ARCHITECTURES, Family, family_of_config
from ostools.models.files.quantised import check_quantisation

TEMPLATES = "additional_chat_templates"
"""The folder where transformers looks for chat templates too; the one that is called default is then the model's."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_MOST = {"num_labels": 10_000} | dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 10_000)
"""Settings of which transformers makes a list or a dictionary of that length, and what they may be at most."""
_TABLES = (("mpt", ("n_heads", "max_seq_len"), 1), ("gpt2", ("n_layer", "n_positions"), 2))
"""Families of which transformers makes a table of positions: a number for each head and position, or a mask for each layer."""
_LARGEST_TABLE = 1 << 28
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


def one_line(error: object) -> str:
    """Another library's error in one line that fits behind ours."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:297] + "..."


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or the refusal that says which file is broken and how."""
    try:
        content = json.loads(read_text(path, JSON_LIMIT))
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
    _check_limits(config, directory / "config.json")
    check_quantisation(config, directory)
    return family_of_settings(config, str(directory / "config.json"))


def _check_limits(config: dict[str, Any], where: Path) -> None:
    """No setting asks a library for more than any model needs: lists, and tables of positions, are made as it is read."""
    for settings in (config, *(inner for inner in config.values() if isinstance(inner, dict))):
        for name, most in _MOST.items():
            value = settings.get(name)
            if isinstance(value, int) and value > most:
                raise InputError(
                    f"expected at most {most} as {name} in {where}, found {value}: is it this checkpoint's own?"
                )
    for kind, names, power in _TABLES:
        sizes = [config.get(name) for name in names]
        if config.get("model_type") == kind and all(isinstance(size, int) for size in sizes):
            heads, length = (int(size or 0) for size in sizes)
            if (size := heads * length**power) > _LARGEST_TABLE:
                raise InputError(
                    f"expected tables of positions of at most {_LARGEST_TABLE} numbers, found {size} by {names[0]} = {heads} "
                    f"and {names[1]} = {length} in {where}: set {names[1]} to the length that the model was trained on"
                )


def family_of_settings(config: dict[str, Any], where: str) -> Family:
    """The family of a model with these settings, or why ostools does not take it; `where`: what they are settings of."""
    kind = config.get("model_type")
    text = config.get("text_config")
    for settings in (config, text if isinstance(text, dict) else {}):
        for flag in ("is_encoder_decoder", "use_bidirectional_attention", "add_cross_attention"):
            if settings.get(flag):
                raise InputError(
                    f"expected a decoder-only model with causal attention, found {flag} = {settings[flag]!r} in "
                    f"{where}: the theory does not cover it; use one of {KNOWN_ARCHITECTURES}"
                )
    family = family_of_config(config)
    if family is None:
        candidates = [family for family in FAMILIES if family.model_type == kind]
        settings = {setting.name: setting.read(config) for family in candidates for setting in family.when}
        description = f"model_type {kind!r}" + "".join(f", {name} {value!r}" for name, value in settings.items())
        raise InputError(
            f"expected a model of a known family ({KNOWN_ARCHITECTURES}), found {description} in {where}: its hooks have not "
            "been held against Hugging Face's own model"
        )
    if family.refused is not None:
        raise InputError(
            f"expected a model whose hooks show and change what it computes, found {family.name} in "
            f"{where}: {family.refused}; `ostools list models` lists what loads"
        )
    architectures = config.get("architectures")
    if architectures and architectures != [family.architecture]:
        raise InputError(
            f"expected architecture {family.architecture} for model_type {kind!r}, found {architectures} in "
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
                f"{directory / file}): ostools runs no code from a checkpoint; convert it to one of {KNOWN_ARCHITECTURES}"
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
