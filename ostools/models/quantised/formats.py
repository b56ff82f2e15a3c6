"""Which quantised checkpoints are read, and by which module of this room."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ostools.ground.errors import InputError
from ostools.models.packed import Stored
from ostools.models.quantised import bitsandbytes, fp8, grouped, int8
from ostools.models.quantised.taking import Tensors, refusal

_LEFT_OVER = "gguf"
"""The `quant_method` of a model that transformers dequantised from a GGUF file and saved: its weights are dense by then."""
_Words = Callable[[Mapping[str, Any]], str | None]
_Matrices = Callable[[Mapping[str, Any], Tensors, Mapping[str, str]], dict[str, Stored]]


@dataclass(frozen=True)
class Format:
    """A way in which checkpoints are quantised. `which`: the kinds of it that are read, for people; `words`: of its settings,
    None where these are not read; `matrices`: those among the tensors of the files."""

    which: str
    words: _Words
    matrices: _Matrices


FORMATS: dict[str, Format] = {
    "torchao": Format("torchao's Int8WeightOnlyConfig", int8.words, int8.matrices),
    "bitsandbytes": Format("bitsandbytes of 4 bits or LLM.int8", bitsandbytes.words, bitsandbytes.matrices),
    "gptq": Format("GPTQ of 2, 4 or 8 bits", grouped.gptq_words, grouped.gptq_matrices),
    "awq": Format("AWQ (gemm)", grouped.awq_words, grouped.awq_matrices),
    "fp8": Format("fp8", fp8.fp8_words, fp8.fp8_matrices),
    "compressed-tensors": Format(
        "compressed-tensors of float8, int8 or packed symmetric 4 or 8 bits",
        fp8.compressed_words,
        fp8.compressed_matrices,
    ),
}
"""What is read, by the `quant_method` of config.json."""
WHICH = ", ".join(one.which for one in FORMATS.values())
"""All of it in words."""


@dataclass(frozen=True)
class Quantisation:
    """How the matrices of a checkpoint are stored. `words`: for people, and for the provenance of what is computed."""

    words: str
    method: str
    settings: Mapping[str, Any]

    def weights(self, tensors: Mapping[str, Tensor], written: Mapping[str, str]) -> dict[str, Tensor | Stored]:
        """The weights by name, of the tensors of the files and what their headers say (`written`).

        Raises `InputError` for a tensor that is not as the format's library writes it.
        """
        left = dict(tensors)
        found = FORMATS[self.method].matrices(self.settings, left, written)
        if not found:
            raise InputError(
                f"expected matrices of a quantised checkpoint ({_told(self.settings)}), found none: is config.json this "
                "checkpoint's own?"
            )
        for name, tensor in left.items():
            if (tensor.element_size() == 1 and tensor.is_floating_point()) or _is_codes(name, tensor):
                raise refusal(name, "with the scales of its numbers", f"none beside {tensor.dtype}")
        return {**left, **found}


def check_quantisation(config: Mapping[str, Any], directory: Path) -> Quantisation | None:
    """The quantisation of the checkpoint, None in full precision; `InputError` for one that is not read here."""
    settings = config.get("quantization_config")
    if settings in (None, {}) or (isinstance(settings, dict) and settings.get("quant_method") == _LEFT_OVER):
        return None
    settings = settings if isinstance(settings, dict) else {}
    method = str(settings.get("quant_method"))
    found = FORMATS[method].words(settings) if method in FORMATS else None
    if found is None:
        raise InputError(
            f"expected full-precision weights or one of {WHICH}, found a quantised checkpoint ({_told(settings)}) in "
            f"{directory}: use the original, or dequantise it with the library that wrote it and save it in full precision"
        )
    return Quantisation(found, method, settings)


def _is_codes(name: str, tensor: Tensor) -> bool:
    return name.endswith((".weight", ".bias")) and not tensor.is_floating_point()


def _told(settings: Mapping[str, Any]) -> str:
    """The settings that say what it is, shortly."""
    names = ("quant_method", "quant_type", "bits", "format", "checkpoint_format", "version", "scale_fmt")
    return ", ".join(f"{name} {str(settings[name])[:60]}" for name in names if name in settings) or "no quant_method"
