"""A list of prompts: one table of what each has alone, and means over relative position by a plain
loop.
"""

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ostools as ost
from ostools.ground import number as in_words
from ostools.theory import profiles
from tests.checkpoints import refused, tiny_model

SMALL: dict[str, Any] = {
    "d_model": 8,
    "n_heads": 2,
    "n_key_value_heads": 1,
    "d_mlp": 8,
    "context": 256,
}
TEXTS = ["the cat", "in the tin a hat", "a tin, and then"]
SIX = [*TEXTS, "a hat in a tin", "then the cat", "the hat"]
KINDS: Any = ["full", "frozen"]


def model_of() -> Any:
    return tiny_model("llama", seed=1, **SMALL)


def by_a_loop(values: np.ndarray, bins: int) -> list[float]:
    """The share of each bin over its even share: every token's share, cut at the borders of the
    bins.
    """
    found = [0.0] * bins
    for token, value in enumerate(values):
        for place in range(bins):
            start, end = (
                max(token / len(values), place / bins),
                min((token + 1) / len(values), (place + 1) / bins),
            )
            found[place] += value / values.sum() * max(0.0, end - start) * len(values) * bins
    return found


def test_norms_of_a_list_are_those_of_each_prompt_in_one_table() -> None:
    model = model_of()
    found = ost.sensitivity(model, TEXTS)
    assert isinstance(found, ost.measure.Sensitivities)
    assert len(found) == 3
    for number, (one, text) in enumerate(zip(found, TEXTS, strict=True), start=1):
        alone = ost.sensitivity(model, text)
        pd.testing.assert_frame_equal(one.frame, alone.frame, check_exact=True)
        assert one.provenance.parameters == alone.provenance.parameters
        assert one.provenance.token_ids == alone.provenance.token_ids
        rows: Any = found.frame[found.frame["prompt"] == number]
        pd.testing.assert_frame_equal(
            rows.drop(columns="prompt").reset_index(drop=True), alone.frame, check_exact=True
        )
        about = found.provenance.parameters["prompts"][str(number)]
        assert about["token_ids"] == alone.provenance.token_ids
        assert about["runs"] == alone.provenance.parameters["runs"]
    assert found.provenance.token_ids is None
    assert found[1].frame is found.results[1].frame


def test_means_over_relative_position_are_those_of_a_plain_loop() -> None:
    found = ost.sensitivity(model_of(), SIX)
    shortest = min(len(one.provenance.token_ids or ()) for one in found)
    for bins in (None, 1, 5):
        table = found.over_position(bins)
        for linearisation, norm in product(KINDS, ("operator", "frobenius")):
            rows: Any = table[(table["source"] == linearisation) & (table["norm"] == norm)]
            each = []
            for one in found:
                own: Any = one.frame[one.frame["linearisation"] == linearisation]
                values = own[f"{norm}_norm"].to_numpy()
                each.append(by_a_loop(values, shortest if bins is None else bins))
            assert rows["mean"].tolist() == pytest.approx(np.mean(each, axis=0).tolist(), rel=1e-12)
            assert rows["mean"].mean() == pytest.approx(1.0, rel=1e-12)
            low, high = profiles.interval_of_mean(np.array(each))
            assert rows["low"].tolist() == pytest.approx(low.tolist(), rel=1e-9)
            assert rows["high"].tolist() == pytest.approx(high.tolist(), rel=1e-9)
            assert set(rows["prompts"]) == {6}
    few = ost.sensitivity(model_of(), SIX[:5])
    assert few.over_position()["low"].isna().all()
    assert "Shade:" in str(found.plot().to_dict())
    assert "Shade:" not in str(few.plot().to_dict())


@pytest.mark.parametrize(
    ("texts", "part"),
    [(["a", "a tin"], "half"), (["the", "a tin"], "third"), (["a tin", "the cat"], "third")],
)
def test_thirds_of_short_prompts_are_thirds(texts: list[str], part: str) -> None:
    """Against a plain loop over the tokens; halves where a prompt has two tokens."""
    found = ost.sensitivity(model_of(), texts, linearisations=["full"])
    parts = {"half": 2, "third": 3}[part]
    shares = [by_a_loop(one.frame["operator_norm"].to_numpy(), parts) for one in found]
    words = ", ".join(map(in_words, np.mean(shares, axis=0)))
    assert found.findings()[0].endswith(f"from the first to the last {part}: {words}.")


def test_what_is_no_list_of_prompts_is_refused_and_the_prompt_that_fails_is_named() -> None:
    model = model_of()
    for wrong, words in (
        ([], "found an empty list"),
        (["a" * 300, "a"], "expected at most 256 tokens"),
    ):
        refused(words, ost.sensitivity, model, wrong)
    found = ost.sensitivity(model, ["a", "the cat in"])
    refused("bins: expected at most 2, the tokens of the shortest, found 3", found.over_position, 3)
    assert found.over_position()["low"].isna().all()  # two prompts show no spread
