"""Every record is what a loaded model is: its logits Hugging Face's, its facts those of its
modules; and what is refused.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.generalized_components import MoEBridge

import ostools as ost
from ostools import hooks
from ostools.hooks.sites import is_closed
from ostools.mitigations.passes import own_windows
from ostools.models.families import FAMILIES, Family, family_of, family_of_config
from ostools.models.shape import Shape
from scripts import models as models_page
from tests.checkpoints import (
    TEXT_FAMILIES,
    edit_config,
    make_config,
    make_model,
    tiny_model,
    write_checkpoint,
)
from tests.families import EXPERTS, OTHERS, REFUSED
from tests.generic_models import GENERIC
from tests.sets import quick

EVERY = (*TEXT_FAMILIES, *OTHERS)
every_family = pytest.mark.parametrize("family", quick(EVERY, "gemma3", "gpt2", "neox", "mixtral"))
IDS = torch.randint(10, 200, (2, 17), generator=torch.Generator().manual_seed(0))


def record(model: TransformerBridge) -> Family:
    found = family_of(model)
    assert found is not None
    return found


def test_the_sizes_that_config_json_says_are_those_that_transformers_reads() -> None:
    explicit = set()
    for family in EVERY:
        config = make_config(family)
        settings = json.loads(config.to_json_string())
        shape = Shape.of_settings(settings, torch.float32, "cpu")
        if shape is not None:
            explicit.add(family)
            assert shape == Shape.of_config(config, torch.float32, "cpu"), family
            del settings["head_dim"]
            assert Shape.of_settings(settings, torch.float32, "cpu") is None
    assert {"gemma3", "llama"} <= explicit < {*EVERY}


@every_family
def test_logits_are_hugging_faces(family: str, tmp_path) -> None:
    """Loaded from a directory, in float32, with a prompt longer than any window; to the bit where
    the record says so.
    """
    model = ost.load_model(write_checkpoint(tmp_path, family, seed=1), device="cpu")
    module = make_model(family, seed=1)
    found, expected = model(IDS), module(IDS, use_cache=False).logits
    assert float((found - expected).abs().max()) <= 1e-6 * float(expected.abs().max())
    if record(model).exact:
        assert torch.equal(found, expected)
    assert ost.models.describe(model).n_parameters == sum(
        weight.numel() for weight in module.parameters()
    )


def _norms_stand(names: set[str]) -> str:
    before, behind = "blocks.0.ln1" in names, "blocks.0.ln1_post" in names
    return "before and behind" if before and behind else "before" if before else "behind"


def _positions(model: TransformerBridge) -> str:
    if "rotary_cos" in hooks.available_sites(model):
        with hooks.capture(model, "rotary_cos") as seen:
            model(IDS)
        once = 2 if record(model).sinks else 1  # gpt-oss writes the cosine of each pair once
        turned = once * seen["rotary_cos"][0].shape[-1]
        return "rotary" if turned == model.cfg.d_head else "rotary, part of a head"
    return "learned" if hasattr(model, "pos_embed") else "ALiBi"


def _mlp(model: TransformerBridge) -> str:
    if isinstance(model.blocks[0].mlp, MoEBridge):
        return "experts"
    return "gated" if "mlp_up" in hooks.available_sites(model) else "plain"


@every_family
def test_the_records_facts_are_the_modules(family: str) -> None:
    model = tiny_model(family, seed=1)
    known, names = record(model), set(hooks.norms(model))
    qkv = getattr(model.blocks[0].attn, "qkv", None)
    weights = (
        None if qkv is None else (qkv.original_component.weight, model.blocks[0].attn.q.weight)
    )
    found: dict[str, Any] = {
        "norms": _norms_stand(names),
        "parallel": "residual_mid" not in hooks.available_sites(model),
        "positions": _positions(model),
        "mlp": _mlp(model),
        "sinks": hasattr(model.blocks[0].attn.original_component, "sinks"),
        "copied": weights is not None
        and len({w.untyped_storage().data_ptr() for w in weights}) == 2,
    }
    assert found == {name: getattr(known, name) for name in found}
    shape = Shape.of(model)
    own = model.cfg
    assert (shape.n_layers, shape.d_model, shape.n_heads) == (
        own.n_layers,
        own.d_model,
        own.n_heads,
    )
    assert (shape.d_head, shape.n_key_value_heads) == (
        own.d_head,
        own.n_key_value_heads or own.n_heads,
    )
    if family not in EXPERTS:
        assert shape.d_mlp == model.blocks[0].mlp.W_in.shape[-1]
        assert shape.gated == (known.mlp == "gated")


WINDOWS: dict[str, dict[str, Any]] = {
    "qwen2": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "qwen3": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "mixtral": {"sliding_window": 5},
    "qwen3-moe": {"use_sliding_window": True, "sliding_window": 5},
}


@every_family
def test_windows_are_the_models_own(family: str) -> None:
    """What the record says of windows is what the last token sees, in the layers that `own_windows`
    names.
    """
    model = tiny_model(family, seed=1, **WINDOWS.get(family, {}))
    with hooks.capture(model, "pattern") as seen:
        model(IDS)
    sees = {layer: int((pattern[0, 0, -1] > 0).sum()) for layer, pattern in seen["pattern"].items()}
    assert sees == {0: 17, 1: 17} | own_windows(model)
    expected = {"none": 0, "all layers": 2}.get(record(model).windows, 1)
    assert len(own_windows(model)) == expected


@pytest.mark.parametrize("family", ["falcon-40b", "phi-qk-norm"])
def test_what_transformerlens_computes_otherwise_goes_by_the_generic_route(
    family: str, tmp_path
) -> None:
    model = ost.load_model(write_checkpoint(tmp_path, family, seed=1), device="cpu")
    assert is_closed(model)
    assert torch.equal(model(IDS), make_model(family, seed=1)(IDS, use_cache=False).logits)


@pytest.mark.parametrize(("family", "heads"), [("falcon", 1), ("falcon-40b", 2)])
def test_the_generic_route_counts_the_keys_that_heads_share(
    family: str, heads: int, tmp_path
) -> None:
    model = ost.load_model(write_checkpoint(tmp_path, family), device="cpu", route="generic")
    assert (ost.models.describe(model).n_key_value_heads, Shape.of(model).n_key_value_heads) == (
        heads,
        heads,
    )


@pytest.mark.parametrize(
    ("family", "settings"),
    [("phi3", {"partial_rotary_factor": 0.5}), ("mpt", {"n_heads": 3, "d_model": 24})],
)
def test_settings_within_a_record_change_nothing(
    family: str, settings: dict[str, Any], tmp_path
) -> None:
    """Phi-4-mini turns part of a head; ALiBi's slopes of a number of heads that is no power of two."""
    model = ost.load_model(write_checkpoint(tmp_path, family, seed=1, **settings), device="cpu")
    expected = make_model(family, seed=1, **settings)(IDS, use_cache=False).logits
    torch.testing.assert_close(model(IDS), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_every_architecture_has_a_configuration_here_and_records_are_told_apart() -> None:
    tested = {record(tiny_model(family, seed=1)) for family in EVERY}
    loads = {known for known in FAMILIES if known.refused is None and known.model_type != "gemma3"}
    assert tested == loads
    assert len({(known.model_type, known.when) for known in FAMILIES}) == len(FAMILIES)
    for family in REFUSED:
        found = family_of_config(make_model(family).config.to_dict())
        assert found is not None
        assert found.refused is not None


def test_a_view_of_falcon_reads_its_own_weights(tmp_path) -> None:
    """TransformerLens puts functions that hold a module in the place of its forward: in a copy they
    would read the original.
    """
    model = ost.load_model(write_checkpoint(tmp_path, "falcon", seed=1), device="cpu")
    wide = ost.load_model(tmp_path, dtype="float64", device="cpu")
    assert torch.equal(ost.models.view_in(model, torch.float64)(IDS), wide(IDS))


def test_the_page_is_what_the_records_say() -> None:
    """docs/models.md is written by `python -m scripts.models`, never by hand."""
    text = models_page.PAGE.read_text(encoding="utf-8")
    lines = text[text.index("The greatest differences") : text.index("\n\n## What no")].splitlines()
    assert text == models_page.page(lines)
    types = [
        kind for line in lines[2:] for kind in re.findall(r"`([\w-]+)`", line.partition("*:")[2])
    ]
    assert sorted(types) == sorted(GENERIC)


@pytest.mark.slow
def test_the_records_routes_are_those_that_run() -> None:
    assert models_page.differences() == []


@pytest.mark.parametrize("family", ["llama", "phi"])
def test_a_window_that_the_class_does_not_read_is_none(family: str, tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "m", family)
    edit_config(directory, sliding_window=4)
    assert own_windows(ost.load_model(directory)) == {}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_setting_that_transformer_lens_does_not_read_is_seen_however_little_it_does(
    dtype: Any, tmp_path: Path
) -> None:
    """It bends the scores of this short a prompt by less than 16 bits round the logits."""
    directory = write_checkpoint(tmp_path, "gemma3")
    edit_config(directory, attn_logit_softcapping=50.0)
    with pytest.raises(ost.InputError, match="a setting that TransformerLens does not implement"):
        ost.load_model(directory, dtype=dtype)
