"""Null models: the architecture's own initialisation, or the model's own numbers in another order;
nothing else changes.
"""

import os
import subprocess
import sys
from typing import Any, cast

import pytest
import torch
import transformers
from transformers.initialization import no_init_weights
from transformers.models.mixtral import modeling_mixtral

import ostools as ost
from ostools import hooks
from ostools.models import Prompt, describe, untrained
from ostools.models.describe import named_weights
from ostools.models.families import family_of
from ostools.models.untrained import KINDS, untrained_model
from tests.checkpoints import TEXT_FAMILIES, tiny_model
from tests.families import OTHERS
from tests.sets import quick

IDS = [2, 40, 50, 60, 60, 61, 70, 71]
every_family = pytest.mark.parametrize(
    "family", quick([*TEXT_FAMILIES, *OTHERS], "gemma3", "gpt2", "mixtral")
)


@every_family
def test_initialised_is_what_transformers_draws(family: str) -> None:
    """Hugging Face's own model from the same configuration, whose own code draws each weight in
    float64 from the same seed: the same logits.
    """
    model = tiny_model(family, seed=3, dtype=torch.float64)
    null = untrained_model(model, seed=7)
    config: Any = model.original_model.config
    state = torch.random.get_rng_state()
    record: Any = family_of(model)
    with no_init_weights():
        drawn = getattr(transformers, record.module)._from_config(
            config, dtype=torch.float64, attn_implementation="eager"
        )
    torch.manual_seed(7)
    drawn.init_weights()
    torch.random.set_rng_state(state)
    for weight in drawn.parameters():
        weight.data.copy_(weight.data.float())
    ids = torch.tensor([IDS])
    torch.testing.assert_close(
        null(ids), drawn.eval()(ids, use_cache=False).logits, rtol=1e-5, atol=1e-6
    )
    assert all(bool((norm.gain == 1).all()) for norm in hooks.norms(null).values())


def test_numbers_are_drawn_in_pieces_as_torch_draws_the_whole() -> None:
    """Of float64 numbers at once, of every number of rows beside a multiple of 16, rounded to
    float32.
    """
    for size in (
        1,
        15,
        16,
        17,
        31,
        untrained._PIECE,
        untrained._PIECE + 1,
        2 * untrained._PIECE + 40,
    ):
        for draw in (lambda x: x.normal_(0.5, 0.02), lambda x: x.uniform_(-1, 3)):
            torch.manual_seed(5)
            expected = draw(torch.empty(size, dtype=torch.float64)).float()
            torch.manual_seed(5)
            with untrained._DrawnInFloat64():
                drawn = draw(torch.empty(size))
            assert torch.equal(drawn, expected), size


@pytest.mark.parametrize("family", quick([*TEXT_FAMILIES, *OTHERS], "gemma3", "neox"))
def test_shuffled_has_the_same_numbers_in_another_order(family: str) -> None:
    model = tiny_model(family, seed=3, dtype=torch.float32)
    own, shuffled = (
        dict(named_weights(model)),
        dict(named_weights(untrained_model(model, "shuffled", seed=2))),
    )
    for name, weight in shuffled.items():
        assert torch.equal(weight.flatten().sort().values, own[name].flatten().sort().values)
        if weight.unique().numel() > 4:
            assert not torch.equal(weight, own[name])


@pytest.mark.parametrize("kind", KINDS)
def test_tied_stays_tied_sixteen_bits_stay_and_the_model_is_untouched(kind: Any) -> None:
    model = tiny_model("gemma", seed=3, dtype=torch.bfloat16, tie_word_embeddings=True)
    before, state = describe(model), torch.random.get_rng_state()
    null = untrained_model(model, kind, seed=1)
    assert describe(model) == before
    assert torch.equal(torch.random.get_rng_state(), state)
    assert {weight.dtype for weight in null.parameters()} == {torch.bfloat16}
    assert null.embed.weight.data_ptr() == null.unembed.weight.data_ptr()
    mine = {weight.data_ptr() for weight in model.parameters()}
    assert not mine & {weight.data_ptr() for weight in null.parameters()}
    assert not any(weight.requires_grad for weight in null.parameters())
    assert null.tokenizer is model.tokenizer
    assert not null.training


@pytest.mark.slow
def test_the_numbers_are_those_of_a_machine_with_the_plainest_kernels() -> None:
    """Without AVX torch draws and multiplies by other code."""
    script = (
        "from ostools.models import describe, load_model, untrained_model; from ostools.models.untrained import KINDS;"
        "print([describe(untrained_model(load_model(), kind, seed=3)).weight_hash for kind in KINDS])"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", script],
            check=True, capture_output=True, text=True, timeout=300,
            env=os.environ | {"ATEN_CPU_CAPABILITY": capability},
        ).stdout
        for capability in ("default", "avx2")
    }  # fmt: skip
    assert len(said) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_measurement_says_of_which_model_it_is_the_null(kind: Any) -> None:
    model = tiny_model("llama", seed=3)
    null = untrained_model(model, kind, seed=9)
    found = ost.sensitivity(null, Prompt.from_ids(null, IDS), linearisations=["frozen"])
    said = found.provenance.as_dict()["model"]
    own = describe(model)
    assert said["null"] == {
        "kind": kind,
        "seed": 9,
        "of": own.name,
        "of_weight_hash": own.weight_hash,
    }
    assert said["name"] == f"{own.name} (null: {kind}, seed 9)"
    assert said["config_hash"] == own.config_hash
    assert said["weight_hash"] != own.weight_hash
    assert describe(model).null is None


def test_what_cannot_be_is_refused_with_the_reason() -> None:
    model = tiny_model("llama")
    with pytest.raises(
        ost.InputError, match=r"kind: expected .*, found 'initialized': did you mean 'initialised'"
    ):
        untrained_model(model, cast(Any, "initialized"))
    with pytest.raises(
        ost.InputError, match="seed: expected a whole number of at least 0, found -1"
    ):
        untrained_model(model, seed=-1)
    refused = tiny_model("phi", seed=1, fresh=True)
    config: Any = refused.original_model.config
    config.qk_layernorm = True
    with pytest.raises(ost.InputError, match="expected a model that load_model gives"):
        untrained_model(refused)


def test_a_weight_that_nobody_draws_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers would be whatever the memory held."""
    router, draw = modeling_mixtral.MixtralTopKRouter, modeling_mixtral.MixtralPreTrainedModel
    of_others = draw._init_weights
    monkeypatch.setattr(
        draw,
        "_init_weights",
        lambda self, module: None if isinstance(module, router) else of_others(self, module),
    )
    with pytest.raises(
        ost.InputError,
        match=r"to draw every weight of MixtralForCausalLM, found .*mlp.gate.weight undrawn",
    ):
        untrained_model(tiny_model("mixtral", seed=3))
    assert not torch.are_deterministic_algorithms_enabled()


def test_one_seed_is_one_model_in_every_dtype() -> None:
    wide, narrow = (
        untrained_model(tiny_model("llama", seed=3, dtype=dtype), seed=5)
        for dtype in (torch.float64, torch.bfloat16)
    )
    for one, other in zip(wide.parameters(), narrow.parameters(), strict=True):
        assert torch.equal(one.bfloat16(), other)
    again, another = (
        describe(untrained_model(tiny_model("llama", seed=3), seed=seed)).weight_hash
        for seed in (5, 6)
    )
    assert (
        again
        == describe(untrained_model(tiny_model("llama", seed=3), seed=5)).weight_hash
        != another
    )
