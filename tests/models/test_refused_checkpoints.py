"""Whatever in a checkpoint could give silently wrong numbers, or hold the loader, ends in one line
that says what to do.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import ostools as ost
from ostools.measure.answers.probability import end_ids
from tests.checkpoints import edit_config, make_model, refused, write_checkpoint

UP = "model.layers.1.mlp.up_proj.weight"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
Spoil = Callable[[Path], Any]


def _refuses(match: str, directory: Path, **options: Any) -> None:
    refused(match, ost.load_model, directory, **options)


def _weights(change: Callable[[dict[str, torch.Tensor]], Any], file: str = WEIGHTS) -> Spoil:
    def edit(directory: Path) -> None:
        weights = load_file(directory / file)
        change(weights)
        save_file(weights, directory / file, metadata={"format": "pt"})

    return edit


def _stored(name: str, dtype: torch.dtype) -> Spoil:
    return _weights(lambda weights: weights.update({name: weights[name].to(dtype)}))


def _bytes(change: Callable[[bytes], bytes]) -> Spoil:
    return lambda directory: (directory / WEIGHTS).write_bytes(
        change((directory / WEIGHTS).read_bytes())
    )


def _json(name: str, change: Callable[[dict[str, Any]], Any]) -> Spoil:
    def edit(directory: Path) -> None:
        file = directory / name
        content = json.loads(file.read_text()) if file.exists() else {}
        change(content)
        file.write_text(json.dumps(content))

    return edit


def _config(**changes: Any) -> Spoil:
    return lambda directory: edit_config(directory, **changes)


def _written(name: str, text: str) -> Spoil:
    return lambda directory: (directory / name).write_text(text)


def _only_vision(weights: dict[str, torch.Tensor]) -> None:
    """The trap: the text class loads with random weights when the keys are not renamed."""
    for key in [key for key in weights if key.startswith("language_model")]:
        del weights[key]


def _remote_code(directory: Path) -> None:
    edit_config(directory, auto_map={"AutoModelForCausalLM": "modeling.Model"})
    (directory / "modeling.py").write_text("raise AssertionError('ran code from the checkpoint')")


def _two_bos(settings: dict[str, Any]) -> None:
    single = settings["post_processor"]["single"]
    settings["post_processor"]["single"] = [single[0], *single]


_FEW_BITS = "expected weights of 16 bits or more in .* whose numbers stand for others"


CASES: dict[str, tuple[str, Spoil, str]] = {
    # weights
    "missing": (
        "gemma", _weights(lambda weights: weights.pop(UP)),
        rf"expected every weight of GemmaForCausalLM .* found 1 missing \({re.escape(UP)}\)",
    ),
    "unexpected": (
        "gemma", _weights(lambda weights: weights.update(extra=torch.ones(2))),
        r"expected only weights of GemmaForCausalLM .* found 1 more \(extra\)",
    ),
    "an empty one": (
        "gemma", _weights(lambda weights: weights.update({"model.norm.weight": torch.empty(0, dtype=torch.float16)})),
        r"expected model.norm.weight of shape \(32,\) as config.json says, found \(0,\)",
    ),
    "another shape": (
        "gemma", _weights(lambda weights: weights.update({UP: torch.ones(3, 32)})),
        rf"expected {re.escape(UP)} of shape \(48, 32\) as config.json says, found \(3, 32\)",
    ),
    "untied, without an output layer": (
        "llama", _weights(lambda weights: weights.pop("lm_head.weight")), r"found 1 missing \(lm_head.weight\)",
    ),
    "multimodal without its text part": (
        "gemma3-multimodal", _weights(_only_vision), r"expected every weight of Gemma3ForCausalLM .* missing",
    ),
    "not finite": (
        "gemma", _weights(lambda weights: weights[UP][3, 4].fill_(torch.nan)),
        rf"found 1 NaN or infinite in {re.escape(UP)} \(float32\) of .*: the checkpoint is broken",
    ),
    "truncated": ("gemma", _bytes(lambda content: content[:-1]), "a whole safetensors file .model.safetensors. in"),
    "a pointer": (
        "gemma", _bytes(lambda content: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
        "pointer: `git lfs pull`",
    ),
    "a pickle": (
        "gemma", lambda directory: (directory / WEIGHTS).rename(directory / "model.pt"),
        "found none: fetch the weights, .* loading one runs code",
    ),
    "no weights": ("gemma", lambda directory: (directory / WEIGHTS).unlink(), "found none: fetch the weights"),
    "whole numbers without a scale": ("gemma", _stored(UP, torch.int8), _FEW_BITS),
    # settings
    "remote code": ("gemma", _remote_code, r"found remote code \(auto_map in .*config.json\): ostools runs no code"),
    "an encoder": ("gemma", _config(model_type="bert", architectures=["BertForMaskedLM"]), "found model_type 'bert'"),
    "both ways": ("gemma", _config(is_encoder_decoder=True), "causal attention, found is_encoder_decoder = True"),
    "looks ahead": (
        "gemma3-multimodal", _json("config.json", lambda c: c["text_config"].update(use_bidirectional_attention=True)),
        "found use_bidirectional_attention = True",
    ),
    "another head": (
        "gemma", _config(architectures=["GemmaForSequenceClassification"]), "expected architecture GemmaForCausalLM",
    ),
    "quantised": (
        "gemma", _config(quantization_config={"quant_method": "fp8"}),
        r"expected full-precision weights, found a quantised checkpoint \(quant_method fp8\) .* take it with ost.adopt",
    ),
    "an adapter": (
        "gemma", _written("adapter_config.json", "{}"),
        "expected a whole model in .*, found an adapter .* merge it into its base with peft .* ost.adopt",
    ),
    "words for numbers": (
        "gemma", _config(num_attention_heads="four"), "expected a config.json that transformers can read",
    ),
    "another file": ("gemma", _config(configuration_files=["a.json"]), "configuration_files, which send to another file"),
    "unscaled scores": (
        "gpt2", _config(scale_attn_weights=False), "logits to equal .* apart: config.json has a setting",
    ),
    "no JSON": ("gemma", _written("config.json", "{"), "expected a JSON object in"),
    "a list": ("gemma", _written("config.json", '[["model_type", "gemma"]]'), "expected a JSON object in .*'list'"),
    "no whole number": (
        "gemma", _json("generation_config.json", lambda content: content.update(eos_token_id=True)),
        "expected eos_token_id to be a token id, a list of ids or null, found True",
    ),
    "what no record describes": (
        "bloom", _config(apply_residual_connection_post_layernorm=True),
        "found model_type 'bloom' with others",
    ),
    "what transformers reads as another model": (
        "mistral", _config(layer_types=["full_attention", "sliding_attention"]),
        "transformers reads as MinistralForCausalLM",
    ),
    "more experts than there are": ("mixtral", _config(num_experts_per_tok=9), "ends its first pass"),
    "Falcon RW": ("falcon-alibi", lambda directory: None, "found Falcon RW in .*adds ALiBi twice"),
    # tokenizers
    "a broken tokenizer": ("gemma", _written("tokenizer.json", "{}"), "expected a tokenizer that transformers can read"),
    "two BOS": (
        "gemma", _json("tokenizer.json", _two_bos), "expected one leading '<bos>', found two: .* adds it twice",
    ),
    "one id for two tokens": (
        "gemma", _json("tokenizer.json", lambda c: c["model"]["vocab"].update(a=c["model"]["vocab"]["b"])),
        r"expected an id for each token of .*, found id \d+ for 'a' and for 'b'",
    ),
    "an added token with another id, which the library moves": (
        "gemma", _json("tokenizer.json", lambda content: content["added_tokens"][-1].update(id=70)),
        r"expected the token '<end_of_turn>' with id 70 as .*tokenizer.json says, found it with id 5",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_refused(case: str, tmp_path: Path) -> None:
    family, spoil, match = CASES[case]
    spoil(write_checkpoint(tmp_path, family))
    _refuses(match, tmp_path)


def test_weights_and_activations_too_large_for_the_dtype(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "weights", "gemma")
    _weights(lambda weights: weights[UP][3, 4].fill_(1e5))(tmp_path / "weights")
    ost.load_model(tmp_path / "weights")
    _refuses(
        r"found 1 NaN or infinite in model\..* \(float16\)", tmp_path / "weights", dtype="float16"
    )
    write_checkpoint(tmp_path / "activations", "llama", scale=200.0)
    ost.load_model(tmp_path / "activations", dtype="bfloat16")
    _refuses("expected finite logits from .* in float16", tmp_path / "activations", dtype="float16")
    write_checkpoint(
        tmp_path / "olmo", "olmo2"
    )  # TransformerLens' logits are not Hugging Face's there
    _refuses("float32 for OLMo 2, found an eager dtype", tmp_path / "olmo", dtype="bfloat16-eager")


# --- a tensor in two files


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    directory = write_checkpoint(tmp_path, "gemma")
    (directory / WEIGHTS).unlink()
    make_model("gemma").save_pretrained(directory, max_shard_size="20KB")
    return directory


def _places(directory: Path) -> dict[str, str]:
    return json.loads((directory / INDEX).read_text())["weight_map"]


def test_shards_load_as_one_file_does(
    sharded: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    probe = torch.tensor([[5, 6, 7]])
    whole = write_checkpoint(tmp_path_factory.mktemp("whole"), "gemma")
    assert torch.equal(ost.load_model(sharded)(probe), ost.load_model(whole)(probe))
    *_, last = sorted(sharded.glob("model-*.safetensors"))
    last.unlink()
    _refuses(rf"a whole safetensors file '{last.name}' in .*: No such file", sharded)


def test_a_tensor_in_two_files_or_in_another_than_the_index_says(sharded: Path) -> None:
    right = _places(sharded)[UP]
    other = next(
        file for file in sorted(set(_places(sharded).values()), reverse=True) if file != right
    )
    _json(INDEX, lambda content: content["weight_map"].update({UP: other}))(sharded)
    _refuses(rf"expected each tensor in one file of .*, found '{UP}' in {right}", sharded)
    _weights(lambda weights: weights.update({UP: torch.zeros(48, 32)}), other)(sharded)
    _refuses(rf"expected each tensor in one file of .*, found '{UP}' in ", sharded)


def test_an_output_layer_of_its_own_beside_a_configuration_that_ties_it(tmp_path: Path) -> None:
    """transformers takes the two for two, or the one for both, by its version."""
    directory, name = write_checkpoint(tmp_path, "gemma"), "model.embed_tokens.weight"
    _weights(lambda weights: weights.update({"lm_head.weight": weights[name].clone()}))(directory)
    assert torch.equal(
        ost.load_model(directory).unembed.weight, ost.load_model(directory).embed.weight
    )
    _weights(lambda weights: weights["lm_head.weight"].mul_(2))(directory)
    _refuses("expected one weight as lm_head.weight and as .*, found two that differ", directory)


# --- ids below zero mean none, as in transformers' generate


@pytest.fixture
def gemma(tmp_path: Path) -> Path:
    directory = write_checkpoint(tmp_path, "gemma")
    (directory / "generation_config.json").unlink()  # config.json decides where there is none
    return directory


@pytest.mark.parametrize(
    ("file", "value"),
    [("config.json", -1), ("generation_config.json", [5, -100]), ("generation_config.json", None)],
)
def test_a_negative_id_ends_nothing(gemma: Path, file: str, value: Any) -> None:
    _json(file, lambda settings: settings.update(eos_token_id=value))(gemma)
    model: Any = ost.load_model(gemma)
    named = {
        index
        for index in (value if isinstance(value, list) else [value])
        if index is not None and index >= 0
    }
    assert end_ids(model) == {model.tokenizer.eos_token_id} | named


def test_a_negative_id_of_another_token_means_none_and_an_adopted_model_ends_where_its_saved_one_ends(
    gemma: Path,
) -> None:
    probe = torch.tensor([[5, 6, 7]])
    expected = ost.load_model(gemma)(probe)
    edit_config(gemma, eos_token_id=-1, pad_token_id=-1)
    model: Any = ost.load_model(gemma)
    assert model.original_model.generation_config.pad_token_id is None
    assert torch.equal(model(probe), expected)
    theirs = AutoModelForCausalLM.from_pretrained(gemma)
    assert end_ids(ost.adopt(theirs)) == set()
    assert theirs.generation_config.eos_token_id == -1  # theirs is as it was


# --- names and tokenizers


def test_a_model_without_a_tokenizer_loads_and_has_none(tmp_path: Path) -> None:
    """The trap: without these files transformers makes up a tokenizer of five tokens."""
    write_checkpoint(tmp_path, "gemma")
    (tmp_path / "tokenizer.json").unlink()
    assert ost.load_model(tmp_path).tokenizer is None


def test_a_tokenizer_of_another_model_is_refused_and_a_padded_embedding_is_none(
    tmp_path: Path,
) -> None:
    for d_vocab in (200, 500):
        write_checkpoint(tmp_path / str(d_vocab), "llama", d_vocab=d_vocab)
        _refuses(
            f"fits an embedding of {d_vocab} rows, found one of 268 tokens", tmp_path / str(d_vocab)
        )
    ost.load_model(write_checkpoint(tmp_path / "padded", "llama", d_vocab=320))


def test_names_options_and_paths_that_are_nothing(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model", "gemma")
    (tmp_path / "empty").mkdir()
    _refuses(
        "expected config.json in .*, found none: is this a Hugging Face model", tmp_path / "empty"
    )
    _refuses("expected a directory .* found neither there", directory / "config.json")
    for name in ("", "./nothing", "nothing/", "~/no-such-model", "a/b/c", "models\\gemma"):
        with pytest.raises(ost.InputError, match=r"expected a directory .* found neither there"):
            ost.load_model(name)
    with pytest.raises(ost.InputError, match="unknown model"):
        ost.load_model("x" * 5000)
    _refuses(
        r"expected no revision .* found 'main': only models from the hub",
        directory,
        revision="main",
    )
    _refuses("unknown dtype 'floaf32': did you mean 'float32'", directory, dtype="floaf32")
    _refuses("unknown device 'cudda': did you mean 'cuda'", directory, device="cudda")
    _refuses("expected an available device, found 'cuda:99'", directory, device="cuda:99")
