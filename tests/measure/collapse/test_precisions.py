"""Collapse with one part stored in few bits, in other tasks, and without the BOS. Every distance of
a pair and every floor, by hand on vectors of small whole numbers: which runs each compares, which
norm it takes, and that what stands for several heads is their mean.
"""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import ostools as ost
from ostools import hooks, tasks
from ostools.measure.collapse import run
from ostools.measure.collapse.distances import norm_columns
from ostools.measure.passes.last_tokens import LastRows
from ostools.measure.passes.precisions import PRECISIONS, Precision
from ostools.models.precision.casting import view_rounded
from ostools.theory.distances import distance
from tests.checkpoints import tiny_model
from tests.measure.collapse.test_collapse import last_token, select
from tests.sets import quick

LENGTHS = (1, 2, 5, 9)


def _at(frame: Any, length: int, **wanted: Any) -> Any:
    (row,) = select(frame, length=length, site="y", per="vector", norm="l2", **wanted).to_dict(
        "records"
    )
    return row


@pytest.mark.parametrize(
    "name",
    quick(
        ["bfloat16-residual", "float8_e4m3fn-kv", "int8-kv", "int4-residual"],
        "int8-kv",
        "bfloat16-residual",
    ),
)
def test_a_stored_part_equals_a_pass_under_the_rounding_hook(name: str) -> None:
    model = tiny_model("gemma2", seed=1)
    found = ost.collapse(model, "figure-5a", lengths=LENGTHS, dtypes=[name])
    longest = tuple(ost.encode(model, tasks.figure_5a().text(9)).ids.tolist())
    longest = (*longest, longest[-1])
    precision = Precision.of_name(name)
    for length in LENGTHS:
        ids = longest[: len(longest) - 10 + length]
        with precision.running(model, longest):
            v, v_star = last_token(model, ids), last_token(model, (*ids, ids[-1]))
        row = _at(found.frame, length)
        size = float(v["y"].norm())
        assert row["mean"] == pytest.approx(
            float(distance(v["y"], v_star["y"], "l2")), abs=2e-4 * size
        )
        assert (row["weights"], row["weight_shift"]) == ("given", 0)
    assert hooks.active_edits(model) == ()


@pytest.mark.parametrize("format", quick(["bfloat16", "int4"], "bfloat16"))
def test_stored_weights_shift_y_but_make_no_noise(format: Any) -> None:
    """The noise is that of running in float32 whatever the weights; the shift is that of the
    weights alone.
    """
    model = tiny_model("llama", seed=2)
    found = ost.collapse(model, "figure-5c", lengths=[6], dtypes=["float32", f"{format}-weights"])
    plain, stored = (
        _at(found.frame, 6, dtype="float32"),
        _at(found.frame, 6, dtype=f"{format}-weights"),
    )
    assert 0 < stored["noise"] < 20 * plain["noise"]
    ids = tuple(ost.encode(model, tasks.figure_5c().text(6)).ids.tolist())
    exact = [
        ost.models.view_in(copy, torch.float64) for copy in (model, view_rounded(model, format))
    ]
    with hooks.exact_arithmetic(exact[0]), hooks.exact_arithmetic(exact[1]):
        before, after = (last_token(one, ids)["y"] for one in exact)
    assert stored["weight_shift"] == pytest.approx(float((before - after).norm()), rel=1e-6)
    assert stored["weight_shift"] > 100 * stored["noise"]
    # The collapse length is read off a curve with the same weights.
    assert stored["float64_distance"] == pytest.approx(stored["mean"], rel=1e-3)
    given = select(found.reference, site="y")["distance"].item()
    assert given == stored["given_distance"] == plain["float64_distance"]
    assert abs(stored["float64_distance"] - given) > 100 * plain["noise"]


def by_site(found: ost.measure.Collapse) -> dict[str, int]:
    table: Any = found.verdicts()
    return dict(zip(table["site"], table["first"], strict=True))


@pytest.mark.slow
def test_the_lengths_that_decide_in_16_bits_are_those_of_passes_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted: the shared pass rounds y otherwise at the last length that is not hidden, which no
    other probe sees.
    """
    model = tiny_model("gemma2", seed=1, window=3, layer_types=["sliding_attention"] * 2)
    lengths = range(1, 48)
    honest = ost.collapse(model, "figure-5a", lengths=lengths, dtypes=["bfloat16"])
    truth = by_site(honest)
    start = truth["y"]
    assert start > 1
    assert set(honest.provenance.parameters["lengths_in_passes_of_their_own"]["bfloat16"]) >= {
        start - 1,
        start,
    }
    shared_pass = run.last_rows

    def planted(view: Any, *given: Any) -> LastRows:
        rows = shared_pass(view, *given)
        if rows.y.dtype == torch.bfloat16:
            rows.y[start - 2] *= 2
        return rows

    monkeypatch.setattr(run, "last_rows", planted)
    found = ost.collapse(model, "figure-5a", lengths=lengths, dtypes=["bfloat16"])
    assert by_site(found) == truth
    parameters = found.provenance.parameters
    assert parameters["difference_at_probed_lengths"]["bfloat16"] == 1.0
    own = parameters["lengths_in_passes_of_their_own"]["bfloat16"]
    assert len(own) < 47
    for length in own:
        here, there = (select(each.frame, length=length) for each in (found, honest))
        pd.testing.assert_frame_equal(here, there, check_exact=True)
    # Without them the planted row hides the pair.
    monkeypatch.setattr(run, "deciding", lambda curves: set())
    spoiled = ost.collapse(model, "figure-5a", lengths=lengths, dtypes=["bfloat16"])
    assert by_site(spoiled)["y"] < start
    assert spoiled.provenance.parameters["difference_at_probed_lengths"]["bfloat16"] == 0.0


@pytest.mark.slow
def test_every_precision_runs_on_every_site_with_numbers() -> None:
    found = ost.collapse(
        tiny_model("gpt2", seed=1), "figure-5d", lengths=[1, 4], dtypes=list(PRECISIONS)
    )
    assert set(found.frame["dtype"]) == set(PRECISIONS)
    assert np.isfinite(found.frame["mean"]).all()
    noise: Any = (
        select(found.frame, site="y", per="vector", norm="l2").groupby("dtype")["noise"].max()
    )
    # What runs in the model's own float32 has no more noise than that; what is rounded while it
    # runs has more.
    rounded = [name for name in PRECISIONS if name.endswith(("-residual", "-once", "-kv"))]
    assert rounded
    assert all(noise[name] > 10 * noise["float32"] for name in rounded)
    assert np.isfinite(select(found.frame, site="y", per="vector", norm="l2")["machine_line"]).all()


# One pair of prompts, two heads, two components. The differences are (3, 4) and (6, 8), so that
# every norm is whole.
V = torch.tensor([[[3.0, 4.0], [6.0, 8.0]]], dtype=torch.float64)
V_STAR = torch.zeros_like(V)
EXACT = V - torch.tensor(
    [[[0.0, 1.0], [0.0, 3.0]]], dtype=torch.float64
)  # the same weights in float64
EXACT_STAR = torch.tensor([[[0.0, 0.0], [2.0, 0.0]]], dtype=torch.float64)
AS_GIVEN = EXACT - torch.tensor(
    [[[2.0, 0.0], [4.0, 0.0]]], dtype=torch.float64
)  # the given weights in float64
STEPS = torch.tensor(
    [[[1.0, 0.0], [2.0, 0.0]]], dtype=torch.float64
)  # a step of the dtype in every component


class StepsByHand(Precision):
    def steps(self, v: Tensor, v_star: Tensor) -> Tensor:
        return STEPS


@pytest.fixture(scope="module")
def columns() -> dict[str, dict[str, float]]:
    precision = StepsByHand("by hand", torch.float32)
    tables = norm_columns(precision, (V, V_STAR), (EXACT, EXACT_STAR), (AS_GIVEN, V_STAR))
    return {
        norm: {name: float(values[0]) for name, values in table.items()} for norm, table in tables
    }


@pytest.mark.parametrize(
    ("norm", "column", "by_hand"),
    [
        ("l2", "mean", (5 + 10) / 2),
        ("l2", "minimum", 5),
        ("l2", "maximum", 10),
        ("l2", "relative", 1),
        ("l2", "ulps", (5 / 1 + 10 / 2) / 2),
        ("l2", "noise", (1 + 3) / 2),
        ("l2", "weight_shift", (2 + 4) / 2),
        ("l2", "machine_line", (1 + 2) / 2),
        # exact - exact* is (3, 3) and (4, 5); the distance less that is (0, 1) and (2, 3).
        ("l2", "float64_distance", (18**0.5 + 41**0.5) / 2),
        ("l2", "pair_noise", (1 + 13**0.5) / 2),
        ("l1", "mean", (7 + 14) / 2),
        ("l1", "pair_noise", (1 + 5) / 2),
        ("l1", "noise", (1 + 3) / 2),
        ("linf", "mean", (4 + 8) / 2),
        ("linf", "pair_noise", (1 + 3) / 2),
        ("linf", "float64_distance", (3 + 5) / 2),
    ],
)
def test_by_hand(
    columns: dict[str, dict[str, float]], norm: str, column: str, by_hand: float
) -> None:
    assert columns[norm][column] == pytest.approx(by_hand, rel=1e-15)


def test_a_pair_of_no_reference_is_its_own_and_what_has_no_length_has_no_share_of_it() -> None:
    pair = V_STAR, V
    tables = norm_columns(Precision.of_name("float64"), pair, pair, pair)
    columns = {name: float(values[0]) for name, values in dict(tables)["l2"].items()}
    assert columns["mean"] == columns["float64_distance"] == columns["given_distance"] == 7.5
    assert columns["weight_shift"] == 0
    assert columns["relative"] != columns["relative"]
    assert not {"noise", "pair_noise"} & {*columns}
