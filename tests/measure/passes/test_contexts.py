"""Passes whose logits nobody reads make none."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

import ostools as ost
from ostools import hooks
from ostools.measure.passes.contexts import no_logits, run_from
from ostools.models import lazy_cast, load_model
from ostools.models.precision import casting
from tests.checkpoints import EVERY_TEXT_FAMILY, TWO_FAMILIES, Family, tiny_model, write_checkpoint
from tests.families import SLOW

IDS = torch.tensor([[3, 9, 4, 17]])


@pytest.mark.parametrize("family", [family for family in EVERY_TEXT_FAMILY if family not in SLOW])
def test_no_logits_and_the_same_y(family: Family) -> None:
    model = tiny_model(family)
    with torch.no_grad(), hooks.capture(model, "final_norm") as record:
        embedded = model.input_to_embed(IDS)[0]
        run_from(model, embedded)
        y = record["final_norm"]
        logits = run_from(model, embedded, logits_to_keep=no_logits(model))
    assert logits.shape[1] == 0
    assert torch.equal(record["final_norm"], y)


@pytest.mark.parametrize("logit", [None, 7])
@pytest.mark.parametrize("family", TWO_FAMILIES)
def test_a_file_in_bfloat16_has_the_sensitivity_that_it_has_as_float32(
    family: Family, logit: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every matrix is cast in parts, of rows that add up and of columns, at each use."""
    monkeypatch.setattr(casting, "SMALL_WEIGHT", 0)
    monkeypatch.setattr(lazy_cast, "PART", 4 * 100)
    directory = write_checkpoint(tmp_path, family, dtype=torch.bfloat16)
    narrow, wide = (
        ost.sensitivity(
            load_model(directory, dtype=dtype), "abc defg", layers="all", logit=logit
        ).frame
        for dtype in ("bfloat16", "float32")
    )
    # 16 roundings of float32: parts this small add up in another order, of which a CPU without AVX
    # makes 1.1e-6.
    pd.testing.assert_frame_equal(narrow, wide, rtol=16 * torch.finfo(torch.float32).eps, atol=0)


@pytest.mark.parametrize("where", ["hook point", "unembedding", "inner model", "bridge"])
def test_a_hook_that_waits_for_logits_sees_the_last_token(where: str) -> None:
    model, seen = tiny_model("gemma", fresh=True), []

    def look(logits: Tensor, *rest: Any, **more: Any) -> None:
        seen.append(tuple(logits.shape))

    if where == "hook point":
        with torch.no_grad(), model.hooks(fwd_hooks=[("unembed.hook_out", look)]):
            model(IDS, logits_to_keep=no_logits(model))
    else:
        inner = model.original_model
        module = {"unembedding": inner.lm_head, "inner model": inner, "bridge": model}[where]
        handle = module.register_forward_hook(
            lambda module, args, out: look(getattr(out, "logits", out))
        )
        model(IDS, logits_to_keep=no_logits(model))
        handle.remove()
    assert seen == [(1, 1, int(model.cfg.d_vocab))]
