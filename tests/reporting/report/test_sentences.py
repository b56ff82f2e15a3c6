"""The sentences that came with the report: each figure is computed here a second time, from numbers chosen by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ostools.experiments.study.study import Study
from ostools.ground.errors import InputError
from ostools.measure import Collapse, Evaluation, Sensitivity
from ostools.reporting.findings.answers import answers_sentence, study_finding
from ostools.reporting.findings.collapse import precision_findings, tails
from ostools.reporting.findings.sensitivity import layers_finding
from ostools.reporting.sections.answers import task_with_room
from ostools.reporting.sections.collapse import PRECISION
from ostools.results import Provenance
from tests.reporting.charts.test_evaluation import made as made_evaluation
from tests.reporting.made import PROVENANCE, made_collapse, made_sensitivity


def test_a_format_hides_the_pair_from_its_own_length_and_the_nearest_of_the_others_is_named() -> None:
    result = made_collapse(lambda n: 10.0 / n, noise={"float32": 1e-9, "float16": 0.02, "int8-kv": 0.33})
    (said,) = precision_findings(result)
    # 10 / n < 0.33 from n = 31 on; of the rest float16 is nearest: the median of 10 / n over the last quarter, 96 to 128.
    distance = float(np.median([10.0 / n for n in range(97, 129)]))
    assert "below the rounding noise of its difference in int8-kv from 31 on, up to 128. The lengths go" in said
    assert f"float16 comes nearest: over the last quarter of the lengths the float64 distance ({distance:.3g})" in said
    assert f"is {distance / 0.02:.3g} times the noise of the difference" in said


def test_what_storing_shifts_is_not_noise() -> None:
    """Weights so stored have a distance of their own, and move both sequences alike: that hides nothing."""
    result = made_collapse(lambda n: 4.0, noise={"float32": 1e-9, "int8-weights": 1e-3})
    stored: Any = result.frame["dtype"] == "int8-weights"
    frame = result.frame.assign(
        weights=np.where(stored, "int8-weights", "given"), weight_shift=np.where(stored, 9.0, 0.0)
    )
    own = result.reference.assign(weights="int8-weights", distance=2.0)
    both = Collapse(frame, PROVENANCE, pd.concat([result.reference, own], ignore_index=True))
    plain, int8 = tails(both)
    assert (plain.exact, plain.stored, plain.weight_shift) == (4.0, 4.0, 0.0)
    assert (int8.exact, int8.stored, int8.weight_shift, int8.noise) == (4.0, 2.0, 9.0, 1e-3)
    assert int8.margin == pytest.approx(2000)
    section = PRECISION.section(_with_precision(both))
    assert section is not None
    assert list(section.parts[0].tables[0].rows[1])[:5] == ["int8-weights", "4", "2", "9", "0.001"]


def _with_precision(result: Collapse) -> Any:
    from ostools.reporting.sections.records import Measurements

    return Measurements(PROVENANCE, "text", ("t",), precision=result)


def test_layers_leave_out_what_lies_above_the_last_block() -> None:
    made = made_sensitivity({"full": [1.0, 3.0, 5.0, 8.0]})
    tables = [made.frame.assign(layer=layer) for layer in range(3)]
    tables[1]["operator_norm"] = [0.1, 0.2, 0.9, 4.0]
    tables[2]["operator_norm"] = [0.0, 0.0, 0.0, 1.0]
    said = layers_finding(replace(made, frame=pd.concat(tables, ignore_index=True)))
    assert said == (
        "From layer 0 to layer 1 (full, measured, operator norm) the last token's own goes from 8 to 4, the others' median "
        "goes from 3 to 0.2."
    )


def test_answers_with_the_length_that_went_worst() -> None:
    rows = [{"length": n, "seed": seed, "correct": n == 2 or seed == 0} for n in (2, 8) for seed in range(4)]
    for row in rows:
        row |= {"within_training": row["length"] == 2, "key": "2" if row["seed"] < 3 else "1"}
    said = answers_sentence(made_evaluation(rows))
    assert said == (
        "Measured on count-ones, 5 of 8 answers are right (2 to 8 items); fewest at 8 items, a length never trained: 1 of 4, "
        "Wilson 95% 5% to 70%. The answer 2 to every prompt would be right on 6 of 8."
    )
    unknown = answers_sentence(made_evaluation([row | {"within_training": None} for row in rows]))
    assert "never trained" not in unknown


def test_the_study_takes_a_task_with_room_on_both_sides_by_log_probability_at_the_floor() -> None:
    def answers(task: str, right: int, likely: float, kind: str = "answered") -> Evaluation:
        rows = [
            {"length": n, "correct": n <= right, "kind": kind, "log_probability": likely, "number": None}
            for n in range(1, 9)
        ]
        return made_evaluation(rows, task=task)

    always, often, never = answers("copy", 8, -0.1), answers("sum-ones", 5, -1.0), answers("count-ones", 0, -3.0)
    rarer, unread = answers("count-word", 0, -9.0), answers("copy-last", 0, -1.0, "cut off")
    assert task_with_room([always, often, never]) == "sum-ones"
    assert task_with_room([always, rarer, never, unread]) == "count-ones"
    with pytest.raises(InputError, match="100% right on copy"):
        task_with_room([always, unread])


def test_one_layer_and_one_token_are_no_way_from_one_to_another() -> None:
    def layered(values: list[float], layers: int) -> Sensitivity:
        made = made_sensitivity({"full": values})
        return replace(made, frame=pd.concat([made.frame.assign(layer=i) for i in range(layers)], ignore_index=True))

    shallow = layers_finding(layered([1.0, 3.0, 8.0], 2))
    assert shallow == (
        "At layer 0, which the only block reads (full, measured, operator norm), the last token's own is 8, the others' "
        "median is 2."
    )
    assert layers_finding(layered([8.0], 2)).endswith(", the last token's own is 8.")
    assert layers_finding(layered([8.0], 3)) == (
        "From layer 0 to layer 1 (full, measured, operator norm) the last token's own goes from 8 to 8."
    )


def _study(verdicts: list[dict[str, str]], collapse: list[float], baseline: float = 1.0) -> Study:
    """Effects of each mitigation on answers (none) and on collapse (log10 of a ratio)."""
    common = {"low": 0.0, "high": 0.0, "baseline": baseline, "pairs": 8, "value_floored": 0, "baseline_floored": 0}
    common |= {"verdict_low": -0.5, "verdict_high": 0.5}
    rows = []
    for verdict, change in zip(verdicts, collapse, strict=True):
        name = {"mitigation": verdict["mitigation"]}
        rows.append(name | common | {"quantity": "correct", "about": "answers", "effect": 0.0})
        rows.append(name | common | {"quantity": "collapse_distance", "about": "collapse", "effect": change})
    provenance = Provenance({}, {"task": "copy-last", "lengths": [4, 8]}, None, {})
    table = pd.DataFrame(verdicts).assign(sensitivity="not decided")
    return Study(pd.DataFrame(), provenance, pd.DataFrame(rows), table)


def test_an_interval_that_leaves_no_effect_out_is_kept_though_the_test_did_not_confirm_it() -> None:
    verdicts = [{"mitigation": "separator", "answers": "no measurable effect", "collapse": "no measurable effect"}]
    made = _study(verdicts, [float(np.log10(2.0))])
    ratio: Any = made.effects["about"] == "collapse"
    sure = made.effects.assign(verdict_low=np.where(ratio, np.log10(1.25), -1.0), verdict_high=np.log10(4.0))
    said = study_finding(replace(made, effects=sure))
    assert "Distance of the pair: no measurable effect (separator ×2 [×1.25, ×4])." in said
    assert (
        "The interval of separator (distance of the pair) excludes zero. A sign-flip test over so few lengths" in said
    )
    assert "sign-flip" not in study_finding(made)
    lower = sure.assign(verdict_low=np.log10(0.25), verdict_high=np.where(ratio, np.log10(0.5), 1.0))
    assert "[×0.25, ×0.5])" in study_finding(replace(made, effects=lower))
    floored = sure.assign(baseline_floored=8)  # a bound has no interval
    assert "sign-flip" not in study_finding(replace(made, effects=floored))
    decided = [verdicts[0] | {"collapse": "larger"}]
    assert "sign-flip" not in study_finding(replace(made, effects=sure, verdicts=pd.DataFrame(decided)))
