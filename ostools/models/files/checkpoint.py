"""The files of one model: where they lie and what they say, each read once, when something first
asks for it.

The record is made by `sources.locate` and handed on to whatever reads the model. A file that
changes afterwards is not seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ostools.ground.errors import InputError
from ostools.models.families import KNOWN_ARCHITECTURES
from ostools.models.files.checks import read_json
from ostools.models.files.weights import StoredTensor, has_weights, open_weights, stored_dtype

TEMPLATES = "additional_chat_templates"
"""The folder where transformers looks for chat templates too; the one that is called default is
then the model's.
"""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


@dataclass(frozen=True)
class Checkpoint:
    """The name the user knows a model by, the directory of its files, and the hub's commit (None if
    local).

    title: what tables and charts call it (None: the name). Of a GGUF file, `directory` is what it
    was converted to, `quantisation` what it was, `sha256` its hash, and `dtype` that of the weights
    that are read from it.
    """

    name: str
    directory: Path
    revision: str | None = None
    title: str | None = None
    quantisation: str | None = None
    sha256: str | None = None
    dtype: torch.dtype | None = None

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """config.json."""
        return self._without_code("config.json")

    @cached_property
    def tokenizer_settings(self) -> Mapping[Path, Mapping[str, Any]]:
        """tokenizer.json and tokenizer_config.json, those of them that are there."""
        names = ("tokenizer.json", "tokenizer_config.json")
        files = [self.directory / name for name in names if (self.directory / name).exists()]
        return {file: self._without_code(file.name) for file in files}

    @cached_property
    def generation(self) -> dict[str, Any] | None:
        """generation_config.json; None without one."""
        file = self.directory / "generation_config.json"
        return read_json(file) if file.exists() else None

    @cached_property
    def trained_lengths(self) -> dict[str, int] | None:
        """`trained_lengths` of card.json: task -> longest trained length. None without one."""
        card = self.directory / "card.json"
        return read_json(card).get("trained_lengths") if card.exists() else None

    @cached_property
    def weights(self) -> Mapping[str, StoredTensor]:
        """The tensors of its safetensors files, by name."""
        return open_weights(self.directory)

    @property
    def dtypes(self) -> Mapping[str, str]:
        """The dtype of each tensor, as its file calls it."""
        return {name: tensor.dtype for name, tensor in self.weights.items()}

    @cached_property
    def stored_dtype(self) -> torch.dtype:
        """The dtype of most of its numbers; without weights the one that its configuration names."""
        if self.dtype is not None:
            return self.dtype
        return stored_dtype(self.weights if self.has_weights else {}, self.config)

    @property
    def has_weights(self) -> bool:
        """Whether there is any file of weights; else it describes a model that is elsewhere."""
        return has_weights(self.directory)

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

    def _without_code(self, file: str) -> Mapping[str, Any]:
        """A JSON file, which asks for no code of the checkpoint's own."""
        settings = read_json(self.directory / file)
        if "auto_map" in settings:
            raise InputError(
                "expected a model that transformers itself implements, found remote code (auto_map "
                f"in {self.directory / file}): ostools runs no code from a checkpoint; convert it "
                f"to one of {KNOWN_ARCHITECTURES}"
            )
        return settings
