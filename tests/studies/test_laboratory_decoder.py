"""The laboratory's decoder: against the block equation of `theory.decoder` with the same weights,
and behind the bridge.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import ostools as ost
from ostools.theory import positions as encodings
from ostools.theory.decoder import Decoder, DecoderBlock
from studies.laboratory.config import LabConfig
from studies.laboratory.decoder import lab_decoder
from studies.laboratory.training import WEIGHTS, load_lab, untrained_lab
from tests.checkpoints import refused

pytestmark = pytest.mark.slow
TINY: dict[str, Any] = {
    "n_layers": 2,
    "d_model": 16,
    "n_heads": 2,
    "d_mlp": 16,
    "longest": 5,
    "context": 32,
}
TINY |= {"steps": 2, "batch": 4, "warmup_steps": 1, "decay_steps": 1}
EVERY: list[dict[str, Any]] = [
    *({"positions": name} for name in ("none", "learned", "sinusoidal")),
    {"positions": "rope", "rope_base": 100.0},
    {"positions": "alibi", "window": 3},
]
IDS = torch.tensor([[1, 4, 3, 4, 4, 3, 3, 4, 15]])


def _reference(config: LabConfig) -> tuple[Decoder, torch.Tensor]:
    """The decoder of the theory with the laboratory's weights in float64, and the embeddings that
    go into it.
    """
    weights = {
        name: weight.detach().double() for name, weight in lab_decoder(config).named_parameters()
    }
    heads = (config.n_heads, config.d_model // config.n_heads)

    def block(layer: int) -> DecoderBlock:
        def of(name: str) -> torch.Tensor:
            return weights[f"model.layers.{layer}.{name}.weight"]

        into = {W: of(f"self_attn.{W}_proj").view(*heads, -1).transpose(1, 2) for W in "qkv"}
        back = of("self_attn.o_proj").T.reshape(*heads, -1)
        mlp = (of(f"mlp.{name}_proj").T for name in ("gate", "up", "down"))
        gains = of("input_layernorm"), of("post_attention_layernorm")
        return DecoderBlock(gains[0], into["q"], into["k"], into["v"], back, gains[1], *mlp)

    decoder = Decoder(
        embedding=weights["model.embed_tokens.weight"],
        blocks=tuple(block(layer) for layer in range(config.n_layers)),
        gain3=weights["model.norm.weight"],
        W_U=weights["lm_head.weight"].T,
        rope_base=config.rope_base,
        window=config.window,
        positions=config.positions if config.positions in ("rope", "alibi") else "none",
    )
    embedded = decoder.embedding[IDS]
    if config.positions == "sinusoidal":
        embedded = embedded + encodings.sinusoidal(IDS.shape[1], config.d_model)
    elif config.positions == "learned":
        embedded = embedded + weights["model.position_table"][: IDS.shape[1]]
    return decoder, embedded


@pytest.mark.parametrize("settings", EVERY, ids=lambda one: "-".join(map(str, one.values())))
def test_it_computes_the_block_equation_alone_and_behind_the_bridge(
    settings: dict[str, Any],
) -> None:
    config = LabConfig(**TINY, **settings)
    model = untrained_lab(config)
    with torch.no_grad():
        assert torch.equal(
            model(IDS), lab_decoder(config, "eager").eval()(IDS, use_cache=False).logits
        )
    decoder, embedded = _reference(config)
    logits = decoder.forward(embedded).y @ decoder.W_U
    for attention in ("sdpa", "eager"):
        with torch.no_grad():
            alone = lab_decoder(config, attention).eval()(IDS, use_cache=False).logits
        torch.testing.assert_close(alone.double(), logits, rtol=1e-4, atol=1e-4)
    jacobian: Any = torch.autograd.functional.jacobian(
        lambda v: decoder.forward(v).y[0, -1], embedded
    )
    expected = torch.linalg.matrix_norm(jacobian[:, 0].transpose(0, 1), ord=2)
    measured = ost.sensitivity(
        model, ost.Prompt.from_ids(model, IDS[0].tolist()), linearisations=("full",)
    )
    found = torch.tensor(measured.frame["operator_norm"].to_numpy())
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-5)


def test_post_norm_is_the_norm_of_the_sum() -> None:
    model: Any = lab_decoder(LabConfig(**TINY, norm="post", positions="learned"), "sdpa").eval()
    v: Any = model.model.embed_tokens(IDS) + model.model.position_table[: IDS.shape[1]]
    angles = model.model.rotary_emb(v, torch.arange(IDS.shape[1])[None])
    mask = torch.full((IDS.shape[1],) * 2, -torch.inf).triu(1)[None, None]

    def normed(x: torch.Tensor) -> torch.Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()

    with torch.no_grad():
        for block in model.model.layers:
            v = block.input_layernorm.weight * normed(v + block.self_attn(v, angles, mask)[0])
            v = block.post_attention_layernorm.weight * normed(v + block.mlp(v))
        found = model(IDS, use_cache=False).logits
    torch.testing.assert_close(found, normed(v) @ model.lm_head.weight.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("positions", ["rope", "alibi"])
def test_sinks_are_seen_beside_the_window_and_nothing_else_is(positions: str) -> None:
    n = IDS.shape[1]
    config = LabConfig(**TINY, positions=positions, window=3, sinks=2)
    with torch.no_grad():
        patterns = (
            lab_decoder(config, "eager")
            .eval()(IDS, use_cache=False, output_attentions=True)
            .attentions
        )
        for pattern in patterns:
            for query in range(n):
                seen = {key for key in range(query + 1) if key < 2 or query - key < 3}
                assert set(pattern[0, 0, query].nonzero().flatten().tolist()) == seen
        # A window that reaches everything hides nothing: the sinks change nothing then.
        wide = replace(config, window=n), replace(config, window=None, sinks=0)
        first, second = (
            lab_decoder(one, "eager").eval()(IDS, use_cache=False).logits for one in wide
        )
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-5)


def test_padding_and_unfinished_models_are_refused(tmp_path: Path) -> None:
    config = LabConfig(**TINY, positions="alibi")
    with pytest.raises(ost.InputError, match="without padding"):
        untrained_lab(config)(IDS, attention_mask=(IDS > 1).long())
    (tmp_path / "lab.json").write_text(config.to_json())
    refused("expected a finished model", load_lab, tmp_path)
    (tmp_path / WEIGHTS).write_bytes(b"none")
    refused("expected the weights of alibi", load_lab, tmp_path)
