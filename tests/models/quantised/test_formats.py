"""Checkpoints in few bits as their own libraries wrote them: every weight is the one that the library itself dequantises.

`written` was made by `write.py`; where a library is installed, it writes and dequantises again, here and now.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import ostools as ost
from ostools.ground.errors import InputError
from ostools.models import describe, load_model, packed, recast, view_in
from ostools.models.files.sources import Source
from ostools.models.packed import Packed, Stored
from ostools.models.quantised.formats import FORMATS
from ostools.models.recast import dense, stored_part
from ostools.runs.forecast import Unloaded
from tests.checkpoints import edit_config, make_model, write_tokenizer
from tests.models.quantised.write import HERE, SIZES, WRITERS, digest

IDS = torch.tensor([[2, 40, 11, 250, 99, 6]])
KINDS = pytest.mark.parametrize("kind", WRITERS)
FEW_KINDS = pytest.mark.parametrize(
    "kind",
    [kind if index % 4 == 0 else pytest.param(kind, marks=pytest.mark.slow) for index, kind in enumerate(WRITERS)],
)


@pytest.fixture
def at(tmp_path: Path) -> Callable[[str], Path]:
    def copied(kind: str) -> Path:
        shutil.copytree(HERE / kind, tmp_path / kind)
        return write_tokenizer(tmp_path / kind)

    return copied


def by_file_name(model: Any) -> dict[str, Tensor]:
    parameters = model.original_model.named_parameters()
    return {name.replace("._original_component", ""): weight for name, weight in parameters}


def quantised(model: Any, directory: Path) -> dict[str, Tensor]:
    """The quantised matrices by their names in the file."""
    names = json.loads((directory / "expected.json").read_text())
    found = by_file_name(model)
    return {name: found[name] for name in names}


def in_full(directory: Path, path: Path) -> Path:
    """The same model, its weights written out in float32."""
    weights = by_file_name(load_model(directory))
    shutil.copytree(directory, path)
    edit_config(path, quantization_config=None)
    numbers = {name: dense(weight).contiguous() for name, weight in weights.items()}
    save_file(numbers, path / "model.safetensors", {"format": "pt"})
    return path


def test_every_format_that_is_listed_has_a_checkpoint_here() -> None:
    """`ostools models` lists `FORMATS`; torchao's are those of test_int8."""
    configs = [json.loads((HERE / kind / "config.json").read_text()) for kind in WRITERS]
    assert {one["quantization_config"]["quant_method"] for one in configs} | {"torchao", "fp8"} == set(FORMATS)


@KINDS
def test_every_matrix_is_the_one_that_the_library_dequantises(kind: str, at: Callable[[str], Path]) -> None:
    directory = at(kind)
    model = load_model(directory)
    expected = json.loads((directory / "expected.json").read_text())
    assert len(expected) == 7
    assert {name: digest(weight) for name, weight in quantised(model, directory).items()} == expected
    full = make_model("llama", **SIZES)
    assert float((full(IDS).logits - model(IDS)).abs().max()) > 1e-4  # quantising did something


@KINDS
def test_what_the_library_writes_here_and_now(kind: str, tmp_path: Path) -> None:
    library, write = WRITERS[kind]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"needs {library}")
    write(tmp_path)
    write_tokenizer(tmp_path)
    expected = json.loads((tmp_path / "expected.json").read_text())
    assert expected == json.loads((HERE / kind / "expected.json").read_text())
    assert {name: digest(weight) for name, weight in quantised(load_model(tmp_path), tmp_path).items()} == expected


@FEW_KINDS
def test_matrices_stay_as_they_are_stored_and_compute_the_same(
    kind: str, at: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit: logits, what reads weights outside of a pass, measurements, the hash; and from disk."""
    directory = at(kind)
    full = load_model(in_full(directory, tmp_path / "full"))
    monkeypatch.setattr(packed, "SMALL_WEIGHT", 0)
    monkeypatch.setattr(packed, "_AT_A_TIME", 500)
    model = load_model(directory)
    made = quantised(model, directory)
    assert all(isinstance(weight, Packed) for weight in made.values())
    stored = {torch.float8_e4m3fn} if kind == "compressed_float8" else {torch.int8, torch.int32, torch.uint8}
    assert {stored_part(weight).dtype for weight in made.values()} <= stored
    assert torch.equal(model(IDS), full(IDS))
    for name in ("W_Q", "W_K", "W_V", "W_O", "W_in", "W_gate", "W_out"):
        assert torch.equal(dense(getattr(model, name)), getattr(full, name))
    assert describe(model).weight_hash == describe(full).weight_hash
    assert torch.equal(copy.deepcopy(model)(IDS), full(IDS))
    assert torch.equal(view_in(model, torch.float64)(IDS), view_in(full, torch.float64)(IDS))
    assert torch.equal(load_model(directory, device="cpu", device_map="disk")(IDS), full(IDS))
    found, expected = (ost.path_sum(one, "12 345", variants=["local"]).frame for one in (model, full))
    assert found.equals(expected)


@pytest.mark.slow
def test_measurements_are_those_of_the_weights_written_out(
    at: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = at("bitsandbytes_nf4")
    full = load_model(in_full(directory, tmp_path / "full"))
    monkeypatch.setattr(packed, "SMALL_WEIGHT", 0)
    model = load_model(directory)
    for method in ("exact", "estimate"):
        found, expected = (ost.sensitivity(one, "12 345", method=method) for one in (model, full))
        assert found.frame.equals(expected.frame)
        assert found.provenance.model["quantisation"] == "bitsandbytes nf4, dequantised"
    lengths: dict[str, Any] = {"lengths": range(1, 5), "dtypes": ["float32", "int8-weights"]}
    assert ost.collapse(model, "figure-5a", **lengths).frame.equals(ost.collapse(full, "figure-5a", **lengths).frame)
    with pytest.raises(InputError, match="expected a weight of the model itself to write to"):
        next(iter(quantised(model, directory).values())).data.mul_(2.0)


@KINDS
def test_its_memory_is_forecast(kind: str, at: Callable[[str], Path]) -> None:
    """Packed tensors as they lie in the file, all others in the dtype that was asked for."""
    directory = at(kind)
    expected = 0
    for tensor in load_file(directory / "model.safetensors").values():
        packed_there = tensor.element_size() == 1 or tensor.dtype == torch.int32
        expected += tensor.numel() * (tensor.element_size() if packed_there else 4)
    unloaded = Unloaded(Source(kind, directory, None), torch.float32, "cpu")
    assert unloaded.held == expected
    assert unloaded.shape.cast


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_another_dtype_is_the_cast_of_the_dequantised_weights(dtype: str, at: Callable[[str], Path]) -> None:
    directory = at("gptq_4")
    assert torch.equal(
        load_model(directory, dtype=dtype)(IDS), view_in(load_model(directory), getattr(torch, dtype))(IDS)
    )


# Views of a packed matrix: whatever is taken of it is taken of its numbers.

VIEWS: list[Callable[[Tensor], Tensor]] = [
    lambda w: w.t(),
    lambda w: w[3],
    lambda w: w[:, 4],
    lambda w: w[2:5, 1:6],
    lambda w: w[::3].t()[1:],
    lambda w: w.view(4, 2, 10),
    lambda w: w.view(4, 2, 10).permute(2, 0, 1)[4],
    lambda w: w.unflatten(1, (5, 2)).transpose(0, 1),
    lambda w: w.expand(3, 8, 10)[2].t(),
    lambda w: w.expand(3, 8, 10).transpose(0, 2).reshape(10, -1),
    lambda w: w.diagonal(),
    lambda w: w.flatten()[7:33].unfold(0, 5, 4),
    lambda w: w.split([3, 5])[1],
    lambda w: torch.stack(w.t().unbind()[2:4]),
    lambda w: w[0:0],
    lambda w: torch.nn.functional.embedding(torch.tensor([[7, 0], [7, 3]]), w),
    lambda w: torch.nn.functional.embedding(torch.tensor([1, 1, 0]), w[::2]),
    lambda w: w @ torch.eye(10),
    lambda w: torch.nn.functional.linear(torch.eye(10), w, torch.ones(8)),
]


@pytest.mark.parametrize("view", range(len(VIEWS)))
def test_a_view_is_that_of_the_numbers(view: int, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = torch.arange(80.0).view(8, 10)
    matrix = Stored((8, 10), (numbers,), lambda part, low, high: part[low:high])
    monkeypatch.setattr(packed, "_AT_A_TIME", 25)
    weight = Packed(matrix, torch.float32, torch.device("cpu"))
    found, expected = VIEWS[view](weight), VIEWS[view](numbers)
    assert found.shape == expected.shape
    assert torch.equal(dense(found), expected)


def test_of_a_view_only_its_own_rows_are_made() -> None:
    asked = []

    def read(part: Tensor, low: int, high: int) -> Tensor:
        asked.append((low, high))
        return part[low:high]

    weight = Packed(Stored((8, 10), (torch.arange(80.0).view(8, 10),), read), torch.float32, torch.device("cpu"))
    dense(weight[2:5].t()[4])  # pyright: ignore[reportArgumentType]
    assert asked == [(2, 5)]


def test_a_product_in_parts_makes_every_row_once_there_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def read(part: Tensor, low: int, high: int) -> Tensor:
        asked.append((low, high))
        return part[low:high]

    numbers = torch.randn(8, 10, generator=torch.Generator().manual_seed(0))
    weight = Packed(Stored((8, 10), (numbers,), read), torch.float32, torch.device("cpu"))
    monkeypatch.setattr(recast, "BLOCK", 3 * 10 * 4)
    x = torch.randn(2, 10, requires_grad=True)
    out = torch.nn.functional.linear(x, weight)
    assert asked == [(0, 3), (3, 6), (6, 8)]
    asked.clear()
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert asked == [(0, 8)]
    torch.testing.assert_close(out, x @ numbers.T)
    torch.testing.assert_close(gradient, numbers.sum(0).expand(2, 10))


# fp8: transformers itself writes and dequantises it.


def write_fp8(
    path: Path, scale_dtype: torch.dtype = torch.float32, block: tuple[int, int] = (32, 32)
) -> dict[str, Tensor]:
    """A tiny model with fp8 matrices, one projection skipped; returns what was stored of each matrix, made by hand."""
    model, tensors, made = make_model("llama", dtype=torch.bfloat16, **SIZES), {}, {}
    for name, weight in model.state_dict().items():
        if weight.ndim != 2 or "embed" in name or "lm_head" in name or "o_proj" in name:
            tensors[name] = weight
            continue
        down, across = (-(-size // side) for size, side in zip(weight.shape, block, strict=True))
        scale, q = torch.zeros(down, across), torch.zeros(weight.shape)
        full = torch.zeros(weight.shape)
        for i in range(down):
            for j in range(across):
                here = slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1])
                scale[i, j] = (weight[here].float().abs().max() / 448).to(scale_dtype).float()
                q[here] = (weight[here].float() / scale[i, j]).to(torch.float8_e4m3fn).float()
                full[here] = q[here] * scale[i, j]
        tensors[name], tensors[f"{name}_scale_inv"] = q.to(torch.float8_e4m3fn), scale.to(scale_dtype)
        made[name] = full
    tensors.pop("lm_head.weight")
    path.mkdir(exist_ok=True)
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors", {"format": "pt"}
    )
    model.config.save_pretrained(path)
    settings = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": list(block),
        "modules_to_not_convert": ["lm_head", "model.layers.0.self_attn.o_proj"],
    }
    edit_config(path, architectures=["LlamaForCausalLM"], quantization_config=settings)
    write_tokenizer(path)
    return made


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16])
def test_fp8_is_what_transformers_dequantises(scale_dtype: torch.dtype, tmp_path: Path) -> None:
    import transformers

    made = write_fp8(tmp_path, scale_dtype)
    weights = by_file_name(load_model(tmp_path))
    assert len(made) == 6
    assert all(torch.equal(weights[name], weight) for name, weight in made.items())
    config = transformers.FineGrainedFP8Config(
        weight_block_size=(32, 32),
        modules_to_not_convert=["lm_head", "model.layers.0.self_attn.o_proj"],
        dequantize=True,
    )
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path, quantization_config=config, dtype=torch.float32)
    for name, weight in theirs.named_parameters():
        assert torch.equal(weights[name], weight), name


def test_blocks_of_fp8_end_where_the_matrix_does(tmp_path: Path) -> None:
    """Of 64 x 96 numbers in blocks of 48 x 40; transformers would take them for blocks of 32 x 32."""
    made = write_fp8(tmp_path, block=(48, 40))
    weights = by_file_name(load_model(tmp_path))
    assert all(torch.equal(weights[name], weight) for name, weight in made.items())
    assert "fp8, weights dequantised; activations, which its own kernel rounds" in str(
        describe(load_model(tmp_path)).quantisation
    )


# GPTQ's two formats, and what their readers do not read alike.


def changed(directory: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})


def set_settings(directory: Path, **settings: Any) -> None:
    config = json.loads((directory / "config.json").read_text())
    edit_config(directory, quantization_config=config["quantization_config"] | settings)


def test_the_second_format_of_gptq_stores_zero_points_as_they_are(at: Callable[[str], Path]) -> None:
    directory = at("gptq_4")

    def one_more(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if name.endswith("qzeros")]:
            tensors[name] = tensors[name] + 0x11111111  # as GPTQModel converts the first into the second

    changed(directory, one_more)
    set_settings(directory, checkpoint_format="gptq_v2")
    expected = json.loads((directory / "expected.json").read_text())
    assert {name: digest(weight) for name, weight in quantised(load_model(directory), directory).items()} == expected


@pytest.mark.parametrize("storage", [torch.bfloat16, torch.float32])
def test_bytes_that_bitsandbytes_stores_as_other_numbers(storage: torch.dtype, at: Callable[[str], Path]) -> None:
    """`bnb_4bit_quant_storage`, which sharded training asks for."""
    directory = at("bitsandbytes_fp4")

    def as_numbers(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if f"{name}.absmax" in tensors]:
            tensors[name] = tensors[name].flatten().view(storage)[:, None].contiguous()

    changed(directory, as_numbers)
    expected = json.loads((directory / "expected.json").read_text())
    assert {name: digest(weight) for name, weight in quantised(load_model(directory), directory).items()} == expected


def refuses(match: str, directory: Path) -> None:
    with pytest.raises(InputError, match=match) as caught:
        load_model(directory)
    assert "\n" not in str(caught.value)


Q = "model.layers.0.self_attn.q_proj"
CHANGES: dict[str, tuple[str, Callable[[dict[str, Tensor]], Any], str]] = {
    "a zero point that libraries read in two ways": (
        "gptq_4",
        lambda t: t[f"{Q}.qzeros"].fill_(-1),
        "every reader of GPTQ's first format reads alike, 1 to 15, found one stored as 15, which AutoGPTQ reads as 0",
    ),
    "a group that there is not": ("gptq_4", lambda t: t[f"{Q}.g_idx"].fill_(2), "as GPTQ packs 4 bits, found"),
    "a negative group": ("gptq_4", lambda t: t[f"{Q}.g_idx"].fill_(-1), "as GPTQ packs 4 bits, found"),
    "no groups": ("gptq_4", lambda t: t.pop(f"{Q}.g_idx"), f"found no {Q}.g_idx: fetch the checkpoint again"),
    "too few zero points": (
        "awq",
        lambda t: t.update({f"{Q}.qzeros": t[f"{Q}.qzeros"][:, 1:].clone()}),
        "as AWQ packs 4 bits, found int32",
    ),
    "too few bytes": (
        "bitsandbytes_fp4",
        lambda t: t.update({f"{Q}.weight": t[f"{Q}.weight"][1:].clone()}),
        "as bitsandbytes writes its fp4 matrices, found uint8",
    ),
    "a state that is no JSON": (
        "bitsandbytes_nf4",
        lambda t: t[f"{Q}.weight.quant_state.bitsandbytes__nf4"].fill_(123),
        "found a quant_state that it cannot read",
    ),
    "no state": (
        "bitsandbytes_nf4",
        lambda t: t.pop(f"{Q}.weight.quant_state.bitsandbytes__nf4"),
        f"expected {Q}.weight with the scales of its numbers, found none beside torch.uint8",
    ),
    "columns in another order": (
        "bitsandbytes_int8",
        lambda t: t[f"{Q}.weight_format"].fill_(1),
        "as int8, row by row, with a scale per output channel",
    ),
    "no scale": (
        "compressed_float8",
        lambda t: t.pop(f"{Q}.weight_scale"),
        f"expected {Q}.weight with the scales of its numbers, found none beside torch.float8_e4m3fn",
    ),
    "a scale of another shape": (
        "compressed_int8",
        lambda t: t.update({f"{Q}.weight_scale": t[f"{Q}.weight_scale"][1:].clone()}),
        "with a scale for a row or all of it, found int8",
    ),
    "another width": (
        "compressed_packed",
        lambda t: t[f"{Q}.weight_shape"].fill_(32),
        "as compressed-tensors packs 4 bits",
    ),
    "zero points of the second kind": (
        "compressed_packed",
        lambda t: t.update({f"{Q}.weight_zero_point": torch.zeros(2, 2, dtype=torch.int32)}),
        "found 1 more .*weight_zero_point",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_matrices_that_are_not_as_the_library_writes_them_are_refused(what: str, at: Callable[[str], Path]) -> None:
    kind, change, match = CHANGES[what]
    directory = at(kind)
    changed(directory, change)
    refuses(match, directory)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("gptq_4", {"bits": 3}),
        ("gptq_4", {"checkpoint_format": "marlin"}),
        ("gptq_4", {"checkpoint_format": "gptq_p"}),
        ("gptq_4", {"dynamic": {"+:.*": {"bits": 8}}}),
        ("awq", {"version": "gemv"}),
        ("awq", {"bits": 8}),
        ("bitsandbytes_nf4", {"load_in_4bit": False}),
        ("compressed_packed", {"format": "nvfp4-pack-quantized"}),
        ("compressed_packed", {"config_groups": {}}),
        ("compressed_float8", {"kv_cache_scheme": {"num_bits": 8}}),
    ],
)
def test_formats_that_are_not_read_are_refused(kind: str, settings: Any, at: Callable[[str], Path]) -> None:
    directory = at(kind)
    set_settings(directory, **settings)
    refuses(
        "found a quantised checkpoint .*: use the original, or dequantise it with the library that wrote it", directory
    )


def test_a_config_that_promises_quantised_matrices_has_some(at: Callable[[str], Path], tmp_path: Path) -> None:
    directory = in_full(at("awq"), tmp_path / "full")
    edit_config(
        directory, quantization_config=json.loads((HERE / "awq" / "config.json").read_text())["quantization_config"]
    )
    refuses("expected matrices of a quantised checkpoint .quant_method awq.*, found none", directory)
