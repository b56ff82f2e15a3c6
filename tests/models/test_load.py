"""Loading: the hooked model is the checkpoint, bit for bit, and it gets there quietly."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma3ForConditionalGeneration,
    GgufConfig,
)

import ostools as ost
from ostools.models import context_length, describe, load_model
from ostools.models.files import checks
from ostools.models.files.sources import locate
from tests.checkpoints import (
    FAMILIES,
    TWO_FAMILIES,
    Family,
    edit_config,
    make_config,
    make_model,
    refused,
    write_checkpoint,
    write_tokenizer,
)
from tests.generic_models import generic_model
from tests.models.gguf.write import stands_for, write_gguf
from tests.sets import quick

IDS = torch.randint(6, 262, (1, 40), generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("family", quick(FAMILIES, "gemma3", "gpt2"))
@pytest.mark.parametrize(
    "dtype", quick(["float32", "float64", "bfloat16-eager", "float16-eager"], "bfloat16-eager")
)
def test_every_dtype_is_hugging_faces_own(family: Family, dtype: str, tmp_path: Path) -> None:
    model = load_model(write_checkpoint(tmp_path, family), dtype=dtype)
    torch_dtype = getattr(torch, dtype.removesuffix("-eager"))
    assert {parameter.dtype for parameter in model.parameters()} == {torch_dtype}
    assert model.cfg.dtype == torch_dtype
    logits, expected = model(IDS), make_model(family, dtype=torch_dtype)(IDS).logits
    assert logits.dtype == torch_dtype
    if family == "gpt2":
        tolerance = min(256 * torch.finfo(torch_dtype).eps, 0.02) * float(expected.abs().max())
        torch.testing.assert_close(logits, expected, rtol=0, atol=tolerance)
    else:
        assert torch.equal(logits, expected)


@pytest.mark.parametrize("family", TWO_FAMILIES)
def test_a_loaded_model_is_raw_frozen_and_silent(
    family: Family, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(tmp_path, family)
    capfd.readouterr()
    model = load_model(tmp_path)
    assert capfd.readouterr() == ("", "")
    assert not model.training
    assert not model.original_model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not model.compatibility_mode
    assert (describe(model).attention_implementation, context_length(model)) == ("eager", 256)
    assert model.tokenizer is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_model_is_loaded_in_the_dtype_of_most_of_its_numbers(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    """Forecast in it too; without weights it is the one that the configuration names."""
    directory, name = (
        write_checkpoint(tmp_path, "llama", dtype=dtype),
        str(dtype).removeprefix("torch."),
    )
    file = directory / "model.safetensors"
    weights = {
        key: weight.float() if "norm" in key else weight for key, weight in load_file(file).items()
    }
    save_file(weights, file, metadata={"format": "pt"})
    model = load_model(directory, device="cpu")
    assert describe(model) == describe(load_model(directory, dtype=name, device="cpu"))
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert locate(directory, None, None).stored_dtype == dtype
    file.unlink()
    assert locate(directory, None, None).stored_dtype == dtype


def test_numbers_that_most_of_a_file_would_round_are_kept(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, "llama", dtype=torch.bfloat16)
    file = directory / "model.safetensors"
    weights = load_file(file)
    name = next(key for key in weights if "norm" in key)
    weights[name] = weights[name].float() + 1e-5
    save_file(weights, file, metadata={"format": "pt"})
    assert describe(load_model(directory, device="cpu")).dtype == "float32"


def test_the_text_part_of_a_multimodal_model_is_exact_and_installs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TransformerLens' own loader runs pip when the image processor does not load; here is none to
    load.
    """

    def forbidden(*arguments: object, **options: object) -> None:
        raise AssertionError(f"started a process: {arguments}")

    write_checkpoint(tmp_path, "gemma3-multimodal")
    monkeypatch.setattr(subprocess, "Popen", forbidden)
    monkeypatch.setattr(subprocess, "check_call", forbidden)
    model = load_model(tmp_path)
    assert describe(model).architecture == "Gemma3ForCausalLM"
    assert torch.equal(model(IDS), make_model("gemma3-multimodal")(IDS).logits)


def test_a_multimodal_model_is_tied_as_the_whole_says_whatever_its_text_part_says(
    tmp_path: Path,
) -> None:
    write_checkpoint(tmp_path / "tied", "gemma3-multimodal")
    text = json.loads((tmp_path / "tied" / "config.json").read_text())["text_config"]
    edit_config(tmp_path / "tied", text_config=text | {"tie_word_embeddings": False})
    assert torch.equal(
        load_model(tmp_path / "tied")(IDS), make_model("gemma3-multimodal")(IDS).logits
    )
    config = make_config("gemma3-multimodal")
    config.tie_word_embeddings = False
    own = Gemma3ForConditionalGeneration._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        own.lm_head.weight.copy_(
            torch.randn(own.lm_head.weight.shape, generator=torch.Generator().manual_seed(0))
        )
        own.save_pretrained(tmp_path / "untied")
        write_tokenizer(tmp_path / "untied")
        assert torch.equal(load_model(tmp_path / "untied")(IDS), own(IDS).logits)


def test_both_spellings_of_multimodal_keys_load(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "gemma3-multimodal")
    before = load_model(tmp_path)(IDS)
    weights = load_file(tmp_path / "model.safetensors")
    renamed = {
        key.replace("language_model.model.", "model.language_model.")
        if key.startswith("language_model.")
        else f"model.{key}": value
        for key, value in weights.items()
    }
    save_file(renamed, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(load_model(tmp_path)(IDS), before)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_old_checkpoints_with_stored_constants_load(family: Family, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, family)
    before = load_model(tmp_path)(IDS)
    weights = load_file(tmp_path / "model.safetensors")
    if family == "gpt2":  # as the hub's own: no prefix, and the mask among the weights
        weights = {key.removeprefix("transformer."): value for key, value in weights.items()}
        weights["h.0.attn.bias"] = torch.ones(1, 1, 256, 256).tril()
        weights["h.0.attn.masked_bias"] = torch.tensor(-1e4)
    else:
        weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(load_model(tmp_path)(IDS), before)


def test_a_hub_model_is_described_by_its_commit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    folder = write_checkpoint(tmp_path / commit, "gemma")
    asked: dict[str, object] = {}

    def download(name: str, **options: object) -> str:
        asked.update(options, name=name)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    described = describe(load_model("google/gemma-2b", revision="main"))
    assert (described.name, described.revision) == ("google/gemma-2b", commit)
    assert (asked["name"], asked["revision"]) == ("google/gemma-2b", "main")
    patterns = asked["allow_patterns"]
    assert isinstance(patterns, list)
    assert not any(
        pattern.endswith((".bin", ".pt", ".py", "*")) for pattern in patterns if "." in pattern
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_loaded_model_does_not_change_when_its_file_does(dtype: str, tmp_path: Path) -> None:
    """Nor does what transformers keeps in float32 in bfloat16."""
    generic_model("olmo_hybrid").save_pretrained(tmp_path)
    model = load_model(tmp_path, dtype=dtype)
    logits = model(IDS)
    file = tmp_path / "model.safetensors"
    size = file.stat().st_size
    with file.open("r+b") as stream:
        stream.seek(size // 8)
        stream.write(bytes(size - size // 8))
    assert torch.equal(model(IDS), logits)


# Settings of the machine that saved a model never decide how we compute.


OTHERS: dict[str, Any] = {
    "attn_implementation": "flash_attention_2",
    "_attn_implementation": "flash_attention_2",
    "_attn_implementation_internal": "sdpa",
    "_experts_implementation": "grouped_mm",
    "fusion_config": {"unheard_of": True},
    "dtype": "nonsense",
    "torch_dtype": ["bfloat16"],
    "quantization_config": {"quant_method": "gguf", "dequantize": True},
    "use_cache": False,
    "torchscript": True,
    "return_dict": False,
    "use_return_dict": False,
    "output_attentions": True,
    "output_hidden_states": True,
    "device_map": "auto",
}


@pytest.mark.parametrize("family", ["gemma3-multimodal", "mixtral"])
def test_a_checkpoint_of_another_machine_loads_and_is_forecast_as_our_own(
    family: str, tmp_path: Path
) -> None:
    own, other = (write_checkpoint(tmp_path / name, family) for name in ("own", "other"))
    edit_config(other, **OTHERS)
    ours, theirs = (load_model(path, device="cpu") for path in (own, other))
    assert torch.equal(ours(IDS), theirs(IDS))
    assert describe(theirs).config_hash == describe(ours).config_hash
    assert describe(theirs).attention_implementation == "eager"
    shapes = [
        ost.measure.Unloaded(locate(path, None), torch.float32, "cpu").shape
        for path in (own, other)
    ]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    "asked",
    [{"quantization_config": GgufConfig(dequantize=True)}, {}],
    ids=["dequantised", "plain"],
)
def test_a_model_that_transformers_read_from_a_gguf_is_adopted(
    asked: dict[str, Any], tmp_path: Path
) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", "llama")
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=file.name, dtype=torch.float32, **asked
    )
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    adopted = ost.adopt(theirs, tokenizer=tokenizer, name="mine")
    assert torch.equal(adopted(IDS), stands_for("llama")(IDS, use_cache=False).logits)


@pytest.mark.parametrize("kind", ["dots1", "olmo_hybrid"])
def test_what_transformers_keeps_in_float32_is_not_rounded_before(
    kind: str, tmp_path: Path
) -> None:
    """A router's correction and decay rates are float32 in a bfloat16 model: the numbers of the
    file, not rounded ones.
    """
    model: Any = generic_model(kind)
    for name, buffer in model.named_buffers():
        if name.endswith("correction_bias"):
            buffer.copy_(torch.tensor([0.1, 0.2, 0.3, 0.4]))
    model.save_pretrained(tmp_path)
    expected = type(model).from_pretrained(tmp_path, dtype=torch.bfloat16).state_dict()
    loaded = load_model(tmp_path, dtype="bfloat16").original_model.state_dict()
    found = {name.replace("_original_component.", ""): tensor for name, tensor in loaded.items()}
    kept = [name for name, tensor in expected.items() if tensor.dtype is torch.float32]
    assert kept
    for name in kept:
        assert found[name].dtype is torch.float32
        assert torch.equal(found[name], expected[name])


def test_a_version_that_was_not_tried_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers 5.24, which pip installs where it is told to, computes other answers."""
    checks.check_versions.cache_clear()
    checks.check_versions()
    installed = checks.version
    monkeypatch.setattr(
        checks,
        "version",
        lambda name: "5.24.0" if name == "transformers" else installed(name),
    )
    checks.check_versions.cache_clear()
    refused(r"expected transformers<5.24.*, found 5.24.0, in which", load_model)
