"""Under any composition of edits the measured derivative is autograd's and no bound is below it; or
both are refused.
"""

from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from hypothesis import event, example, given
from hypothesis import strategies as st
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools import hooks
from ostools.ground.arguments import LINEARISATIONS
from ostools.hooks.register import Order, attached
from ostools.hooks.sites import points
from ostools.measure.jacobian.linearise import FROZEN_PARTS
from tests.compositions.drawn import (
    LOOKED_FOR,
    REFUSALS,
    Change,
    Weights,
    edited,
    nestings,
    prompts,
    weights,
)

NORMS = {"operator_norm": 2, "frobenius_norm": "fro"}
IDS = [2, 50, 144, 84, 140, 63, 139]
ROUNDING = {torch.float64: 1e-9, torch.float32: 2e-3}
"""Of the largest norm: sums by another route, through two blocks."""


def by_autograd(model: TransformerBridge, ids: Tensor, linearisation: str) -> Tensor:
    """d y_n / d v_i^(0) by one plain pass over the tokens, in which block 0 reads a leaf in the
    place of what it would read.
    """
    leaf: list[Tensor] = []

    def begin(stream: Tensor) -> Tensor:
        leaf[:] = [stream.detach().clone().requires_grad_(True)]
        return leaf[0]

    parts = FROZEN_PARTS[linearisation]
    held = (
        hooks.frozen(model, parts.attention, parts.norms, parts.activations)
        if any(parts)
        else nullcontext()
    )
    double = next(model.parameters()).dtype == torch.float64
    is_exact = any(edit.kind == "exact-arithmetic" for edit in hooks.active_edits(model))
    exact = hooks.exact_arithmetic(model) if double and not is_exact else nullcontext()
    start = attached([(points(model, "residual_pre", [0])[0], begin, Order.RECOMPUTE)])
    with (
        torch.enable_grad(),
        exact,
        held,
        start,
        hooks.capture(model, "final_norm", detach=False) as seen,
    ):
        model(ids[None])
    y = seen["final_norm"][0, -1]
    rows = [torch.autograd.grad(each, leaf[0], retain_graph=True)[0][0] for each in y]
    return torch.stack(rows).transpose(0, 1)


@example(
    Weights("phi3", 44, sharp=20.0),
    IDS,
    (Change("own-pattern", layers=(1, 0), heads=(1, 2)),),
    "full",
)
@example(
    Weights("gemma2", 1),
    IDS,
    (Change("temperature", 1.7), Change("mask", 0.3), Change("window", 3.0)),
    "full",
)
@example(Weights("mixtral", 2, dtype="float32"), IDS, (Change("heads", 1.0),), "frozen-norm")
@LOOKED_FOR
@given(
    weights=weights("float64", "float64", "float32"),
    ids=prompts,
    nesting=nestings,
    linearisation=st.sampled_from(LINEARISATIONS),
)
def test_what_is_measured_is_autograds_or_refused(
    weights: Weights, ids: list[int], nesting: tuple[Change, ...], linearisation: Any
) -> None:
    model = weights.model()
    tokens = torch.tensor(ids)
    try:
        with edited(model, tokens, nesting):
            found = ost.sensitivity(
                model,
                ost.Prompt.from_ids(model, ids),
                linearisations=[linearisation],
                method="exact",
            )
            expected = by_autograd(model, tokens, linearisation)
    except REFUSALS as refused:
        event(f"refused: {type(refused).__name__}")
        return
    event("measured")
    for name, order in NORMS.items():
        norms = torch.linalg.matrix_norm(expected.double(), ord=order).numpy()
        measured = found.frame[name].to_numpy()
        assert np.abs(measured - norms).max() <= ROUNDING[expected.dtype] * norms.max(), name


@LOOKED_FOR
@given(
    weights=weights("float64", "float64", "float32"),
    ids=prompts,
    nesting=nestings,
    variant=st.sampled_from(["local", "windowed(1)", "windowed(2)"]),
    mlp_norm=st.sampled_from(["svd", "product"]),
)
def test_a_certified_bound_is_above_what_is_measured_or_refused(
    weights: Weights, ids: list[int], nesting: tuple[Change, ...], variant: str, mlp_norm: Any
) -> None:
    model = weights.model()
    tokens = torch.tensor(ids)
    try:
        with edited(model, tokens, nesting):
            found = ost.bounds(
                model, ost.Prompt.from_ids(model, ids), variants=variant, mlp_norm=mlp_norm
            )
            expected = by_autograd(model, tokens, "frozen")
    except REFUSALS as refused:
        event(f"refused: {type(refused).__name__}")
        return
    event("bounded")
    norms = torch.linalg.matrix_norm(expected.double(), ord=2).numpy()
    bound = found.frame["value"].to_numpy()
    slack = ROUNDING[expected.dtype]
    assert (norms <= bound * (1 + slack) + 0.001 * slack * norms.max()).all()
