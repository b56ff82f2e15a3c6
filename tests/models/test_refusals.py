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
from tests.checkpoints import edit_config, make_model, write_checkpoint

UP = "model.layers.1.mlp.up_proj.weight"


def _refuses(match: str, directory: Path, **options: Any) -> None:
    with pytest.raises(InputError, match=match) as caught:
        load_model(directory, **options)
    assert "\n" not in str(caught.value)


def _weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        file = directory / "model.safetensors"
        weights = load_file(file)
        change(weights)
        save_file(weights, file, metadata={"format": "pt"})

    return edit


def _bytes(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        file = directory / "model.safetensors"
        file.write_bytes(change(file.read_bytes()))

    return edit


def _json(name: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        content = json.loads((directory / name).read_text())
        change(content)
        (directory / name).write_text(json.dumps(content))

    return edit


def _config(**changes: Any) -> Callable[[Path], None]:
    return lambda directory: edit_config(directory, **changes)


def _written(name: str, text: str) -> Callable[[Path], Any]:
    return lambda directory: (directory / name).write_text(text)


def _without_output(weights: dict[str, torch.Tensor]) -> None:
    del weights["lm_head.weight"]


def _only_vision(weights: dict[str, torch.Tensor]) -> None:
    """The trap: the text class loads with random weights when the keys are not renamed."""
    for key in [key for key in weights if key.startswith("language_model")]:
        del weights[key]


def _remote_code(directory: Path) -> None:
    _json("config.json", lambda settings: settings.update(auto_map={"AutoModelForCausalLM": "modeling.Model"}))(
        directory
    )
    (directory / "modeling.py").write_text("raise AssertionError('ran code from the checkpoint')")


def _two_bos(settings: dict[str, Any]) -> None:
    single = settings["post_processor"]["single"]
    settings["post_processor"]["single"] = [single[0], *single]


def _looks_ahead(settings: dict[str, Any]) -> None:
    settings["text_config"]["use_bidirectional_attention"] = True


CASES: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "missing": (
        "gemma", _weights(lambda weights: weights.pop(UP)),
        rf"expected every weight of GemmaForCausalLM .* found 1 missing \({re.escape(UP)}\)",
    ),
    "unexpected": (
        "gemma", _weights(lambda weights: weights.update(extra=torch.ones(2))),
        r"expected only weights of GemmaForCausalLM .* found 1 more \(extra\)",
    ),
    "another shape": (
        "gemma", _weights(lambda weights: weights.update({UP: torch.ones(3, 32)})),
        rf"expected {re.escape(UP)} of shape \(48, 32\) as config.json says, found \(3, 32\)",
    ),
    "untied, without an output layer": ("llama", _weights(_without_output), r"found 1 missing \(lm_head.weight\)"),
    "multimodal without its text part": (
        "gemma3-multimodal", _weights(_only_vision), r"expected every weight of Gemma3ForCausalLM .* missing",
    ),
    "not finite": (
        "gemma", _weights(lambda weights: weights[UP][3, 4].fill_(torch.nan)),
        rf"found 1 NaN or infinite in {re.escape(UP)} \(float32\) of .*: the checkpoint is broken",
    ),
    "truncated": ("gemma", _bytes(lambda content: content[:-1]), "model.safetensors truncated or corrupt"),
    "corrupt": ("gemma", _bytes(lambda content: b"\xff" * 100 + content[100:]), "truncated or corrupt .*: fetch it again"),
    "a pointer": (
        "gemma", _bytes(lambda content: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), "run `git lfs pull`",
    ),
    "a pickle": (
        "gemma", lambda directory: (directory / "model.safetensors").rename(directory / "model.pt"),
        r"found only pickles \(model.pt\): convert them to safetensors: loading a pickle runs code",
    ),
    "no weights": (
        "gemma", lambda directory: (directory / "model.safetensors").unlink(), "found none: fetch the weights",
    ),
    "remote code": ("gemma", _remote_code, r"found remote code \(auto_map in .*config.json\): ostools runs no code"),
    "a broken tokenizer": ("gemma", _written("tokenizer.json", "{}"), "expected a tokenizer that transformers can read"),
    "two BOS": (
        "gemma", _json("tokenizer.json", _two_bos), "expected one leading '<bos>', found two: .* adds it twice",
    ),
    "an encoder": ("gemma", _config(model_type="bert", architectures=["BertForMaskedLM"]), "found model_type 'bert'"),
    "no kind": ("gemma", _config(model_type=[]), r"found model_type \[\]"),
    "both ways": ("gemma", _config(is_encoder_decoder=True), "causal attention, found is_encoder_decoder = True"),
    "looks ahead": (
        "gemma3-multimodal", _json("config.json", _looks_ahead), "found use_bidirectional_attention = True",
    ),
    "another head": (
        "gemma", _config(architectures=["GemmaForSequenceClassification"]), "expected architecture GemmaForCausalLM",
    ),
    "quantised": (
        "gemma", _config(quantization_config={"quant_method": "fp8"}),
        r"expected full-precision weights, found a quantised checkpoint \(quant_method fp8\) .* take it with ost.adopt",
    ),
    "an adapter": (
        "gemma", lambda path: (path / "adapter_config.json").write_text("{}"),
        "expected a whole model in .*, found an adapter .* merge it into its base with peft .* ost.adopt",
    ),
    "words for numbers": (
        "gemma", _config(num_attention_heads="four"), "expected a config.json that transformers can read",
    ),
    "another file": ("gemma", _config(configuration_files=["a.json"]), "configuration_files, which send to another file"),
    "no such function": ("gemma", _config(hidden_act="no-such-function"), "expected weights that fit config.json"),
    "unscaled scores": (
        "gpt2", _config(scale_attn_weights=False), "logits to equal .* apart: config.json has a setting",
    ),
    "no JSON": ("gemma", _written("config.json", "{"), "expected JSON in"),
    "a list": ("gemma", _written("config.json", "[1]"), "expected a JSON object in .*, found list"),
    "an odd card": (
        "gemma", _written("card.json", '{"trained_lengths": {"sum": "60"}}'), "to map tasks to whole numbers",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_refused(case: str, tmp_path: Path) -> None:
    family, change, match = CASES[case]
    change(write_checkpoint(tmp_path, family))
    _refuses(match, tmp_path)


def test_weights_and_activations_too_large_for_the_dtype(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "weights", "gemma")
    _weights(lambda weights: weights[UP][3, 4].fill_(1e5))(tmp_path / "weights")
    load_model(tmp_path / "weights")
    _refuses(r"found 1 NaN or infinite in model\..* \(float16\)", tmp_path / "weights", dtype="float16")
    write_checkpoint(tmp_path / "activations", "llama", scale=200.0)
    load_model(tmp_path / "activations", dtype="bfloat16")
    _refuses("expected finite logits from .* in float16", tmp_path / "activations", dtype="float16")


def test_a_missing_shard_and_an_index_that_says_nothing_or_points_elsewhere(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, "gemma")
    index = directory / "model.safetensors.index.json"
    (directory / "model.safetensors").unlink()
    make_model("gemma").save_pretrained(directory, max_shard_size="20KB")
    *_, last = sorted(directory.glob("model-*.safetensors"))
    last.unlink()
    _refuses(rf"expected the weights {last.name} in .*, found no such file", directory)
    index.write_text("{}")
    _refuses(r"expected a weight_map in .*index.json, found none", directory)
    index.write_text(json.dumps({"weight_map": {"a.weight": "../other/model.safetensors"}}))
    _refuses(r"expected names of files beside .*index.json, found", directory)


def test_part_of_a_tokenizer_is_refused_and_none_loads(tmp_path: Path) -> None:
    """The trap: without these files transformers makes up a tokenizer of five tokens."""
    write_checkpoint(tmp_path, "gemma")
    (tmp_path / "tokenizer.json").unlink()
    _refuses(r"expected a tokenizer \(tokenizer.json, .*\) in .*, found only .*tokenizer_config.json of one", tmp_path)
    for file in [*tmp_path.glob("tokenizer*"), *tmp_path.glob("chat_template*")]:
        file.unlink()
    assert load_model(tmp_path).tokenizer is None


def test_a_tokenizer_of_another_model_is_refused_and_a_padded_embedding_is_none(tmp_path: Path) -> None:
    for d_vocab in (200, 500):
        write_checkpoint(tmp_path / str(d_vocab), "llama", d_vocab=d_vocab)
        _refuses(f"fits an embedding of {d_vocab} rows, found one of 268 tokens", tmp_path / str(d_vocab))
    load_model(write_checkpoint(tmp_path / "padded", "llama", d_vocab=320))


def test_names_options_and_paths_that_are_nothing(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model", "gemma")
    (tmp_path / "empty").mkdir()
    _refuses("expected config.json in .*, found none: is this a Hugging Face model", tmp_path / "empty")
    _refuses("expected a directory .* found a file there", directory / "config.json")
    for name in ("./nothing", "nothing/", "~/no-such-model", "a/b/c", "models\\gemma"):
        with pytest.raises(InputError, match=r"expected a directory .* found nothing there"):
            load_model(name)
    for name, match in ((" ", "found an empty name"), ("x" * 5000, "unknown model")):
        with pytest.raises(InputError, match=match):
            load_model(name)
    _refuses(r"expected no revision .* found 'main': only models from the hub", directory, revision="main")
    _refuses("unknown dtype 'floaf32': did you mean 'float32'", directory, dtype="floaf32")
    _refuses("unknown device 'cudda': did you mean 'cuda'", directory, device="cudda")
    _refuses("expected an available device, found 'cuda:99'", directory, device="cuda:99")
