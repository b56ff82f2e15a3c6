"""Checkpoints in fp8, which transformers dequantises, and those of other formats, which name the package that reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ostools.ground.errors import InputError
from ostools.models import describe, load_model
from tests.checkpoints import edit_config, make_model, write_checkpoint

IDS = torch.tensor([[2, 40, 11, 250, 99, 6]])
Q = "model.layers.0.self_attn.q_proj.weight"
BLOCK = (16, 8)


def write_fp8(path: Path, block: tuple[int, int] | None = BLOCK, dtype: torch.dtype = torch.float32) -> Path:
    """A tiny model with fp8 matrices, one projection skipped; beside it the same in full precision, in `path`/full."""
    write_checkpoint(path / "full", "llama", seed=1)
    write_checkpoint(path / "fp8", "llama", seed=1)
    stored, full = {}, {}
    for name, weight in make_model("llama", seed=1).state_dict().items():
        stored[name] = full[name] = weight.contiguous()
        if "_proj" in name and "o_proj" not in name:
            down, across = block or weight.shape
            blocks = weight.view(weight.shape[0] // down, down, weight.shape[1] // across, across)
            scale = (blocks.abs().amax((1, 3)) / 448).to(dtype)
            spread = scale[:, None, :, None].float()
            q = (blocks / spread).to(torch.float8_e4m3fn)
            stored[name] = q.reshape(weight.shape)
            stored[f"{name}_scale_inv"] = scale if block else scale.view(())
            full[name] = (q.float() * spread).view(weight.shape)
    save_file(stored, path / "fp8" / "model.safetensors", {"format": "pt"})
    save_file(full, path / "full" / "model.safetensors", {"format": "pt"})
    settings = {"quant_method": "fp8", "weight_block_size": block, "modules_to_not_convert": ["lm_head", "o_proj"]}
    edit_config(path / "fp8", quantization_config=settings | {"activation_scheme": "dynamic"})
    return path / "fp8"


@pytest.mark.parametrize(
    ("block", "scales", "dtype"),
    [(BLOCK, torch.float32, "float32"), (BLOCK, torch.bfloat16, "bfloat16"), (None, torch.float32, "float64")],
)
def test_fp8_is_the_model_of_its_dequantised_weights(
    block: tuple[int, int] | None, scales: torch.dtype, dtype: str, tmp_path: Path
) -> None:
    directory = write_fp8(tmp_path, block, scales)
    model = load_model(directory, device="cpu", dtype=dtype)
    expected = load_model(tmp_path / "full", device="cpu", dtype=dtype)
    assert torch.equal(model(IDS), expected(IDS))
    mine, theirs = describe(model), describe(expected)
    assert (mine.weight_hash, mine.config_hash) == (theirs.weight_hash, theirs.config_hash)
    assert "fp8, weights dequantised; activations, which its own kernel rounds" in str(mine.quantisation)


def _changed(change: Callable[[dict[str, Tensor]], Any]) -> Callable[[Path], None]:
    def changed(directory: Path) -> None:
        tensors = load_file(directory / "model.safetensors")
        change(tensors)
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})

    return changed


def _without_scales(tensors: dict[str, Tensor]) -> None:
    for name in [name for name in tensors if name.endswith("_scale_inv")]:
        tensors[name.removesuffix("_scale_inv")] = torch.ones(tensors.pop(name).shape)


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no scale": (_changed(lambda t: t.pop(f"{Q}_scale_inv")), f"expected {Q} in .* with the scales none"),
    "one scale for blocks": (_changed(lambda t: t.update({f"{Q}_scale_inv": torch.ones(())})), f"expected {Q} in"),
    "whole numbers": (
        _changed(lambda t: t.update({Q: torch.ones(32, 32, dtype=torch.int8)})), "of dtype 'I8'"
    ),
    "dense after all": (_changed(_without_scales), "expected fp8 matrices in .*, found none"),
    "blocks that do not fill a matrix": (
        lambda path: edit_config(path, quantization_config={"quant_method": "fp8", "weight_block_size": [20, 16]}),
        r"in whole blocks of \(20, 16\)",
    ),
    "scales in ue8m0": (
        lambda path: edit_config(path, quantization_config={"quant_method": "fp8", "scale_fmt": "ue8m0"}),
        "found a quantised checkpoint .quant_method fp8, scale_fmt ue8m0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_fp8_that_transformers_would_read_otherwise_is_refused(case: str, tmp_path: Path) -> None:
    directory = write_fp8(tmp_path)
    change, match = REFUSED[case]
    change(directory)
    with pytest.raises(InputError, match=match) as refusal:
        load_model(directory, device="cpu")
    assert "\n" not in str(refusal.value)


def test_a_format_that_is_not_read_names_its_package(tmp_path: Path) -> None:
    method, package = "awq", "gptqmodel"
    edit_config(write_checkpoint(tmp_path, "llama"), quantization_config={"quant_method": method, "bits": 4})
    match = f"found a quantised checkpoint .quant_method {method}, bits 4. in .* needs the package {package}: use the"
    with pytest.raises(InputError, match=match):
        load_model(tmp_path, device="cpu")


def test_a_device_map_of_fp8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"device_map: expected weights .* found weights in fp8"):
        load_model(write_fp8(tmp_path), device="cpu", device_map="disk")
