"""The laboratory's decoder: against the block equation of `theory.decoder` with the same weights, and behind the bridge."""

from pathlib import Path
from typing import Any

import pytest
import torch

import ostools as ost
from ostools.experiments.lab.load import load_lab, untrained_lab
from ostools.ground.errors import InputError
from ostools.theory import positions as encodings
from ostools.theory.decoder import Block, Decoder
from ostools.training.lab.config import LabConfig
from ostools.training.lab.decoder import lab_decoder
from ostools.training.lab.loop import WEIGHTS, train_lab

TINY: dict[str, Any] = {"n_layers": 2, "d_model": 16, "n_heads": 2, "d_mlp": 16, "longest": 5, "context": 32}
TINY |= {"steps": 2, "batch": 4, "warmup_steps": 1, "decay_steps": 1}
EVERY = [
    {"positions": "none"},
    {"positions": "learned"},
    {"positions": "sinusoidal"},
    {"positions": "alibi"},
    {"positions": "alibi", "window": 3},
    {"positions": "rope"},
    {"positions": "rope", "rope_base": 100.0},
    {"positions": "rope", "window": 3},
]
IDS = torch.tensor([[1, 4, 3, 4, 4, 3, 3, 4, 15]])


def _reference(config: LabConfig) -> tuple[Decoder, torch.Tensor]:
    """The decoder of the theory with the laboratory's weights in float64, and the embeddings that go into it."""
    weights = {name: weight.detach().double() for name, weight in lab_decoder(config).named_parameters()}
    heads = (config.n_heads, config.d_model // config.n_heads)

    def block(layer: int) -> Block:
        def of(name: str) -> torch.Tensor:
            return weights[f"model.layers.{layer}.{name}.weight"]

        into = {W: of(f"self_attn.{W}_proj").view(*heads, -1).transpose(1, 2) for W in "qkv"}
        back = of("self_attn.o_proj").T.reshape(*heads, -1)
        mlp = (of(f"mlp.{name}_proj").T for name in ("gate", "up", "down"))
        gains = of("input_layernorm"), of("post_attention_layernorm")
        return Block(gains[0], into["q"], into["k"], into["v"], back, gains[1], *mlp)

    named: dict[str, Any] = {"positions": config.positions if config.positions in ("rope", "alibi") else "none"}
    decoder = Decoder(
        embedding=weights["model.embed_tokens.weight"],
        blocks=tuple(block(layer) for layer in range(config.n_layers)),
        gain3=weights["model.norm.weight"],
        W_U=weights["lm_head.weight"].T,
        rope_base=config.rope_base,
        window=config.window,
        **named,
    )
    embedded = decoder.embedding[IDS]
    if config.positions == "sinusoidal":
        embedded = embedded + encodings.sinusoidal(IDS.shape[1], config.d_model)
    elif config.positions == "learned":
        embedded = embedded + weights["model.position_table"][: IDS.shape[1]]
    return decoder, embedded


@pytest.mark.parametrize("settings", EVERY, ids=lambda one: "-".join(map(str, one.values())))
def test_it_computes_the_block_equation(settings: dict[str, Any]) -> None:
    config = LabConfig(**TINY, **settings)
    decoder, embedded = _reference(config)
    expected = decoder.forward(embedded).y @ decoder.W_U
    for attention in ("sdpa", "eager"):
        with torch.no_grad():
            found = lab_decoder(config, attention).eval()(IDS, use_cache=False).logits
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("settings", EVERY, ids=lambda one: "-".join(map(str, one.values())))
def test_the_bridge_shows_the_same_logits_and_its_sensitivity_checks_itself(settings: dict[str, Any]) -> None:
    config = LabConfig(**TINY, **settings)
    model = untrained_lab(config)
    with torch.no_grad():
        assert torch.equal(model(IDS), lab_decoder(config, "eager").eval()(IDS, use_cache=False).logits)
    decoder, embedded = _reference(config)
    jacobian: Any = torch.autograd.functional.jacobian(lambda v: decoder.forward(v).y[0, -1], embedded)
    expected = torch.linalg.matrix_norm(jacobian[:, 0].transpose(0, 1), ord=2)
    measured = ost.sensitivity(model, ost.Prompt.from_ids(model, IDS[0].tolist()), linearisations=("full",))
    found = torch.tensor(measured.frame["operator_norm"].to_numpy())
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-5)


def test_without_positions_the_order_of_earlier_tokens_is_lost_in_one_layer_and_with_them_it_is_not() -> None:
    swapped = IDS.clone()
    swapped[0, [2, 3]] = IDS[0, [3, 2]]
    for positions, same in (
        ("none", True),
        ("rope", False),
        ("alibi", False),
        ("learned", False),
        ("sinusoidal", False),
    ):
        model = lab_decoder(LabConfig(**{**TINY, "n_layers": 1}, positions=positions), "eager").eval()
        with torch.no_grad():
            first, second = (model(ids, use_cache=False).logits[0, -1] for ids in (IDS, swapped))
        assert (float((first - second).abs().max()) < 1e-5) is same, positions


def test_blocks_of_a_shallow_model_are_the_first_of_a_deep_one() -> None:
    shallow, deep = (dict(lab_decoder(LabConfig(**{**TINY, "n_layers": depth})).named_parameters()) for depth in (1, 3))
    assert all(torch.equal(weight, deep[name]) for name, weight in shallow.items())


def test_only_what_is_a_qwen_is_loaded_as_one(tmp_path: Path) -> None:
    for settings in EVERY:
        folder = train_lab(LabConfig(**TINY, **settings), tmp_path / "-".join(map(str, settings.values())))
        own = load_lab(folder)
        if settings["positions"] in ("rope", "none"):
            assert torch.equal(ost.load_model(folder, device="cpu")(IDS), own(IDS))
        else:
            with pytest.raises(InputError, match="found model_type 'ostools-lab'"):
                ost.load_model(folder)


def test_padding_and_unfinished_models_are_refused(tmp_path: Path) -> None:
    config = LabConfig(**TINY, positions="alibi")
    model = untrained_lab(config)
    mask = torch.ones_like(IDS)
    mask[0, 0] = 0
    with pytest.raises(InputError, match="without padding"):
        model(IDS, attention_mask=mask)
    with pytest.raises(InputError, match=r"with its lab\.json"):
        load_lab(tmp_path)
    (tmp_path / "lab.json").write_text(config.to_json())
    with pytest.raises(InputError, match="expected a finished model"):
        load_lab(tmp_path)
    (tmp_path / WEIGHTS).write_bytes(b"none")
    with pytest.raises(InputError, match="expected the weights of alibi"):
        load_lab(tmp_path)


def test_a_character_that_is_no_token_is_refused() -> None:
    model = untrained_lab(LabConfig(**TINY))
    assert ost.encode(model, "01F").ids.tolist() == [1, 3, 4, 13]
    with pytest.raises(InputError, match="found 1 unknown token"):
        ost.encode(model, "01x")
