"""The identity of a model: complete, stable between loads, and new as soon as a weight is."""

import copy
import ctypes
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.sources import build_bridge_from_module
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

import ostools as ost
from ostools import hooks
from ostools.ground.errors import InputError
from ostools.hooks import active_edits
from ostools.models import describe, load_model, untrained_model, view_in
from ostools.models.describe import NOT_COMPUTED_WITH, made_once, shared_models
from ostools.models.precision.casting import view_rounded
from tests.checkpoints import (
    TWO_FAMILIES,
    Family,
    make_model,
    tiny_model,
    write_checkpoint,
)
from tests.sets import quick


@pytest.mark.parametrize("family", TWO_FAMILIES)
def test_a_loaded_model_is_described(family: Family, tmp_path: Path) -> None:
    described = describe(load_model(write_checkpoint(tmp_path, family), device="cpu"))
    assert (described.name, described.revision) == (str(tmp_path), None)
    assert described.architecture == type(make_model(family)).__name__
    assert (described.n_layers, described.d_model, described.n_heads, described.d_vocab) == (
        2,
        32,
        4,
        268,
    )
    assert described.n_key_value_heads == (4 if family == "gpt2" else 2)
    assert (described.dtype, described.device, described.attention_implementation) == (
        "float32",
        "cpu",
        "eager",
    )
    assert described.trained_lengths is None


@pytest.mark.parametrize("family", TWO_FAMILIES)
def test_the_hash_belongs_to_the_weights(family: Family) -> None:
    model, same, other = tiny_model(family), tiny_model(family), tiny_model(family, seed=1)
    assert describe(model).weight_hash == describe(same).weight_hash
    assert describe(model).weight_hash != describe(other).weight_hash
    assert (
        describe(model).weight_hash != describe(tiny_model(family, dtype=torch.float64)).weight_hash
    )


def _value(model: TransformerBridge, name: str) -> torch.nn.Parameter:
    return dict(model.original_model.named_parameters())[name]


def _replaced(model: TransformerBridge, name: str) -> None:
    path, _, last = name.rpartition(".")
    module = model.original_model.get_submodule(path)
    setattr(module, last, torch.nn.Parameter(_value(model, name).detach() + 1, requires_grad=False))


def _swapped(model: TransformerBridge, name: str) -> None:
    """Two heads change places, through `.data`, which torch's version counter does not see."""
    value = _value(model, name).data
    value.copy_(value.flip(-1))


def _as_bytes(model: TransformerBridge, name: str) -> None:
    """The lowest bit of the last number, in the memory under all of torch."""
    value = _value(model, name)
    last = value.data_ptr() + 4 * (value.numel() - 1)
    ctypes.c_uint32.from_address(last).value ^= 1


EDITS = {"swapped": _swapped, "memory": _as_bytes, "replaced": _replaced}


# A hash reads names and bytes, whatever the family: the two have all kinds of parameters, and views
# of one another.
@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("family", TWO_FAMILIES)
def test_an_edited_model_has_a_new_hash(family: Family, edit: str) -> None:
    model = tiny_model(family, fresh=True)
    seen = {describe(model).weight_hash}
    for name in dict(model.original_model.named_parameters()):
        if edit == "replaced" and ".qkv." in name:
            continue  # GPT-2 computes with views of it; what replaces the joint projection alone is not the model's
        EDITS[edit](model, name)
        found = describe(model).weight_hash
        assert found not in seen, name
        seen.add(found)


def _doubled(mlp: Any) -> None:
    mlp.forward = types.MethodType(lambda self, x: 2 * type(self).forward(self, x), mlp)


CHANGED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "compatibility mode": (lambda it: it.enable_compatibility_mode(), "compatibility_mode = False"),
    "processed": (lambda it: it.process_weights(), "weights processed = False"),
    "attn_in": (lambda it: it.set_use_attn_in(True), "use_attn_in = False"),
    "split": (lambda it: it.set_use_split_qkv_input(True), "use_split_qkv_input = False"),
    "method": (
        lambda it: _doubled(it.original_model.model.layers[1].mlp),
        r"methods replaced = none, .* found model\.layers\.1\.mlp\.forward",
    ),
    "adapter": (
        lambda it: setattr(it.blocks[1].mlp.out, "_original_component", nn.Identity().eval()),
        r"class in model\.layers\.1\.mlp\.down_proj = .*Linear.*, found .*Identity",
    ),
    "module": (
        lambda it: setattr(it.blocks[1].mlp.original_component, "act_fn", nn.ReLU().eval()),
        r"class in model\.layers\.1\.mlp\.act_fn = .*, found .*ReLU",
    ),
    "norm": (
        lambda it: setattr(it.ln_final, "_original_component", nn.LayerNorm(32).eval()),
        r"class in model\.norm = .*RMSNorm.*, found .*LayerNorm",
    ),
    "layers cut": (
        lambda it: delattr(it.original_model.model.layers, "1"),
        r"class in model\.layers\.1 = .*, found None",
    ),
    "layers swapped": (
        lambda it: setattr(
            it.original_model.model, "layers", nn.ModuleList([*it.blocks][::-1]).eval()
        ),
        r"class in model\.layers\.0\.self_attn = ",
    ),
    "the pass": (
        lambda it: setattr(it, "forward", lambda *_: None),
        "methods of the bridge = own, .* found forward",
    ),
}


@pytest.mark.parametrize("change", CHANGED)
def test_what_computes_otherwise_than_it_was_loaded_is_refused(change: str) -> None:
    model = tiny_model("llama", fresh=True)
    changes, words = CHANGED[change]
    describe(model)
    changes(model)
    for refuses in (describe, lambda it: view_in(it, torch.float64)):
        with pytest.raises(InputError, match=f"^expected {words}"):
            refuses(model)


@pytest.mark.parametrize("family", ["gemma3", "gpt2", "mixtral"])
def test_each_setting_of_a_module_that_changed_is_refused(family: Family) -> None:
    """No weight and no configuration shows it: a scale of scores, an eps, how many experts."""
    model = tiny_model(family, fresh=True)
    described, count = describe(model), 0
    parts = [it for it in model.original_model.modules() if not isinstance(it, nn.Dropout)]
    for part in parts:
        for name, value in [*vars(part).items()]:
            is_number = value is None or type(value) in (int, float)
            if is_number and name[0] != "_" and name not in NOT_COMPUTED_WITH:
                setattr(part, name, (value or 0) + 0.5)
                with pytest.raises(InputError, match=rf"^expected {name} in .* = {value}, as"):
                    describe(model)
                setattr(part, name, value)
                count += 1
    assert describe(model) == described
    assert count > 50


def test_what_is_seen_or_changes_no_number_is_not_refused(tmp_path: Path) -> None:
    model: Any = load_model(write_checkpoint(tmp_path, "llama"), device="cpu")
    described = describe(model)
    model.set_use_attn_result(True)
    model.set_use_hook_mlp_in(True)
    model.requires_grad_(True).eval().to("cpu")
    model.original_model.set_attn_implementation("sdpa")  # TransformerLens computes its own
    model.original_model.model.layers[0].self_attn.attention_dropout = 0.5  # nor drops any here
    model.run_with_cache(torch.arange(6, 12)[None])
    model.original_model(torch.arange(6, 12)[None], output_attentions=True)
    assert describe(model) == described


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_closed_block_with_another_attention_is_refused(
    implementation: str, tmp_path: Path
) -> None:
    directory = write_checkpoint(tmp_path, "llama")
    model: Any = load_model(directory, route="generic", dtype="bfloat16", device="cpu")
    model.original_model.set_attn_implementation(implementation)
    with pytest.raises(InputError, match="attention = ostools-float32-scores, as the model was"):
        describe(model)


def test_a_bridge_that_no_loader_made_is_refused() -> None:
    """Nothing of it was held against Hugging Face's model, nor is of a copy."""
    loaded, module = tiny_model("llama"), make_model("llama")
    own = build_bridge_from_module(module, "LlamaForCausalLM", hf_config=module.config)
    for model in (copy.deepcopy(loaded), own.eval()):
        for measure in (describe, lambda it: ost.sensitivity(it, ost.Prompt.from_ids(it, [4]))):
            with pytest.raises(InputError, match="a TransformerBridge that was made or copied"):
                measure(model)
        with hooks.capture(model, "final_norm") as record:  # which asks for no loader
            model(torch.arange(6, 12)[None])
        assert record["final_norm"].shape[1] == 6


def test_a_model_on_the_meta_device() -> None:
    model = tiny_model("gemma", fresh=True)
    model.to("meta")
    with pytest.raises(InputError, match="a model with weights, found one on torch's meta device"):
        describe(model)


def test_what_is_shared_is_made_once_of_the_same_weights_and_only_within_the_block() -> None:
    model, other = tiny_model("llama", fresh=True), tiny_model("llama", seed=1)
    made = iter(range(9))

    def value(of: TransformerBridge = model, key: str = "view") -> int:
        return made_once(of, (key,), lambda: next(made))

    with shared_models():
        assert [value(), value(), value(key="twin"), value(other), value()] == [0, 0, 1, 2, 0]
        weight = model.blocks[0].mlp.out.weight
        with torch.no_grad():
            weight.mul_(2)
        assert (value(), value()) == (3, 3)
        with torch.no_grad():
            weight.div_(2)
        assert value() == 0
    assert (value(), value()) == (4, 5)


ROTATIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "dynamic": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
    "longrope": {
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "original_max_position_embeddings": 16,
            "long_factor": [4.0] * 4,
            "short_factor": [1.0] * 4,
        }
    },
}


def _forms(directory: Path) -> dict[str, TransformerBridge]:
    """One model in every form in which it is given."""
    loaded = load_model(directory, device="cpu")
    return {
        "loaded": loaded,
        "generic": load_model(directory, route="generic", device="cpu"),
        "adopted": ost.adopt(AutoModelForCausalLM.from_pretrained(directory)),
        "a view": view_in(loaded, torch.float64),
        "a view of a view": view_in(view_in(loaded, torch.bfloat16), torch.float32),
        "rounded": view_rounded(loaded, "int8"),
        "shuffled": untrained_model(loaded, "shuffled"),
        "initialised": untrained_model(loaded, "initialised"),
    }


@pytest.mark.parametrize("rotation", quick(ROTATIONS, "longrope"))
def test_what_a_pass_rewrites_is_no_other_model(rotation: str, tmp_path: Path) -> None:
    """Passes beyond the trained length and within it make the frequencies anew for theirs."""
    directory = write_checkpoint(tmp_path, "llama", context=24, **ROTATIONS[rotation])
    for form, model in _forms(directory).items():
        before = describe(model)
        for length in (30, 4):
            model(torch.arange(6, 6 + length)[None])
            assert describe(model) == before, form


@pytest.mark.parametrize("family", quick(("gemma3", "llama", "falcon"), "gemma3"))
@pytest.mark.parametrize("rotation", quick(ROTATIONS, "dynamic"))
def test_no_pass_depends_on_those_before_it(rotation: str, family: Family, tmp_path: Path) -> None:
    """At, below and beyond the trained length it is what a new model of Hugging Face gives."""
    settings: dict[str, Any] = ROTATIONS[rotation]
    if family == "gemma3" and settings:
        layers = ("full_attention", "sliding_attention")
        settings = {"rope_parameters": dict.fromkeys(layers, settings["rope_parameters"])}
    directory = write_checkpoint(tmp_path, family, context=24, **settings)
    prompts = [torch.arange(6, 6 + length)[None] for length in (4, 23, 24, 25, 30)]
    new = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager")
    expected = [copy.deepcopy(new)(prompt).logits for prompt in prompts]
    for form, model in _forms(directory).items():
        first = [model(prompt) for prompt in prompts[::-1]][::-1]
        model(torch.arange(6, 56)[None])
        for prompt, before, own in zip(prompts, first, expected, strict=True):
            assert torch.equal(model(prompt), before), (form, prompt.shape)
            model(torch.arange(6, 56)[None])
            if form in ("loaded", "generic", "adopted"):
                torch.testing.assert_close(before, own, rtol=1e-5, atol=1e-5)
        assert active_edits(model) == ()


@pytest.mark.parametrize("family", quick(("gemma3", "gpt2", "neox", "phi", "olmo3"), "gemma3"))
def test_a_buffer_that_changed_is_refused(family: Family, tmp_path: Path) -> None:
    """No weight shows it: a number of a rotation, or of a scale that is not saved with weights."""
    for form, model in _forms(write_checkpoint(tmp_path, family)).items():
        described = describe(model)
        for name, buffer in model.original_model.named_buffers():
            before = buffer.clone()
            buffer.view(-1)[-1] += 1
            with pytest.raises(InputError, match="as the configuration says, found other numbers"):
                describe(model)
            with pytest.raises(InputError, match="as the configuration says, found other numbers"):
                view_in(model, torch.float32)
            buffer.copy_(before)
            assert describe(model) == described, (form, name)


@pytest.mark.parametrize("to", [torch.bfloat16, torch.float64, torch.float16], ids=str)
def test_a_dtype_that_was_moved_is_refused(to: torch.dtype, tmp_path: Path) -> None:
    """Moving rounds rotations and scales, which loading in that dtype does not."""
    directory = write_checkpoint(tmp_path, "gemma3")
    for model in (
        load_model(directory, device="cpu"),
        view_in(load_model(directory, device="cpu"), to),
    ):
        described = describe(model)
        model.to("cpu")
        assert describe(model) == described
        model.to(to)
        with pytest.raises(InputError, match="found other numbers or another dtype"):
            describe(model)


@pytest.mark.parametrize("family", TWO_FAMILIES)
def test_a_part_in_train_mode_is_refused(family: Family) -> None:
    """Dropout of one part alone is as random as that of all."""
    model = tiny_model(family, fresh=True)
    for part in model.original_model.modules():
        part.training = True
        with pytest.raises(InputError, match="found a part in train mode"):
            describe(model)
        model.original_model.eval()
    model.train()
    with pytest.raises(InputError, match="found a part in train mode"):
        describe(model)
    model.original_model.eval()
    describe(model)
