"""GGUF files as ordinary Hugging Face directories: each converted once, into a cache, where every later load finds it.

The weights are kept in float32. A dequantised weight is a product of a float16 scale and an integer (and, in some formats, of a
minimum that is subtracted): it has more digits than bfloat16 or float16 hold.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import transformers
from filelock import FileLock

from ostools.ground.errors import InputError, in_words
from ostools.models.files.checks import read_json
from ostools.models.files.config import quiet, read_tokenizer
from ostools.models.files.gguf import read_header, read_model

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
        """How the weights came about, for the provenance."""
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
    """What the file with this hash was converted to by this version of transformers; None where it was not yet."""
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
    """What was saved is read as what was there: transformers builds the tokenizers of some families anew."""
    if read_tokenizer(saved).backend_tokenizer.to_str() != tokenizer.backend_tokenizer.to_str():
        raise InputError(
            f"expected a tokenizer that transformers saves and reads as the same, found that of {file} changed by it: use the "
            "checkpoint that the file was made of"
        )


def _folder(sha256: str) -> Path:
    return cache_folder() / "gguf" / f"{sha256}-transformers-{transformers.__version__}"
