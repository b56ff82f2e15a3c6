"""A LoRA as PEFT stores it, merged into the weights of its base model: W + (alpha / r) B A.

A matrix that the adapter changes is read as its file stores it, changed in float64, and rounded to the dtype of the model.
DoRA scales row i of the merged matrix to the length m_i that it stores. PEFT's `merge_and_unload` gives the same, but for the
rounding of its sums, which are in the dtype of the model.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ostools.ground.errors import InputError
from ostools.models.families import Family
from ostools.models.files.adapters.settings import ADAPTER_WEIGHTS, LoraSettings
from ostools.models.files.shards import read_shard

_LORA = re.compile(
    r"base_model\.model\.(?P<module>.+?)\.(?P<part>lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector)(\.weight)?"
)
_WHOLE = re.compile(r"base_model\.model\.(?P<module>.+?)\.(base_layer\.|modules_to_save\.)?(?P<part>weight|bias)")
_AT_A_TIME = 1 << 24
"""Numbers of a matrix that are changed in one go: what float64 takes beside the model stays small."""


@dataclass(frozen=True)
class Change:
    """What an adapter makes of one weight: `whole` in its place; `scale` times B A added to it; then rows of these `lengths`.

    `inputs_first`: the weight is stored [in, out].
    """

    whole: Tensor | None = None
    factors: tuple[Float[Tensor, "out rank"], Float[Tensor, "rank in"]] | None = None
    scale: float = 1.0
    lengths: Float[Tensor, " out"] | None = None
    inputs_first: bool = False

    def of(self, stored: Tensor, dtype: torch.dtype) -> Tensor:
        """The changed weight, in memory of its own."""
        base = stored if self.whole is None else self.whole
        made = torch.empty(base.shape, dtype=dtype)
        if self.factors is None:
            return made.copy_(base)
        b, a = (part.double() for part in self.factors)
        base, out = (base.T, made.T) if self.inputs_first else (base, made)
        step = max(1, _AT_A_TIME // base.shape[1])
        for low in range(0, base.shape[0], step):
            rows = slice(low, low + step)
            new = base[rows].double() + self.scale * (b[rows] @ a)
            if self.lengths is not None:
                new *= (self.lengths[rows].double() / torch.linalg.vector_norm(new, dim=1))[:, None]
            out[rows] = new.to(dtype)
        return made


@dataclass(frozen=True)
class Adapter:
    """A LoRA in a directory, and what it makes of the weights of its base model, by their names there."""

    directory: Path
    settings: LoraSettings
    changes: Mapping[str, Change]

    @classmethod
    def read(cls, directory: Path, base: PreTrainedModel, family: Family) -> Adapter:
        """The adapter for that base, which may be without numbers (on torch's meta device).

        Raises `InputError` for a setting that is not read, a tensor that fits nothing in the base, a module that the settings
        name and the file lacks, numbers that are not finite, and a change of one of two weights that are tied.
        """
        settings = LoraSettings.read(directory)
        changes = _Fitting(_Stored.of(directory / ADAPTER_WEIGHTS, family), settings, base).changes()
        _require_tied(changes, base, directory)
        return cls(directory, settings, changes)

    @property
    def words(self) -> str:
        """What it is, on one line: its kind, rank, alpha, where it lies and the SHA-256 of its file."""
        with (self.directory / ADAPTER_WEIGHTS).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        return f"{self.settings.words}, of {self.directory} (sha256 {found[:16]})"


@dataclass
class _Stored:
    """The tensors of an adapter's file: factors by module and name, whole weights by name.

    `begins`: what modules' names begin with in the file where they begin with "model." here: a multimodal checkpoint's.
    """

    file: Path
    factors: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    whole: dict[str, Tensor] = field(default_factory=dict)
    begins: str = "model."

    @classmethod
    def of(cls, file: Path, family: Family) -> _Stored:
        found, shard = cls(file), read_shard(file)
        for key, tensor in shard.read():
            found._add(key, tensor, family)
        return found

    def _add(self, key: str, tensor: Tensor, family: Family) -> None:
        told = _LORA.fullmatch(key) or _WHOLE.fullmatch(key)
        if told is None:
            raise self.refusal(f"only tensors of a LoRA, found {key[:120]}")
        plain = tensor.is_floating_point() and tensor.element_size() > 1
        if not (plain and bool(tensor.isfinite().all())):
            raise self.refusal(f"finite numbers of 16 bits or more, found others in {key}")
        if family.ignored is not None and re.search(family.ignored, f"{told['module']}.{told['part']}"):
            return
        module = self._renamed(told["module"], family)
        if told.re is _LORA:
            self.factors.setdefault(module, {})[told["part"]] = tensor
        else:
            self.whole[f"{module}.{told['part']}"] = tensor

    def _renamed(self, module: str, family: Family) -> str:
        for pattern, here in family.renames:
            if begins := re.match(pattern, f"{module}."):
                self.begins = begins.group() if here == self.begins else self.begins
                return f"{here}{f'{module}.'[begins.end() :]}"[:-1]
        return module

    def refusal(self, what: str) -> InputError:
        return InputError(f"expected in {self.file} {what}: is it whole, and this base model's own?")


@dataclass(frozen=True)
class _Fitting:
    """An adapter's tensors, its settings and the base model, held against each other."""

    stored: _Stored
    settings: LoraSettings
    base: PreTrainedModel

    def changes(self) -> dict[str, Change]:
        changes = {name: Change(whole=tensor) for name, tensor in self._whole()}
        modules = dict(self.base.named_modules())
        named = {name for name in modules if self.settings.targets(self._outside(name))}
        for name in sorted(named - set(self.stored.factors)):
            if isinstance(modules[name], nn.Linear | Conv1D | nn.Embedding):
                raise self.stored.refusal(f"factors of {name}, which {self.settings.file.name} names, found none")
        for name, parts in self.stored.factors.items():
            if name not in named:
                known = (
                    f"{self.settings.file.name} does not name" if name in modules else "the base model does not have"
                )
                raise self.stored.refusal(f"factors of what is changed alone, found {name}, which {known}")
            before = changes.get(f"{name}.weight", Change())
            changes[f"{name}.weight"] = self._factors(name, modules[name], parts, before.whole)
        return changes

    def _whole(self) -> Iterator[tuple[str, Tensor]]:
        """The weights that it brings whole: those of the modules that it saves, and tables as PEFT adds them."""
        weights = dict(self.base.named_parameters(remove_duplicate=False))
        tables = [
            table.weight for table in (self.base.get_input_embeddings(), self.base.get_output_embeddings()) if table
        ]
        for name, tensor in self.stored.whole.items():
            module = name.rpartition(".")[0]
            weight = weights.get(name)
            if weight is None:
                raise self.stored.refusal(
                    f"weights of {type(self.base).__name__}, found {name}, which it does not have"
                )
            if not (
                self.settings.saves(module) or module in self.stored.factors or any(weight is one for one in tables)
            ):
                raise self.stored.refusal(f"only what {self.settings.file.name} names, found {name} whole")
            self._require_shape(name, tensor, tuple(weight.shape))
            yield name, tensor
        for name in weights:
            if self.settings.saves(name.rpartition(".")[0]) and name not in self.stored.whole:
                raise self.stored.refusal(
                    f"{name}, which {self.settings.file.name} names in modules_to_save, found none"
                )

    def _factors(self, name: str, module: nn.Module, parts: dict[str, Tensor], whole: Tensor | None) -> Change:
        """Those of one module, of which its kind says which way round its matrix stands."""
        table = isinstance(module, nn.Embedding)
        first, second = ("lora_embedding_A", "lora_embedding_B") if table else ("lora_A", "lora_B")
        wanted = {first, second} | ({"lora_magnitude_vector"} if self.settings.dora else set())
        if (
            set(parts) != wanted
            or not isinstance(module, nn.Linear | Conv1D | nn.Embedding)
            or (table and self.settings.dora)
        ):
            raise self.stored.refusal(
                f"{' and '.join(sorted(wanted))} of {name}, found {' and '.join(sorted(parts))} of a {type(module).__name__}"
            )
        inputs_first, weight = isinstance(module, Conv1D), module.weight
        n_out, n_in = reversed(weight.shape) if inputs_first else weight.shape
        a, b = (parts[second].T, parts[first].T) if table else (parts[first], parts[second])
        rank = a.shape[0] if a.ndim == 2 else 0
        self._require_shape(f"the first factor of {name}", a, (rank, n_in))
        self._require_shape(f"the second factor of {name}", b, (n_out, rank))
        lengths = parts.get("lora_magnitude_vector")
        if lengths is not None:
            self._require_shape(f"the lengths of {name}", lengths, (n_out,))
        return Change(whole, (b, a), self.settings.scale(self._outside(name), rank), lengths, inputs_first)

    def _outside(self, name: str) -> str:
        """The name that a module has in the model that the adapter was trained on."""
        return f"{self.stored.begins}{name.removeprefix('model.')}" if name.startswith("model.") else name

    def _require_shape(self, what: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
        if tuple(tensor.shape) != shape:
            raise self.stored.refusal(f"{what} of shape {shape}, found {tuple(tensor.shape)}")


def _require_tied(changes: Mapping[str, Change], base: PreTrainedModel, directory: Path) -> None:
    """Weights that are one change alike."""
    names: dict[int, str] = {}
    for name, weight in base.named_parameters(remove_duplicate=False):
        first = names.setdefault(id(weight), name)
        one, other = changes.get(first, Change()), changes.get(name, Change())
        if first == name or (one.factors is None and other.factors is None and _same(one.whole, other.whole)):
            continue
        raise InputError(
            f"expected {first} and {name} changed alike, which are one weight of the base model, found them changed apart by "
            f"the adapter {directory}: merge it with PEFT into a base with tie_word_embeddings false, save that, and load it"
        )


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other or (one is not None and other is not None and torch.equal(one, other))
