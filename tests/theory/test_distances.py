"""Laws of the distances, the spacing of numbers against torch's own, and ranges of hidden lengths
on made curves.
"""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ostools.ground.errors import InputError
from ostools.theory.distances import (
    DTYPES,
    IN_A_ROW,
    distance,
    head_chunks,
    hidden_ranges,
    proof_variation,
    spacing,
    steps_between,
    total_variation,
    vector_norm,
)

P_NORMS = ("l1", "l2", "linf")


def test_distances_by_hand() -> None:
    x, y = torch.tensor([1.0, 2.0, -2.0]), torch.tensor([1.0, -1.0, 2.0])
    assert [float(distance(x, y, norm)) for norm in P_NORMS] == [7.0, 5.0, 4.0]


@pytest.mark.parametrize("name", ["float32", "float64"])
@given(value=st.floats(1e-300, 1e30))
def test_the_spacing_is_the_step_to_the_next_number(name: str, value: float) -> None:
    dtype = DTYPES[name]
    here = torch.tensor(value, dtype=torch.float64).to(dtype)
    following = torch.nextafter(here, torch.tensor(math.inf, dtype=dtype))
    assert float(spacing(here, dtype)) == float(following.double() - here.double())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_spacing_of_every_16_bit_number(dtype: torch.dtype) -> None:
    """All of them: neighbours are neighbouring bit patterns."""
    last = torch.tensor(torch.finfo(dtype).max, dtype=dtype).view(torch.int16).item()
    numbers = torch.arange(0, int(last) + 1, dtype=torch.int16).view(dtype).double()
    torch.testing.assert_close(
        spacing(numbers[:-1], dtype), numbers[1:] - numbers[:-1], rtol=0.0, atol=0.0
    )


@pytest.mark.parametrize("value", [math.inf, math.nan, 1e5])
def test_what_a_dtype_cannot_hold_has_no_spacing(value: float) -> None:
    with pytest.raises(InputError, match=r"expected finite magnitudes up to 6\.55e\+04"):
        spacing(torch.tensor([value]), torch.float16)


@pytest.mark.parametrize("norm", P_NORMS)
def test_vectors_one_step_apart_are_at_the_machine_line(norm: str) -> None:
    y = torch.tensor([1.0, -3.0, 100.0, 0.25], dtype=torch.bfloat16)
    y_star = torch.tensor([1.0078125, -2.984375, 100.5, 0.251953125], dtype=torch.bfloat16)
    assert steps_between(y, y_star, torch.bfloat16).tolist() == [2.0**-7, 2.0**-6, 0.5, 2.0**-9]
    ulps = distance(y.double(), y_star.double(), norm) / vector_norm(
        steps_between(y, y_star, torch.bfloat16), norm
    )
    assert float(ulps) == 1.0


def test_total_variation_is_the_l1_norm_without_the_half() -> None:
    p, q = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    assert float(total_variation(p, q)) == 2.0
    x, y = torch.softmax(
        torch.randn(2, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), -1
    )
    torch.testing.assert_close(total_variation(x, y), distance(x, y, "l1"))


def test_head_chunks_are_the_vector_in_order() -> None:
    x = torch.arange(12.0).reshape(2, 6)
    assert head_chunks(x, 3).tolist() == [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10, 11]]]
    assert torch.equal(vector_norm(head_chunks(x, 3), "linf").amax(-1), vector_norm(x, "linf"))
    with pytest.raises(InputError, match="divides d_model = 6, found 4"):
        head_chunks(x, 4)


@pytest.mark.parametrize(
    ("first", "last", "n_max", "apart", "expected"),
    [
        (138, 501, 256, (), [(138, 256, 119, 119, True)]),
        (138, 501, 300, (), [(138, 300, 163, 163, True)]),
        (138, 501, 512, (), [(138, 501, 364, 364, False)]),
        (138, 501, 144, (), []),  # seven in a row at the end
        (138, 501, 145, (), [(138, 145, 8, 8, True)]),
        (138, 501, 512, (200,), [(138, 501, 364, 363, False)]),  # one length apart by chance
        (138, 501, 512, tuple(range(200, 207)), [(138, 501, 364, 357, False)]),
        (
            138,
            501,
            512,
            tuple(range(200, 208)),
            [(138, 199, 62, 62, False), (208, 501, 294, 294, False)],
        ),
        (600, 700, 512, (), []),
    ],
)
def test_where_a_range_begins_and_ends(
    first: int,
    last: int,
    n_max: int,
    apart: tuple[int, ...],
    expected: list[tuple[int, int, int, int, bool]],
) -> None:
    """Eight hidden ones in a row, joined over gaps of fewer than eight."""
    lengths = list(range(1, n_max + 1))
    assert [
        (one.first, one.last, one.lengths_tried, one.hidden, one.open)
        for one in hidden_ranges([first <= n <= last and n not in apart for n in lengths], lengths)
    ] == expected


@given(hidden=st.lists(st.booleans(), max_size=120), step=st.integers(1, 3))
def test_a_range_keeps_its_promise(hidden: list[bool], step: int) -> None:
    """Against the definition, length by length."""
    lengths = [step * (n + 1) for n in range(len(hidden))]
    solid = {
        index
        for start in range(len(hidden) - IN_A_ROW + 1)
        if all(hidden[start : start + IN_A_ROW])
        for index in range(start, start + IN_A_ROW)
    }
    found = hidden_ranges(hidden, lengths)
    places = [(lengths.index(one.first), lengths.index(one.last)) for one in found]
    assert solid <= {index for start, end in places for index in range(start, end + 1)}
    assert all({start, end} <= solid for start, end in places)
    assert all(later[0] - end > IN_A_ROW for (_, end), later in pairwise(places))
    for one, (start, end) in zip(found, places, strict=True):
        inside = hidden[start : end + 1]
        assert (one.lengths_tried, one.hidden, one.open) == (
            len(inside),
            sum(inside),
            end == len(hidden) - 1,
        )
        assert 2 * one.hidden > one.lengths_tried
        gaps = [index for index in range(start, end + 1) if index not in solid]
        assert all(any(near in solid for near in range(gap - IN_A_ROW, gap)) for gap in gaps)


def test_the_proofs_variation_by_hand() -> None:
    """n = 2: rows (1/2, 1/2, 0) and (1/4, 1/8, 5/8). The pair's own weight stands apart, KL is over
    all three tokens.
    """
    alpha, alpha_star = (
        torch.tensor([0.5, 0.5, 0.0]).double(),
        torch.tensor([0.25, 0.125, 0.625]).double(),
    )
    delta, self_weight, divergence = proof_variation(alpha, alpha_star, torch.tensor(2))
    assert (float(delta), float(self_weight)) == (0.625, 0.625)
    assert float(divergence) == pytest.approx(1.5 * math.log(2.0), abs=1e-15)
    assert float(total_variation(alpha, alpha_star)) == float(delta + self_weight)
