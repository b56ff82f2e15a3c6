"""Studies against the measurements that they are made of: paired question by question, statuses,
refusals, the command.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools import hooks
from ostools.measure.position import read_at
from ostools.measure.study.study import Study
from ostools.mitigations import (
    Hint,
    Mitigation,
    MitigationError,
    Separator,
    compose,
    label,
    running,
)
from ostools.mitigations.passes import SlidingWindow
from tests.checkpoints import CHAT_TEMPLATE, tiny_model

pytestmark = pytest.mark.slow  # a study is some dozens of measurements
TASK = ost.tasks.AppendixTask("copy-last")
SMALL: dict[str, Any] = {
    "d_model": 16,
    "n_heads": 2,
    "n_key_value_heads": 1,
    "d_mlp": 16,
    "context": 768,
}
WIDE = SlidingWindow(700)


@pytest.fixture(scope="module")
def model() -> TransformerBridge:
    return tiny_model("llama", seed=1, **SMALL)


@pytest.fixture(scope="module")
def found(model: TransformerBridge) -> Study:
    mitigations = [Separator(every=3), SlidingWindow(40, sinks=1), WIDE]
    how: dict[str, Any] = {"dtypes": ["bfloat16"], "chat": False, "sensitivity_lengths": 1}
    return ost.study(model, TASK, mitigations=mitigations, lengths=[2, 3, 7], **how)


def rows(found: Study, mitigation: str, quantity: str, dtype: str | None = None) -> Any:
    frame: Any = found.frame
    chosen = frame[(frame["mitigation"] == mitigation) & (frame["quantity"] == quantity)]
    return chosen[chosen["dtype"] == dtype if dtype else chosen["dtype"].isna()].set_index("length")


@pytest.mark.parametrize("name", ["separator", "sliding-window:window=40,sinks=1"])
def test_every_number_is_that_of_its_own_measurement(
    model: TransformerBridge, found: Study, name: str
) -> None:
    mitigation = Separator() if name == "separator" else SlidingWindow(40, sinks=1)
    lengths = [2, 3, 7]
    for column, given in (("value", mitigation), ("baseline", None)):
        said = ost.evaluate(
            model, TASK, lengths=lengths, mitigation=given, elicitation="zero-shot"
        ).frame
        for quantity in ("log_probability", "correct"):
            np.testing.assert_allclose(
                rows(found, name, quantity)[column], said[quantity].astype(float), rtol=1e-5
            )
        pairs: Any = ost.collapse(
            model, TASK, lengths=lengths, dtypes=["bfloat16"], mitigation=given, chat=False
        ).reference
        exact = pairs[pairs["site"] == "y"]["distance"]
        np.testing.assert_allclose(
            rows(found, name, "collapse_distance", "float64")[column], exact, rtol=1e-9
        )
        posed = ost.measure.render_prompt(model, TASK, 7, mitigation=given, chat=False)
        at = list(ost.measure.carrier_positions(model, posed))
        with running(model, given):
            norms: Any = ost.sensitivity(
                model, read_at(model, posed).prompt(model), linearisations="full", method="exact"
            ).frame["operator_norm"]
        assert rows(found, name, "sensitivity")[column][7] == pytest.approx(
            norms[at].mean(), rel=1e-6
        )
    assert set(rows(found, name, "sensitivity")["kind"]) == {"measured"}


@pytest.mark.parametrize("position", ["answer", "prompt-end", "last-item"])
def test_distances_are_of_the_position_and_the_study_says_which(
    model: TransformerBridge, position: str
) -> None:
    asked: dict[str, Any] = {"lengths": [2, 3], "chat": False, "position": position}
    found = ost.study(model, TASK, mitigations=[WIDE], dtypes=(), measures=["collapse"], **asked)
    pairs: Any = ost.collapse(model, TASK, dtypes=["float64"], **asked).reference
    expected = pairs[pairs["site"] == "y"]["distance"].to_numpy()
    baseline = rows(found, label(WIDE), "collapse_distance", "float64")["baseline"]
    np.testing.assert_allclose(baseline, expected, rtol=1e-9)
    assert found.provenance.parameters["read_at"]["position"] == position
    assert any(sentence.startswith("y is that of the") for sentence in found.findings())


@pytest.mark.parametrize("elicitation", ["chat", "zero-shot", "few-shot"])
def test_all_measures_ask_one_question_in_the_template_or_not(elicitation: Any) -> None:
    chat_model = tiny_model("llama", seed=1, fresh=True, **SMALL)
    tokenizer: Any = chat_model.tokenizer
    tokenizer.chat_template = CHAT_TEMPLATE
    is_chat = elicitation == "chat"
    asked: dict[str, Any] = {"mitigations": [WIDE], "lengths": [2, 7], "sensitivity_lengths": 1}
    found = ost.study(chat_model, TASK, dtypes=(), elicitation=elicitation, **asked)
    pairs = ost.collapse(chat_model, TASK, lengths=[2, 7], dtypes=["float64"], chat=is_chat)
    expected = pairs.summary["distance"].to_numpy()
    baseline = rows(found, label(WIDE), "collapse_distance", "float64")["baseline"]
    np.testing.assert_allclose(baseline, expected, rtol=1e-9)
    posed = ost.measure.render_prompt(chat_model, TASK, 7, chat=is_chat)
    prompt = read_at(chat_model, posed).prompt(chat_model)
    norms: Any = ost.sensitivity(chat_model, prompt, linearisations="full").frame["operator_norm"]
    at = list(ost.measure.carrier_positions(chat_model, posed))
    close = rows(found, label(WIDE), "sensitivity")["baseline"][7]
    assert close == pytest.approx(norms[at].mean(), rel=1e-6)
    assert found.provenance.parameters["chat"] is is_chat


def test_what_changed_nothing_is_inactive(found: Study) -> None:
    separator = rows(found, "separator", "correct")["status"].to_dict()
    assert separator == {2: "inactive", 3: "inactive", 7: "active"}
    # The pair of 3 and 4 items has a comma in its second question.
    pair = rows(found, "separator", "collapse_distance", "float64")["status"].to_dict()
    assert pair == {2: "inactive", 3: "active", 7: "active"}
    frame: Any = found.frame
    assert set(frame[frame["mitigation"] == "sliding-window:window=700"]["status"]) == {"inactive"}
    said = found.verdicts.set_index("mitigation")
    assert set(said.loc["sliding-window:window=700", ["answers", "collapse", "sensitivity"]]) == {
        "inactive"
    }


@pytest.mark.parametrize(("position", "is_active"), [("answer", True), ("last-item", False)])
def test_what_acts_is_tried_on_the_tokens_that_are_read(
    model: TransformerBridge, position: Any, is_active: bool
) -> None:
    """A window narrower than the prompt with its begun answer line, or than what follows the
    last item, is wider than the rest."""
    posed = ost.measure.render_prompt(model, TASK, 7, chat=False)
    last = max(len(posed.prompt.ids), len(read_at(model, posed, position).ids))
    asked: dict[str, Any] = {"lengths": [7], "chat": False, "sensitivity_lengths": 1}
    asked |= {"measures": ["collapse", "sensitivity"], "dtypes": (), "position": position}
    found = ost.study(model, TASK, mitigations=[SlidingWindow(last - 1)], **asked)
    assert set(found.frame["status"]) == {"active" if is_active else "inactive"}


@dataclass(frozen=True)
class InSixteenBits(Mitigation):
    def hooks(self, model: Any) -> Any:
        is_narrow = next(model.parameters()).dtype == torch.bfloat16
        return hooks.scale_scores(model, 2.0) if is_narrow else nullcontext()


def test_what_acts_in_16_bits_only_is_refused_where_a_quantity_is_measured_in_float32() -> None:
    half = tiny_model("llama", seed=1, dtype=torch.bfloat16, **SMALL)
    both = compose(Separator(every=2), InSixteenBits())
    result = ost.study(
        half,
        TASK,
        mitigations=[InSixteenBits(), both],
        lengths=[4],
        dtypes=["bfloat16"],
        sensitivity_lengths=1,
    )
    for name in (label(InSixteenBits()), label(both)):
        for quantity, dtype in (("collapse_distance", "float64"), ("sensitivity", None)):
            found = rows(result, name, quantity, dtype)
            assert set(found["status"]) == {"refused"}, (name, quantity)
            assert found["value"].isna().all()
            assert set(found["reason"]) == {
                f"{label(InSixteenBits())} changes nothing in {dtype or 'float32'}"
            }
        assert set(rows(result, name, "collapse_distance", "bfloat16")["status"]) == {"active"}
        assert set(rows(result, name, "correct")["status"]) == {"active"}


@dataclass(frozen=True)
class LouderInSixteenBits(Mitigation):
    """Scales the scores, and in bfloat16 the logits too, which `collapse` refuses."""

    @contextmanager
    def hooks(self, model: Any) -> Iterator[None]:
        louder = model.unembed.register_forward_hook(lambda module, given, logits: 1.3 * logits)
        if next(model.parameters()).dtype != torch.bfloat16:
            louder.remove()
        try:
            with hooks.scale_scores(model, 1.5):
                yield
        finally:
            louder.remove()


def test_what_is_refused_in_one_dtype_leaves_the_others_their_numbers(
    model: TransformerBridge,
) -> None:
    asked: dict[str, Any] = {"lengths": [2, 3], "measures": ["collapse"], "chat": False}
    one_by_one = ["float32", "bfloat16", "bfloat16-kv"]
    found = ost.study(model, TASK, mitigations=[LouderInSixteenBits()], dtypes=one_by_one, **asked)
    scaled = ost.study(
        model, TASK, mitigations=["attention-temperature:factor=1.5"], dtypes=one_by_one, **asked
    )
    frame: Any = found.frame.set_index(["dtype", "length"]).sort_index()
    expected: Any = scaled.frame.set_index(["dtype", "length"]).sort_index()
    assert frame.index.equals(expected.index)
    is_refused = frame.index.get_level_values("dtype") == "bfloat16"
    assert set(frame[is_refused]["status"]) == {"refused"}
    np.testing.assert_allclose(frame["value"], expected["value"].mask(is_refused), rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"mitigations": ["seperator"]},
            "unknown mitigation 'seperator': did you mean 'separator'",
        ),
        (
            {"mitigations": [SlidingWindow(5, layers=(9,))]},
            "layers out of 0..1, found",
        ),
        ({"mitigations": []}, "mitigations: expected at least one, found none"),
        (
            {"lengths": [2, 620], "chat": False},
            "expected at most 768 tokens",
        ),
        ({"seeds": [0, 1]}, "copy-last draws nothing at random"),
        ({"level": 95.0}, "level between 0 and 1, found 95"),
        (
            {"sensitivity_lengths": 0},
            "sensitivity_lengths: expected a whole number of at least 1, found 0",
        ),
        ({"measures": ["answer"]}, "measures: expected .*, found 'answer': did you mean 'answers'"),
        ({"measures": []}, "measures: expected at least one, found none"),
        (
            {"task": "count-ones:mode=cot-zero-shot", "measures": ["log_probability"]},
            "count-ones is answered after words, .* measure answers",
        ),
    ],
)
def test_refusals_come_before_any_measurement(
    model: TransformerBridge, arguments: dict[str, Any], message: str
) -> None:
    told: list[int] = []
    given = {"task": TASK, "mitigations": [Hint()], "lengths": [2]} | arguments
    with pytest.raises((ost.InputError, MitigationError), match=message):
        ost.study(model, progress=lambda done, total: told.append(done), **given)
    assert told == []
