"""The cache of converted GGUF files: nothing is lost or rounded twice, a kill leaves nothing, and
what is broken says so.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ostools.models import describe, load_model
from ostools.models.files.sources import locate
from tests.models.gguf.write import stands_for, write_gguf

IDS = torch.tensor([[2, 40, 50, 60, 60, 61, 70, 71]])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OSTOOLS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gguf"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf", "llama")


def _folders(cache: Path) -> list[Path]:
    return sorted(path for path in cache.iterdir() if path.is_dir())


def _bytes(folder: Path) -> int:
    return (folder / "model.safetensors").stat().st_size


@pytest.mark.parametrize(
    ("family", "dtype"), [("llama", torch.float16), ("gemma3", torch.bfloat16)]
)
def test_weights_are_rounded_once_while_they_are_converted(
    family: str, dtype: torch.dtype, tmp_path: Path, cache: Path
) -> None:
    """Into a folder of that dtype, which serves no other."""
    file = write_gguf(tmp_path / "tiny.gguf", family)
    narrow = load_model(file, dtype=dtype, device="cpu")
    (made,) = _folders(cache)
    plain, stored = stands_for(family), load_file(made / "model.safetensors")
    rounded = plain.to(dtype).state_dict()
    assert all(torch.equal(weight, rounded[name]) for name, weight in stored.items())
    dtype_name = str(dtype).removeprefix("torch.")
    held = str(describe(narrow).quantisation)
    assert held.startswith(f"Q8_0, dequantised to {dtype_name} from tiny.gguf (SHA-256 ")
    exact = load_model(file, dtype="float32", device="cpu")
    assert torch.equal(exact(IDS), stands_for(family)(IDS, use_cache=False).logits)
    asked = (torch.float32, torch.float64, dtype)
    folders = [locate(file, None, each).directory for each in asked]
    assert folders[0] == folders[1] != folders[2] == made
    assert len(_folders(cache)) == 2


@pytest.mark.parametrize(
    ("kind", "dtype"), [(7, "bfloat16"), (1, "float16"), (32, "bfloat16"), (0, "float32")]
)
def test_a_file_is_loaded_in_the_dtype_that_it_stores_and_of_fewer_bits_in_bfloat16(
    kind: int, dtype: str, tmp_path: Path
) -> None:
    """By `general.file_type`: 0 is F32, 1 F16, 7 Q8_0 and 32 BF16."""
    file = write_gguf(tmp_path / "tiny.gguf", "llama", file_type=kind)
    described = describe(load_model(file, device="cpu"))
    assert described == describe(load_model(file, dtype=dtype, device="cpu"))
    assert described.dtype == dtype
    assert f"dequantised to {dtype}" in str(described.quantisation)


def test_what_a_killed_conversion_left_goes_at_the_next(file: Path, cache: Path) -> None:
    left = cache / ".converting" / "model"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    assert _folders(cache) == [left.parent]
    load_model(file, dtype="float32", device="cpu")
    assert _folders(cache) == [locate(file, None).directory]
