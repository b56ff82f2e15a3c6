"""Every family through every law: what holds for the first five holds for all, or is refused with
the reason.
"""

from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools import hooks
from ostools.measure.passes.contexts import true_arithmetic
from tests.checkpoints import tiny_model
from tests.families import EXPERTS, OTHERS
from tests.measure.bounds import test_certified as chain

IDS = torch.tensor([2, 40, 50, 60, 60, 61, 70, 71])
DESCRIBED = tuple(family for family in OTHERS if family not in EXPERTS)
PARALLEL = ("neox", "phi", "falcon", "stablelm-parallel")
every_family = pytest.mark.parametrize("family", OTHERS)
described = pytest.mark.parametrize("family", DESCRIBED)
experts = pytest.mark.parametrize("family", EXPERTS)


def spoiled(model: TransformerBridge, how: str) -> None:
    """Adversarial weights, in place: nine of ten at 0; or one direction far above the others."""
    for block in model.blocks:
        # The stored weights: GPT-J's hooked ones are reordered copies.
        q, k = block.attn.q.original_component, block.attn.k.original_component
        for part in (q, k, block.attn.v, block.attn.o, getattr(block.mlp, "in"), block.mlp.out):
            if how == "sparse":
                part.weight.mul_(
                    torch.arange(part.weight.numel()).reshape(part.weight.shape) % 10 == 0
                )
            else:
                part.weight[0].mul_(30.0)


@pytest.mark.slow
@every_family
def test_edits_act_and_freezing_changes_no_bit(family: str) -> None:
    model = tiny_model(family, seed=6)
    plain = model(IDS[None])
    edits: tuple[AbstractContextManager[None], ...] = (
        hooks.mask_scores(model, lambda query, key: query - key < 3),
        hooks.replace_pattern(model, lambda pattern, layer: pattern.flip(1)),
        hooks.ablate_heads(model, [(0, 1)]),
        hooks.ablate_layers(model, [0], part="mlp"),
        hooks.ablate_layers(model, [0], part="attention"),
    )
    for edit in edits:
        with edit:
            assert not torch.equal(model(IDS[None]), plain)
    with hooks.frozen(model):
        assert torch.equal(model(IDS[None]), plain)
    with (
        hooks.ablate_layers(model, [0, 1], part="both"),
        hooks.capture(model, "embedding", "residual_post") as seen,
    ):
        model(IDS[None])
    assert torch.equal(seen["residual_post"][1], seen["embedding"])


@pytest.mark.slow
@every_family
def test_every_site_runs_and_sublayers_add_up(family: str) -> None:
    """A site that the model is said to have is there in a pass, and the residual stream is the sum
    of its parts.
    """
    model = tiny_model(family, seed=6, dtype=torch.float64)
    with hooks.capture(model, *hooks.available_sites(model)) as seen:
        model(IDS[None])
    assert set(seen) == set(hooks.available_sites(model))
    total = seen["residual_pre"][0] + seen["attention_output"][0] + seen["mlp_output"][0]
    torch.testing.assert_close(total, seen["residual_post"][0])
    rows = seen["pattern"][0].sum(-1)
    if family == "gpt-oss":  # a sink, whose share is 1 / (1 + sum of exp(score - sink))
        sinks = model.blocks[0].attn.original_component.sinks
        share = torch.sigmoid(sinks[:, None] - seen["scores"][0].logsumexp(-1))
        torch.testing.assert_close(rows, 1 - share, rtol=1e-6, atol=1e-6)
    else:
        torch.testing.assert_close(rows, torch.ones(1, 4, 8, dtype=torch.float64))
    # Each head's own output: what attention adds without its bias (a post-norm mixes them).
    if "post_norm1_scale" not in set(seen):
        bias = getattr(model.blocks[0].attn.o, "bias", None)
        heads = seen["head_output"][0].sum(2) + (0.0 if bias is None else bias)
        torch.testing.assert_close(heads, seen["attention_output"][0])


@pytest.mark.slow
@described
def test_the_certified_chain_falls_to_the_measured_norm(family: str) -> None:
    """Random and adversarial: large and small gains, near-one-hot attention, repeated tokens,
    sparse and one-sided weights.
    """
    # One model takes a second: each hard thing once. More of them, drawn, of five families:
    # paths/test_certified.py.
    cases = [
        (0, 0.3, 50.0, "sparse"),
        (1, 8.0, 1.0, "one-sided"),
    ]
    for seed, scale, sharp, how in cases:
        model = chain.filled(family, seed, scale, sharp)
        spoiled(model, how)
        prompt = ost.Prompt.from_ids(model, [2, 40, 50, 60, 60, 61])
        exact = chain.measured(model, prompt)
        bounds = chain.bounds(model, prompt, chain.FROZEN)
        product = chain.bounds(model, prompt, ("local",), mlp_norm="product")
        chain.falls([product["local"], *(bounds[name] for name in chain.FROZEN), exact])
        assert bounds["windowed(4)"] == pytest.approx(exact, rel=1e-9, abs=1e-11 * exact.max())


@pytest.mark.slow
@pytest.mark.parametrize("family", [*PARALLEL, "olmo2", "olmo3"])
def test_the_papers_forms_refuse_blocks_that_are_not_theirs(family: str) -> None:
    model = tiny_model(family, seed=7, dtype=torch.float64, n_layers=1)
    with pytest.raises(
        ost.InputError,
        match=r"'proof': expected the paper's block.*found another one",
    ):
        ost.bounds(model, ost.Prompt.from_ids(model, IDS.tolist()), variants="proof")


@pytest.mark.parametrize("length", [4, 5, 6])
def test_a_window_that_starts_to_slide(length: int) -> None:
    """Window 5 and a token less, as many, and one more: the derivative is autograd's, the distance
    that of two passes.
    """
    model = tiny_model("gemma3", seed=4, dtype=torch.float64, window=5, n_layers=2)
    ids = IDS[:length]
    found = ost.sensitivity(
        model, ost.Prompt.from_ids(model, ids.tolist()), linearisations=["full"]
    )
    with true_arithmetic(model):
        expected = torch.linalg.matrix_norm(
            ost.measure.jacobian(model, model.input_to_embed(ids[None])[0][0]), ord=2
        )
    assert found.frame["operator_norm"].to_numpy() == pytest.approx(expected.numpy(), rel=1e-9)
    pairs = ost.collapse(
        model,
        ost.tasks.RepeatedIds(ids[:-1].tolist(), int(ids[-1])),
        lengths=[1],
        dtypes=["float64"],
    )
    rows: Any = pairs.frame.query("site == 'y' and norm == 'l2' and per == 'vector'")
    longer = torch.cat([ids, ids[-1:]])
    with torch.no_grad(), hooks.capture(model, "final_norm") as seen:
        model(ids[None])
        y = seen["final_norm"][0, -1].clone()
        model(longer[None])
        y_more = seen["final_norm"][0, -1]
    assert rows["mean"].tolist() == pytest.approx(
        [float((y - y_more).norm())], rel=1e-6
    )  # norms round to float32
