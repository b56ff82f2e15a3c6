"""The safetensors files of a checkpoint, opened once, and whether they make the model that
config.json describes.

Each refusal here stops a model that would load without a word and give other numbers.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from ostools.ground.errors import InputError, short_repr
from ostools.models.families import Family
from ostools.models.files.checks import one_line, read_json

_PLAIN = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""The dtypes, by their names in a header, in which a number stands for itself."""
_CHUNK = (
    1 << 24
)  # elements looked at in one go: a check must not need a second copy of an embedding
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as a header describes it: its dtype there and its shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of its entries."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Shard:
    """A safetensors file: its tensors by name, in the order of the file."""

    file: Path
    tensors: Mapping[str, StoredTensor]
    _open: Any = field(repr=False, compare=False)

    @classmethod
    def of(cls, file: Path) -> Shard:
        """The file, which is there and whole. It stays open as long as the record lives."""
        if not os.path.isfile(file):  # not pathlib: a name too long to be one raises there
            raise InputError(
                f"expected the weights {file.name[:80]} in {file.parent}, found no such file: fetch it again"
            )
        try:
            stream: Any = safe_open(file, "pt")  # checks the header against the file
        except (SafetensorError, OSError) as error:
            raise InputError(
                f"expected a whole safetensors file, found {file} truncated or corrupt ({file.stat().st_size} bytes; "
                f"{one_line(error)}): fetch it again (of a Git LFS pointer: `git lfs pull`)"
            ) from None
        slices = {name: stream.get_slice(name) for name in stream.offset_keys()}
        tensors = {
            name: StoredTensor(part.get_dtype(), tuple(part.get_shape()))
            for name, part in slices.items()
        }
        return cls(file, tensors, stream)

    def tensor(self, name: str) -> Tensor:
        """A tensor as it is stored. On a CPU its numbers are the file's own pages."""
        return self._open.get_tensor(name)

    def read(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Every tensor by name: those of `dtype` in memory of their own, others in pages of the
        file, so that transformers casts them: it keeps some in float32 whatever dtype it is asked
        for."""
        for name in self.tensors:
            tensor = self.tensor(name)
            yield name, tensor.clone() if tensor.dtype is dtype else tensor


def has_weights(directory: Path) -> bool:
    """Whether there is any file of weights, of whatever form; else the directory describes a model
    that is elsewhere.
    """
    return any(
        next(directory.glob(form), None) is not None
        for form in (*_PICKLES, "*.safetensors", "*.index.json")
    )


def read_shards(directory: Path) -> list[Shard]:
    """Every safetensors file that the model in `directory` needs.

    Raises `InputError` for a file that is missing, cut short, or a pickle; for a tensor that stands
    in two files; and for one that stands in another file than the index says.
    """
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if single.exists():
        return [Shard.of(single)]
    if not index.exists():
        raise _no_weights(directory)
    places = _weight_map(index)
    shards = [Shard.of(directory / name) for name in sorted(set(places.values()))]
    _require_one_place(shards, places, index)
    return shards


def stored_dtype(shards: Sequence[Shard], config: Mapping[str, Any]) -> torch.dtype:
    """The dtype of most of a checkpoint's numbers, if it holds the others without rounding, else
    one that holds all; without weights the one that its configuration names, else float32."""
    counts = dict.fromkeys(_PLAIN, 0)
    for shard in shards:
        for tensor in shard.tensors.values():
            if tensor.dtype in counts:
                counts[tensor.dtype] += tensor.count
    if not any(counts.values()):
        names = {str(dtype).removeprefix("torch."): dtype for dtype in _PLAIN.values()}
        return names.get(str(config.get("dtype") or config.get("torch_dtype")), torch.float32)
    dtype = _PLAIN[max(_PLAIN, key=lambda name: (counts[name], name))]
    for shard in shards:
        for name, stored in shard.tensors.items():
            if _PLAIN.get(stored.dtype, dtype) != dtype:
                tensor = shard.tensor(name)
                if not torch.equal(tensor.to(dtype).to(tensor.dtype), tensor):
                    dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def check_dtypes(shards: Sequence[Shard], family: Family, directory: Path) -> None:
    """Refuse a tensor whose numbers do not stand for themselves: without their scales they are
    another model's.
    """
    for shard in shards:
        for name, stored in shard.tensors.items():
            if stored.dtype not in _PLAIN and not (
                family.ignored and re.search(family.ignored, name)
            ):
                raise InputError(
                    f"expected weights of 16 bits or more in {directory}, found {short_repr(name)} of dtype "
                    f"{short_repr(stored.dtype)}, whose numbers stand for others: use the original or a GGUF file of it; or "
                    "load it with transformers, dequantise it there, and take it with ost.adopt"
                )


def check_described(config: Any, family: Family, stored: Sequence[int], where: Path) -> Any:
    """The model of the configuration on torch's meta device, which is about as large as the stored
    tensors, of these sizes.

    Memory is asked for by the configuration: one of another model is refused before that.
    """
    import transformers

    check_count(config.num_hidden_layers, 0, stored, where)  # building so many layers would not end
    with torch.device("meta"):  # shapes without memory
        model = getattr(transformers, family.module)(config)
    check_count(
        config.num_hidden_layers,
        sum(weight.numel() for weight in model.parameters()),
        stored,
        where,
    )
    return model


def check_count(layers: int, described: int, stored: Sequence[int], where: Path) -> None:
    """Refuse a model of so many layers and weights whose stored tensors, of these sizes, are too
    few or too small.
    """
    if layers > len(stored):
        raise InputError(
            f"expected a weight for each of {layers} layers in {where}, found {len(stored)} in all: "
            "weights and config.json belong to different models"
        )
    if described > 2 * sum(stored):
        raise InputError(
            f"expected {described} weights in {where} as config.json says, found {sum(stored)}: "
            "weights and config.json belong to different models"
        )


def check_stored(config: Any, family: Family, shards: Sequence[Shard], directory: Path) -> Any:
    """The model that config.json describes, on torch's meta device: its weights' numbers stand for
    themselves, and weights that are said to be one are. Which weight is missing or of another
    shape, `check_loaded` says."""
    check_dtypes(shards, family, directory)
    stored = [tensor.count for shard in shards for tensor in shard.tensors.values()]
    described = check_described(config, family, stored, directory)
    _require_tied(described.all_tied_weights_keys, family, shards, directory)
    return described


def _require_tied(
    tied: Mapping[str, str], family: Family, shards: Sequence[Shard], directory: Path
) -> None:
    """Check that two stored weights which the configuration ties are one: the library would use
    both, without a word.
    """
    places = {name: (shard, name) for shard in shards for name in shard.tensors}
    for pattern, renamed in family.renames:
        places = {re.sub(pattern, renamed, name): place for name, place in places.items()}
    for first, second in tied.items():
        if first in places and second in places:
            tensors = [shard.tensor(name) for shard, name in (places[first], places[second])]
            if tensors[0].dtype is not tensors[1].dtype or not torch.equal(*tensors):
                raise InputError(
                    f"expected one weight as {first} and as {second} in {directory}, as tie_word_embeddings in config.json "
                    "says, found two that differ: set it to false if the output layer has weights of its own"
                )


def check_loaded(info: dict[str, Any], family: Family, directory: Path) -> None:
    """Every parameter came from the checkpoint and the checkpoint had nothing else to say."""
    missing = sorted(info["missing_keys"])
    unexpected = sorted(
        key for key in info["unexpected_keys"] if not re.search(family.ignored or r"\A\Z", key)
    )
    mismatched = sorted(
        (key, tuple(actual), tuple(want)) for key, actual, want in info["mismatched_keys"]
    )
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
            bad = sum(
                int((~part.isfinite()).sum()) for part in weight.detach().flatten().split(_CHUNK)
            )
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
    if outside := [
        file for file in places.values() if Path(file).name != file or not file.strip(".")
    ]:
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


def _no_weights(directory: Path) -> InputError:
    pickles = sorted(file.name for pattern in _PICKLES for file in directory.glob(pattern))
    listing = f"only pickles ({', '.join(pickles[:3])})" if pickles else "none"
    remedy = (
        "convert them to safetensors: loading a pickle runs code"
        if pickles
        else "fetch the weights"
    )
    return InputError(f"expected model.safetensors in {directory}, found {listing}: {remedy}")
