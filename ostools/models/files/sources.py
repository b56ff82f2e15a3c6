"""From what the user wrote (nothing, a name, a directory, a GGUF file, a hub id) to a directory
with a model in it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch

from ostools.ground.errors import InputError, short_repr, unknown_name
from ostools.models.families import EMBEDDED, EMBEDDED_MODELS
from ostools.models.files.checkpoint import Checkpoint
from ostools.models.files.gguf_cache import PACKAGED_MODELS, converted, packaged

EMBEDDED_DIRECTORIES = {name: Path(__file__).parents[1] / name for name in EMBEDDED_MODELS}
"""Where each model that the package carries lies, by its name."""
EMBEDDED_DIRECTORY = EMBEDDED_DIRECTORIES[EMBEDDED]
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
