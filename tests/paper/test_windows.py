"""The study of window sizes: its numbers against a loop, what is inactive, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools.ground.errors import InputError
from ostools.measure.answers.evaluate import evaluate
from ostools.measure.collapse.collapse import collapse
from ostools.mitigations.passes import SlidingWindow
from ostools.paper.windows import summarise
from ostools.tasks import AppendixTask
from tests.checkpoints import tiny_model

TASK = AppendixTask("copy-last")
SMALL: dict[str, Any] = {
    "d_model": 16,
    "n_heads": 2,
    "n_key_value_heads": 1,
    "d_mlp": 16,
    "context": 512,
}


@pytest.fixture(scope="module")
def model() -> TransformerBridge:
    return tiny_model("llama", seed=1, **SMALL)


def test_a_model_with_a_chat_template_is_asked_in_it(model: TransformerBridge) -> None:
    found = ost.paper.windows(model, TASK, lengths=[3], windows=[20])
    assert found.provenance.parameters["windows"] == [20]
    assert found.provenance.parameters["chat"] is True


@pytest.mark.slow
def test_every_number_is_that_of_its_own_measurement(model: TransformerBridge) -> None:
    found = ost.paper.windows(
        model, TASK, lengths=[3, 6], windows=[400, 20], layers=[1], sinks=1, chat=False
    )
    frame: Any = found.frame
    assert frame["window"].drop_duplicates().tolist() == [pd.NA, 20, 400]
    for size, mitigation in ((None, None), (20, SlidingWindow(20, layers=(1,), sinks=1))):
        rows = frame[frame["window"].isna() if size is None else frame["window"] == size].set_index(
            "length"
        )
        said = evaluate(
            model, TASK, lengths=[3, 6], mitigation=mitigation, elicitation="zero-shot"
        ).frame
        np.testing.assert_allclose(rows["log_probability"], said["log_probability"], rtol=1e-5)
        pairs: Any = collapse(
            model, TASK, lengths=[3, 6], dtypes=["float64"], mitigation=mitigation, chat=False
        ).reference
        np.testing.assert_allclose(
            rows["distance"], pairs[pairs["site"] == "y"]["distance"], rtol=1e-9
        )
    status = frame.groupby("window", dropna=False)["status"].unique()
    assert [list(each) for each in status] == [["active"], ["inactive"], ["none"]]
    # What changed nothing is where the model without a window is, and stands or falls with it.
    summary: Any = found.summary.set_index("window")
    columns = ["accuracy", "log_probability", "distance"]
    without: Any = summary[summary.index.isna()][columns].iloc[0].astype(float)
    np.testing.assert_allclose(summary.loc[400, columns].astype(float), without, rtol=1e-6)


def made(points: list[tuple[float, float]], **columns: Any) -> Any:
    """A window for each distance and share that is right."""
    distances, right = zip(*points, strict=True)
    table = {
        "window": range(2, 2 + len(points)),
        "length": 1,
        "seed": 0,
        "status": "active",
        "correct": right,
    }
    table |= {
        "distance": distances,
        "rounding": 1e-9,
        "log_probability": -1.0,
        "within_training": True,
    }
    return pd.DataFrame(table).assign(**columns)


def test_a_distance_of_0_counts_as_its_rounding() -> None:
    summary = summarise(made([(1.0, 0.0), (0.0, 1.0)]))
    assert summary["distance"].tolist() == pytest.approx([1.0, 1e-9])
    assert summary["floored"].tolist() == [0, 1]


def test_lengths_beyond_training_are_left_out() -> None:
    beyond = made([(100.0, 1.0)], length=99, within_training=False)
    both = pd.concat([made([(1.0, 0.0)]), beyond])
    assert summarise(both)[["questions", "accuracy", "distance"]].to_numpy().tolist() == [
        [1, 0.0, 1.0]
    ]
    assert summarise(beyond)["accuracy"].tolist() == [1.0]
    unknown = summarise(both.assign(within_training=pd.NA))
    assert unknown[["questions", "accuracy"]].to_numpy().tolist() == [[2, 0.5]]


def test_a_distance_that_was_refused_ends_the_study_with_the_reason(
    model: TransformerBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any, mitigation: Any, **__: Any) -> Any:
        if mitigation is not None:
            raise InputError("collapse: expected numbers, found none")
        return collapse(*_, mitigation=mitigation, **__)

    monkeypatch.setattr(ost, "collapse", refuses, raising=False)
    with pytest.raises(InputError, match="collapse: expected numbers, found none"):
        ost.paper.windows(model, TASK, lengths=[2], windows=[3], chat=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"windows": [0, 3]}, "windows: expected whole numbers of at least 1, found 0"),
        ({"windows": []}, "windows: expected whole numbers of at least 1, found none"),
        ({"seeds": [1]}, "copy-last draws nothing at random"),
    ],
)
def test_refusals_come_before_any_measurement(
    model: TransformerBridge, arguments: dict[str, Any], message: str
) -> None:
    told: list[int] = []
    given = {"task": TASK, "windows": [3], "lengths": [2], "chat": False} | arguments
    with pytest.raises(InputError, match=message):
        ost.paper.windows(model, progress=lambda done, total: told.append(done), **given)
    assert told == []
