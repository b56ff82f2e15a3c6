"""GGUF files as ordinary Hugging Face directories: each converted once, into a cache, where every
later load finds it.

A conversion is made for a dtype (auto: that of a whole file, bfloat16 of weights in fewer bits).
For float32 and float64 it loses nothing: a dequantised weight is the product of a float16 scale and
an integer (in some formats less a minimum), which float32 holds. For bfloat16 and float16 the
weights are rounded once, here instead of at each load.

transformers is imported where a file is converted, and not where a conversion is found.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from filelock import FileLock

from ostools.ground import InputError, refusal
from ostools.models.files.checkpoint import Checkpoint
from ostools.models.files.checks import read_json
from ostools.models.files.config import quiet, read_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_NOTE = "gguf.json"


# ---- the cache


def cache_folder() -> Path:
    """Where converted models lie: OSTOOLS_CACHE, else `ostools` in XDG_CACHE_HOME, else
    ~/.cache/ostools.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "ostools"
    return Path(os.environ.get("OSTOOLS_CACHE") or home).expanduser() / "gguf"


def file_hash(*pieces: Path) -> str:
    """The SHA-256 of a file, or of the file that the pieces make."""
    sha = hashlib.sha256()
    for piece in pieces:
        with piece.open("rb") as stream:
            hashlib.file_digest(stream, lambda: sha)
    return sha.hexdigest()


def _folder(sha256: str, dtype: torch.dtype | None) -> Path:
    """Where the conversion for that dtype lies; one for float32 serves float64 too."""
    dtype = torch.float32 if dtype == torch.float64 else dtype
    suffix = "auto" if dtype is None else str(dtype).removeprefix("torch.")
    return cache_folder() / f"{sha256}-transformers-{version('transformers')}-{suffix}"


def in_cache(
    sha256: str, dtype: torch.dtype | None = torch.float32, name: str = "", title: str = ""
) -> Checkpoint | None:
    """The model that this version of transformers made of the file with this hash, for weights in
    `dtype`; None where there is none yet.
    """
    folder = _folder(sha256, dtype)
    if not (folder / _NOTE).is_file():
        return None
    note = read_json(folder / _NOTE)
    kind, origin = note["quantisation"], note["file"]
    dtype_name = note.get("dtype", folder.name.rpartition("-")[2])
    quantisation = f"{kind}, dequantised to {dtype_name} from {origin} (SHA-256 {sha256})"
    return Checkpoint(
        name, folder, None, f"{title}, {kind}", quantisation=quantisation, sha256=sha256
    )


def converted(
    pieces: Sequence[Path], file: str, dtype: torch.dtype | None, name: str, title: str
) -> Checkpoint:
    """The GGUF file that the pieces make as a Hugging Face directory in the cache (`in_cache`),
    made now if it is not there; `name` and `title` are the checkpoint's. A process that waits for
    another's conversion finds it made.

    Cost: hashing the file; the first time, dequantising it too (some 40 s for 270 M parameters), in
    some 12 bytes a weight of its largest tensor beside the model, and its size on disk: 2 or 4
    bytes a weight.

    Raises `InputError` for a file that is not whole or not read, and for a cache that cannot be
    written.
    """
    with refusal(f"a GGUF file that can be read at {pieces[0]}"):
        sha256 = file_hash(*pieces)
    folder, request = cache_folder(), (sha256, dtype, name, title)
    remedy = "; free some of it, or set OSTOOLS_CACHE to another"
    if in_cache(*request) is None:
        with refusal(f"a cache folder that can be written at {folder}", remedy):
            folder.mkdir(parents=True, exist_ok=True)
            # One conversion at a time, since each fills much memory.
            with FileLock(folder / "lock"):
                if in_cache(*request) is None:
                    scratch = folder / ".converting"
                    shutil.rmtree(scratch, ignore_errors=True)  # of a conversion that was killed
                    try:
                        _convert(pieces, scratch, file, sha256, dtype)
                    finally:
                        shutil.rmtree(scratch, ignore_errors=True)
    return cast(Checkpoint, in_cache(*request))


def _convert(
    pieces: Sequence[Path], scratch: Path, file: str, sha256: str, dtype: torch.dtype | None
) -> None:
    """Write the model that the pieces make into the cache; `scratch`: a folder for the work."""
    from ostools.models.files.gguf import read_model

    joined, target = scratch / "file" / file, scratch / "model"
    joined.parent.mkdir(parents=True)  # the reader looks at what lies beside a file
    if len(pieces) == 1:
        joined.symlink_to(pieces[0].resolve())
    else:
        with joined.open("wb") as output:
            output.writelines(piece.read_bytes() for piece in pieces)
    with quiet():
        module, tokenizer, quantisation = read_model(
            joined, torch.float32 if dtype == torch.float64 else dtype
        )
        module.save_pretrained(target)
        tokenizer.save_pretrained(target)
        # transformers builds the tokenizers of some families anew when it reads them.
        saved = cast("PreTrainedTokenizerFast", read_tokenizer(Checkpoint(file, target)))
        if saved.backend_tokenizer.to_str() != tokenizer.backend_tokenizer.to_str():
            raise InputError(
                "expected a tokenizer that transformers saves and reads as the same, found that of "
                f"{file} changed by it: use the checkpoint that the file was made of"
            )
    if file_hash(*pieces) != sha256:
        raise InputError(
            f"expected {file} to stay as it is while it is read, found it changed: load it again"
        )
    dtype_name = str(module.dtype).removeprefix("torch.")
    note = {"file": file, "quantisation": quantisation, "dtype": dtype_name}
    (target / _NOTE).write_text(json.dumps(note), encoding="utf-8")
    os.replace(target, _folder(sha256, dtype))
