"""Figures 8 and 9 against a loop that builds every sequence anew, and what their commands print and
refuse.
"""

import json
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import ostools as ost
from ostools.paper.charts.curves import law_words
from ostools.paper.synthetic import decay_fits, spread_lengths
from ostools.theory.positions import sinusoidal
from tests.reporting.made import rows_of

LENGTHS = [1, 2, 7, 30]
D, HEADS = 64, 8


def drawn_again(seed: int) -> tuple[Any, torch.Tensor, torch.Tensor, torch.Generator]:
    """Figure 8's weights in its order: W_Q, W_K, W_V, W_O; W_1; W_2; then the tokens."""
    generator = torch.Generator().manual_seed(seed)
    square, up, down = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) / fan_in**0.5
        for shape, fan_in in (((4, D, D), D), ((D, 4 * D), D), ((4 * D, D), 4 * D))
    )
    return square, up, down, generator


def require_row(
    row: Any, y: torch.Tensor, y_star: torch.Tensor, alpha: torch.Tensor, alpha_star: torch.Tensor
) -> None:
    """`alpha`, `alpha_star`: [head, key] of the last query."""
    assert row["l1"] == pytest.approx(float((y - y_star).abs().sum()), rel=1e-9)
    assert row["linf"] == pytest.approx(float((y - y_star).abs().amax()), rel=1e-9)
    assert row["relative"] == pytest.approx(float((y - y_star).norm() / y.norm()), rel=1e-9)
    shift = (alpha - alpha_star[:, :-1]).abs().sum(-1) + alpha_star[:, -1]
    assert row["total_variation"] == pytest.approx(float(shift.mean()), rel=1e-9)


def test_figure_8_of_gaussian_weights_is_pytorchs_own_layer_run_twice() -> None:
    """torch.nn.TransformerEncoderLayer with a causal mask, over n tokens and over n + 1 with the
    last copied.
    """
    frame: Any = ost.paper.figure_8(LENGTHS, [3]).frame
    found = frame[frame["reading"] == "weights"].set_index("length")
    (W_Q, W_K, W_V, W_O), W_1, W_2, generator = drawn_again(3)
    tokens, p = torch.randn(32, D, generator=generator, dtype=torch.float64), sinusoidal(31, D)
    layer = torch.nn.TransformerEncoderLayer(
        D,
        HEADS,
        4 * D,
        dropout=0.0,
        batch_first=True,
        bias=False,
        dtype=torch.float64,
    )
    weights = {
        "self_attn.in_proj_weight": torch.cat([W_Q, W_K, W_V], 1).T,
        "self_attn.out_proj.weight": W_O.T,
    }
    weights |= {"linear1.weight": W_1.T, "linear2.weight": W_2.T}
    layer.load_state_dict(weights, strict=False)

    def last(places: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        x = (tokens[places] + p[: len(places)])[None]
        mask = torch.nn.Transformer.generate_square_subsequent_mask(
            len(places), dtype=torch.float64
        )
        _, alpha = layer.self_attn(x, x, x, attn_mask=mask, average_attn_weights=False)
        return layer(x, src_mask=mask)[0, -1], alpha[0, :, -1]

    with torch.no_grad():
        for n in LENGTHS:
            y, alpha = last(list(range(n)))
            y_star, alpha_star = last([*range(n), n - 1])
            require_row(found.loc[n], y, y_star, alpha, alpha_star)


def test_figure_8_of_gaussian_vectors_is_section_2s_formula_run_twice() -> None:
    """z_i = sum_j alpha_ij norm(v_j) + v_i with v drawn, head by head and key by key."""
    frame: Any = ost.paper.figure_8(LENGTHS, [3]).frame
    found = frame[frame["reading"] == "vectors"].set_index("length")
    _, W_1, W_2, generator = drawn_again(3)
    q, k, v = (torch.randn(32, 3 * D, generator=generator, dtype=torch.float64) / D**0.5).chunk(
        3, -1
    )
    p = sinusoidal(31, D)

    def norm(x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean()) / (x.var(unbiased=False) + 1e-5).sqrt()

    def mlp(x: torch.Tensor) -> torch.Tensor:
        return (x @ W_1).clamp_min(0) @ W_2

    def last(places: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        query = q[places[-1]] + p[len(places) - 1]
        attended, patterns = [], []
        for head in range(HEADS):
            part = slice(head * D // HEADS, (head + 1) * D // HEADS)
            scores = [
                (query[part] @ (k[j] + p[i])[part]) / (D // HEADS) ** 0.5
                for i, j in enumerate(places)
            ]
            alpha = torch.stack(scores).softmax(0)
            values = [v[j][part] for j in places]
            attended.append(sum(a * value for a, value in zip(alpha, values, strict=True)))
            patterns.append(alpha)
        z = norm(v[places[-1]] + torch.cat(attended))
        return norm(z + mlp(z)), torch.stack(patterns)

    for n in LENGTHS[1:]:  # of one token the distance is rounding
        y, alpha = last(list(range(n)))
        y_star, alpha_star = last([*range(n), n - 1])
        require_row(found.loc[n], y, y_star, alpha, alpha_star)
    assert float(found.loc[1, "relative"]) <= float(found.loc[1, "rounding"])


def test_what_positions_are_added_to_decides_whether_figure_8_converges() -> None:
    """C.3: "the convergence still occurs". It does where they stay out of the stream; added to it
    they keep tokens apart.
    """
    found = ost.paper.figure_8(spread_lengths(16, 1024, 25), range(3))
    fits: Any = found.fits.set_index(["reading", "quantity"])
    assert fits.loc[("vectors", "l1"), "verdict"] == "power"
    words = law_words(fits.loc[("weights", "l1")].to_dict())
    assert words.startswith(("decay not shown", "no convergence"))
    mean: Any = found.frame.groupby(["reading", "length"])["relative"].mean()
    assert mean["vectors", 1024] < 0.2 * mean["vectors", 16]
    assert mean["weights", 1024] > 0.8 * mean["weights", 16]


def test_figure_9_is_two_softmaxes_a_length() -> None:
    found: Any = ost.paper.figure_9([1, 150, 200, 500], [4]).frame.set_index("length")
    generator = torch.Generator().manual_seed(4)
    added = 0.1 * torch.rand(200, generator=generator, dtype=torch.float64)
    x = torch.rand(500, generator=generator, dtype=torch.float64)
    for n, row in found.iterrows():
        x_star = x[:n].clone()
        x_star[:200] += added[:n]
        delta = float((x[:n].softmax(0) - x_star.softmax(0)).abs().sum())
        assert row["delta"] == pytest.approx(delta, abs=1e-14)
        assert row["delta"] <= row["bound"]


def test_the_interval_over_seeds_is_of_the_law_of_each_seed() -> None:
    n = np.arange(10, 60)
    noise = np.random.default_rng(1).normal(
        0, 0.02, len(n)
    )  # the same for every seed: moves all rates alike
    rates = (0.9, 1.0, 1.1)
    frame = pd.concat(
        [
            pd.DataFrame({"length": n, "seed": i, "d": np.exp(noise) / n**k})
            for i, k in enumerate(rates)
        ]
    )
    (fit,) = decay_fits(frame, ["d"], 10).to_dict("records")
    assert fit["law"] == "power"
    # Student: t of 2 degrees of freedom at 97.5% is 4.302653, the standard error 0.1 / sqrt 3.
    assert fit["seeds_high"] - fit["seeds_low"] == pytest.approx(2 * 0.248414, abs=1e-5)
    slope = np.polyfit(np.log(n), noise, 1)[0]
    assert (fit["seeds_high"] + fit["seeds_low"]) / 2 == pytest.approx(1.0 - slope, abs=1e-9)
    assert (
        fit["high"] - fit["low"] < 0.1
    )  # the mean curve is nearly a power law: its interval knows nothing of seeds
    assert "along the mean curve" in law_words(fit)
    assert " over seeds" in law_words(fit)
    zero, bent = (
        frame.assign(d=frame["d"].where(frame["seed"] > 0, 0.0)),
        frame.assign(d=frame["d"] + 0.1),
    )
    for table in (
        frame[frame["seed"] == 1],
        zero,
        bent,
    ):  # one seed; a law of two seeds alone; a level
        (without,) = decay_fits(table, ["d"], 10).to_dict("records")
        assert np.isnan(without["seeds_low"])
        assert "over seeds" not in law_words(without)
    assert without["law"] == "power to a level"


# --- charts


def test_the_papers_settings_are_the_defaults() -> None:
    eight, nine = ost.paper.figure_8([2, 3], [0]), ost.paper.figure_9([2, 300], [0])
    set_to: Any = eight.provenance.parameters
    assert (set_to["d"], set_to["n_heads"]) == (64, 8)
    assert (nine.provenance.parameters["noisy"], nine.provenance.parameters["noise"]) == (200, 0.1)
    every: Any = ost.paper.figure_8([2, 3]).frame
    assert every["seed"].nunique() == 5
    scales = re.findall(r'"scale": ({[^{}]*})', json.dumps(eight.plot().to_dict()))
    assert sum('"type": "log"' in scale for scale in scales) >= 6  # both axes of three panels


def test_figure_9_has_five_seeds_and_bars_from_least_to_greatest() -> None:
    nine = ost.paper.figure_9([300, 1000, 3000])
    frame: Any = nine.frame
    assert frame["seed"].nunique() == 5
    rows = {row["length"]: row for row in rows_of(nine.plot(), "low") if row["kind"] == "measured"}
    for length, here in frame.groupby("length"):
        row = rows[length]
        assert [row["low"], row["high"]] == pytest.approx(
            [here["delta"].min(), here["delta"].max()], rel=1e-5
        )
