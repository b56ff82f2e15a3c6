"""Float32 parts of 16-bit models against Hugging Face's modules put together by hand, and against
the model in float32.
"""

from __future__ import annotations

import copy
from itertools import chain, combinations
from typing import Any

import pytest
import torch
from jaxtyping import Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformers import DynamicCache

from ostools import hooks
from ostools.hooks import UPCAST_PARTS
from ostools.models import view_in
from ostools.models.lens.attention import FLOAT32_SCORES
from tests.checkpoints import TEXT_FAMILIES, Family, make_model, tiny_model
from tests.sets import quick

Tokens = Int[Tensor, "batch pos"]
SUBSETS = list(chain.from_iterable(combinations(UPCAST_PARTS, size) for size in range(1, 6)))
BITS = [torch.bfloat16, torch.float16]


def sixteen(
    family: Family, dtype: torch.dtype = torch.bfloat16, **options: Any
) -> TransformerBridge:
    return tiny_model(family, seed=1, dtype=dtype, n_layers=2, window=256, **options)


@pytest.mark.parametrize("dtype", BITS, ids=str)
@pytest.mark.parametrize("family", quick(TEXT_FAMILIES, "gemma3", "gpt2"))
def test_all_parts_are_the_same_weights_in_float32(
    family: Family, dtype: torch.dtype, tokens: Tokens
) -> None:
    model = tiny_model(family, seed=1, dtype=dtype, n_layers=3)
    expected, before = view_in(model, torch.float32)(tokens), model(tokens)
    weights = [
        (name, parameter.dtype, id(parameter)) for name, parameter in model.named_parameters()
    ]
    with hooks.upcast(model, UPCAST_PARTS):
        found = model(tokens)
        assert [
            (name, parameter.dtype, id(parameter)) for name, parameter in model.named_parameters()
        ] == weights
    assert found.dtype == torch.float32
    assert float((found - expected).abs().max() / expected.abs().max()) <= 1e-6
    assert torch.equal(found, expected)
    assert not torch.equal(before.float(), expected)
    assert torch.equal(model(tokens), before)
    assert hooks.active_edits(model) == ()


class ByHand:
    """Hugging Face's own modules in two dtypes, called one after the other, each reading in its
    part's.
    """

    def __init__(self, family: Family) -> None:
        self.parts: tuple[str, ...] = ()
        self.low = make_model(family, seed=1, dtype=torch.bfloat16, n_layers=2, window=256)
        self.low.config._attn_implementation = FLOAT32_SCORES
        self.high = copy.deepcopy(self.low).float()
        scale = getattr(self.high.get_input_embeddings(), "scalar_embed_scale", None)
        if scale is not None:
            self.high.get_input_embeddings().embed_scale.fill_(scale)  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]

    def of(self, part: str) -> tuple[Any, torch.dtype]:
        return (self.high, torch.float32) if part in self.parts else (self.low, torch.bfloat16)

    def norm(self, name: str, x: Tensor, layer: int | None = None) -> Tensor:
        model, dtype = self.of("norms")
        inner = model.model if layer is None else model.model.layers[layer]
        return getattr(inner, name)(x.to(dtype))

    def attention(self, x: Tensor, layer: int) -> Tensor:
        (model, dtype), pos = self.of("attention"), x.shape[1]
        module, rotary = model.model.layers[layer].self_attn, model.model.rotary_emb
        (norms, narrow) = self.of("norms")
        for name in ("q_norm", "k_norm"):
            if hasattr(module, name):
                norm = getattr(norms.model.layers[layer].self_attn, name)
                read = type(norm).forward
                getattr(module, name).forward = lambda x, norm=norm, read=read: read(
                    norm, x.to(narrow)
                ).to(dtype)
        kind = (
            (model.config.layer_types[layer],) if model.config.model_type == "gemma3_text" else ()
        )
        rotation = rotary(torch.zeros(1, pos, 1, dtype=dtype), torch.arange(pos)[None], *kind)
        mask = torch.full((pos, pos), torch.finfo(dtype).min, dtype=dtype).triu(1)[None, None]
        return module(hidden_states=x.to(dtype), position_embeddings=rotation, attention_mask=mask)[
            0
        ]

    def __call__(self, tokens: Tokens, *parts: str) -> Tensor:
        self.parts = parts
        model, stream = self.of("residual")
        v = model.get_input_embeddings()(tokens)
        post = model.config.model_type in ("gemma2", "gemma3_text")
        for layer in range(2):
            a = self.attention(self.norm("input_layernorm", v, layer), layer)
            a = self.norm("post_attention_layernorm", a, layer) if post else a
            v = v + a.to(stream)
            before = "pre_feedforward_layernorm" if post else "post_attention_layernorm"
            mlp, dtype = self.of("mlp")
            m = mlp.model.layers[layer].mlp(self.norm(before, v, layer).to(dtype))
            m = self.norm("post_feedforward_layernorm", m, layer) if post else m
            v = v + m.to(stream)
        model, dtype = self.of("unembedding")
        logits = model.lm_head(self.norm("norm", v).to(dtype))
        cap = getattr(model.config, "final_logit_softcapping", None)
        return logits if cap is None else torch.tanh(logits / cap) * cap


@pytest.mark.parametrize("family", quick(["gemma", "gemma2", "gemma3", "llama"], "gemma3", "llama"))
def test_every_choice_of_parts_is_what_the_modules_give_by_hand(
    family: Family, tokens: Tokens
) -> None:
    model, by_hand = sixteen(family), ByHand(family)
    assert torch.equal(by_hand(tokens), model(tokens))
    found = {}
    for parts in SUBSETS:
        with hooks.upcast(model, parts):
            found[parts] = model(tokens)
        assert torch.equal(found[parts], by_hand(tokens, *parts)), parts
        assert found[parts].dtype == (torch.float32 if "unembedding" in parts else torch.bfloat16)
    # Each part counts: a choice with it differs from the same choice without, where no other part
    # is left to hide it.
    for part in UPCAST_PARTS:
        rest = tuple(other for other in UPCAST_PARTS if other != part)
        assert not torch.equal(found[rest].float(), found[UPCAST_PARTS]), part


@pytest.mark.parametrize(
    "parts", [UPCAST_PARTS, ("attention",), ("residual", "norms")], ids="+".join
)
@pytest.mark.parametrize("family", quick(TEXT_FAMILIES, "gemma3", "gpt2"))
def test_a_step_through_a_cache_is_what_the_whole_text_gives(
    family: Family, parts: Any, tokens: Tokens
) -> None:
    model, past = sixteen(family), DynamicCache()
    with hooks.upcast(model, parts):
        whole = model(tokens)
        steps = [model(tokens[:, :4], past_key_values=past, use_cache=True)[:, -1]]
        steps += [
            model(tokens[:, at : at + 1], past_key_values=past, use_cache=True)[:, -1]
            for at in range(4, 9)
        ]
    cached: Any = past.layers[0]
    assert cached.keys.dtype == (torch.float32 if "attention" in parts else torch.bfloat16)
    close = 1e-4 if parts == UPCAST_PARTS else 0.05
    torch.testing.assert_close(torch.stack(steps, 1), whole[:, 3:], rtol=close, atol=close)


@pytest.mark.parametrize("where", ["blocks.0.attn.k_norm.hook_in", "embed.hook_out"])
def test_an_exception_in_the_middle_of_a_pass_leaves_nothing(where: str, tokens: Tokens) -> None:
    model = sixteen("gemma3")
    before = model(tokens)

    def held() -> dict[str, Any]:
        named = [*model.named_parameters(), *model.named_buffers()]
        return {name: (id(tensor), tensor.dtype) for name, tensor in named}

    tensors = held()

    def stop(tensor: Tensor, hook: Any) -> Tensor:
        raise KeyboardInterrupt

    model.hook_dict[where].add_hook(stop)
    with pytest.raises(KeyboardInterrupt), hooks.upcast(model, UPCAST_PARTS):
        model(tokens)
    model.reset_hooks()
    assert held() == tensors
    assert hooks.active_edits(model) == ()
    assert torch.equal(model(tokens), before)


MIXED = r"expected weights in bfloat16 or float16, found \['torch.bfloat16', 'torch.float32'\]"


@pytest.mark.parametrize(
    ("make", "parts", "refusal"),
    [
        (
            lambda: sixteen("llama"),
            ["mpl"],
            "parts: expected 'attention', 'mlp', .*, found 'mpl': did you mean 'mlp'",
        ),
        (
            lambda: sixteen("llama"),
            [],
            "at least one part of attention, mlp, norms, residual, unembedding, found none",
        ),
        (lambda: tiny_model("llama"), ["mlp"], r"found \['torch.float32'\]"),
        (lambda: tiny_model("llama", dtype=torch.float64), ["mlp"], r"found \['torch.float64'\]"),
        (lambda: with_one_part_wide(), ["mlp"], MIXED),
        (lambda: sixteen("llama"), ["mlp"], "matched nothing: no forward pass"),
        (
            lambda: sixteen("bloom"),
            ["mlp"],
            "found the weight transformer.word_embeddings_layernorm.weight in no part",
        ),
        (
            lambda: sixteen("mpt"),
            ["mlp"],
            r"does not know the modules of \w+: found a sum inside mlp in no part",
        ),
    ],
)
def test_what_cannot_be_upcast_is_refused(make: Any, parts: Any, refusal: str) -> None:
    model = make()
    with pytest.raises(hooks.HookError, match=refusal), hooks.upcast(model, parts):
        pass
    assert hooks.active_edits(model) == ()


def with_one_part_wide() -> TransformerBridge:
    model = sixteen("llama", fresh=True)
    model.ln_final._original_component.float()  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
    return model


def test_a_second_block_inside_the_first_is_refused() -> None:
    model = sixteen("llama")
    twice = pytest.raises(hooks.HookError, match="name all parts in one")
    with twice, hooks.upcast(model, ["mlp"]), hooks.upcast(model, ["norms"]):
        pass
    assert hooks.active_edits(model) == ()
