"""What no edit can do is refused before or in the forward pass, by name, and leaves nothing behind."""

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from jaxtyping import Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools import hooks
from ostools.hooks import Edge, Head, Sublayer
from tests.checkpoints import tiny_model
from tests.generic_models import generic_model
from tests.hooks.test_edit import REFERENCE, window

Tokens = Int[Tensor, "batch pos"]
ONE = torch.ones(1)


never_a_tensor: Any = lambda query, key: "all"  # noqa: E731
attn: Any = "attn"

REFUSED: list[tuple[Callable[[TransformerBridge], Any], str]] = [
    (lambda m: hooks.capture(m, "patern"), "did you mean 'pattern'"),
    (lambda m: hooks.capture(m, "pattern", layers=[7]), r"expected layers .* out of 0\.\.1"),
    (lambda m: hooks.capture(m), "at least one site"),
    (
        lambda m: hooks.mask_scores(m, torch.ones(4, 4, dtype=torch.bool)),
        r"expected a boolean mask \(9, 9\)",
    ),
    (lambda m: hooks.mask_scores(m, lambda q, k: k > 3 + 0 * q), "left without any key"),
    (
        lambda m: hooks.mask_scores(m, window, heads=[9]),
        r"expected heads as whole numbers out of 0..3",
    ),
    (lambda m: hooks.mask_scores(m, never_a_tensor), "expected a boolean mask .* found str"),
    (lambda m: hooks.scale_scores(m, float("nan")), "expected 9 finite factors"),
    (lambda m: hooks.scale_scores(m, 1e39), "overflow"),
    (lambda m: hooks.replace_pattern(m, lambda p, _: p[:, :1]), "replace_pattern: expected"),
    (lambda m: hooks.ablate_heads(m, []), "expected at least one"),
    (lambda m: hooks.ablate_heads(m, [(0, 0)], method="mean"), "needs a reference"),
    (lambda m: hooks.ablate_heads(m, [(0, 0)], reference=REFERENCE), "takes no reference"),
    (
        lambda m: hooks.ablate_edges(m, [(0, 0, 20, 2)]),
        r"no forward pass held the query of edge \(0, 0, 20, 2\)",
    ),
    (lambda m: hooks.ablate_edges(m, [(0, 0, 2, 3)]), "0 <= key <= query"),
    (lambda m: hooks.ablate_edges(m, []), "expected at least one"),
    (lambda m: hooks.frozen(m, attention=False, norms=False), "holds nothing constant"),
    (lambda m: hooks.gated(m, [], torch.ones(0)), "each of 0 targets"),
    (lambda m: hooks.gated(m, [Head(0, 0)], torch.ones(2)), r"each of 1 targets, found \(2,\)"),
    (lambda m: hooks.gated(m, [Head(0, 0), Head(0, 0)], torch.ones(2)), "one named twice"),
    (lambda m: hooks.gated(m, [Head(0, 4)], ONE), r"heads .* out of 0\.\.3, found \[4\]"),
    (lambda m: hooks.gated(m, [Edge(0, 0, 2, 3)], ONE), "0 <= key <= query, found query 2, key 3"),
    (lambda m: hooks.gated(m, [Edge(0, 0, 9, 1)], ONE), "with query 9 in it, found 9 queries"),
    (
        lambda m: hooks.gated(m, [Sublayer(0, cast(Any, "both"))], ONE),
        "'attention' or 'mlp', found 'both'",
    ),
    (lambda m: hooks.ablate_layers(m, [0], part=attn), "found 'attn': did you mean 'attention'"),
    (
        lambda m: hooks.rounded(m, cast(Any, "residuals"), "int8"),
        "part: .*found 'residuals': did you mean 'residual'",
    ),
    (
        lambda m: hooks.rounded(m, "kv", cast(Any, "float8")),
        "format: .*found 'float8': did you mean 'float16' or",
    ),
    (lambda m: hooks.rounded(m, "kv", "int8"), "'int8' needs a calibration, a batch of token ids"),
    (
        lambda m: hooks.rounded(m, "kv", "bfloat16", calibration=REFERENCE),
        "'bfloat16' takes no calibration",
    ),
    (
        lambda m: hooks.rounded(m, "kv", "int8", calibration=REFERENCE[:, :0]),
        r"expected a calibration of token ids \[batch, pos\], found \(3, 0\)",
    ),
    (
        lambda m: hooks.rounded(tiny_model("llama", dtype=torch.bfloat16), "kv", "bfloat16"),
        r"expected a model in float32 or float64, found \['torch.bfloat16'\]",
    ),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_refusals(tokens: Tokens, make: Any, message: str) -> None:
    model = tiny_model("llama", seed=1)
    with pytest.raises(hooks.HookError, match=message), make(model):
        model(tokens)
    assert hooks.active_edits(model) == ()


def test_blocks_that_are_not_known_inside_are_refused() -> None:
    model = ost.adopt(generic_model("mamba"))
    refusal = pytest.raises(hooks.HookError, match="by the generic route")
    with refusal, hooks.frozen(model, activations=True):
        pass
