"""Cells that do not fit: seen under real limits, measured in smaller chunks, or recorded while the
others go on.
"""

from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools.ground.memory import is_out_of_memory, smaller_chunks
from ostools.measure.passes import last_tokens
from ostools.sweep.cells import measure
from ostools.sweep.sweep_file import cells_of
from tests.checkpoints import Family, tiny_model

pytestmark = pytest.mark.slow  # peaks, in processes of their own and under limits
KINDS = ["evaluate", "collapse", "sensitivity"]


def test_memory_that_ran_out_is_told_from_what_only_speaks_of_it() -> None:
    lacked = [MemoryError(), torch.OutOfMemoryError("CUDA"), RuntimeError("std::bad_alloc")]
    with pytest.raises(RuntimeError) as huge:
        torch.empty(1 << 60)
    for error in (*lacked, huge.value):
        wrapped = ost.InputError("expected weights that fit")
        wrapped.__cause__ = error
        assert is_out_of_memory(error)
        assert is_out_of_memory(wrapped)
    assert not is_out_of_memory(ost.InputError("found 'out of memory'"))
    assert not is_out_of_memory(RuntimeError("shape"))


@pytest.fixture(scope="module")
def model() -> TransformerBridge:
    return tiny_model("gemma", n_layers=1)


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_decide_no_number(model: TransformerBridge, kind: str) -> None:
    cells = cells_of(
        ost.sweep.sweep_of(
            {
                "tasks": "count-ones",
                "lengths": [3, 4, 9],
                "mitigations": ["none", "sliding-window:window=16,sinks=1"],
                "measurements": kind,
            }
        )
    )
    for cell in cells:
        whole, _ = measure(model, cell)
        with smaller_chunks(1 / 256):
            parts, provenance = measure(model, cell)
        # The noise of a collapse is made of last bits: it moves with whatever is computed beside
        # it, as docs/sweeps.md says.
        moving = [name for name in whole if name == "seconds" or name.endswith("noise")]
        pd.testing.assert_frame_equal(
            parts.drop(columns=moving), whole.drop(columns=moving), rtol=2e-4, atol=1e-5
        )
    if kind == "evaluate":
        assert provenance.parameters["batch_tokens"] == 16


@pytest.mark.parametrize("family", ["gemma3", "gpt2"])
@pytest.mark.parametrize("task", ["figure-5a", "count-ones"])
def test_a_long_prompt_goes_through_in_pieces(family: Family, task: str) -> None:
    """Windows, soft-caps and positions are those of the whole prompt: in float64, to its rounding."""
    model = tiny_model(family, scale=2.0)
    settings: Any = {"lengths": [3, 20, 36], "dtypes": ["float64"]}
    whole = ost.collapse(model, task, **settings)
    with (
        smaller_chunks(1 / 8),
        mock.patch.object(last_tokens, "_pass", wraps=last_tokens._pass) as passes,
    ):
        pieces = ost.collapse(model, task, **settings)
        of_trunk = [call for call in passes.call_args_list if "past_key_values" in call.kwargs]
        widths = [len(call.args[1][0]) for call in of_trunk]
    assert pieces.provenance.parameters["route"] == whole.provenance.parameters["route"] != "loop"
    assert len(widths) >= 8
    if task == "figure-5a":  # the branches of the other go through whole
        assert max(widths) <= max(whole.frame["tokens"]) // 8 + 1
    numbers = ["mean", "minimum", "maximum", "relative"]
    np.testing.assert_allclose(pieces.frame[numbers], whole.frame[numbers], rtol=1e-6, atol=1e-9)
