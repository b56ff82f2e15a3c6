"""A checkpoint as torchao writes it, against the logits of torchao's own kernel; and what is refused.

`torchao_int8` was written by `write_with_torchao` (torchao 0.18.0, torch 2.13.0), which runs again where torchao is installed.
"""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file

import ostools as ost
from ostools.ground.errors import InputError
from ostools.models import describe, load_model, packed, view_in
from ostools.models.recast import Recast, dense, stored_part
from tests.checkpoints import ARCHITECTURE, TEXT_FAMILIES, Family, edit_config, make_model, write_tokenizer

WRITTEN = Path(__file__).parent / "written" / "torchao_int8"
IDS = torch.tensor([[2, 40, 11, 250, 99, 6]])


def write_with_torchao(path: Path, family: Family, **config: Any) -> None:
    """A tiny model that torchao quantised, and in expected.json the last token's logits by torchao's kernel."""
    from torchao.quantization import Int8WeightOnlyConfig  # pyright: ignore[reportMissingImports]

    make_model(family, **config).save_pretrained(path / "full")
    quantised = getattr(transformers, ARCHITECTURE[family]).from_pretrained(
        path / "full",
        quantization_config=transformers.TorchAoConfig(Int8WeightOnlyConfig()),
        attn_implementation="eager",
        dtype=torch.float32,
    )
    with torch.no_grad():
        logits = quantised(IDS).logits[0, -1]
    shutil.rmtree(path / "full")
    quantised.save_pretrained(path)
    (path / "expected.json").write_text(json.dumps([round(value, 7) for value in logits.tolist()]))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    shutil.copytree(WRITTEN, tmp_path, dirs_exist_ok=True)
    write_tokenizer(tmp_path)
    return tmp_path


def expected_logits(directory: Path) -> torch.Tensor:
    return torch.tensor(json.loads((directory / "expected.json").read_text()))


def test_the_weights_that_torchao_wrote_give_its_logits(directory: Path) -> None:
    model = load_model(directory)
    torch.testing.assert_close(model(IDS)[0, -1], expected_logits(directory), rtol=1e-5, atol=1e-5)
    full = make_model("gemma", d_model=16, n_layers=1, d_mlp=24)
    assert float((full(IDS).logits[0, -1] - expected_logits(directory)).abs().max()) > 1e-3  # quantising did something
    description = describe(model)
    assert description.dtype == "float32"
    assert description.quantisation == describe(view_in(model, torch.float64)).quantisation
    assert description.quantisation == "torchao Int8WeightOnlyConfig, dequantised"


def test_the_matrices_are_whole_numbers_times_a_scale(directory: Path) -> None:
    weights = dict(load_model(directory).original_model.named_parameters())
    (name,) = [name for name in weights if "layers.0" in name and "up_proj" in name]
    with safe_open(directory / "model.safetensors", "pt") as file:
        q = file.get_tensor("model.layers.0.mlp.up_proj._weight_qdata")
        scale = file.get_tensor("model.layers.0.mlp.up_proj._weight_scale")
    assert torch.equal(weights[name].double(), (q.double() * scale.double()).float().double())


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_another_dtype_is_the_cast_of_the_dequantised_weights(directory: Path, dtype: str) -> None:
    loaded = load_model(directory, dtype=dtype)
    copied = view_in(load_model(directory), getattr(torch, dtype))
    assert torch.equal(loaded(IDS), copied(IDS))
    assert describe(loaded) == describe(copied)


def in_full(directory: Path, path: Path) -> Path:
    """The same model, its weights written out in float32."""
    shutil.copytree(directory, path, dirs_exist_ok=True)
    edit_config(path, quantization_config=None)
    with safe_open(directory / "model.safetensors", "pt") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (a file is no mapping)
    weights = {name: stored[name] for name in stored if "._weight_" not in name}
    for name in [name for name in stored if name.endswith("_qdata")]:
        scale = stored[name.removesuffix("qdata") + "scale"]
        weights[name.replace("._weight_qdata", ".weight")] = stored[name].float() * scale.float()
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return path


def test_large_matrices_stay_as_they_are_stored_and_compute_the_same(
    directory: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit: logits, what reads weights outside of a pass, every measurement, the hash."""
    full = load_model(in_full(directory, tmp_path_factory.mktemp("full")))
    monkeypatch.setattr(packed, "SMALL_WEIGHT", 0)
    model = load_model(directory)
    made = {name: weight for name, weight in model.original_model.named_parameters() if isinstance(weight, Recast)}
    assert len(made) == 7  # every matrix of the one block
    assert {stored_part(weight).dtype for weight in made.values()} == {torch.int8}
    assert torch.equal(model(IDS), full(IDS))
    for name in ("W_Q", "W_K", "W_V", "W_O", "W_in", "W_gate", "W_out"):
        assert torch.equal(dense(getattr(model, name)), getattr(full, name))
    assert describe(model).weight_hash == describe(full).weight_hash
    for variant in ("local", "windowed(1)"):
        found, expected = (ost.path_sum(one, "12 345", variants=[variant]).frame for one in (model, full))
        assert found.equals(expected)
    for method in ("exact", "estimate"):
        found, expected = (ost.sensitivity(one, "12 345", method=method).frame for one in (model, full))
        assert found.equals(expected)
    lengths: dict[str, Any] = {"lengths": range(1, 5), "dtypes": ["float32", "int8-weights"]}
    assert ost.collapse(model, "figure-5a", **lengths).frame.equals(ost.collapse(full, "figure-5a", **lengths).frame)
    assert torch.equal(view_in(model, torch.float64)(IDS), view_in(full, torch.float64)(IDS))
    assert torch.equal(copy.deepcopy(model)(IDS), full(IDS))
    with pytest.raises(InputError, match="expected a weight of the model itself to write to"):
        next(iter(made.values())).data.mul_(2.0)


def test_measurements_run_on_it(directory: Path) -> None:
    model = load_model(directory)
    profile = ost.sensitivity(model, "12 345")
    assert profile.provenance.model["quantisation"] == "torchao Int8WeightOnlyConfig, dequantised"


@pytest.mark.parametrize("family", [family for family in TEXT_FAMILIES if family != "gpt2"])
def test_what_torchao_writes_here_and_now(family: Family, tmp_path: Path) -> None:
    """The same for every family with Linear layers (torchao leaves GPT-2's alone), where torchao is installed."""
    pytest.importorskip("torchao")
    write_with_torchao(tmp_path, family)
    write_tokenizer(tmp_path)
    torch.testing.assert_close(load_model(tmp_path)(IDS)[0, -1], expected_logits(tmp_path), rtol=1e-4, atol=1e-4)


def refuses(match: str, directory: Path) -> None:
    with pytest.raises(InputError, match=match) as caught:
        load_model(directory)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"quant_method": "bitsandbytes"},
        {"quant_method": "hqq", "quant_config": {}},
        {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int8DynamicActivationInt8WeightConfig"}}},
        {"quant_method": "torchao", "quant_type": "int4_weight_only"},
        {"bits": 4},
        [],
    ],
)
def test_other_quantisations_are_refused(directory: Path, settings: Any) -> None:
    edit_config(directory, quantization_config=settings)
    refuses(
        "or one of torchao's Int8WeightOnlyConfig, .* found a quantised checkpoint .*: use the original, or deq",
        directory,
    )


def rewrite(directory: Path, name: str, **changes: Any) -> None:
    """Change what the header says of a matrix: keys of its description, or of its settings."""
    with safe_open(directory / "model.safetensors", "pt") as file:
        header, tensors = dict(file.metadata()), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    kind = json.loads(header[name])
    for key, value in changes.items():
        (kind if key.startswith("_") else kind["_data"])[key] = value
    header[name] = json.dumps(kind)
    save_file(tensors, directory / "model.safetensors", header)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"block_size": [1, 8]}, "expected model.layers.0.mlp.up_proj.weight as int8 with a scale per output channel"),
        ({"act_quant_kwargs": {"_type": "x"}}, "expected .* as int8 with a scale per output channel"),
        ({"_tensor_data_names": ["qdata"]}, "expected .* as int8 with a scale per output channel, found .'qdata'"),
        ({"_tensor_data_names": ["qdata", "scale", "act_pre_scale"]}, "expected .* as int8 with a scale"),
        ({"_type": "Int4Tensor"}, "expected every weight of GemmaForCausalLM .* found 1 missing .*up_proj.weight"),
    ],
)
def test_matrices_that_are_not_as_torchao_writes_them_are_refused(
    directory: Path, changes: dict[str, Any], match: str
) -> None:
    rewrite(directory, "model.layers.0.mlp.up_proj.weight", **changes)
    refuses(match, directory)


def test_int8_weights_without_a_word_in_config_json_are_refused(directory: Path) -> None:
    edit_config(directory, quantization_config=None)
    refuses("found .* of dtype .I8. and no quantization_config", directory)
