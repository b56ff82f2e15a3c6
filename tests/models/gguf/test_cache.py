"""The cache of converted GGUF files: nothing is lost or rounded twice, a kill leaves nothing, and
what is broken says so.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ostools.models import describe, load_model
from ostools.models.files import gguf_cache
from ostools.models.files.gguf_cache import in_cache
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


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_are_rounded_once_whenever_it_is_done(
    family: str, dtype: torch.dtype, tmp_path: Path, cache: Path
) -> None:
    """While they are converted, or at each load; in half of the bytes."""
    file = write_gguf(tmp_path / "tiny.gguf", family)
    narrow = load_model(file, dtype=dtype, device="cpu")
    (made,) = _folders(cache)
    assert {tensor.dtype for tensor in load_file(made / "model.safetensors").values()} == {dtype}
    made.rename(tmp_path / "apart")
    load_model(file, dtype="float32", device="cpu")
    rounded_at_load = load_model(file, dtype=dtype, device="cpu")
    (exact,) = _folders(cache)  # it served that load too
    assert _bytes(tmp_path / "apart") < 0.6 * _bytes(exact)
    assert describe(narrow) == describe(rounded_at_load)
    plain, stored = (
        stands_for(family).to(dtype).state_dict(),
        load_file(tmp_path / "apart" / "model.safetensors"),
    )
    assert all(torch.equal(weight, plain[name]) for name, weight in stored.items())
    assert torch.equal(narrow(IDS), rounded_at_load(IDS))


def test_a_rounded_conversion_serves_its_dtype_alone(file: Path, cache: Path) -> None:
    sha256 = gguf_cache.file_hash(file)
    narrow = locate(file, None, torch.bfloat16)
    assert str(narrow.quantisation).startswith(
        "Q8_0, dequantised to bfloat16 from tiny.gguf (SHA-256 "
    )
    assert narrow.directory.name.endswith("-bfloat16")
    exact = (torch.float32, torch.float64, torch.float16)
    assert [in_cache(sha256, dtype) for dtype in exact] == [None] * 3
    assert torch.equal(
        load_model(file, dtype="float32", device="cpu")(IDS),
        stands_for("llama")(IDS, use_cache=False).logits,
    )
    assert len(_folders(cache)) == 2
    both = [locate(file, None, dtype) for dtype in (torch.float32, torch.bfloat16)]
    assert [checkpoint.directory for checkpoint in both] == _folders(cache)
    assert both[1] == narrow


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
