"""Freezing changes no value, and exactly the derivatives that it names; gates are nothing at 1 and
the ablation at 0.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from ostools import hooks
from ostools.hooks import Edge, Head, Sublayer
from tests.checkpoints import TEXT_FAMILIES, tiny_model
from tests.sets import quick

Tokens = Int[Tensor, "batch pos"]
KINDS = [(True, True), (True, False), (False, True)]


def last_token(
    model: TransformerBridge, embedded: Float[Tensor, "pos d_model"]
) -> Float[Tensor, " d_model"]:
    with hooks.capture(model, "final_norm", detach=False) as record:
        model(embedded[None], start_at_layer=0)
    return record["final_norm"][0, -1]


def require_derivative(
    run: Callable[[Tensor], Tensor], values: Callable[[Tensor], Tensor], x: Tensor, step: float
) -> None:
    """The derivative of `run` at x, in a direction, is the finite difference of `values`."""
    generator = torch.Generator().manual_seed(1)
    direction = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    finite = (values(x + step * direction) - values(x - step * direction)) / (2 * step)
    _, product = torch.autograd.functional.jvp(run, x, direction)
    assert isinstance(product, Tensor)
    torch.testing.assert_close(product, finite, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("attention", "norms"), KINDS)
def test_logits_are_bit_identical(
    model: TransformerBridge, tokens: Tokens, attention: bool, norms: bool
) -> None:
    before = model(tokens)
    with hooks.frozen(model, attention=attention, norms=norms):
        inside = model(tokens)
    assert torch.equal(before, inside)
    assert torch.equal(before, model(tokens))
    assert hooks.active_edits(model) == ()


def test_frozen_attention_is_the_derivative_with_the_pattern_pinned() -> None:
    """Independent route: finite differences of a forward pass whose patterns are replaced by stored
    ones.
    """
    model = tiny_model("gemma3", seed=5, dtype=torch.float64)
    embedded = model.input_to_embed(torch.tensor([[11, 40, 12, 99, 7]]))[0][0].detach()
    with hooks.capture(model, "pattern") as record, hooks.exact_arithmetic(model):
        last_token(model, embedded)
    patterns = dict(record["pattern"])

    def pinned(x: Tensor) -> Tensor:
        with (
            hooks.exact_arithmetic(model),
            hooks.replace_pattern(model, lambda _, layer: patterns[layer]),
        ):
            return last_token(model, x)

    def frozen(x: Tensor) -> Tensor:
        with hooks.exact_arithmetic(model), hooks.frozen(model, norms=False):
            return last_token(model, x)

    require_derivative(frozen, pinned, embedded, step=1e-6)


def test_a_norm_that_is_not_the_known_one_is_refused(tokens: Tokens) -> None:
    model = tiny_model("llama", fresh=True)
    norm = model.blocks[0].ln1.original_component
    norm.variance_epsilon, honest = 1.0, norm.variance_epsilon
    with hooks.frozen(model):
        model(tokens)  # eps is read from the component, so that it may be any
    norm.variance_epsilon = honest
    original = type(norm).forward
    norm.forward = lambda x: original(norm, x) * 1.01
    with pytest.raises(hooks.HookError, match=r"freezing blocks\.0\.ln1"), hooks.frozen(model):
        model(tokens)


@pytest.mark.parametrize("family", quick(TEXT_FAMILIES, "gemma3", "gpt2"))
def test_exact_arithmetic_makes_finite_differences_meet_the_derivative(family) -> None:
    model = tiny_model(family, seed=2, dtype=torch.float64)
    embedded = model.input_to_embed(torch.tensor([[11, 40, 12, 99, 7]]))[0][0].detach()

    def run(x: Tensor) -> Tensor:
        with hooks.exact_arithmetic(model):
            return last_token(model, x)

    require_derivative(run, run, embedded, step=1e-5)


def test_exact_arithmetic_refuses_what_it_would_undo_and_leaves_nothing(tokens: Tokens) -> None:
    with (
        pytest.raises(hooks.HookError, match="expected a float64 model"),
        hooks.exact_arithmetic(tiny_model("gemma")),
    ):
        pass
    model = tiny_model("llama", dtype=torch.float64)
    plain = model(tokens)
    with hooks.exact_arithmetic(model):
        torch.testing.assert_close(model(tokens), plain, rtol=1e-4, atol=1e-4)
    assert torch.equal(model(tokens), plain)
    point = model.hook_dict["blocks.0.ln1.hook_scale"]
    point.add_hook(lambda tensor, hook: tensor * 2)
    with (
        pytest.raises(hooks.HookError, match="would undo the edit 'foreign'"),
        hooks.exact_arithmetic(model),
    ):
        pass
    point.remove_hooks()


def test_exact_arithmetic_keeps_the_share_of_a_sink(tokens: Tokens) -> None:
    """gpt-oss: a learnt score a head joins the softmax."""
    model = tiny_model("gpt-oss", seed=1, dtype=torch.float64)
    with hooks.exact_arithmetic(model), hooks.capture(model, "scores", "pattern") as record:
        model(tokens)
    for layer, scores in record["scores"].items():
        sink = model.blocks[layer].attn.original_component.sinks.exp()[:, None, None]
        expected = scores.exp() / (scores.exp().sum(-1, keepdim=True) + sink)
        torch.testing.assert_close(record["pattern"][layer], expected, rtol=1e-12, atol=0)


# Gates: nothing at 1, the ablation at 0, and their gradient against finite differences.


TARGETS: dict[str, Sequence[Any]] = {
    "heads": [Head(0, 1), Head(0, 3), Head(1, 0)],
    "edges": [Edge(0, 1, 8, 5), Edge(1, 0, 8, 0), Edge(1, 3, 4, 4)],
    "layers": [Sublayer(0, "attention"), Sublayer(1, "attention"), Sublayer(1, "mlp")],
}


def ablated(model: TransformerBridge, target: Any) -> Any:
    if isinstance(target, Head):
        return hooks.ablate_heads(model, [target])
    if isinstance(target, Edge):
        return hooks.ablate_edges(model, [target])
    return hooks.ablate_layers(model, [target.layer], part=target.part)


@pytest.mark.parametrize("what", TARGETS)
def test_one_is_nothing_and_zero_is_the_ablation(
    model: TransformerBridge, tokens: Tokens, what: str
) -> None:
    targets = TARGETS[what]
    plain = model(tokens)
    with hooks.gated(model, targets=targets, gates=torch.ones(3)):
        assert torch.equal(model(tokens), plain)
        assert {edit.kind for edit in hooks.active_edits(model)} == {"gate"}
    for index, target in enumerate(targets):
        gates = torch.ones(3)
        gates[index] = 0
        with hooks.gated(model, targets, gates):
            found = model(tokens)
        with ablated(model, target):
            expected = model(tokens)
        assert not torch.equal(expected, plain)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 * float(expected.abs().max()))
    assert torch.equal(model(tokens), plain)


@pytest.mark.parametrize("activations", [False, True])
@pytest.mark.parametrize("family", quick(["gemma", "gemma2", "gemma3", "llama"], "gemma3"))
def test_fully_frozen_network_without_mlp_is_linear(
    family, activations: bool, tokens: Tokens
) -> None:
    """With patterns and scales held and the MLP cut off, or its activations held too, y = sum_i J_i
    v_i.
    """
    model = tiny_model(
        family, seed=3, scale=2.0 if activations else 4.0, dtype=torch.float64, fresh=True
    )
    for block in [] if activations else model.blocks:
        block.mlp.out.weight.zero_()
    embedded = model.input_to_embed(tokens[:1])[0][0].detach()

    def run(x: Tensor) -> Tensor:
        with hooks.exact_arithmetic(model), hooks.frozen(model, activations=activations):
            return last_token(model, x)

    jacobian = torch.autograd.functional.jacobian(run, embedded)
    assert isinstance(jacobian, Tensor)
    torch.testing.assert_close(
        torch.einsum("opd,pd->o", jacobian, embedded), run(embedded), rtol=1e-9, atol=1e-9
    )
