"""Collapse under a mitigation: the pairs that a model is asked, the hooks in every precision, and
the law of windows.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools import hooks
from ostools.measure.collapse.result import exact_from
from ostools.mitigations import (
    Hint,
    Interleave,
    Mitigation,
    MitigationError,
    Separator,
    compose,
    running,
)
from ostools.mitigations.passes import AttentionTemperature, SlidingWindow
from tests.checkpoints import Family, tiny_model
from tests.measure.collapse.test_collapse import select
from tests.sets import quick

LENGTHS = (1, 4, 9)
COPY = ost.tasks.AppendixTask("copy-last")


def y_distances(frame: pd.DataFrame, dtype: str) -> dict[int, float]:
    rows: Any = select(frame, site="y", per="vector", norm="l2", dtype=dtype)
    return dict(zip(rows["length"], rows["mean"], strict=True))


def y_of(
    model: TransformerBridge, mitigation: Mitigation | None, length: int, chat: bool = False
) -> torch.Tensor:
    """One question in one pass: what a reader's own loop would do."""
    posed = ost.measure.render_prompt(model, COPY, length, mitigation=mitigation, chat=chat)
    with torch.no_grad(), running(model, mitigation), hooks.capture(model, "final_norm") as record:
        model(posed.prompt.ids[None])
    return record["final_norm"][0, -1].double()


@pytest.mark.parametrize(
    ("family", "mitigation"),
    quick(
        [
            ("gemma3", None),
            ("gemma3", compose(Interleave(), Hint())),
            ("llama", SlidingWindow(4, layers=(1,))),
            ("gpt2", AttentionTemperature(factor=1.7)),
            ("gemma3", compose(Separator(), SlidingWindow(5))),
        ],
        ("llama", SlidingWindow(4, layers=(1,))),
    ),
)
def test_every_precision_equals_the_readers_own_loop(
    family: Family, mitigation: Mitigation | None
) -> None:
    model = tiny_model(family, seed=1, window=200, context=512)
    found = ost.collapse(
        model,
        COPY,
        lengths=LENGTHS,
        dtypes=["float32", "bfloat16"],
        mitigation=mitigation,
        chat=False,
        position="prompt-end",
    )
    for dtype, kind, rounding in (
        ("float32", torch.float32, 2e-5),
        ("bfloat16", torch.bfloat16, 3e-2),
    ):
        copy = ost.models.view_in(model, kind)
        measured = y_distances(found.frame, dtype)
        for n in LENGTHS:
            v, v_star = y_of(copy, mitigation, n), y_of(copy, mitigation, n + 1)
            assert abs(measured[n] - float((v - v_star).norm())) <= rounding * float(v.norm()), (
                dtype,
                n,
            )
    assert set(found.frame["pair"]) == {"task"}
    pass_only = isinstance(mitigation, SlidingWindow | AttentionTemperature)
    assert not pass_only or found.provenance.parameters["route"] == "loop"


@pytest.mark.parametrize(
    ("family", "window"),
    quick([("gemma", 4), ("llama", 1), ("llama", 3)], ("llama", 1), ("llama", 3)),
)
def test_windows_make_collapse_exact(family: Family, window: int) -> None:
    """Section 4: a window w on each of L layers, relative positions, no sink: distance 0 from L (w
    - 1) + 1 copies on.
    """
    model = tiny_model(family, seed=3, n_layers=3)
    task = ost.tasks.RepeatTask("repeated", "Some words before it", "q")
    found = ost.collapse(
        model, task, lengths=range(1, 13), dtypes=["float64"], mitigation=SlidingWindow(window)
    )
    for site in ("residual", "y"):
        assert exact_from(found.reference_curve("theorem", site)) == 3 * (window - 1) + 1
    # A sink keeps the first token in sight, the same from everywhere but further away each time.
    sink = ost.collapse(
        model,
        task,
        lengths=range(1, 13),
        dtypes=["float64"],
        mitigation=SlidingWindow(window, sinks=1),
    )
    assert exact_from(sink.reference_curve("theorem")) is None
    if window > 1:
        some = ost.collapse(
            model,
            task,
            lengths=range(1, 13),
            dtypes=["float64"],
            mitigation=SlidingWindow(window, "alternate"),
        )
        assert exact_from(some.reference_curve("theorem")) is None


@dataclass(frozen=True)
class Broken(Mitigation):
    """Promises what it does not keep, where patterns are in 16 bits."""

    def hooks(self, model: TransformerBridge) -> AbstractContextManager[None]:
        return hooks.mask_scores(model, lambda query, key: query - key < 3)

    def verify(self, record: Mapping[str, Any]) -> None:
        if next(iter(record["pattern"].values())).dtype == torch.bfloat16:
            raise MitigationError("Broken: its invariant does not hold")


@dataclass(frozen=True)
class Louder(Mitigation):
    """Changes what collapse computes by itself when the pass is over."""

    @contextmanager
    def hooks(self, model: TransformerBridge) -> Iterator[None]:
        unembed: torch.nn.Module = model.unembed
        handle = unembed.register_forward_hook(lambda module, given, logits: logits.mul(1.001))
        try:
            yield
        finally:
            handle.remove()


def test_a_broken_invariant_stops_the_run_in_any_precision() -> None:
    model = tiny_model("llama", seed=1, context=512)
    ost.collapse(model, COPY, lengths=[4], dtypes=["float32"], mitigation=Broken())
    with pytest.raises(MitigationError, match="its invariant does not hold"):
        ost.collapse(
            model, COPY, lengths=[4], dtypes=["float32", "bfloat16-eager"], mitigation=Broken()
        )
    assert hooks.active_edits(model) == ()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"task": None},
            ost.InputError,
            "expected a task, such as 'figure-5a', or prompt=, .* neither",
        ),
        ({"prompt": "a"}, ost.InputError, "found both"),
        ({"lengths": []}, ost.InputError, "whole numbers of at least 1, found none"),
        (
            {"dtypes": ["bfloat61"]},
            ost.InputError,
            "unknown dtype 'bfloat61': did you mean 'bfloat16'",
        ),
        (
            {"task": "figure-5e"},
            ost.InputError,
            "unknown task 'figure-5e': did you mean 'figure-5",
        ),
        (
            {"task": "figure-5a", "seeds": [0, 1]},
            ost.InputError,
            "figure-5a draws nothing at random",
        ),
        ({"layers": [3]}, ost.InputError, r"0\.\.2, found \[3\]"),
        (
            {"task": "letters", "mitigation": compose(SlidingWindow(3), Hint())},
            ost.InputError,
            "letters ends in what is repeated, and sliding-window:window=3 . hint rewrites prompts: give a task such as",
        ),
        (
            {"task": "copy:uniform=true", "chat": False, "position": "prompt-end"},
            ost.InputError,
            r"copy at 'prompt-end': expected the prompts of 1 and 2 items to end in the same token, found '\d' and '\d'",
        ),
        (
            {"chat": True, "bos": False},
            ost.InputError,
            "bos: expected plain text, found a chat, whose template writes",
        ),
        (
            {"mitigation": SlidingWindow(3, layers=(7,))},
            MitigationError,
            "layers out of 0..1, found",
        ),
        (
            {"mitigation": Louder()},
            ost.InputError,
            "or the mitigation, does something that collapse does not know",
        ),
        (
            {"lengths": [10**9], "mitigation": Hint()},
            ost.InputError,
            "does not fit the model's context of 256 tokens",
        ),
    ],
)
def test_refusals(arguments: dict[str, Any], error: type[ValueError], message: str) -> None:
    model = tiny_model("llama")
    arguments = {"task": "copy-last", "lengths": [1, 2], "dtypes": ["float32"]} | arguments
    with pytest.raises(error, match=message) as caught:
        ost.collapse(model, arguments.pop("task"), **arguments)
    assert "\n" not in str(caught.value)
