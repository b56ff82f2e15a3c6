"""Every distance of a pair and every floor, by hand on vectors of small whole numbers: which runs
each compares, which norm it takes, and that what stands for several heads is their mean."""

import pytest
import torch
from torch import Tensor

from ostools.measure.collapse.distances import norm_columns
from ostools.measure.passes.precisions import Precision

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
