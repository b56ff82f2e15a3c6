"""Gemma 3 270M and SmolLM2-135M-Instruct, each loaded once, and each as transformers alone loads
it.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoModelForCausalLM


@dataclass(frozen=True)
class Real:
    """The model as ostools loads it, and `plain(dtype)`: transformers' own of the same weights."""

    name: str
    model: TransformerBridge
    plain: Callable[[torch.dtype], Any]


@pytest.fixture(scope="module", params=["smollm2-135m-instruct", "gemma-3-270m"])
def real(request: pytest.FixtureRequest) -> Real:
    from ostools.models import load_model
    from ostools.models.files.gguf_cache import in_cache
    from ostools.models.files.sources import PACKAGED_MODELS, is_installed, locate

    name = request.param
    if in_cache(PACKAGED_MODELS[name].sha256) is None and not is_installed(name):
        pytest.skip(f"needs {name}: {PACKAGED_MODELS[name].install}, or make real")
    model, folder = load_model(name, dtype="float32", device="cpu"), locate(name, None).directory

    @cache
    def plain(dtype: torch.dtype) -> Any:
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="eager"
        ).requires_grad_(False)

    return Real(name, model, plain)


def joined(name: str, folder: Path) -> Path:
    """The pieces of an installed model's file as one file in `folder`."""
    from ostools.models.files.sources import PACKAGED_MODELS

    whole = folder / PACKAGED_MODELS[name].file
    with whole.open("wb") as target:
        for package, piece in PACKAGED_MODELS[name].parts:
            spec = find_spec(package)  # without running the package's code
            assert spec is not None
            assert spec.submodule_search_locations is not None
            with (Path(spec.submodule_search_locations[0]) / piece).open("rb") as part:
                shutil.copyfileobj(part, target, 1 << 24)
    return whole
