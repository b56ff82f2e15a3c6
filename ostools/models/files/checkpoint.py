"""The files of one model: where they lie and what they say, each read once, when something first
asks for it.

The record is made by `sources.locate` and handed on to whatever reads the model. A file that
changes afterwards is not seen. The numbers of weights are read when they are asked for, into memory
of their own: pages of a mapped file would stand beside the weights until the last one is read, as a
second copy. Which weights could make another model than config.json describes is refused in
`checks`.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open

from ostools.ground import InputError, refusal, short_repr
from ostools.models.families import KNOWN_ARCHITECTURES
from ostools.models.files.checks import PLAIN_DTYPES, read_json

TEMPLATES = "additional_chat_templates"
"""The folder where transformers looks for chat templates too; the one that is called default is
then the model's.
"""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@dataclass(frozen=True)
class Checkpoint:
    """The name the user knows a model by, the directory of its files, and the hub's commit (None if
    local).

    title: what tables and charts call it (None: the name). Of a GGUF file, `directory` is what it
    was converted to, `quantisation` what it was, and `sha256` its hash.
    """

    name: str
    directory: Path
    revision: str | None = None
    title: str | None = None
    quantisation: str | None = None
    sha256: str | None = None

    @cached_property
    def config(self) -> Mapping[str, object]:
        """config.json."""
        return self._without_code("config.json")

    def declared_tokens(self) -> list[tuple[str, int, str]]:
        """The added tokens of tokenizer.json and tokenizer_config.json, the ids that they are said
        to have, and the file: of Gemma's vocabulary nothing else, which takes 0.3 GB.
        """
        tokens = []
        for file in ("tokenizer.json", "tokenizer_config.json"):
            exists = (self.directory / file).exists()
            settings: Mapping[str, Any] = self._without_code(file) if exists else {}
            tokens += [
                (token["content"], token["id"], file)
                for token in settings.get("added_tokens") or []
            ]
            by_id = settings.get("added_tokens_decoder") or {}
            tokens += [(token["content"], int(index), file) for index, token in by_id.items()]
        return tokens

    @cached_property
    def generation(self) -> dict[str, object] | None:
        """generation_config.json; None without one."""
        file = self.directory / "generation_config.json"
        return read_json(file) if file.exists() else None

    @cached_property
    def trained_lengths(self) -> dict[str, int] | None:
        """`trained_lengths` of card.json: task -> longest trained length. None without one."""
        card = self.directory / "card.json"
        content = read_json(card) if card.exists() else {}
        return cast(dict[str, int] | None, content.get("trained_lengths"))

    @cached_property
    def weights(self) -> Mapping[str, Any]:
        """The tensors of its safetensors files, by name, as safetensors opens one: `get_dtype()`,
        `get_shape()`, and `[...]`, which reads it (`[()]` an empty one too).
        """
        return _open_weights(self.directory)

    @property
    def dtypes(self) -> Mapping[str, str]:
        """The dtype of each tensor, as its file calls it."""
        return {name: tensor.get_dtype() for name, tensor in self.weights.items()}

    @cached_property
    def stored_dtype(self) -> torch.dtype:
        """Dtype of most of its numbers; without weights the one that its configuration names."""
        return _stored_dtype(self.weights if self.has_weights else {}, self.config)

    @property
    def has_weights(self) -> bool:
        """Whether there is any file of weights, of whatever form; else it describes a model that is
        elsewhere.
        """
        forms = (*_PICKLES, "*.safetensors", "*.index.json")
        return any(next(self.directory.glob(form), None) is not None for form in forms)

    @property
    def has_tokenizer(self) -> bool:
        """Whether it brings a tokenizer of its own: without one transformers makes up a five-token
        one.
        """
        return any((self.directory / file).exists() for file in _TOKENIZER_FILES)

    @property
    def has_large_tokenizer(self) -> bool:
        """Whether its tokenizer.json is so large that reading it takes the better part of a second:
        Gemma's has 33 MB.
        """
        file = self.directory / "tokenizer.json"
        return file.is_file() and file.stat().st_size > 1 << 22

    def _without_code(self, file: str) -> Mapping[str, object]:
        """A JSON file, which asks for no code of the checkpoint's own."""
        settings = read_json(self.directory / file)
        if "auto_map" in settings:
            raise InputError(
                "expected a model that transformers itself implements, found remote code (auto_map "
                f"in {self.directory / file}): ostools runs no code from a checkpoint; convert it "
                f"to one of {KNOWN_ARCHITECTURES}"
            )
        return settings


# ---- weights


def _open_weights(directory: Path) -> dict[str, Any]:
    """Open every safetensors file that the model in `directory` needs; its tensors by name, in the
    order of the files.

    Raises `InputError` for a file that is missing or cut short; and for a tensor that stands in two
    files, or in another than the index says.
    """
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if not single.exists() and not index.exists():
        raise InputError(
            f"expected model.safetensors in {directory}, found none: fetch the weights, of a "
            "revision that has safetensors; pickles (.bin, .pt) are not read, as loading one runs "
            "code"
        )
    places: dict[str, str] = {}
    if not single.exists():
        weight_map = cast(Mapping[str, str], read_json(index).get("weight_map") or {})
        # Names of files beside the index, and no paths.
        places = {name: Path(str(file)).name for name, file in weight_map.items()}
    weights: dict[str, Any] = {}
    for file_name in sorted(set(places.values())) or [single.name]:
        what = f"a whole safetensors file {short_repr(file_name)} in {directory}"
        with refusal(what, "; fetch it again (of a Git LFS pointer: `git lfs pull`)"):
            stream = safe_open(directory / file_name, "pt", backend="pread")
        for name in stream.offset_keys():
            if name in weights or places.get(name, file_name) != file_name:
                raise InputError(
                    f"expected each tensor in one file of {directory}, the one that {index.name} "
                    f"names, found {short_repr(name)} in {file_name}: which one is the "
                    "weight is not known; fetch the checkpoint again"
                )
            weights[name] = stream.get_slice(name)
    return weights


def _stored_dtype(weights: Mapping[str, Any], config: Mapping[str, object]) -> torch.dtype:
    """The dtype of most of a checkpoint's numbers, if it holds the others without rounding, else
    one that holds all; without weights the one that its configuration names, else float32."""
    counts: Counter[torch.dtype] = Counter()
    plain = [
        (PLAIN_DTYPES[kind], tensor)
        for tensor in weights.values()
        if (kind := tensor.get_dtype()) in PLAIN_DTYPES and all(tensor.get_shape())
    ]
    for kind, tensor in plain:
        counts[kind] += math.prod(tensor.get_shape())
    if not counts.total():
        names = {str(dtype).removeprefix("torch."): dtype for dtype in PLAIN_DTYPES.values()}
        return names.get(str(config.get("dtype") or config.get("torch_dtype")), torch.float32)
    dtype = max(counts, key=lambda kind: (counts[kind], str(kind)))
    for kind, tensor in plain:
        if kind != dtype and not torch.equal(tensor[...].to(dtype).to(kind), tensor[...]):
            dtype = torch.promote_types(dtype, kind)
    return dtype
