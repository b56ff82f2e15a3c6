"""Many prompts in one call: every one as it is alone, in its place, checked; and what is refused."""

from __future__ import annotations

import random
from typing import Any

import pandas as pd
import pytest
import torch

import ostools as ost
from ostools.measure.jacobian import certificate, memory, prompt_batches
from ostools.measure.jacobian.linearised import Linearised
from ostools.measure.passes.contexts import true_arithmetic
from ostools.models import Prompt
from ostools.models.shape import Shape
from tests.checkpoints import TWO_FAMILIES, Family, tiny_model

two_families = pytest.mark.parametrize("family", TWO_FAMILIES)


def prompts_of(model: Any, lengths: tuple[int, ...], seed: int = 0) -> list[Prompt]:
    source = random.Random(seed)
    return [Prompt.from_ids(model, [source.randrange(20, 80) for _ in range(length)]) for length in lengths]


def runs(result: Any) -> Any:
    return result.provenance.parameters["runs"]


def assert_same(found: ost.Sensitivity, alone: ost.Sensitivity, rel: float) -> None:
    assert found.provenance.token_ids == alone.provenance.token_ids
    pd.testing.assert_frame_equal(found.frame, alone.frame, rtol=rel, atol=0)


@pytest.mark.parametrize(
    ("family", "method", "dtype", "rel"),
    [
        pytest.param("gemma3", "exact", torch.float32, 1e-6, marks=pytest.mark.slow),
        ("gpt2", "exact", torch.float32, 1e-6),
        ("gpt2", "sketch", torch.float64, 1e-12),
    ],
)
def test_every_prompt_has_the_numbers_that_it_has_alone(
    family: Family, method: str, dtype: torch.dtype, rel: float
) -> None:
    """Lengths in disorder; equal prompts; prompts of one token; one whose length nobody shares."""
    model = tiny_model(family, seed=3, dtype=dtype)
    prompts = prompts_of(model, (5, 1, 7, 5))
    prompts += [prompts[0], prompts[1]]
    settings: Any = {"linearisations": ["full", "frozen-norm"], "layers": [0, 1], "method": method}
    found = ost.sensitivity(model, prompts, **settings)
    assert [runs(each)["full"]["prompts_together"] for each in found] == [3, 2, 1, 3, 3, 2]
    for prompt, result in zip(prompts, found, strict=True):
        assert_same(result, ost.sensitivity(model, prompt, **settings), rel)


def test_one_prompt_of_a_batch_is_moved_and_the_others_say_that_they_were_not() -> None:
    model = tiny_model("gemma3", seed=3, dtype=torch.float64)
    found = ost.sensitivity(model, prompts_of(model, (5, 3, 5, 3, 5)))
    assert [("certificate" in runs(each)["full"]) for each in found] == [True, True, False, False, False]
    for number, certified in ((2, 1), (3, 2), (4, 1)):
        for run in runs(found[number]).values():
            assert "certificate" not in run
            assert run["shared_certificate"]["prompt"] == certified
            assert run["shared_certificate"]["against_autograd"] < 1e-12


def test_where_finite_differences_say_nothing_every_prompt_has_its_own_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate, "_INFORMATIVE", 0.0)
    model = tiny_model("llama", seed=8, scale=10.0)
    steep = Prompt.from_ids(model, [2, 40, 50, 60, 60, 61, 70, 71])
    for each in ost.sensitivity(model, [steep, steep], linearisations=["full"]):
        assert runs(each)["full"]["certificate"]["against_autograd"] < 1e-2


def test_under_an_edit_every_prompt_has_its_own_passes() -> None:
    """An edit may think of one prompt; and only finite differences say what one does that autograd differentiates."""
    model = tiny_model("llama", seed=3, dtype=torch.float64)
    prompts = prompts_of(model, (5, 5))
    point = model.hook_dict["blocks.0.hook_mlp_out"]
    point.add_hook(lambda tensor, hook: 1.3 * tensor)
    found = ost.sensitivity(model, prompts)
    alone = [ost.sensitivity(model, prompt) for prompt in prompts]
    point.remove_hooks()
    for result, expected in zip(found, alone, strict=True):
        assert_same(result, expected, 1e-12)
        assert runs(result)["full"]["prompts_together"] == 1
        assert runs(result)["full"]["certificate"]["informative"]


@pytest.mark.slow
def test_a_wrong_derivative_of_one_prompt_of_a_batch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One percent too much at a single token of the third prompt; finite differences are taken of the first."""
    model = tiny_model("gemma", seed=3, dtype=torch.float64)
    prompts = prompts_of(model, (5, 5, 5))
    linearised = prompt_batches.LinearisationRun._by_formulas

    def planted(self: Any, way: Any) -> Any:
        route: Any = linearised(self, way)
        if torch.equal(self.start.ids, prompts[2].ids) and (
            batch_alone is False or self.start.read.calls[0].args[0].shape[0] > 1
        ):
            pull, factor = route.pull, torch.ones(5, 1, dtype=torch.float64)
            factor[token] = 1.01
            route.pull = lambda *asked: pull(*asked) * factor
        return route

    monkeypatch.setattr(prompt_batches.LinearisationRun, "_by_formulas", planted)
    token, batch_alone = 1, True
    expected = ost.sensitivity(model, prompts[2], linearisations=["full"])
    found = ost.sensitivity(model, prompts, linearisations=["full"])
    # The batch is given up, and what each prompt is measured by alone is right.
    assert all("certificate" in runs(each)["full"] for each in found)
    assert_same(found[2], expected, 1e-12)
    token, batch_alone = 4, False
    with pytest.raises(ost.InputError, match=r"^prompt 3 of 3 .*failed its check"):
        ost.sensitivity(model, prompts, linearisations=["full"])


@two_families
def test_a_cores_product_is_the_mlps(family: Family) -> None:
    model = tiny_model(family, seed=3, dtype=torch.float64)
    (prompt,) = prompts_of(model, (6,))
    with true_arithmetic(model):
        plain = Linearised(model, prompt.ids, "full")
        cored = Linearised(model, prompt.ids, "full", cores={})
    rows = torch.randn(3, plain.norm.factor.shape[-1], dtype=torch.float64)
    torch.testing.assert_close(cored.pull(rows), plain.pull(rows), rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_a_batch_is_split_where_the_memory_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gemma", seed=3)
    prompts, shape = prompts_of(model, (6,) * 5), Shape.of(model)
    one = memory.plan(shape, 6, 1, live=True, max_memory=1 << 40).peak
    whole = ost.sensitivity(model, prompts, max_memory=1 << 30)
    assert {runs(each)["full"]["prompts_together"] for each in whole} == {5}
    halved = ost.sensitivity(model, prompts, max_memory=one + shape.site_bytes(6))
    assert [runs(each)["full"]["prompts_together"] for each in halved] == [2, 2, 2, 2, 1]
    alone = ost.sensitivity(model, prompts, max_memory=one)
    assert {runs(each)["full"]["prompts_together"] for each in alone} == {1}
    for result, expected in zip(halved, whole, strict=True):
        assert_same(result, expected, 1e-6)


def test_progress_rises_to_the_whole_and_a_length_is_announced_once() -> None:
    model = tiny_model("gemma", seed=3)
    told: list[tuple[int, int]] = []
    said: list[str] = []
    ost.sensitivity(
        model,
        prompts_of(model, (4, 4, 2)),
        progress=lambda done, total: told.append((done, total)),
        announce=said.append,
    )
    assert told == sorted(told)
    assert told[-1] == (100, 100)
    assert len(said) == 4


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        ([], "found an empty list"),
        (["ab", ""], "prompt 2 of 2: expected a prompt, found empty text"),
    ],
)
def test_what_is_no_list_of_prompts_is_refused(prompts: Any, words: str) -> None:
    with pytest.raises(ost.InputError, match=words):
        ost.sensitivity(tiny_model("gemma"), prompts)
