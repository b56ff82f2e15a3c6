"""The U-shape: the norms are those of the wanted record's own tokens, and an end is above only
where seeds agree.
"""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools.paper.retrieval import _ends, retrieval
from ostools.tasks.retrieve import RetrieveTask
from tests.checkpoints import tiny_model


@pytest.fixture(scope="module")
def model() -> TransformerBridge:
    return tiny_model("gemma2", context=512)


@pytest.mark.slow
def test_rows_are_measured_on_the_wanted_records_own_tokens(model: TransformerBridge) -> None:
    found: Any = retrieval(model, [0, 2], 3, [4], chat=False).frame
    assert list(found["position"]) == [0, 2]
    for row in found.to_dict("records"):
        task = RetrieveTask(position=row["position"])
        prompt = ost.encode(model, task.prompt(3, 4))
        record = task.items(3, 4)[row["position"]]
        # Found on its own: the tokens whose texts, joined, are the record (one token may bring the
        # blank before it).
        texts = [model.tokenizer.decode([index]) for index in prompt.ids.tolist()]  # pyright: ignore[reportOptionalMemberAccess]
        ends = np.cumsum([len(text) if text != "<bos>" else 0 for text in texts])
        start = task.prompt(3, 4).index(record)
        inside = [
            end > start and end - len(text) < start + len(record)
            for end, text in zip(ends, texts, strict=True)
        ]
        profile: Any = (
            ost.sensitivity(model, prompt, linearisations=("full",))
            .frame["operator_norm"]
            .to_numpy()
        )
        text = np.arange(len(profile)) > 0  # all but BOS
        assert row["carriers"] == sum(inside)
        assert row["sensitivity_mean"] == pytest.approx(profile[inside].mean(), rel=1e-6)
        assert row["sensitivity_others"] == pytest.approx(
            profile[~np.array(inside) & text].mean(), rel=1e-6
        )
        assert row["tokens"] == len(prompt.ids)


def test_the_probability_is_of_a_blank_and_the_value_in_quotes(model: TransformerBridge) -> None:
    row = retrieval(model, [1], 2, [0], chat=False).frame.iloc[0]
    prompt = ost.encode(model, RetrieveTask(position=1).prompt(2, 0)).ids.tolist()
    tokenizer: Any = model.tokenizer
    line = tokenizer(f' "{row["key"]}"', add_special_tokens=False)["input_ids"]
    total = 0.0
    for step, token in enumerate(line):
        logits = model(torch.tensor([prompt + line[:step]]))[0, -1].double()
        total += float(torch.log_softmax(logits, -1)[token])
    after = torch.log_softmax(model(torch.tensor([prompt + line]))[0, -1].double(), -1)
    ends = [
        i
        for i in range(len(after))
        if tokenizer.decode([i]).lstrip(" ").startswith(("\n", "<eos>"))
    ]
    total += float(torch.logsumexp(after[ends], 0))
    assert (len(ends), row["log_probability"]) == (2, pytest.approx(total, abs=1e-4))


def made(log_p: np.ndarray, sensitivity_mean: np.ndarray) -> pd.DataFrame:
    """Seeds by positions."""
    seed, place = np.indices(log_p.shape)
    columns = {
        "seed": seed,
        "position": place,
        "log_probability": log_p,
        "sensitivity_mean": sensitivity_mean,
    }
    return pd.DataFrame({name: values.ravel() for name, values in columns.items()})


def test_ends_against_what_is_between_by_hand() -> None:
    log_p = np.array([[-1.0, -3.0, -5.0, -4.0], [-2.0, -3.0, -5.0, -3.0]])
    found: Any = _ends(made(log_p, np.exp(log_p))).set_index(["quantity", "end"])["difference"]
    assert found["log_probability", "first"] == pytest.approx(2.5)
    assert found["log_probability", "last"] == pytest.approx(0.5)
    assert found["log_sensitivity", "first"] == pytest.approx(2.5)
    assert _ends(made(log_p[:, :2], np.exp(log_p[:, :2]))).empty


def test_an_end_is_above_only_where_seeds_agree() -> None:
    rng = np.random.default_rng(0)
    noise = 0.1 * rng.standard_normal((8, 5))
    flat, up = np.zeros((8, 5)), np.zeros((8, 5))
    up[:, 0], up[:, -1] = 1.0, -1.0
    apart = 5 * rng.standard_normal((8, 1))  # seeds differ far more than positions: they are paired
    found: Any = _ends(made(up + noise + apart, np.exp(flat + noise))).set_index(
        ["quantity", "end"]
    )
    assert list(found["verdict"]) == ["above", "below", "undecided", "undecided"]
    assert ((found["low"] <= found["difference"]) & (found["difference"] <= found["high"])).all()
    few: Any = _ends(made((up + noise)[:5], np.exp(flat[:5])))
    assert set(few["verdict"]) == {"too few seeds"}
    assert all(map(math.isnan, few["low"]))


@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_difference_without_a_value_is_not_measured(place: int) -> None:
    """A norm of 0 (out of every window's reach) or no log probability (it thinks first), at an end
    or between, in one seed: which ends have one, whatever the others say.
    """
    log_p, norms = np.full((8, 4), -1.0), np.full((8, 4), 2.0)
    log_p[5, place], norms[5, place] = math.nan, 0.0
    ends: Any = _ends(made(log_p, norms)).set_index("end")
    of_place = {0: ["first"], 1: ["first", "last"], 3: ["last"]}[place]
    unmeasured = ends[ends.index.isin(of_place)]
    assert set(unmeasured["verdict"]) == {"not measured"}
    assert unmeasured[["difference", "low", "high"]].isna().all(axis=None)
    others = ends[~ends.index.isin(of_place)]
    assert (others["verdict"] == "undecided").all()
    assert (others["difference"] == 0).all()
