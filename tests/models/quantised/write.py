"""Tiny checkpoints that the libraries quantise themselves, and the matrices that those libraries then read.

`python -m tests.models.quantised.write` needs bitsandbytes (0.50.2), compressed-tensors (0.20.0), and the sources of auto-gptq
(0.7.1) and autoawq (0.2.9), of which only the modules that pack and unpack are imported: the rest of both asks for older
transformers. Beside each checkpoint lies expected.json: the sha256 of each dequantised matrix, as float32 numbers.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.checkpoints import make_model

HERE = Path(__file__).parent / "written"
SIZES: dict[str, Any] = {
    **{"d_model": 64, "n_layers": 1, "n_heads": 4, "n_key_value_heads": 2, "d_head": 16, "d_mlp": 96},
    "tie_word_embeddings": True,
}
GROUP = 32


def digest(weight: Tensor) -> str:
    return hashlib.sha256(weight.detach().float().contiguous().numpy().tobytes()).hexdigest()


def source(dtype: torch.dtype) -> Any:
    return make_model("llama", dtype=dtype, **SIZES)


def linears(model: nn.Module) -> dict[str, nn.Linear]:
    """Those that are quantised: all of the blocks, but one, which every format's skip list may name."""
    return {name: part for name, part in model.named_modules() if isinstance(part, nn.Linear) and name != "lm_head"}


def save(
    path: Path, model: Any, tensors: dict[str, Tensor], settings: dict[str, Any], expected: dict[str, Tensor]
) -> None:
    """The checkpoint of a model, of which these matrices are replaced by the tensors that stand for them."""
    path.mkdir(parents=True, exist_ok=True)
    others = {name: weight for name, weight in model.state_dict().items() if name != "lm_head.weight"}
    kept = {name: weight for name, weight in others.items() if name.removesuffix(".weight") not in linears(model)}
    save_file(
        {name: part.contiguous() for name, part in (kept | tensors).items()},
        path / "model.safetensors",
        {"format": "pt"},
    )
    model.config.save_pretrained(path)
    config = json.loads((path / "config.json").read_text())
    config["architectures"], config["quantization_config"] = ["LlamaForCausalLM"], settings
    (path / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    write_expected(path, expected)


def write_expected(path: Path, expected: dict[str, Tensor]) -> None:
    text = {f"{name}.weight": digest(weight) for name, weight in sorted(expected.items())}
    (path / "expected.json").write_text(json.dumps(text, indent=1) + "\n")


def bitsandbytes(path: Path, dtype: torch.dtype, **settings: Any) -> None:
    """Written by transformers with bitsandbytes, dequantised by bitsandbytes."""
    import transformers
    from bitsandbytes import functional  # pyright: ignore[reportMissingImports]

    source(dtype).save_pretrained(path / "full")
    config = transformers.BitsAndBytesConfig(**settings)
    model = transformers.LlamaForCausalLM.from_pretrained(path / "full", quantization_config=config, dtype=dtype)
    model.save_pretrained(path)
    for file in (path / "full").iterdir():
        file.unlink()
    (path / "full").rmdir()
    (path / "generation_config.json").unlink()
    expected = {}
    for name, part in linears(model).items():
        weight: Any = part.weight
        if "load_in_4bit" in settings:
            expected[name] = four_bits(weight.data, weight.quant_state)
        else:
            expected[name] = functional.int8_vectorwise_dequant(weight.data, weight.SCB)
    write_expected(path, expected)


def four_bits(packed: Tensor, state: Any) -> Tensor:
    """By bitsandbytes' kernel in torch. Its kernel in C for CPUs gives the same where rows are whole blocks; else it takes the
    scale of another block (0.50.2, a CPU with AVX-512), and is off by as much as the weights are large."""
    from bitsandbytes import functional  # pyright: ignore[reportMissingImports]
    from bitsandbytes.backends.default.ops import _dequantize_4bit_compute  # pyright: ignore[reportMissingImports]

    absmax = state.absmax
    if state.nested:
        absmax = functional.dequantize_blockwise(absmax, state.state2) + state.offset
    made = _dequantize_4bit_compute(packed.flatten(), absmax, state.code, state.blocksize, state.shape, state.dtype)
    if state.shape[1] % state.blocksize == 0:
        assert torch.equal(made, functional.dequantize_4bit(packed, state))
    return made


def without_init(package: str) -> None:
    """Let the modules of a package be imported without what its `__init__` imports."""
    parts = package.split(".")
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        if name in sys.modules:
            continue
        found = importlib.util.find_spec(name)
        if found is None:
            raise ModuleNotFoundError(name)
        module = types.ModuleType(name)
        module.__spec__ = found
        module.__path__ = list(found.submodule_search_locations or [])
        sys.modules[name] = module


def codes(weight: Tensor, bits: int, symmetric: bool, group: int) -> tuple[Tensor, Tensor]:
    """Scales and zero points [out, groups] by the largest and smallest number of each group."""
    grouped = weight.float().view(weight.shape[0], -1, group)
    largest = 2**bits - 1
    if symmetric:
        scale = 2 * grouped.abs().amax(-1) / largest
        return scale.half().float(), torch.full_like(scale, 2 ** (bits - 1))
    low, high = grouped.amin(-1).clamp_max(0), grouped.amax(-1).clamp_min(0)
    scale = ((high - low) / largest).half().float()
    return scale, (-low / scale).round().clamp(1, largest)


def gptq(path: Path, bits: int, symmetric: bool, shuffled: bool) -> None:
    """Packed by AutoGPTQ's kernel for CUDA, whose way without CUDA multiplies the identity by the matrix."""
    without_init("auto_gptq.nn_modules.qlinear")
    from auto_gptq.nn_modules.qlinear.qlinear_cuda import QuantLinear  # pyright: ignore[reportMissingImports]

    model, tensors, expected = source(torch.float16), {}, {}
    for index, (name, part) in enumerate(linears(model).items()):
        n_in = part.in_features
        order = torch.randperm(n_in, generator=torch.Generator().manual_seed(index)) if shuffled else torch.arange(n_in)
        group = torch.empty(n_in, dtype=torch.int32)
        group[order] = torch.arange(n_in, dtype=torch.int32) // GROUP
        scale, zero = codes(part.weight[:, order], bits, symmetric, GROUP)
        layer = QuantLinear(bits, GROUP, n_in, part.out_features, bias=False, weight_dtype=torch.float16)
        whole = part.weight.float()
        # Beyond the range of a code AutoGPTQ's packing writes into the next one: its quantiser clamps first.
        zeros, scales = zero[:, group.long()], scale[:, group.long()]
        whole = scales * ((whole / scales + zeros).round().clamp(0, 2**bits - 1) - zeros)
        linear = nn.Linear(n_in, part.out_features, bias=False)
        linear.weight.data = whole
        layer.pack(linear, scale, zero.clone(), group)
        layer.scales = layer.scales.half()
        expected[name] = layer(torch.eye(n_in, dtype=torch.float16)).t()
        for ending in ("qweight", "qzeros", "scales", "g_idx"):
            tensors[f"{name}.{ending}"] = getattr(layer, ending)
    settings = {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "desc_act": shuffled, "sym": symmetric}
    save(path, model, tensors, settings, expected)


def awq(path: Path) -> None:
    """Packed and unpacked by AutoAWQ."""
    without_init("awq.modules.linear")
    without_init("awq.utils")
    from awq.modules.linear.gemm import WQLinear_GEMM  # pyright: ignore[reportMissingImports]
    from awq.utils.packing_utils import dequantize_gemm  # pyright: ignore[reportMissingImports]

    model, tensors, expected = source(torch.float16), {}, {}
    for name, part in linears(model).items():
        scale, zero = codes(part.weight, 4, False, GROUP)
        linear = nn.Linear(part.in_features, part.out_features, bias=False)
        scales, zeros = scale.repeat_interleave(GROUP, 1), zero.repeat_interleave(GROUP, 1)
        linear.weight.data = scales * ((part.weight.float() / scales + zeros).round().clamp(0, 15) - zeros)
        layer = WQLinear_GEMM.from_linear(linear, 4, GROUP, scales=scale.t().contiguous(), zeros=zero.t().contiguous())
        expected[name] = dequantize_gemm(layer.qweight, layer.qzeros, layer.scales, 4, GROUP).t()
        for ending in ("qweight", "qzeros", "scales"):
            tensors[f"{name}.{ending}"] = getattr(layer, ending)
    settings = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
    save(path, model, tensors, settings, expected)


def compressed(path: Path, kind: str, **weights: Any) -> None:
    """Compressed and decompressed by compressed-tensors."""
    from compressed_tensors.compressors.base import BaseCompressor  # pyright: ignore[reportMissingImports]
    from compressed_tensors.quantization import (  # pyright: ignore[reportMissingImports]
        QuantizationArgs,
        QuantizationConfig,
        QuantizationScheme,
    )

    rule = QuantizationArgs(symmetric=True, **weights)
    scheme = QuantizationScheme(targets=["Linear"], weights=rule)
    compressor = BaseCompressor.get_value_from_registry(kind)
    model, tensors, expected = source(torch.bfloat16), {}, {}
    largest = 448 if weights["type"] == "float" else 2 ** (weights["num_bits"] - 1) - 1
    for name, part in linears(model).items():
        size = part.weight.abs().float()
        if weights["strategy"] == "group":
            size = size.view(part.out_features, -1, weights["group_size"])
        scale = (size.amax() if weights["strategy"] == "tensor" else size.amax(-1, keepdim=True)) / largest
        scale = scale.squeeze(-1) if weights["strategy"] == "group" else scale.view(1) if scale.ndim == 0 else scale
        parts = compressor.compress({"weight": part.weight.data, "weight_scale": scale.bfloat16()}, scheme)
        tensors |= {f"{name}.{ending}": tensor for ending, tensor in parts.items()}
        expected[name] = compressor.decompress(dict(parts), scheme)["weight"]
    groups = {"group_0": scheme}
    settings = QuantizationConfig(
        config_groups=groups, format=kind, ignore=["lm_head"], quantization_status="compressed"
    )
    save(path, model, tensors, settings.model_dump(mode="json"), expected)


WRITERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "bitsandbytes_nf4": (
        "bitsandbytes",
        lambda path: bitsandbytes(
            path, torch.float16, load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
        ),
    ),
    "bitsandbytes_fp4": (
        "bitsandbytes",
        lambda path: bitsandbytes(path, torch.bfloat16, load_in_4bit=True, bnb_4bit_quant_type="fp4"),
    ),
    "bitsandbytes_int8": ("bitsandbytes", lambda path: bitsandbytes(path, torch.float16, load_in_8bit=True)),
    "gptq_4": ("auto_gptq", lambda path: gptq(path, 4, symmetric=False, shuffled=True)),
    "gptq_8": ("auto_gptq", lambda path: gptq(path, 8, symmetric=True, shuffled=False)),
    "gptq_2": ("auto_gptq", lambda path: gptq(path, 2, symmetric=True, shuffled=False)),
    "awq": ("awq", awq),
    "compressed_float8": (
        "compressed_tensors",
        lambda path: compressed(path, "float-quantized", num_bits=8, type="float", strategy="tensor"),
    ),
    "compressed_int8": (
        "compressed_tensors",
        lambda path: compressed(path, "int-quantized", num_bits=8, type="int", strategy="channel"),
    ),
    "compressed_packed": (
        "compressed_tensors",
        lambda path: compressed(path, "pack-quantized", num_bits=4, type="int", strategy="group", group_size=GROUP),
    ),
}
"""The checkpoints by name: the library, and what writes one into a directory."""


if __name__ == "__main__":
    for name, (_, write) in WRITERS.items():
        write(HERE / name)
        print(name)
