"""The total variation of B.3's proof: Hugging Face's own attention, closed forms, Pinsker, and the proof's
inequality.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import ostools as ost
from ostools import hooks, tasks
from ostools.measure.collapse.variation import AttentionVariation, attention_variation
from ostools.theory.distances import proof_variation
from tests.checkpoints import TEXT_FAMILIES, Family, make_model, tiny_model
from tests.measure.collapse.test_collapse import select
from tests.sets import quick

LENGTHS = (1, 2, 3, 7, 12)
ROTARY: tuple[Family, ...] = ("gemma", "gemma2", "gemma3", "llama")


def by_hand(alpha: list[float], alpha_star: list[float]) -> tuple[float, float, float]:
    """delta, own and KL as one reads them off the proof."""
    n = len(alpha)
    delta = sum(abs(alpha[i] - alpha_star[i]) for i in range(n - 1)) + abs(
        alpha[n - 1] - alpha_star[n - 1]
    )
    kl = sum(
        a * (math.inf if b == 0 else math.log(a / b))
        for a, b in zip(alpha, alpha_star, strict=False)
        if a > 0
    )
    return delta, alpha_star[n], kl


def row(found: AttentionVariation, **wanted: Any) -> dict[str, Any]:
    (only,) = select(found.frame, **wanted).to_dict("records")
    return only


@pytest.mark.parametrize("task", quick(["figure-5a", "figure-5b", "figure-5d"], "figure-5b"))
@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_against_hugging_faces_own_attention(family: Family, task: str) -> None:
    """Each prompt alone, eager; Gemma 2 and 3 slide, so that KL is infinite where the window moved
    on.
    """
    model, theirs = tiny_model(family, seed=1), make_model(family, seed=1)
    found = attention_variation(model, task, lengths=LENGTHS, seeds=[0])
    heads = 4 * 2
    assert len(found.frame) == len(LENGTHS) * heads
    infinite = 0
    for length in LENGTHS:
        given: Any = tasks.task(task, tasks.CollapseTask)
        ids = tuple(ost.encode(model, given.text(length)).ids.tolist())
        alpha, alpha_star = (
            torch.stack(theirs(torch.tensor([x]), output_attentions=True).attentions)[
                :, 0, :, -1
            ].double()
            for x in (ids, (*ids, ids[-1]))
        )
        for layer in range(2):
            for head in range(4):
                expected = by_hand(alpha[layer, head].tolist(), alpha_star[layer, head].tolist())
                ours = row(found, length=length, layer=layer, head=head)
                assert ours["tokens"] == len(ids)
                assert [ours["delta"], ours["own"], ours["kl"]] == pytest.approx(
                    expected, rel=2e-4, abs=2e-6
                )
                assert ours["total"] == ours["delta"] + ours["own"]
                infinite += math.isinf(ours["kl"])
    assert (infinite > 0) == (family in ("gemma2", "gemma3"))


ROWS = arrays(np.float64, st.integers(1, 12), elements=st.floats(0.0, 1.0)).filter(
    lambda x: x.sum() > 0.01
)


@pytest.mark.parametrize("scale", quick([1.0, 4.0], 4.0))
@pytest.mark.parametrize("family", quick(ROTARY, "gemma3", "llama"))
def test_the_proofs_inequality_on_the_first_attention_output(family: Family, scale: float) -> None:
    """||z_n - z*_(n+1)||_1 <= (delta + own) max_i ||value_i||_1 per head at layer 0.

    Keys are turned with the position and change the weights; values are not, and the repeated token
    has the value of the last one. The paper takes values of unit norm.
    """
    model = tiny_model(family, seed=3, scale=scale, dtype=torch.float64)
    found = attention_variation(model, "figure-5a", lengths=LENGTHS)
    for length in LENGTHS:
        ids = ost.encode(model, tasks.figure_5a().text(length)).ids
        kept = []
        for tokens in (ids, torch.cat([ids, ids[-1:]])):
            with (
                torch.no_grad(),
                hooks.exact_arithmetic(model),
                hooks.capture(model, "z", "value", layers=[0]) as record,
            ):
                model(tokens[None])
            kept.append((record["z"][0][0, -1], record["value"][0][0]))
        (z, _), (z_star, values) = kept
        torch.testing.assert_close(values[-1], values[-2], rtol=1e-12, atol=1e-12)
        groups = len(z) // values.shape[1]
        largest = values.abs().sum(-1).amax(0).repeat_interleave(groups)
        apart = (z - z_star).abs().sum(-1)
        assert bool((apart > 0).any())
        for head in range(len(z)):
            bound = row(found, length=length, layer=0, head=head)["total"] * float(largest[head])
            assert float(apart[head]) <= bound * (1 + 1e-9)


@pytest.mark.parametrize(
    ("task", "seeds", "words"),
    [
        (
            "copy-last",
            [0],
            r"copy-last: expected pairs of which v\* is v with its last token once more",
        ),
        ("figure-5a", [0, 1], "figure-5a draws nothing at random"),
    ],
)
def test_pairs_of_another_kind_and_seeds_of_nothing_are_refused(
    task: str, seeds: list[int], words: str
) -> None:
    with pytest.raises(ost.InputError, match=words):
        ost.measure.attention_variation(tiny_model("llama"), task, lengths=[1, 2], seeds=seeds)


@given(ROWS, st.floats(0.0, 0.999), st.integers(0, 2**16))
def test_the_pure_function_on_any_two_rows(values: np.ndarray, own: float, seed: int) -> None:
    """Against the sums as they are printed; delta + own is the L1 distance; Pinsker."""
    alpha = values / values.sum()
    other = np.random.default_rng(seed).dirichlet(np.ones(len(alpha))) * (1 - own)
    star = [*other.tolist(), 1.0 - float(other.sum())]
    rows = (
        torch.tensor([*alpha.tolist(), 0.0], dtype=torch.float64),
        torch.tensor(star, dtype=torch.float64),
    )
    found = [float(x) for x in proof_variation(*rows, torch.tensor(len(alpha)))]
    assert found == pytest.approx(by_hand(alpha.tolist(), star), rel=1e-9, abs=1e-12)
    delta, weight, kl = found
    assert delta + weight == pytest.approx(float((rows[0] - rows[1]).abs().sum()), abs=1e-12)
    assert delta + weight <= math.sqrt(2 * kl) + 1e-9


def without_positions() -> Any:
    model: Any = tiny_model("gpt2", seed=1, fresh=True)
    model.original_model.transformer.wpe.weight.zero_()
    return model


def test_without_positions_copies_and_nothing_else_have_a_closed_form() -> None:
    """Every token is the same at every layer: alpha = 1/n against 1/(n+1), so delta = own =
    1/(n+1), KL = log((n+1)/n).
    """
    found = attention_variation(
        without_positions(), ost.tasks.RepeatTask("ones", "1", "1"), lengths=range(1, 20)
    ).frame
    n = found["tokens"].to_numpy(dtype=float)
    expected = [1 / (n + 1), 1 / (n + 1), 2 / (n + 1), np.log1p(1 / n)]
    np.testing.assert_allclose(found[["delta", "own", "total", "kl"]].T, expected, rtol=1e-9)
