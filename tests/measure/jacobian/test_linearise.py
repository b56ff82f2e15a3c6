"""The network linearised, against finite differences and plain torch: every family, linearisation
and known edit, of a whole graph, and block by block."""

import pytest
import torch

import ostools as ost
from ostools import hooks
from ostools.ground.arguments import LINEARISATIONS
from ostools.measure.jacobian.linearise import Linearised
from ostools.measure.passes.contexts import run_from, true_arithmetic
from tests.checkpoints import TEXT_FAMILIES, Family, tiny_model
from tests.families import EXPERTS, OTHERS
from tests.measure.jacobian.dense import assert_close, by_differences, by_rows
from tests.sets import quick

IDS = torch.tensor([2, 40, 50, 60, 60, 61, 70, 71, 9, 33, 41])  # 11: a prime


@pytest.mark.parametrize("family", [*TEXT_FAMILIES, *OTHERS])
def test_every_row_of_every_linearisation_is_that_of_finite_differences(family: str) -> None:
    """The quick law of each family: whatever a hook holds is in it. Block by block the rows are the
    same to rounding.
    """
    model = tiny_model(family, seed=3, dtype=torch.float64, n_layers=3)
    for linearisation in LINEARISATIONS[: -1 if family in EXPERTS else None]:
        whole = by_rows(model, IDS, linearisation)
        direction = torch.randn(
            whole.shape[0], whole.shape[2], generator=torch.Generator().manual_seed(0)
        ).double()
        # Three of the routers take their softmax in float32, whatever the model's dtype.
        within = 1e-2 if family in EXPERTS else 1e-6
        differences = by_differences(model, IDS, linearisation, direction)
        assert_close(torch.einsum("pij,pj->i", whole, direction), differences, within)
        assert_close(by_rows(model, IDS, linearisation, keeps_graph=False), whole, 1e-12)


EDITS = {
    "window": lambda model: hooks.mask_scores(model, lambda query, key: query - key < 3),
    "sink": lambda model: hooks.mask_scores(
        model, lambda query, key: (key == 0) | (query - key < 2)
    ),
    "log n": lambda model: hooks.scale_scores(model, lambda query: (query + 2.0).log()),
    "edge": lambda model: hooks.ablate_edges(model, [(0, 1, 7, 4), (1, 0, 10, 0)]),
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("family", quick(["gemma2", "gemma3", "gpt2"], "gemma2"))
def test_edits_are_in_the_derivative_of_blocks(edit: str, family: Family) -> None:
    model = tiny_model(family, seed=6, dtype=torch.float64)
    with EDITS[edit](model):
        for linearisation in ("full", "frozen"):
            whole = by_rows(model, IDS, linearisation)
            assert_close(by_rows(model, IDS, linearisation, keeps_graph=False), whole, 1e-12)


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_every_layer_from_the_same_pass(family: Family) -> None:
    """d y_n / d v_i^(l) by torch at each captured residual stream; edited ones too."""
    model = tiny_model(family, seed=9, dtype=torch.float64, n_layers=3)
    w = torch.randn(32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    model.hook_dict["blocks.1.hook_resid_pre"].add_hook(lambda tensor, hook: 1.3 * tensor)
    try:
        with torch.enable_grad(), true_arithmetic(model):
            embedded = model.input_to_embed(IDS[None])[0].detach().requires_grad_(True)
            with hooks.capture(
                model, "residual_pre", "residual_post", "final_norm", detach=False
            ) as record:
                run_from(model, embedded)
            streams = [
                embedded,
                *list(record["residual_pre"].values())[1:],
                record["residual_post"][2],
            ]
            expected = torch.autograd.grad(record["final_norm"][0, -1] @ w, streams)
            for whole in (True, False):
                rows = Linearised(model, embedded[0], range(4), keeps_graph=whole).pull(w[None])[0]
                torch.testing.assert_close(
                    rows, torch.cat([gradient[0] for gradient in expected]), rtol=1e-8, atol=1e-11
                )
    finally:
        model.hook_dict["blocks.1.hook_resid_pre"].remove_hooks()


def test_a_push_is_the_transpose_of_a_pull() -> None:
    model = tiny_model("gemma2", seed=9, dtype=torch.float64)
    rows = by_rows(model, IDS, "full")
    fields = torch.randn(
        5, len(IDS), 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    with true_arithmetic(model):
        embedded = model.input_to_embed(IDS[None])[0][0].detach()
        pushed = Linearised(model, embedded, chunk=2).push(fields)
    assert_close(pushed, torch.einsum("pij,rpj->ri", rows, fields), 1e-12)


def test_an_edit_at_the_final_norm_that_reads_other_tokens_is_in_every_layer() -> None:
    """A norm of the last token alone would leave it out of v^(L), which finite differences of v^(0)
    do not see.
    """
    model = tiny_model("llama", dtype=torch.float64)
    embedded = model.input_to_embed(IDS[None])[0][0].detach()
    with (
        model.hooks(
            fwd_hooks=[
                ("ln_final.hook_out", lambda tensor, hook: tensor + 0.01 * tensor.mean(1, True))
            ]
        ),
        true_arithmetic(model),
    ):
        rows = [
            Linearised(model, embedded, (0, 2), keeps_graph=whole).pull(
                torch.eye(embedded.shape[1], dtype=torch.float64)
            )
            for whole in (True, False)
        ]
    assert_close(rows[1], rows[0], 1e-12)
    assert float(rows[0].view(embedded.shape[1], 2, len(IDS), -1)[:, 1, 0].norm()) > 0


def test_weights_that_autograd_cannot_follow_are_refused() -> None:
    model = tiny_model("llama", fresh=True)
    with torch.inference_mode():
        model.ln_final.original_component.weight = torch.nn.Parameter(
            model.ln_final.weight.detach().clone(), requires_grad=False
        )
    with pytest.raises(ost.InputError, match=r"found some made within torch\.inference_mode"):
        ost.sensitivity(model, ost.Prompt.from_ids(model, IDS))
