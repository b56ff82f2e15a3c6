"""The laboratory: its shortcuts against separate passes, what must be so whatever the weights, and
its refusals.
"""

from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ostools.theory.decoder import Decoder
from studies.laboratory import runs
from studies.laboratory.random_lab import random_lab

pytestmark = pytest.mark.slow


def test_one_pass_for_all_depths_and_lengths_equals_separate_passes() -> None:
    tokens = runs.prompt(3, 5, 9)
    found = runs.collapse_by_depth(runs.random_decoder(3, "rope-100", 4), tokens, 5, [2, 4])
    for depth in (2, 4):
        alone = Decoder.random(3, n_layers=depth, vocabulary=16, positions="rope", rope_base=100.0)
        for n in (1, 4, 8):
            short, long = (alone.forward(tokens[:, : 5 + copies]) for copies in (n, n + 1))
            row, longer = short.patterns[-1][0, :, -1], long.patterns[-1][0, :, -1]
            expected = {
                "distance": (long.y[0, -1] - short.y[0, -1]).norm(),
                "l1": (long.residuals[-1][0, -1] - short.residuals[-1][0, -1]).abs().sum(),
                "total_variation": ((longer[:, :-1] - row).abs().sum(-1) + longer[:, -1]).mean(),
                "shifted_variation": ((longer[:, 1:] - row).abs().sum(-1) + longer[:, 0]).mean(),
            }
            for quantity, value in expected.items():
                torch.testing.assert_close(
                    found[depth][quantity][n - 1], value, rtol=1e-9, atol=1e-12
                )


@pytest.mark.parametrize("name", runs.ENCODINGS)
def test_the_assumption_is_measured_on_the_rows_of_whole_passes(name: str) -> None:
    decoder, tokens = runs.random_decoder(1, name, 1), runs.prompt(1, 41, 0)
    lengths = [4, 20, 40]
    found = runs.assumption(decoder, tokens, lengths)
    for index, n in enumerate(lengths):
        row = decoder.forward(tokens[:, :n]).patterns[0][0, :, -1]
        longer = decoder.forward(torch.cat([tokens[:, :n], tokens[:, n - 1 : n]], dim=1)).patterns[
            0
        ][0, :, -1]
        expected = ((longer[:, :-1] - row).abs().sum(-1) + longer[:, -1]).mean()
        torch.testing.assert_close(found["total_variation"][index], expected, rtol=1e-9, atol=1e-12)
    assert found["score_step"].shape == (2,)


def test_a_scores_step_is_nothing_without_positions_and_the_slope_under_alibi() -> None:
    tokens, lengths = runs.prompt(0, 1025, 0), [16, 256, 1024]
    decoder = runs.random_decoder(0, "none", 1)
    # Two products of the same numbers by kernels of other shapes: 0 up to the rounding of their
    # sums, 3e-16 here.
    none = runs.assumption(decoder, tokens, lengths)["score_step"]
    assert none.max() <= runs.score_rounding(decoder, tokens) < 1e-10
    alibi = runs.assumption(runs.random_decoder(0, "alibi", 1), tokens, lengths)["score_step"]
    slopes = torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256], dtype=torch.float64)
    torch.testing.assert_close(alibi, slopes.square().mean().sqrt().expand(2), rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", ["rope-100", "sinusoidal", "learned"])
def test_what_rope_and_absolute_positions_say_does_not_decay(name: str) -> None:
    steps = [
        runs.assumption(
            runs.random_decoder(seed, name, 1), runs.prompt(seed, 2049, 0), [16, 64, 1024, 2048]
        )
        for seed in range(3)
    ]
    mean = torch.stack([one["score_step"] for one in steps]).mean(0)
    assert 0.5 < float(mean[2] / mean[1]) < 2.0


@pytest.mark.parametrize("name", ["none", "sinusoidal"])
def test_validation_is_the_l1_distance_at_the_last_layer_of_separate_passes(name: str) -> None:
    found = random_lab("validation", encodings=[name], lengths=[2, 20], seeds=[1]).frame
    values: Any = found.set_index(["precision", "quantity", "length"])["value"]
    given, tokens = runs.random_decoder(1, name, 4), runs.prompt(1, 16, 21)
    for precision, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        exact = given.to(dtype).to(torch.float64)
        for n in (2, 20):
            short, long = (
                exact.forward(tokens[:, : 16 + copies]).residuals[-1][0, -1]
                for copies in (n, n + 1)
            )
            assert values[precision, "exact_l1", n] == pytest.approx(
                float((long - short).abs().sum()), rel=1e-9
            )
        # One pass in the precision: a shorter one may round its sums in another order.
        run = given.to(dtype).forward(tokens).residuals[-1][0, 16:].double()
        reference = exact.forward(tokens).residuals[-1][0, 16:]
        for n in (2, 20):
            step, right = run[n] - run[n - 1], reference[n] - reference[n - 1]
            assert values[precision, "l1", n] == float(step.abs().sum())
            noise = float((run[n - 1] - reference[n - 1]).abs().sum())
            assert values[precision, "l1_noise", n] == pytest.approx(noise, rel=1e-6)
            pair = float((step - right).abs().sum())
            assert values[precision, "l1_pair_noise", n] == pytest.approx(pair, rel=1e-6)


@given(below=st.lists(st.booleans(), min_size=1, max_size=120), first=st.integers(1, 40))
def test_the_collapse_length_keeps_its_promise(below: list[bool], first: int) -> None:
    lengths = list(range(first, first + len(below)))
    start = runs.collapse_start(below, lengths)
    later = {n: [b for b, m in zip(below, lengths, strict=True) if m >= n] for n in lengths}
    candidates = [n for n in lengths if all(later[n]) and lengths[-1] >= max(2 * n, n + 32)]
    assert start == (min(candidates) if candidates else None)


@given(st.lists(st.floats(-1e3, 1e3, allow_nan=False), min_size=1, max_size=60))
def test_no_order_of_adding_rounds_more(values: list[float]) -> None:
    exact, size = sum(map(Fraction, values)), sum(map(abs, map(Fraction, values)))
    for order in (values, sorted(values), sorted(values, key=abs), values[::-1]):
        found = 0.0
        for value in order:
            found += value
        assert abs(Fraction(found) - exact) <= Fraction(runs.sum_rounding(len(values))) * size


def test_storing_rounds_that_part_and_no_other() -> None:
    ids, decoder = runs.prompt(9, 29, 1), runs.random_decoder(9, "rope-10000", 2)
    plain = decoder.forward(ids)
    on_grid = {}
    for part in ("weights", "residual", "kv"):
        stored = runs.storing(decoder, **{part: torch.bfloat16}).forward(ids)
        assert stored.y.dtype == torch.float64
        assert 1e-5 < (stored.y - plain.y).norm(dim=-1).mean() < 0.5
        on_grid[part] = [torch.equal(v, v.bfloat16().double()) for v in stored.residuals]
    # With rounded weights the embeddings are rounded, and so is v^(0); with rounded residuals all
    # of them.
    assert on_grid == {
        "weights": [True, False, False],
        "residual": [True, True, True],
        "kv": [False, False, False],
    }
    # Exact: one pass over weights rounded in either way, and one over residuals that rounding
    # leaves as they are.
    rounded = decoder.to(torch.bfloat16).to(torch.float64).forward(ids)
    assert torch.equal(runs.storing(decoder, weights=torch.bfloat16).forward(ids).y, rounded.y)
    assert torch.equal(runs.storing(decoder, residual=torch.float64).forward(ids).y, plain.y)
