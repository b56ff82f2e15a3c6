"""The chart and the sentences of behaviour: what is drawn, and what is said of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import pytest

from ostools.measure.answers.result import COLUMNS, Evaluation, summarise
from ostools.reporting.findings.answers import evaluation_findings
from ostools.results import Provenance

LONG = "</script><b>"


def made(rows: Sequence[Mapping[str, Any]], *, random: bool = True, task: str = "count-ones", **how: Any) -> Evaluation:
    """A result of rows that say only what they care about."""
    plain: dict[str, Any] = {
        **{
            "task": task,
            "mode": "none",
            "mitigation": "none",
            "elicitation": "zero-shot",
            "status": "none",
            "seed": 0,
            "sample": 0,
            "tokens": 9,
        },
        **{
            "key": "3",
            "answer": LONG,
            "text": LONG,
            "ended": "eos",
            "reasoning_tokens": 0,
            "kind": "answered",
            "correct": False,
        },
        **{"number": 5, "absolute_error": 2, "log_probability": -1.0, "seconds": 0.1, "within_training": None},
    }
    plain |= {"content": LONG, "rank": None}
    full: Any = pd.DataFrame([plain | dict(row) for row in rows])
    if "content_correct" not in full:
        full = full.assign(content_correct=full["correct"].where(full["kind"] == "answered", None))
    frame: Any = full[list(COLUMNS)].astype(COLUMNS)
    settings = {"task": task, "elicitation": "zero-shot", "temperature": 0.0, "chat": False, "max_new_tokens": 20}
    settings |= {"rewritten": False, "trained_length": 4} | how
    model = {"name": "tiny", "trained_lengths": {"count-ones": 4}}
    provenance = Provenance(model, settings, None, {})
    return Evaluation(frame, provenance, summarise(frame, random, settings["temperature"] > 0))


def drawn(result: Evaluation) -> dict[str, Any]:
    return result.plot().to_dict()


def lists_of(value: Any, name: str) -> list[Any]:
    """Every column of that name in the chart's data, wherever it lies."""
    if isinstance(value, dict):
        own = [value[name]] if isinstance(value.get(name), list) else []
        return own + [found for inner in value.values() for found in lists_of(inner, name)]
    return [found for inner in value for found in lists_of(inner, name)] if isinstance(value, list) else []


SEEDS = [
    {"length": n, "seed": seed, "correct": seed < 2, "absolute_error": seed, "within_training": n <= 4}
    for n in (3, 6)
    for seed in range(4)
]


def test_the_band_is_wilsons_and_the_values_are_the_summarys() -> None:
    result = made(SEEDS)
    chart = drawn(result)
    assert [pytest.approx(v, abs=1e-6) for v in result.summary["wilson_low"]] in lists_of(chart, "wilson_low")
    for values in ([0.5, 0.5], [pytest.approx(math.exp(-1), rel=1e-5)] * 2):
        assert values in lists_of(chart, "value")
    assert [0.0, 1.0, 2.0, 3.0] * 2 in lists_of(chart, "error")
    assert [1.5, 1.5] in lists_of(chart, "value")
    assert "trained to 4" in str(chart)
    assert "count-ones: answers of tiny" in str(chart["title"])
    assert "</script" not in str(chart)


def test_without_anything_drawn_there_is_no_band() -> None:
    result = made([{"length": 3}, {"length": 5, "log_probability": math.nan}], random=False)
    chart = drawn(result)
    assert lists_of(chart, "wilson_low") == []
    assert "Nothing was drawn" in str(chart["title"])


def test_answers_without_a_number_stand_apart_and_in_no_mean() -> None:
    unread = {"kind": "cut off", "number": None, "absolute_error": None, "ended": "length"}
    result = made([{"length": 3, "absolute_error": 2}, {"length": 3, "seed": 1, **unread}])
    chart = drawn(result)
    assert [2.0, 5.0] in lists_of(chart, "error")
    assert [2.0] in lists_of(chart, "value")
    assert "no number: cut off (at the top edge)" in str(chart)
    assert "something else" not in str(chart)
    said = " ".join(evaluation_findings(result))
    assert "1 cut off at 20 tokens before an answer" in said


def test_sentences_tell_trained_lengths_from_others() -> None:
    said = " ".join(evaluation_findings(made(SEEDS)))
    assert "All lengths: 4 of 8 answers are right." in said
    assert "Within the lengths of training: 2 of 4" in said
    assert "Beyond these lengths: 2 of 4" in said
    assert "Wilson's, 95%, over prompts" in said
    assert "such lengths of this task were never trained" in said
    assert "Beyond" not in " ".join(evaluation_findings(made([{"length": 3}])))


def test_the_right_lines_log_probability_has_a_verdict_and_a_range() -> None:
    rows = [{"length": n, "log_probability": p} for n, p in ((3, -0.69), (6, -0.7), (9, -5.0), (12, math.nan))]
    result = made(rows)
    sentence = (
        "The right line is likelier than not at 1 of 3 prompts: log p -2.13 nats in the mean, from -5 (9 items) to -0.69 "
        "(3 items)."
    )
    assert sentence in evaluation_findings(result)
    assert sentence in drawn(result)["title"]["subtitle"]
    (single,) = (said for said in evaluation_findings(made(rows[:1])) if said.startswith("The right line"))
    assert single.endswith("at 1 of 1 prompt: log p -0.69 nats.")
    assert "The right line" not in " ".join(evaluation_findings(made(rows[3:])))
