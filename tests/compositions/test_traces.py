"""After any measurement, under any edits, refused or not: the same logits to the bit, and every
setting as it was.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools import hooks
from ostools.results import Result
from tests import traces
from tests.compositions.drawn import (
    LOOKED_FOR,
    REFUSALS,
    Change,
    Weights,
    edited,
    nestings,
    prompts,
    weights,
)

EXAMPLES = 2 if settings().max_examples <= 20 else 25

Measure = Callable[[TransformerBridge, list[int]], Result]


def _sensitivity(model: TransformerBridge, ids: list[int]) -> ost.measure.Sensitivity:
    return ost.sensitivity(
        model, ost.Prompt.from_ids(model, ids), linearisations=["full", "frozen"]
    )


def _bounds(model: TransformerBridge, ids: list[int]) -> Result:
    return ost.bounds(model, ost.Prompt.from_ids(model, ids), variants=["local", "theorem-5.1"])


PROMPTS: dict[str, Measure] = {
    "sensitivity": _sensitivity,
    "estimate": lambda model, ids: ost.sensitivity(
        model, ost.Prompt.from_ids(model, ids), method="estimate", layers="all"
    ),
    "bounds": _bounds,
    "windowed-path-sum": lambda model, ids: ost.bounds(
        model, ost.Prompt.from_ids(model, ids), variants=["windowed(2)", "theorem-5.1"]
    ),
    "attention": lambda model, ids: ost.attention(model, ost.Prompt.from_ids(model, ids)),
    "attribution": lambda model, ids: ost.attribution(model, ost.Prompt.from_ids(model, ids)),
    "head-scores": lambda model, ids: ost.measure.head_scores(
        model, ost.Prompt.from_ids(model, ids)
    ),
    "faithfulness": lambda model, ids: ost.measure.faithfulness(model, _sensitivity(model, ids)),
}
"""What is measured of a prompt; what the caller has put around the model is in force, or refused.
"""

TASKS: dict[str, Measure] = {
    "collapse": lambda model, ids: ost.collapse(
        model, "figure-5a", lengths=[1, len(ids)], dtypes=["bfloat16"], layers="all"
    ),
    "attention-variation": lambda model, ids: ost.measure.attention_variation(
        model, "figure-5b", lengths=[1, len(ids)]
    ),
    "evaluate": lambda model, ids: ost.evaluate(
        model, "copy-last", lengths=[len(ids)], max_new_tokens=2
    ),
}
"""What is measured of a task's prompts."""

EVERY = PROMPTS | TASKS


def _settings() -> dict[str, Any]:
    """What a measurement may need to change, and has to put back."""
    return {
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "products on a GPU": torch.backends.cuda.matmul.fp32_precision,
        "products on a CPU": torch.backends.mkldnn.matmul.fp32_precision,  # pyright: ignore[reportAttributeAccessIssue]
        "torch's random numbers": torch.get_rng_state().numpy().tobytes(),
        "numpy's random numbers": repr(np.random.get_state()),
        "numpy's errors": np.geterr(),
    }


@contextmanager
def nothing_changes(model: TransformerBridge, ids: Tensor) -> Iterator[None]:
    """The logits' bits, the edits in force, the model's books and all settings are the same at the
    end of the block.
    """

    def seen() -> dict[str, Any]:
        logits = model(ids[None])
        books = {
            name: value for name, value in traces._model_state(model).items() if name != "hooks"
        }
        return {"logits": logits, "edits": hooks.active_edits(model), **books, **_settings()}

    before = seen()
    yield
    after = seen()
    assert torch.equal(before.pop("logits"), after.pop("logits"))
    assert [name for name in before if before[name] != after[name]] == []


@settings(LOOKED_FOR, max_examples=EXAMPLES)
@given(
    weights=weights("float64", "float32", "bfloat16"),
    ids=prompts,
    nesting=nestings,
    name=st.sampled_from(list(EVERY)),
)
def test_a_measurement_leaves_nothing_behind(
    weights: Weights, ids: list[int], nesting: tuple[Change, ...], name: str
) -> None:
    model = weights.model()
    tokens = torch.tensor(ids)
    with nothing_changes(model, tokens):
        try:
            with edited(model, tokens, nesting):
                model(tokens[None])
                with nothing_changes(model, tokens):
                    try:
                        EVERY[name](model, ids)
                        event("measured")
                    except REFUSALS:
                        event("refused")
        except REFUSALS as refused:
            event(f"no such edits: {type(refused).__name__}")
