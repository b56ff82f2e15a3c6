"""What is captured is what Hugging Face computes; the table holds on every family; reducers and gradients work."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from jaxtyping import Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import hooks
from tests.checkpoints import TEXT_FAMILIES, make_model, tiny_model
from tests.sets import quick

Tokens = Int[Tensor, "batch pos"]


@pytest.mark.parametrize("family", quick(TEXT_FAMILIES, "gemma3", "gpt2"))
def test_residuals_and_patterns_are_those_of_hugging_face_eager(family, tokens: Tokens) -> None:
    reference = make_model(family, seed=1)(tokens, output_hidden_states=True, output_attentions=True)
    model = tiny_model(family, seed=1)
    with hooks.capture(model, "residual_pre", "final_norm", "pattern", "embedding") as record:
        logits = model(tokens)
    # TransformerLens writes GPT-2's LayerNorm and attention out in its own order of operations: equal up to rounding.
    tolerance = 1e-5 if family == "gpt2" else 0.0
    close = partial(torch.testing.assert_close, rtol=tolerance, atol=tolerance)
    close(logits, reference.logits)
    close(record["embedding"], reference.hidden_states[0])
    for layer, pattern in enumerate(reference.attentions):
        close(record["residual_pre"][layer], reference.hidden_states[layer])
        close(record["pattern"][layer], pattern)
    close(record["final_norm"], reference.hidden_states[-1])


def test_every_available_site_has_the_axes_of_the_table(model: TransformerBridge, tokens: Tokens) -> None:
    sizes = {
        "batch": 2,
        "pos": 9,
        "query": 9,
        "key": 9,
        "1": 1,
        "d_model": model.cfg.d_model,
        "head": model.cfg.n_heads,
        "kv_head": model.cfg.n_key_value_heads or model.cfg.n_heads,
        "d_head": model.cfg.d_head,
        "d_mlp": model.cfg.d_mlp,
    }
    names = hooks.available_sites(model)
    assert {"residual_pre", "residual_mid", "residual_post", "final_norm", "pattern", "head_output"} <= set(names)
    with hooks.capture(model, *names) as record:
        model(tokens)
    for name in names:
        value = record[name][1] if hooks.SITES[name].per_layer else record[name]
        assert value.shape == tuple(sizes[axis] for axis in hooks.SITES[name].axes.split()), name


def test_reducer_sees_every_layer_and_only_its_result_is_kept(model: TransformerBridge, tokens: Tokens) -> None:
    with hooks.capture(model, "pattern") as whole:
        model(tokens)
    with hooks.capture(model, "pattern", reduce=lambda pattern, layer: (layer, pattern[:, :, -1].mean(1))) as record:
        model(tokens)
    assert list(record["pattern"]) == list(range(model.cfg.n_layers))
    for layer, (seen, row) in record["pattern"].items():
        assert seen == layer
        assert torch.equal(row, whole["pattern"][layer][:, :, -1].mean(1))


def test_gradients_flow_through_what_is_captured(model: TransformerBridge, tokens: Tokens) -> None:
    embedded = model.input_to_embed(tokens)[0].detach().requires_grad_(True)
    with hooks.capture(model, "final_norm", detach=False) as record:
        model(embedded, start_at_layer=0)
    (gradient,) = torch.autograd.grad(record["final_norm"][0, -1, 0], embedded)
    assert gradient[0].abs().sum() > 0
    assert gradient[1].abs().sum() == 0  # another prompt of the batch
    with hooks.capture(model, "final_norm") as detached:
        model(embedded, start_at_layer=0)
    assert not detached["final_norm"].requires_grad
