"""The safetensors files of a checkpoint: what their headers say, and whether they make the model that config.json describes.

A header is read once, before anything is built from it. It is held against limits, against the index of the checkpoint, and
against the dtypes that a weight may have.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from ostools.ground.errors import InputError, short_repr
from ostools.ground.files import open_regular
from ostools.models.families import Family
from ostools.models.files.checks import one_line, read_json

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""The dtypes that checkpoints are stored in, by their names in a header."""
_PLAIN = frozenset({"F64", "F32", "F16", "BF16"})
"""Those in which a number stands for itself."""
MOST_TENSORS = 100_000
"""Tensors of one checkpoint; a mixture with 94 layers of 128 experts has 37,000."""
_LARGEST_HEADER = 100_000_000  # bytes; safetensors' own limit
_CHUNK = 1 << 24  # elements looked at in one go: a check must not need a second copy of an embedding
_MOST_TABLES = 1 << 28
"""Numbers of the tables that a library makes of a configuration, where the weights have fewer."""
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as a header describes it: its dtype there, its shape, and the bytes of the file from `start` to `end`."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def count(self) -> int:
        """Number of its entries."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Shard:
    """A safetensors file: its tensors by name."""

    file: Path
    tensors: Mapping[str, StoredTensor]

    def read(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Every tensor by name, in the order of the file: those of `dtype` in memory of their own, others as stored, in pages
        of the file, so that transformers casts them: it keeps some in float32 whatever dtype it is asked for.

        A tensor of a dtype that no model is stored in is left out.
        """
        with safe_open(self.file, "pt") as tensors:
            for name, stored in sorted(self.tensors.items(), key=lambda item: item[1].start):
                if stored.dtype in DTYPES:
                    tensor = tensors.get_tensor(name)
                    yield name, tensor.clone() if tensor.dtype is dtype else tensor


def has_weights(directory: Path) -> bool:
    """Whether there is any file of weights, of whatever form; else the directory describes a model that is elsewhere."""
    return any(next(directory.glob(form), None) is not None for form in (*_PICKLES, "*.safetensors", "*.index.json"))


def read_shards(directory: Path) -> list[Shard]:
    """The headers of every safetensors file that the model in `directory` needs.

    Raises `InputError` for a file that is missing, cut short, or a pickle; for too many tensors; for a tensor that stands in
    two files; and for one that stands in another file than the index says.
    """
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if single.exists():
        return [read_shard(single)]
    if not index.exists():
        raise _no_weights(directory)
    places = _weight_map(index)
    shards = [read_shard(directory / name) for name in sorted(set(places.values()))]
    if (count := sum(len(shard.tensors) for shard in shards)) > MOST_TENSORS:
        raise _too_many(directory, count)
    _require_one_place(shards, places, index)
    return shards


def stored_dtype(shards: Sequence[Shard], directory: Path) -> torch.dtype:
    """The dtype of most of a checkpoint's numbers, if it holds the others without rounding, else one that holds all; without
    weights the one that its configuration names, else float32."""
    counts = dict.fromkeys(_PLAIN, 0)
    for shard in shards:
        for tensor in shard.tensors.values():
            if tensor.dtype in counts:
                counts[tensor.dtype] += tensor.count
    if any(counts.values()):
        dtype = DTYPES[max(_PLAIN, key=lambda name: (counts[name], name))]
        for shard in shards:
            dtype = _lossless(shard, dtype)
        return dtype
    config = read_json(directory / "config.json")
    named = {str(DTYPES[name]).removeprefix("torch."): DTYPES[name] for name in _PLAIN}
    return named.get(str(config.get("dtype") or config.get("torch_dtype")), torch.float32)


def _lossless(shard: Shard, dtype: torch.dtype) -> torch.dtype:
    """The dtype, or a wider one that holds what the shard stores in others without rounding."""
    names = [name for name, stored in shard.tensors.items() if stored.dtype in _PLAIN and DTYPES[stored.dtype] != dtype]
    if not names:
        return dtype
    with safe_open(shard.file, "pt") as tensors:
        for tensor in map(tensors.get_tensor, names):
            if not torch.equal(tensor.to(dtype).to(tensor.dtype), tensor):
                dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def read_shard(file: Path) -> Shard:
    """The header of a file that is there and whole; `InputError` for any other, and for more than `MOST_TENSORS` tensors."""
    if not os.path.isfile(file):  # not pathlib: a name too long to be one raises there
        raise InputError(f"expected the weights {file.name[:80]} in {file.parent}, found no such file: fetch it again")
    size = file.stat().st_size
    with open_regular(file) as stream:
        start = stream.read(64)
        if start.startswith(b"version https://git-lfs"):
            raise InputError(f"expected weights in {file}, found a Git LFS pointer: run `git lfs pull`")
        length = int.from_bytes(start[:8], "little")
        stream.seek(8)
        header = stream.read(length) if length <= _LARGEST_HEADER else b""
    if (count := header.count(b'"data_offsets"')) > MOST_TENSORS:
        raise _too_many(file, count)
    try:
        with safe_open(file, "pt") as tensors:  # checks the header against the file
            tensors.metadata()
        entries = json.loads(header)
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"expected a whole safetensors file, found {file} truncated or corrupt ({size} bytes; "
            f"{one_line(error)}): fetch it again"
        ) from None
    entries.pop("__metadata__", None)
    stored = {
        name: StoredTensor(entry["dtype"], tuple(entry["shape"]), *(8 + length + at for at in entry["data_offsets"]))
        for name, entry in entries.items()
    }
    return Shard(file, stored)


def check_dtypes(shards: Sequence[Shard], family: Family, directory: Path) -> None:
    """Refuse a tensor whose numbers do not stand for themselves."""
    for shard in shards:
        for name, stored in shard.tensors.items():
            if stored.dtype not in _PLAIN and not (family.ignored and re.search(family.ignored, name)):
                raise InputError(
                    f"expected weights of 16 bits or more in {directory}, found {short_repr(name)} of dtype "
                    f"{short_repr(stored.dtype)}, whose numbers stand for others: use the original or a GGUF file of it; or "
                    "load it with transformers, dequantise it there, and take it with ost.adopt"
                )


def check_stored(config: Any, family: Family, shards: Sequence[Shard], directory: Path) -> Any:
    """The model that config.json describes, without numbers (on torch's meta device).

    It is about as large as its weights, before memory for it is asked for, their numbers stand for themselves, and weights
    that are said to be one are.

    Which weight is missing or of another shape, `check_loaded` says.
    """
    check_dtypes(shards, family, directory)
    stored = [tensor.count for shard in shards for tensor in shard.tensors.values()]
    described = check_described(config, family, stored, directory)
    _require_tied(described.all_tied_weights_keys, family, shards, directory)
    return described


def check_described(config: Any, family: Family, stored: Sequence[int], where: Path) -> Any:
    """The model of the configuration on torch's meta device, which is about as large as the stored tensors, of these sizes."""
    layers = config.num_hidden_layers
    if layers > len(stored):  # building so many would not end
        raise InputError(
            f"expected a weight for each of {layers} layers in {where}, found {len(stored)} in all: "
            "weights and config.json belong to different models"
        )
    with torch.device("meta"):  # shapes without memory
        model = getattr(transformers, family.module)(config)
    described = sum(weight.numel() for weight in model.parameters())
    if described > 2 * sum(stored):
        raise InputError(
            f"expected {described} weights in {where} as config.json says, found {sum(stored)}: "
            "weights and config.json belong to different models"
        )
    most, tables = max(_MOST_TABLES, sum(stored)), _tables(model)
    if tables > most:
        raise InputError(
            f"expected tables of positions of at most {most} numbers in {where}, found {tables} as config.json says: set the "
            "longest text there to the length that the model was trained on"
        )
    return model


def _tables(model: nn.Module) -> int:
    """Numbers that a model holds or makes beside its weights, however short a text is: masks, rotations, slopes."""
    attributes = [value for module in model.modules() for value in (*module._buffers.values(), *vars(module).values())]
    config: Any = model.config
    slopes = config.n_heads * config.max_seq_len if config.model_type == "mpt" else 0  # made in each pass
    return slopes + sum(value.numel() for value in attributes if isinstance(value, Tensor))


def _require_tied(tied: Mapping[str, str], family: Family, shards: Sequence[Shard], directory: Path) -> None:
    """Check that two stored weights which the configuration ties are one: the library would use both, without a word."""
    places = {name: (shard, name) for shard in shards for name in shard.tensors}
    for pattern, renamed in family.renames:
        places = {re.sub(pattern, renamed, name): place for name, place in places.items()}
    for first, second in tied.items():
        if first in places and second in places and not _are_equal(places[first], places[second]):
            raise InputError(
                f"expected one weight as {first} and as {second} in {directory}, as tie_word_embeddings in config.json says, "
                "found two that differ: set it to false if the output layer has weights of its own"
            )


def _are_equal(*places: tuple[Shard, str]) -> bool:
    tensors = []
    for shard, name in places:
        with safe_open(shard.file, "pt") as file:  # pages of the file: no copy of a table
            tensors.append(file.get_tensor(name))
    first, second = tensors
    return first.dtype is second.dtype and torch.equal(first, second)


def check_loaded(info: dict[str, Any], family: Family, directory: Path) -> None:
    """Every parameter came from the checkpoint and the checkpoint had nothing else to say."""
    missing = sorted(info["missing_keys"])
    unexpected = sorted(key for key in info["unexpected_keys"] if not re.search(family.ignored or r"\A\Z", key))
    mismatched = sorted((key, tuple(actual), tuple(want)) for key, actual, want in info["mismatched_keys"])
    if mismatched:
        key, actual, want = mismatched[0]
        raise InputError(
            f"expected {key} of shape {want} as config.json says, found {actual} in {directory}"
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


def _weight_map(index: Path) -> dict[str, str]:
    """The file of each tensor, as the index of a checkpoint names it."""
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise InputError(f"expected a weight_map in {index}, found none: fetch the file again")
    places = {name: str(file) for name, file in names.items()}
    if outside := [file for file in places.values() if Path(file).name != file or not file.strip(".")]:
        raise InputError(
            f"expected names of files beside {index}, found {min(outside)[:80]!r} in its weight_map: fetch it again"
        )
    return places


def _require_one_place(shards: Sequence[Shard], places: Mapping[str, str], index: Path) -> None:
    """Check that each tensor stands in one file, the one that the index names."""
    file_by_tensor: dict[str, str] = {}
    for shard in shards:
        for name in shard.tensors:
            if name in file_by_tensor:
                raise InputError(
                    f"expected each tensor in one file of {index.parent}, found {short_repr(name)} in {file_by_tensor[name]} "
                    f"and in {shard.file.name}: which one is the weight is not known; fetch the checkpoint again"
                )
            file_by_tensor[name] = shard.file.name
    for name, file in places.items():
        if file_by_tensor.get(name, file) != file:
            raise InputError(
                f"expected {short_repr(name)} in {file} as {index} says, found it in {file_by_tensor[name]}: fetch the "
                "checkpoint again"
            )


def _too_many(where: Path, count: int) -> InputError:
    return InputError(
        f"expected at most {MOST_TENSORS} tensors in {where}, found {count}: no model that is known here has so many"
    )


def _no_weights(directory: Path) -> InputError:
    pickles = sorted(file.name for pattern in _PICKLES for file in directory.glob(pattern))
    listing = f"only pickles ({', '.join(pickles[:3])})" if pickles else "none"
    remedy = "convert them to safetensors: loading a pickle runs code" if pickles else "fetch the weights"
    return InputError(f"expected model.safetensors in {directory}, found {listing}: {remedy}")
