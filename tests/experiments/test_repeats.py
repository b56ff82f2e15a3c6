"""Collapse beyond ones on a trained model: the curves are `collapse`'s, the laws those of the fits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ostools import tasks
from ostools.experiments.repeats import repeats
from ostools.ground.errors import InputError
from ostools.measure.collapse.collapse import collapse
from ostools.theory.statistics.fits import fit_decay
from tests.checkpoints import make_model, tiny_model


def test_curves_and_laws() -> None:
    model = tiny_model("llama", seed=1)
    told: list[tuple[int, int]] = []
    found = repeats(
        model, ["letters", tasks.last_token("over the hill")], lengths=range(1, 33), dtypes=["bfloat16"], fitted_from=4,
        progress=lambda done, total: told.append((done, total)),
    )  # fmt: skip
    assert told[0] == (0, 4)
    assert told[-1] == (4, 4)
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


def test_a_tokenizer_without_a_bos_has_the_rows_without_one() -> None:
    found = repeats(tiny_model("gpt2", seed=1), ["letters"], lengths=range(1, 5), dtypes=["float32"])
    assert found.summary["sink"].tolist() == ["absent"]


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "expected at least one prompt, found none"),
        (["count-ones"], "count-ones makes no theorem pairs"),
        (["leters"], "unknown task 'leters': did you mean 'letters'"),
    ],
)
def test_refusals(prompts: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        repeats(tiny_model("llama"), prompts, lengths=[1, 2], dtypes=["float32"])
