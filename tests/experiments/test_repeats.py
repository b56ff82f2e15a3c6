"""Collapse beyond ones on a trained model: the curves are `collapse`'s, the laws those of the fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import hooks
import ostools as ost
from ostools import tasks
from ostools.experiments.repeats import repeats
from ostools.ground.errors import InputError
from ostools.measure.collapse.collapse import collapse
from ostools.theory.statistics.fits import fit_decay
from tests.checkpoints import make_model, tiny_model
from tests.measure.collapse.test_collapse import merging_model


@pytest.mark.slow
def test_curves_and_laws() -> None:
    model = tiny_model("llama", seed=1)
    told: list[tuple[int, int]] = []
    found = repeats(
        model, ["letters", tasks.last_token("over the hill")], lengths=range(1, 33), dtypes=["bfloat16"], fitted_from=4,
        progress=lambda done, total: told.append((done, total)),
    )  # fmt: skip
    assert told[0] == (0, 100)
    assert told[-1] == (100, 100)
    summary: Any = found.summary.set_index(["task", "sink"])
    assert list(summary.index) == [(task, sink) for task in ("letters", "text") for sink in ("present", "absent")]
    alone: Any = collapse(model, "letters", lengths=range(1, 33), dtypes=["bfloat16"], bos=False)
    expected = alone.reference.query("site == 'y' and weights == 'given'")
    curve = found.frame.query("task == 'letters' and sink == 'absent'")
    assert curve["distance"].tolist() == pytest.approx(expected["distance"].tolist())
    law = fit_decay(curve["length"].to_numpy()[3:], curve["distance"].to_numpy()[3:])
    assert summary.loc[("letters", "absent"), "verdict"] == law.verdict
    assert summary.loc[("letters", "present"), "first_token"] == "<bos>"
    assert summary.loc[("letters", "absent"), "first_token"] != "<bos>"


def test_the_share_of_the_first_token_is_that_of_attention() -> None:
    model = tiny_model("gemma", seed=1)
    found = repeats(model, ["letters"], lengths=[1, 2, 3], dtypes=["float32"])
    ids = collapse(model, "letters", lengths=[3], dtypes=["float32"]).provenance.token_ids
    with torch.no_grad():  # Hugging Face alone, no bridge
        out = make_model("gemma", seed=1)(torch.tensor([ids]), output_attentions=True)
    expected = torch.stack([pattern[0, :, -1, 0] for pattern in out.attentions]).mean()
    assert found.summary["first_token_share"].iloc[0] == pytest.approx(float(expected), rel=1e-5)
    assert set(found.summary["verdict"]) == {"too few"}
    assert found.plot().to_dict()


def test_an_item_that_the_tokenizer_merges_is_put_in_by_its_token(tmp_path: Path) -> None:
    """ "11" is one token here: of the name the ones go in by their id; of a task nothing is measured before it is refused."""
    model = merging_model(tmp_path)
    found = repeats(model, ["letters", "figure-5a"], lengths=[1, 2], dtypes=["float32"])
    assert dict(zip(found.summary["task"], found.summary["items"], strict=True)) == {
        "letters": "text",
        "figure-5a": "ids",
    }
    alone = collapse(model, tasks.figure_5a("ids"), lengths=[1, 2], dtypes=["float32"]).reference_curve("theorem")
    ours: Any = found.frame.query("task == 'figure-5a' and sink == 'present'")
    assert ours["distance"].tolist() == alone["distance"].tolist()
    told: list[int] = []
    with pytest.raises(InputError, match=r"this tokenizer merges the repeat; .*'figure-5a:items=ids'"):
        repeats(model, ["letters", tasks.figure_5a()], lengths=[1, 2], progress=lambda done, total: told.append(done))
    assert set(told) <= {0}


@pytest.mark.slow
def test_null_models_stand_beside_with_the_numbers_that_each_has_alone() -> None:
    model = tiny_model("llama", seed=1)
    asked: Any = {"lengths": range(1, 9), "dtypes": ["float32"]}
    found = repeats(model, ["letters"], untrained="initialised", seeds=[0, 3], **asked)
    for source, draw, one in (("model", None, model), ("initialised", 3, ost.untrained_model(model, seed=3))):
        alone = repeats(one, ["letters"], **asked)
        for mine, theirs in ((found.frame, alone.frame), (found.summary, alone.summary)):
            chosen = mine["source"] == source if draw is None else mine["draw"] == draw
            rows: Any = mine[chosen].reset_index(drop=True).drop(columns=["source", "draw"])
            pd.testing.assert_frame_equal(rows, theirs.drop(columns=["source", "draw"]))
    random: Any = found.frame[found.frame["source"] == "initialised"]
    drawn = random["distance"].to_numpy().reshape(2, 2, 8)
    assert found.band["low"].to_numpy() == pytest.approx(drawn.min(0).ravel())
    assert found.band["high"].to_numpy() == pytest.approx(drawn.max(0).ravel())
    assert "shade: their range" in found.plot().to_dict()["title"]["subtitle"][0]


def test_null_models_know_no_edit_and_no_other_kind() -> None:
    model = tiny_model("llama", seed=1)
    with pytest.raises(InputError, match="unknown kind of untrained model 'random'"):
        repeats(model, ["letters"], lengths=[1, 2], untrained="random")
    with hooks.mask_scores(model, lambda query, key: query - key < 3):
        model(torch.tensor([[2, 3, 4]]))
        with pytest.raises(InputError, match="repeats: expected a model without edits, found 'mask_scores'"):
            repeats(model, ["letters"], lengths=[1, 2], untrained="initialised")


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "prompts: expected at least one, found none"),
        (["count-ones"], "count-ones makes no theorem pairs"),
        (["leters"], "unknown task 'leters': did you mean 'letters'"),
    ],
)
def test_refusals(prompts: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        repeats(tiny_model("llama"), prompts, lengths=[1, 2], dtypes=["float32"])
