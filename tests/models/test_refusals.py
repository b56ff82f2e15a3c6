"""Every way in which a checkpoint could give silently wrong numbers ends in one line that says what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ostools.ground.errors import InputError
from ostools.models import load_model
from ostools.models.describe import read_trained_lengths
from tests.checkpoints import Family, edit_config, make_model, write_checkpoint


def _refuses(match: str, directory: Path, **options: Any) -> None:
    with pytest.raises(InputError, match=match) as caught:
        load_model(directory, **options)
    assert "\n" not in str(caught.value)


def _edit_weights(directory: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    file = directory / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file, metadata={"format": "pt"})


UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def gemma(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path, "gemma")


def test_missing_weights(gemma: Path) -> None:
    _edit_weights(gemma, lambda weights: weights.__delitem__(UP))
    _refuses(rf"expected every weight of GemmaForCausalLM .* found 1 missing \({re.escape(UP)}\)", gemma)


def test_unexpected_weights(gemma: Path) -> None:
    _edit_weights(gemma, lambda weights: weights.update(extra=torch.ones(2)))
    _refuses(r"expected only weights of GemmaForCausalLM .* found 1 more \(extra\)", gemma)


def test_weights_of_another_shape(gemma: Path) -> None:
    _edit_weights(gemma, lambda weights: weights.update({UP: torch.ones(3, 32)}))
    _refuses(rf"expected {re.escape(UP)} of shape \(48, 32\) as config.json says, found \(3, 32\)", gemma)


def test_more_layers_in_the_checkpoint_than_in_its_configuration(gemma: Path) -> None:
    edit_config(gemma, num_hidden_layers=1)
    _refuses(r"expected only weights .* found 9 more \(model.layers.1", gemma)


def test_an_untied_llama_without_its_output_layer(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llama")
    _edit_weights(tmp_path, lambda weights: weights.__delitem__("lm_head.weight"))
    _refuses(r"found 1 missing \(lm_head.weight\)", tmp_path)


def test_a_multimodal_model_without_its_text_part(tmp_path: Path) -> None:
    """The trap: its text class loads with random weights when the keys are not renamed."""

    def only_vision(weights: dict[str, torch.Tensor]) -> None:
        for key in [key for key in weights if key.startswith("language_model")]:
            del weights[key]

    write_checkpoint(tmp_path, "gemma3-multimodal")
    _edit_weights(tmp_path, only_vision)
    _refuses(r"expected every weight of Gemma3ForCausalLM .* missing", tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite(gemma: Path, value: float) -> None:
    def spoil(weights: dict[str, torch.Tensor]) -> None:
        weights[UP][3, 4] = value

    _edit_weights(gemma, spoil)
    _refuses(rf"found 1 NaN or infinite in {re.escape(UP)} \(float32\) of .*: the checkpoint is broken", gemma)


def test_weights_too_large_for_the_dtype(gemma: Path) -> None:
    def enlarge(weights: dict[str, torch.Tensor]) -> None:
        weights[UP][3, 4] = 1e5

    _edit_weights(gemma, enlarge)
    load_model(gemma)
    _refuses(r"found 1 NaN or infinite in model\..* \(float16\) .*: try dtype float32", gemma, dtype="float16")


def test_activations_too_large_for_the_dtype(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llama", scale=200.0)
    load_model(tmp_path, dtype="bfloat16")
    _refuses(r"expected finite logits from .* in float16: load it in float32 or bfloat16", tmp_path, dtype="float16")


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.999])
def test_truncated_weights(gemma: Path, keep: float) -> None:
    file = gemma / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: int(keep * len(content))])
    _refuses(r"expected a whole safetensors file, found .*model.safetensors truncated or corrupt", gemma)


def test_corrupt_weights(gemma: Path) -> None:
    file = gemma / "model.safetensors"
    file.write_bytes(b"\xff" * 100 + file.read_bytes()[100:])
    _refuses(r"truncated or corrupt .*: fetch it again", gemma)


def test_a_pointer_in_place_of_weights(gemma: Path) -> None:
    (gemma / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    _refuses(r"found a Git LFS pointer: run `git lfs pull`", gemma)


def test_a_missing_and_a_truncated_shard(gemma: Path) -> None:
    (gemma / "model.safetensors").unlink()
    make_model("gemma").save_pretrained(gemma, max_shard_size="20KB")
    first, *_, last = sorted(gemma.glob("model-*.safetensors"))
    content = first.read_bytes()
    first.write_bytes(content[:-1])
    _refuses(rf"{first.name} truncated or corrupt", gemma)
    first.write_bytes(content)
    last.unlink()
    _refuses(rf"expected the weights {last.name} in .*, found no such file", gemma)
    (gemma / "model.safetensors.index.json").write_text("{}")
    _refuses(r"expected a weight_map in .*index.json, found none", gemma)


@pytest.mark.parametrize("name", ["../other/model.safetensors", "/etc/passwd", "a/b.safetensors", "..", ""])
def test_an_index_that_points_elsewhere(gemma: Path, name: str) -> None:
    (gemma / "model.safetensors").unlink()
    (gemma / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a.weight": name}}))
    _refuses(r"expected names of files beside .*index.json, found", gemma)


@pytest.mark.parametrize("pickle", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_only_pickles(gemma: Path, pickle: str) -> None:
    (gemma / "model.safetensors").rename(gemma / pickle)
    _refuses(rf"found only pickles \({pickle}\): convert them to safetensors: loading a pickle runs code", gemma)


def test_no_weights(gemma: Path) -> None:
    (gemma / "model.safetensors").unlink()
    _refuses(r"expected model.safetensors in .*, found none: fetch the weights", gemma)


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_remote_code(gemma: Path, file: str) -> None:
    settings = json.loads((gemma / file).read_text())
    (gemma / file).write_text(json.dumps(settings | {"auto_map": {"AutoModelForCausalLM": "modeling.Model"}}))
    (gemma / "modeling.py").write_text("raise AssertionError('ran code from the checkpoint')")
    _refuses(rf"found remote code \(auto_map in .*{file}\): ostools runs no code", gemma)


def test_no_tokenizer(gemma: Path) -> None:
    """The trap: without these files transformers makes up a tokenizer of five tokens."""
    for file in [*gemma.glob("tokenizer.json"), *gemma.glob("tokenizer.model")]:
        file.unlink()
    _refuses(r"expected a tokenizer \(tokenizer.json, .*\) in .*, found only .*tokenizer_config.json of one", gemma)
    for file in [*gemma.glob("tokenizer*"), *gemma.glob("chat_template*")]:
        file.unlink()
    assert load_model(gemma).tokenizer is None


def test_a_broken_tokenizer(gemma: Path) -> None:
    (gemma / "tokenizer.json").write_text("{}")
    _refuses(r"expected a tokenizer that transformers can read", gemma)


@pytest.mark.parametrize("d_vocab", [200, 500])
def test_a_tokenizer_of_another_model(tmp_path: Path, d_vocab: int) -> None:
    write_checkpoint(tmp_path, "llama", d_vocab=d_vocab)
    _refuses(rf"expected a tokenizer that fits an embedding of {d_vocab} rows, found one of 268 tokens", tmp_path)


def test_an_embedding_padded_to_a_round_number_is_no_mistake(tmp_path: Path) -> None:
    load_model(write_checkpoint(tmp_path, "llama", d_vocab=320))


def test_a_tokenizer_that_adds_two_bos(gemma: Path) -> None:
    file = gemma / "tokenizer.json"
    settings = json.loads(file.read_text())
    single = settings["post_processor"]["single"]
    settings["post_processor"]["single"] = [single[0], *single]
    file.write_text(json.dumps(settings))
    _refuses(r"expected one leading '<bos>', found two: the tokenizer in .* adds it twice", gemma)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "found model_type 'bert'"),
        ({"model_type": None}, "found model_type None"),
        ({"model_type": []}, r"found model_type \[\]"),
        ({"is_encoder_decoder": True}, "causal attention, found is_encoder_decoder = True"),
        ({"use_bidirectional_attention": True}, "causal attention, found use_bidirectional_attention = True"),
        ({"add_cross_attention": True}, "causal attention, found add_cross_attention = True"),
        ({"architectures": ["GemmaForSequenceClassification"]}, "expected architecture GemmaForCausalLM .* found"),
        ({"quantization_config": {"bits": 4}}, "found a quantised checkpoint"),
        ({"num_attention_heads": "four"}, "expected a config.json that transformers can read"),
        ({"configuration_files": ["config.4.0.0.json"]}, "configuration_files, which send to another file"),
        ({"hidden_act": "no-such-function"}, "expected weights that fit config.json"),
    ],
)
def test_configurations_that_are_no_causal_language_model(gemma: Path, changes: dict[str, Any], match: str) -> None:
    edit_config(gemma, **changes)
    _refuses(match, gemma)


def test_a_multimodal_model_whose_text_part_looks_ahead(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "gemma3-multimodal")
    text = json.loads((tmp_path / "config.json").read_text())["text_config"]
    edit_config(tmp_path, text_config=text | {"use_bidirectional_attention": True})
    _refuses("causal attention, found use_bidirectional_attention = True", tmp_path)


@pytest.mark.parametrize(
    ("family", "setting"),
    [("gpt2", {"scale_attn_weights": False}), ("gemma3", {"attn_logit_softcapping": 2.0})],
)
def test_settings_that_the_hooked_model_does_not_implement(
    family: Family, setting: dict[str, Any], tmp_path: Path
) -> None:
    write_checkpoint(tmp_path, family, **setting)
    _refuses(r"expected the hooked model's logits to equal .* apart: config.json has a setting", tmp_path)


@pytest.mark.parametrize(
    ("content", "match"), [("{", "expected JSON in"), ("[1]", "expected a JSON object in .*, found list")]
)
def test_a_configuration_that_cannot_be_read(gemma: Path, content: str, match: str) -> None:
    (gemma / "config.json").write_text(content)
    _refuses(match, gemma)


def test_a_directory_without_a_model(tmp_path: Path) -> None:
    _refuses("expected config.json in .*, found none: is this a Hugging Face model", tmp_path)


def test_an_adapter(gemma: Path) -> None:
    (gemma / "adapter_config.json").write_text("{}")
    _refuses("expected an adapter or a whole model in .*, found both", gemma)


def test_paths_that_are_no_directory(gemma: Path) -> None:
    _refuses("expected a directory .* found a file there", gemma / "config.json")
    _refuses("expected a directory .* found nothing there", gemma / "nothing")
    for name in ("./nothing", "nothing/", "~/no-such-model", "a/b/c", "models\\gemma"):
        with pytest.raises(InputError, match=r"expected a directory .* found nothing there"):
            load_model(name)
    with pytest.raises(InputError, match="found an empty name"):
        load_model(" ")
    with pytest.raises(InputError, match="unknown model"):
        load_model("x" * 5000)


def test_a_revision_where_there_is_none(gemma: Path) -> None:
    _refuses(r"expected no revision .* found 'main': only models from the hub", gemma, revision="main")


def test_unknown_dtypes_and_devices(gemma: Path) -> None:
    _refuses("unknown dtype 'floaf32': did you mean 'float32'", gemma, dtype="floaf32")
    _refuses("unknown dtype 'int8'", gemma, dtype="int8")
    _refuses("unknown device 'cudda': did you mean 'cuda'", gemma, device="cudda")
    _refuses("unknown device 'meta'", gemma, device="meta")
    _refuses("expected an available device, found 'cuda:99'", gemma, device="cuda:99")


@pytest.mark.parametrize("card", ['{"trained_lengths": [1]}', '{"trained_lengths": {"sum": "60"}}'])
def test_a_card_whose_lengths_make_no_sense(gemma: Path, card: str) -> None:
    (gemma / "card.json").write_text(card)
    _refuses("expected trained_lengths in .* to map tasks to whole numbers", gemma)


def test_a_card_without_lengths_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text("{}")
    assert read_trained_lengths(tmp_path) is None
