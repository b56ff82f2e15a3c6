"""The laboratory's decoder against Hugging Face, torch's own attention, and the laws that hold
whatever the weights.
"""

import dataclasses
import re
from typing import Any

import pytest
import torch

from ostools.theory import positions
from ostools.theory.decoder import Decoder, DecoderBlock
from ostools.theory.positions import ENCODINGS
from tests.checkpoints import make_model, refused


def tokens(*shape: int, seed: int = 0, vocabulary: int = 16) -> torch.Tensor:
    return torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(seed))


def from_llama(model: Any) -> Decoder:
    """The same weights as our decoder: Linear stores [out, in], heads one after the other."""
    heads, body = model.config.num_attention_heads, model.model

    def projection(weight: torch.Tensor) -> torch.Tensor:
        return weight.T.unflatten(1, (heads, -1)).movedim(1, 0)

    blocks = [
        DecoderBlock(
            gain1=layer.input_layernorm.weight,
            W_Q=projection(layer.self_attn.q_proj.weight),
            W_K=projection(layer.self_attn.k_proj.weight),
            W_V=projection(layer.self_attn.v_proj.weight),
            W_O=layer.self_attn.o_proj.weight.T.unflatten(0, (heads, -1)),
            gain2=layer.post_attention_layernorm.weight,
            W_gate=layer.mlp.gate_proj.weight.T,
            W_up=layer.mlp.up_proj.weight.T,
            W_down=layer.mlp.down_proj.weight.T,
        )
        for layer in body.layers
    ]
    return Decoder(
        body.embed_tokens.weight,
        tuple(blocks),
        body.norm.weight,
        model.lm_head.weight.T,
        positions="rope",
        rope_base=model.config.rope_parameters["rope_theta"],
        eps=model.config.rms_norm_eps,
    )


@pytest.mark.parametrize(("base", "scale"), [(100.0, 1.6), (10_000.0, 1.0)])
def test_equals_a_hugging_face_llama(base: float, scale: float) -> None:
    rope = {"rope_type": "default", "rope_theta": base}
    model = make_model(
        "llama", n_layers=3, n_heads=4, n_key_value_heads=4, scale=scale, rope_parameters=rope
    )
    ids = tokens(2, 40, vocabulary=model.config.vocab_size)
    theirs = model(ids, output_hidden_states=True, output_attentions=True)
    decoder = from_llama(model)
    ours = decoder.forward(ids)
    assert len(ours.patterns) == len(theirs.attentions) == 3
    # Hugging Face's last hidden state is already normed.
    mine = (*ours.residuals[:3], ours.y, *ours.patterns, decoder.logits(ours.y))
    for found, expected in zip(
        mine, (*theirs.hidden_states, *theirs.attentions, theirs.logits), strict=True
    ):
        # Up to float32's rounding, of the size of the whole: sharp attention (`scale`) makes more
        # of it.
        torch.testing.assert_close(
            found, expected, rtol=0, atol=5e-5 * float(expected.abs().amax())
        )


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("causal", [True, False])
def test_attention_is_torchs_own(name: str, causal: bool) -> None:
    decoder = Decoder.random(1, n_layers=1, positions=name, causal=causal)
    block = decoder.blocks[0]
    x = decoder.embedded(tokens(2, 30))
    q, k, v = (
        torch.stack([x @ W[h] for h in range(4)], dim=1) for W in (block.W_Q, block.W_K, block.W_V)
    )
    if name == "rope":
        q, k = positions.rotated(q, 1e4), positions.rotated(k, 1e4)
    bias = torch.zeros(4, 30, 30, dtype=torch.float64)
    if name == "alibi":
        for h, slope in enumerate((1 / 4, 1 / 16, 1 / 64, 1 / 256)):
            bias[h] = torch.tensor([[-slope * abs(i - j) for j in range(30)] for i in range(30)])
    if causal:
        bias = bias + torch.full((30, 30), -torch.inf, dtype=torch.float64).triu(1)
    heads = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    expected = sum(heads[:, h] @ block.W_O[h] for h in range(4))
    attended, pattern = decoder.attention(block, x)
    torch.testing.assert_close(attended, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(pattern.sum(-1), torch.ones(2, 4, 30, dtype=torch.float64))


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("window", [None, 5])
def test_one_causal_pass_holds_every_prefix(name: str, window: int | None) -> None:
    decoder = Decoder.random(2, n_layers=3, positions=name, window=window)
    ids = tokens(1, 60)
    whole = decoder.forward(ids)
    for n in (1, 2, 17, 59):
        part = decoder.forward(ids[:, :n])
        torch.testing.assert_close(part.y, whole.y[:, :n], rtol=1e-11, atol=1e-11)
    other = decoder.forward(torch.cat([ids[:, :30], 15 - ids[:, 30:]], dim=1))
    # The same kernels on as many tokens; what differs has weights of exactly 0, and adds exact
    # zeros.
    torch.testing.assert_close(other.y[:, :30], whole.y[:, :30], rtol=0, atol=0)


@pytest.mark.parametrize("n_layers", [1, 6])
def test_equal_ratios_are_one_representation_without_positions_and_mask(n_layers: int) -> None:
    """Proposition 6.1, per token type; broken as soon as the mask, positions or a first token are
    put back.
    """
    free = Decoder.random(4, n_layers=n_layers, positions="none", causal=False)

    def gap(decoder: Decoder, bos: tuple[int, ...] = ()) -> float:
        short = decoder.forward(torch.tensor([[*bos, 1, 0]])).y[0, len(bos) :]
        long = decoder.forward(torch.tensor([[*bos, 1, 1, 0, 0]])).y[0, len(bos) :]
        return float((long - short[[0, 0, 1, 1]]).abs().amax())

    assert gap(free) < 1e-13
    assert gap(free, bos=(2,)) > 1e-3
    assert gap(dataclasses.replace(free, causal=True)) > 1e-3
    for name in ("sinusoidal", "rope", "alibi", "learned"):
        assert gap(dataclasses.replace(free, positions=name)) > 1e-3


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_shallow_decoder_is_the_beginning_of_a_deep_one(name: str) -> None:
    ids = tokens(1, 20)
    deep = Decoder.random(5, n_layers=8, positions=name)
    residuals = deep.forward(ids).residuals
    for depth in (0, 1, 5):
        shallow = Decoder.random(5, n_layers=depth, positions=name)
        # Exact: the same weights and shapes, so the same kernels on the same numbers.
        assert torch.equal(shallow.forward(ids).residuals[-1], residuals[depth])
        torch.testing.assert_close(
            shallow.forward(ids).y, deep.normed(residuals[depth], deep.gain3), rtol=0, atol=0
        )


def test_theorem_b3_under_its_own_hypotheses_and_why_its_last_token_repeats() -> None:
    """Without positions, tokens bounded, L = 3: v^(L) of [v a] and [v a a] come together as 1 / n;
    of [v a] and [v b] not.
    """
    decoder = Decoder.random(0, d_model=32, d_mlp=64, n_layers=3, positions="none")
    tokens = torch.randint(2, 16, (1026,), generator=torch.Generator().manual_seed(1))
    repeated, other = [], []
    for n in (64, 1024):
        v = tokens[: n - 1].tolist()
        pair = decoder.forward(torch.tensor([[*v, 0, 0]])).residuals[-1][0, -2:]
        instead = decoder.forward(torch.tensor([[*v, 1]])).residuals[-1][0, -1]
        repeated.append(float((pair[1] - pair[0]).abs().sum()))
        other.append(float((pair[0] - instead).abs().sum()))
    assert repeated[1] < repeated[0] / 8
    assert other[1] > other[0] / 2


def test_in_16_bits_scores_and_softmax_are_float32_as_in_sdpa() -> None:
    """Scores of some hundred, where neighbouring bfloat16 numbers are 2 apart: rounded, other keys
    would be chosen.
    """
    decoder = Decoder.random(3, n_layers=1).to(torch.bfloat16)
    block = dataclasses.replace(decoder.blocks[0], W_Q=100 * decoder.blocks[0].W_Q)
    x = decoder.embedded(tokens(1, 40))
    q, k, v = (part.float() for part in decoder.projected(block, x))
    z = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    expected = torch.einsum("bhqd,hdm->bqm", z, block.W_O.float())
    found, pattern = decoder.attention(block, x)
    assert pattern.dtype == torch.float32
    assert (q @ k.mT).abs().max() / q.shape[-1] ** 0.5 > 256
    assert (found.float() - expected).norm() < 0.004 * expected.norm()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"positions": "rop"}, "unknown positions 'rop': did you mean 'rope'"),
        ({"window": 0}, "window: expected at least 1 key"),
        ({"n_heads": 5}, "n_heads: expected a divisor of d_model = 64, found 5"),
        ({"rope_base": 0.0}, "rope_base: expected a positive number"),
        ({"d_model": 4, "n_heads": 4}, "expected an even width, found 1"),
        (
            {"d_model": 5, "n_heads": 1, "positions": "sinusoidal", "n_layers": 0},
            "expected an even width, found 5",
        ),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    refused(message, Decoder.random, 0, **options)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float16])
def test_values_beyond_a_format_are_refused_and_not_made_its_largest(dtype: torch.dtype) -> None:
    decoder, largest = Decoder.random(0, n_layers=0), torch.finfo(dtype).max
    scale = largest / float(decoder.embedding.abs().amax())
    within, beyond = (
        dataclasses.replace(decoder, embedding=factor * scale * decoder.embedding)
        for factor in (0.999, 1.1)
    )
    assert torch.isfinite(within.to(dtype).embedding.double()).all()
    words = f"{dtype} cannot hold values up to .* its largest is {re.escape(f'{largest:.4g}')}"
    refused(words, beyond.to, dtype)


def test_positions_that_are_added_are_added_to_the_embeddings() -> None:
    ids = tokens(1, 7)
    for name, table in (("sinusoidal", positions.sinusoidal), ("learned", positions.learned)):
        decoder = Decoder.random(5, n_layers=0, positions=name)
        seed = (decoder.table_seed,) if name == "learned" else ()
        added = decoder.embedded(ids) - dataclasses.replace(decoder, positions="none").embedded(ids)
        expected = table(ids.shape[1], decoder.embedding.shape[1], *seed).to(added)
        torch.testing.assert_close(added, expected.expand_as(added), rtol=1e-12, atol=1e-12)
