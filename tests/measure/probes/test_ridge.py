"""Probes on planted representations: what is there is found, what is not stays at chance, and
nothing leaks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground.errors import InputError
from ostools.measure.probes.ridge import PENALTIES, fitted
from ostools.measure.probes.scores import (
    BETWEEN,
    BEYOND,
    SAME,
    TESTS,
    Labelled,
    Place,
    rows_of,
    said_by_probes,
    splits,
    steps_of,
)
from ostools.results import Frame
from ostools.theory.statistics.intervals import bootstrap_share, wilson

HERE = Place(2, "residual", 1)


def asked(
    target: str = "number", lengths: int = 9, seeds: int = 12, classes: int = 41, drawn: bool = True
) -> Labelled:
    """Every length with every seed; labels that no length and no seed tells."""
    n = [length for length in range(1, lengths + 1) for _ in range(seeds if drawn else 1)]
    seed = [seed for _ in range(lengths) for seed in range(seeds if drawn else 1)]
    labels = np.random.default_rng(3).integers(classes, size=len(n)).tolist()
    return Labelled.of(n, seed, seed if drawn else n, labels, target, drawn)


def probed(
    given: Labelled,
    rows: Float[Tensor, "prompt d"],
    controls: tuple[str, ...] = ("none", "shuffled"),
) -> Frame:
    """One row a test and control, by their names."""
    said = said_by_probes(given, {HERE: rows}, controls).assign(dtype="float32")
    return rows_of(said).set_index(["test", "control"])


def noise(given: Labelled, d: int, seed: int = 0) -> Float[Tensor, "prompt d"]:
    return torch.randn(len(given.labels), d, generator=torch.Generator().manual_seed(seed)).double()


@pytest.mark.parametrize(("target", "classes"), [("number", 41), ("token", 4)])
def test_a_planted_code_is_read_whole(target: str, classes: int) -> None:
    given = asked(target, classes=classes)
    labels = torch.from_numpy(given.labels)
    code = (
        labels[:, None].double()
        if target == "number"
        else torch.nn.functional.one_hot(labels).double()
    )
    rows = torch.cat([noise(given, 3), code], dim=1)
    found = probed(given, rows)
    for test in TESTS:
        here = found.loc[(test, "none")]
        assert here["accuracy"] == 1
        assert here["finding"] == "decodable"
        assert here["high"] == 1
        missed = 1 - wilson(float(here["groups"]), float(here["groups"])).low
        assert here["low"] == pytest.approx(
            1 - missed * np.sqrt(1 + here["tested"] / here["trained"])
        )
        assert found.loc[(test, "shuffled")]["finding"].startswith("not linearly decodable from")


@pytest.mark.slow
def test_noise_is_called_probe_less_often_than_the_intervals_say() -> None:
    """Folds train on each other's prompts: widened for that, an interval held chance in 96% of 250
    such trials; not widened in 88%."""
    given, covered, said = asked("token", lengths=5, seeds=15, classes=4), [], 0
    given = replace(given, splits=[split for split in given.splits if split.test == SAME])
    for seed in range(50):
        labels = np.random.default_rng(seed).integers(4, size=len(given.labels))
        found = probed(replace(given, labels=labels), noise(given, 2, seed)).loc[(SAME, "none")]
        covered.append(found["low"] <= 0.25 <= found["high"])
        said += found["finding"] == "decodable"
    assert np.mean(covered) >= 0.9
    assert said <= 2


def test_the_interval_of_a_share_covers_it_where_groups_differ() -> None:
    """Each group has a share of its own, drawn around 0.4: an interval over prompts as if
    independent would be too narrow.
    """
    draw, covered = np.random.default_rng(0), []
    for _ in range(300):
        shares = draw.beta(2, 3, size=15)
        right = torch.tensor(draw.binomial(20, shares), dtype=torch.float64)
        found = bootstrap_share(right, torch.full((15,), 20.0, dtype=torch.float64))
        covered.append(bool(found.low <= 0.4 <= found.high))
    assert 0.91 <= np.mean(covered) <= 0.99


def test_an_interval_of_equal_shares_is_wilsons() -> None:
    eight = torch.full((8,), 5.0, dtype=torch.float64)
    assert bootstrap_share(eight, eight) == pytest.approx((wilson(8, 8).low, 1.0))
    assert bootstrap_share(0 * eight, eight) == pytest.approx((0.0, wilson(0, 8).high))
    assert bootstrap_share(-eight, eight) == pytest.approx((-1.0, 2 * wilson(0, 8).high - 1))
    with pytest.raises(InputError, match="at least 3 groups with members, found 2"):
        bootstrap_share(eight[:2], eight[:2])


def test_a_code_that_another_direction_takes_over_beyond_is_interpolated_and_not_extrapolated() -> (
    None
):
    """In the upper third of the lengths the number stands in a direction that no shorter prompt
    moved.
    """
    given = asked()
    upper = torch.from_numpy(given.lengths > 6)
    code = torch.from_numpy(given.labels).double()
    found = probed(given, torch.stack([code * ~upper, code * upper], dim=1))
    assert [found.loc[(test, "none")]["accuracy"] for test in (SAME, BETWEEN)] == [1, 1]
    assert found.loc[(BEYOND, "none")]["accuracy"] < 0.2


@pytest.mark.parametrize("target", ["number", "token"])
def test_who_the_sequence_is_says_nothing_of_another_sequence(target: str) -> None:
    """A representation that is the sequence's identity, and labels that each sequence has for
    itself.
    """
    given = asked(target, classes=4)
    of_seed = np.random.default_rng(5).integers(4, size=12)
    given = replace(given, labels=of_seed[given.seeds])
    rows = torch.nn.functional.one_hot(torch.from_numpy(given.seeds)).double()
    said: Any = said_by_probes(given, {HERE: rows}, ("none",))
    for test, here in said.groupby("test"):
        # No probe has seen a prompt's sequence: of one probe all such prompts look the same.
        assert here.groupby(here["seed"] % 3)["said"].agg(np.ptp).max() < 1e-9, test
    alone = np.random.default_rng(0).permutation(
        108
    )  # each prompt a group of its own: sequences on both sides
    leaking = replace(given, groups=alone, splits=splits(given.lengths, alone, True))
    assert probed(leaking, rows).loc[(SAME, "none")]["accuracy"] == 1


def test_no_group_is_on_both_sides_and_no_length_where_it_must_not() -> None:
    given = asked()
    for split in given.splits:
        assert not set(given.groups[split.train]) & set(given.groups[split.held_out])
        trained, held = set(given.lengths[split.train]), set(given.lengths[split.held_out])
        assert held <= trained if split.test == SAME else not held & trained
        assert split.test != BEYOND or max(trained) < min(held)
        assert split.test != BETWEEN or min(trained) < min(held) <= max(held) < max(trained)
    tested = np.concatenate([split.held_out for split in given.splits if split.test == SAME])
    assert sorted(tested) == list(range(len(given.labels)))
    # One sequence a length has no test on the same lengths.
    given = asked(lengths=12, drawn=False)
    assert {split.test for split in given.splits} == {BETWEEN, BEYOND}
    between = np.concatenate([split.held_out for split in given.splits if split.test == BETWEEN])
    assert sorted(given.lengths[between]) == list(range(2, 12))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lengths": 4}, r"at least 5 lengths, .* found 4; for example"),
        ({"seeds": 5}, "at least 6 seeds, each a sequence of its own, found 5"),
        (
            {"lengths": 5, "drawn": False},
            r"at least 6 lengths, .* for example lengths=range\(1, 33\)",
        ),
    ],
)
def test_too_few_lengths_or_sequences_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        asked(**options)


def test_rounding_that_destroys_the_code_destroys_what_is_decoded() -> None:
    """1,000.5 is a number of float32; of bfloat16 the next behind 1,000 is 1,004."""
    given = asked(classes=4)
    rows = 1000 + torch.from_numpy(given.labels).float()[:, None].repeat(1, 3) / 2
    assert probed(given, rows).loc[(SAME, "none")]["accuracy"] == 1
    rounded = probed(given, rows.bfloat16()).loc[(SAME, "none")]
    assert rounded["finding"].startswith("not linearly decodable")


def test_ridge_is_the_closed_form_in_any_basis() -> None:
    given = asked()
    rows = noise(given, 5).numpy() + 7
    probe = fitted("number", rows, given.labels, given.groups)
    assert probe.penalty in PENALTIES
    centred = rows - rows.mean(0)
    size, n = np.sqrt((centred**2).sum(1).mean()), len(rows)
    x, y = centred / size, given.labels - given.labels.mean()
    w = np.linalg.solve(x.T @ x + probe.penalty * n * np.eye(5), x.T @ y)
    expected = x @ w + given.labels.mean()
    np.testing.assert_allclose(probe.predict(rows), expected, rtol=0, atol=1e-9)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(200, 200)))[0][
        :5
    ]  # into more dimensions than prompts
    turned = fitted("number", rows @ turn, given.labels, given.groups)
    np.testing.assert_allclose(turned.predict(rows @ turn), expected, rtol=0, atol=1e-8)


def test_a_constant_has_no_code_whatever_its_rounding() -> None:
    given = asked("token", classes=4)
    rows = torch.full((len(given.labels), 4), 0.1).double() * (1 + 1e-16 * noise(given, 4))
    probe = fitted("token", rows.numpy(), given.labels, given.groups)
    assert not probe.weights.any()


def test_steps_are_the_differences_of_what_stands_beside() -> None:
    given = asked()
    code = torch.from_numpy(given.labels)[:, None].double()
    order = (("embedding", 0), ("residual_mid", 0), ("residual", 1), ("y", 1))
    places = [Place(depth, site, layer) for depth, (site, layer) in enumerate(order)]
    found = dict(zip(places, (0 * code, code, 0 * code, code), strict=True))
    steps = steps_of(said_by_probes(given, found, ("none",)).assign(dtype="float32"))
    here = steps[steps["test"] == SAME]
    assert here["sublayer"].tolist() == ["attention", "mlp", "final norm"]
    assert here["behind"].tolist()[::2] == [1, 1]
    assert here["step"].tolist() == pytest.approx((here["behind"] - here["before"]).tolist())
    assert here["block"].tolist()[:2] == [0, 0]
