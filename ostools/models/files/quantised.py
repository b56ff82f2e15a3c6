"""Checkpoints in few bits that load: fp8, whose matrices transformers itself dequantises on any machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ostools.ground.errors import InputError
from ostools.models.files.shards import FP8, Shard

SCALE = "_scale_inv"
_PACKAGES = {
    "awq": "gptqmodel",
    "bitsandbytes": "bitsandbytes",
    "compressed-tensors": "compressed-tensors",
    "gptq": "gptqmodel",
    "torchao": "torchao",
}
"""The package with which transformers reads a format, by its `quant_method`."""
_LEFT_OVER = "gguf"
"""The `quant_method` of a model that transformers dequantised from a GGUF file and saved: dense."""


@dataclass(frozen=True)
class Quantisation:
    """An fp8 checkpoint: W = q scale, with a scale for each `block` of a matrix, or one for all."""

    block: tuple[int, int] | None
    words = "fp8, weights dequantised; activations, which its own kernel rounds to fp8, are not"

    @property
    def settings(self) -> dict[str, Any]:
        """Settings with which transformers dequantises."""
        block = None if self.block is None else list(self.block)
        return {"quant_method": "fp8", "weight_block_size": block, "dequantize": True}

    def check(self, shards: Sequence[Shard], directory: Path) -> None:
        """Check that each fp8 matrix has a scale for each of its blocks, or one.

        transformers reads a scale's block off its shape, and a matrix without one as it stands.
        """
        stored = {name: tensor for shard in shards for name, tensor in shard.tensors.items()}
        scales = {name for name in stored if name.endswith(f".weight{SCALE}")}
        owners = {name for name, tensor in stored.items() if tensor.dtype == FP8}
        for name in sorted(owners | {scale.removesuffix(SCALE) for scale in scales}):
            matrix, scale = stored.get(name), stored.get(f"{name}{SCALE}")
            shapes = {(), (1,), (1, 1)} if self.block is None else {self._grid(matrix)}
            good = matrix is not None and matrix.dtype == FP8
            scaled = scale is not None and scale.dtype in ("F32", "BF16", "F16") and scale.shape in shapes
            if not (good and scaled):
                descriptions = [f"{tensor.dtype} {tensor.shape}" if tensor else "none" for tensor in (matrix, scale)]
                raise InputError(
                    f"expected {name} in {directory} as float8_e4m3fn in whole blocks of {self.block or 'its size'} with "
                    f"a scale each, found {descriptions[0]} with the scales {descriptions[1]}: use the checkpoint in full "
                    f"precision"
                )
        if not scales:
            raise InputError(
                f"expected fp8 matrices in {directory}, as config.json says, found none: is it this checkpoint's own?"
            )

    def _grid(self, matrix: Any) -> tuple[int, ...] | None:
        """Blocks down and across; None where they do not fill the matrix."""
        if matrix is None or self.block is None or len(matrix.shape) != 2:
            return None
        pairs = list(zip(matrix.shape, self.block, strict=True))
        fits = all(size % side == 0 for size, side in pairs)
        return tuple(size // side for size, side in pairs) if fits else None


def check_quantisation(config: Mapping[str, Any], directory: Path) -> Quantisation | None:
    """The quantisation of the checkpoint, None in full precision; `InputError` for one that is not read."""
    settings = config.get("quantization_config")
    if settings in (None, {}):
        return None
    settings = settings if isinstance(settings, dict) else {}
    method = str(settings.get("quant_method"))
    if method == _LEFT_OVER:
        return None
    block = settings.get("weight_block_size", [128, 128])
    sides = isinstance(block, list) and len(block) == 2 and all(type(side) is int and side > 0 for side in block)
    if method == "fp8" and (sides or block is None) and settings.get("scale_fmt") in (None, "float"):
        return Quantisation(None if block is None else (block[0], block[1]))
    names = ("quant_method", "quant_type", "bits", "format", "scale_fmt")
    message = ", ".join(f"{name} {str(settings[name])[:60]}" for name in names if name in settings) or "no quant_method"
    package = _PACKAGES.get(method)
    needs = "" if package is None else f", which needs the package {package}"
    raise InputError(
        f"expected full-precision weights or fp8, found a quantised checkpoint ({message}) in {directory}{needs}: use the "
        "original or a GGUF file of it; or load it with transformers, dequantise it there, and take it with ost.adopt"
    )
