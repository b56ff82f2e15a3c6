"""The weights of a checkpoint as its safetensors files hold them: each file is opened once.

Their numbers are read when they are asked for. Which of them could make another model than
config.json describes is refused in `checks`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from ostools.ground.errors import InputError, refusal, short_repr
from ostools.models.files.checks import PLAIN_DTYPES, read_json

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a checkpoint: its dtype by the header's name, its shape, and the open file."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    _open: safe_open = field(repr=False, compare=False)

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

    Raises `InputError` for a file that is missing, cut short, or a pickle; and for a tensor that
    stands in two files, or in another than the index says.
    """
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if not single.exists() and not index.exists():
        pickles = sorted(file.name for pattern in _PICKLES for file in directory.glob(pattern))
        raise InputError(
            f"expected model.safetensors in {directory}, found "
            + (
                f"only pickles ({', '.join(pickles[:3])}): convert them to safetensors: loading a "
                "pickle runs code"
                if pickles
                else "none: fetch the weights, of a revision that has safetensors"
            )
        )
    places = {} if single.exists() else _weight_map(index)
    weights: dict[str, StoredTensor] = {}
    for file_name in sorted(set(places.values())) or [single.name]:
        for tensor in _tensors(directory / file_name):
            if tensor.name in weights or places.get(tensor.name, file_name) != file_name:
                raise InputError(
                    f"expected each tensor in one file of {directory}, the one that {index.name} "
                    f"names, found {short_repr(tensor.name)} in {file_name}: which one is the "
                    "weight is not known; fetch the checkpoint again"
                )
            weights[tensor.name] = tensor
    return weights


def _weight_map(index: Path) -> dict[str, str]:
    """The file of each tensor, as the index of a checkpoint names it: a name beside the index."""
    places = read_json(index).get("weight_map") or {}
    for file in places.values() or [None]:
        if Path(str(file)).name != file:
            raise InputError(
                f"expected a weight_map of files beside {index}, found {short_repr(file)}: fetch "
                "it again"
            )
    return places


def _tensors(file: Path) -> Iterator[StoredTensor]:
    """The tensors of a file, which is there and whole: safetensors checks its header."""
    with refusal(
        f"a whole safetensors file {short_repr(file.name)} in {file.parent}",
        "; fetch it again (of a Git LFS pointer: `git lfs pull`)",
    ):
        stream = safe_open(file, "pt")
    for name in stream.offset_keys():
        part = stream.get_slice(name)
        yield StoredTensor(name, file, part.get_dtype(), tuple(part.get_shape()), stream)


def stored_dtype(weights: Mapping[str, StoredTensor], config: Mapping[str, object]) -> torch.dtype:
    """The dtype of most of a checkpoint's numbers, if it holds the others without rounding, else
    one that holds all; without weights the one that its configuration names, else float32."""
    counts: Counter[torch.dtype] = Counter()
    plain = [tensor for tensor in weights.values() if tensor.dtype in PLAIN_DTYPES]
    for tensor in plain:
        counts[PLAIN_DTYPES[tensor.dtype]] += tensor.count
    if not counts.total():
        names = {str(dtype).removeprefix("torch."): dtype for dtype in PLAIN_DTYPES.values()}
        return names.get(str(config.get("dtype") or config.get("torch_dtype")), torch.float32)
    dtype = max(counts, key=lambda kind: (counts[kind], str(kind)))
    for tensor in plain:
        if PLAIN_DTYPES[tensor.dtype] != dtype:
            numbers = tensor.read()
            if not torch.equal(numbers.to(dtype).to(numbers.dtype), numbers):
                dtype = torch.promote_types(dtype, numbers.dtype)
    return dtype
