"""The weights of a checkpoint as its safetensors files hold them: each file is opened once.

Their numbers are read when they are asked for. Which of them could make another model than
config.json describes is refused in `checks`.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ostools.ground.errors import InputError, short_repr
from ostools.models.files.checks import PLAIN_DTYPES, one_line, read_json

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a checkpoint: its dtype by the header's name, its shape, and the open file."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    _open: Any = field(repr=False, compare=False)

    @property
    def count(self) -> int:
        """Number of its entries."""
        return math.prod(self.shape)

    def read(self) -> Tensor:
        """Read the tensor as it is stored. On a CPU its numbers are the file's own pages."""
        return self._open.get_tensor(self.name)


def has_weights(directory: Path) -> bool:
    """Return True where there is any file of weights, of whatever form; else the directory
    describes a model that is elsewhere.
    """
    forms = (*_PICKLES, "*.safetensors", "*.index.json")
    return any(next(directory.glob(form), None) is not None for form in forms)


def open_weights(directory: Path) -> dict[str, StoredTensor]:
    """Open every safetensors file that the model in `directory` needs; its tensors by name, in the
    order of the files.

    Raises `InputError` for a file that is missing, cut short, or a pickle; for a tensor that stands
    in two files; and for one that stands in another file than the index says.
    """
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if not single.exists() and not index.exists():
        raise _no_weights(directory)
    places = {} if single.exists() else _weight_map(index)
    weights: dict[str, StoredTensor] = {}
    for file_name in sorted(set(places.values())) or [single.name]:
        for tensor in _tensors(directory / file_name):
            if tensor.name in weights:
                raise InputError(
                    f"expected each tensor in one file of {directory}, found "
                    f"{short_repr(tensor.name)} in {weights[tensor.name].file.name} and in "
                    f"{file_name}: which one is the weight is not known; fetch the checkpoint again"
                )
            weights[tensor.name] = tensor
    for name, tensor in weights.items():
        if places.get(name, tensor.file.name) != tensor.file.name:
            raise InputError(
                f"expected {short_repr(name)} in {places[name]} as {index} says, found it in "
                f"{tensor.file.name}: fetch the checkpoint again"
            )
    return weights


def _tensors(file: Path) -> Iterator[StoredTensor]:
    """The tensors of a file, which is there and whole: safetensors checks its header."""
    if not os.path.isfile(file):  # not pathlib: a name too long to be one raises there
        raise InputError(
            f"expected the weights {file.name[:80]} in {file.parent}, found no such file: fetch it "
            "again"
        )
    try:
        stream: Any = safe_open(file, "pt")
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"expected a whole safetensors file, found {file} truncated or corrupt "
            f"({file.stat().st_size} bytes; {one_line(error)}): fetch it again (of a Git LFS "
            "pointer: `git lfs pull`)"
        ) from None
    for name in stream.offset_keys():
        part = stream.get_slice(name)
        yield StoredTensor(name, file, part.get_dtype(), tuple(part.get_shape()), stream)


def stored_dtype(weights: Mapping[str, StoredTensor], config: Mapping[str, Any]) -> torch.dtype:
    """The dtype of most of a checkpoint's numbers, if it holds the others without rounding, else
    one that holds all; without weights the one that its configuration names, else float32."""
    counts: Counter[str] = Counter()
    for tensor in weights.values():
        if tensor.dtype in PLAIN_DTYPES:
            counts[tensor.dtype] += tensor.count
    if not counts.total():
        names = {str(dtype).removeprefix("torch."): dtype for dtype in PLAIN_DTYPES.values()}
        return names.get(str(config.get("dtype") or config.get("torch_dtype")), torch.float32)
    dtype = PLAIN_DTYPES[max(counts, key=lambda name: (counts[name], name))]
    for tensor in weights.values():
        if PLAIN_DTYPES.get(tensor.dtype, dtype) != dtype:
            numbers = tensor.read()
            if not torch.equal(numbers.to(dtype).to(numbers.dtype), numbers):
                dtype = torch.promote_types(dtype, numbers.dtype)
    return dtype


def _weight_map(index: Path) -> dict[str, str]:
    """The file of each tensor, as the index of a checkpoint names it."""
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise InputError(f"expected a weight_map in {index}, found none: fetch the file again")
    for file in places.values():
        if Path(str(file)).name != file or not str(file).strip("."):
            raise InputError(
                f"expected names of files beside {index}, found {str(file)[:80]!r} in its "
                "weight_map: fetch it again"
            )
    return places


def _no_weights(directory: Path) -> InputError:
    pickles = sorted(file.name for pattern in _PICKLES for file in directory.glob(pattern))
    found, remedy = "none", "fetch the weights"
    if pickles:
        found = f"only pickles ({', '.join(pickles[:3])})"
        remedy = "convert them to safetensors: loading a pickle runs code"
    return InputError(f"expected model.safetensors in {directory}, found {found}: {remedy}")
