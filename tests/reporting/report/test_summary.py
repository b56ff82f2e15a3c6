"""The first screen says what was tested: exact sentences and verdicts of made results."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ostools as ost
from ostools.ground.words import number
from ostools.reporting.page.section import Headline, Part, StripField
from ostools.reporting.report.rendering import first_screen, overview, sections_of
from ostools.reporting.sections import extent
from ostools.reporting.sections.extent import FULL, LEAST, REDUCED, Extent
from ostools.reporting.sections.records import Measurements
from ostools.results import Provenance
from tests.measure.profiles.test_position_effect import made as made_position
from tests.reporting.made import (
    PROVENANCE,
    made_collapse,
    made_evaluation,
    made_failure_stage,
)


def measurements(**found: Any) -> Measurements:
    """Of results by section, a list or the only one."""
    results = {
        name.replace("_", "-"): made if isinstance(made, list) else [made]
        for name, made in found.items()
    }
    return Measurements(PROVENANCE, "text", results)


def screen(measured: Measurements) -> Part:
    return first_screen(measured, sections_of(measured))


def headlines(measured: Measurements) -> list[Headline]:
    return list(screen(measured).headlines)


def fields(**found: Any) -> list[StripField]:
    return list(screen(measurements(**found)).strip)


def strip(**found: Any) -> dict[str, str]:
    return {one.name: one.state for one in fields(**found)}


def test_nothing_measured_is_not_tested_and_has_no_headline() -> None:
    names = [
        "Pair hidden",
        "Place in a text",
        "Wrong answers",
        "Errors where hidden",
        "Mitigations",
    ]
    assert strip() == dict.fromkeys(names, "not tested")
    part = screen(measurements())
    assert (list(part.headlines), list(part.overview)) == ([], [])


# --- collapse


def test_the_headline_of_a_collapse() -> None:
    """10 / n is below 0.33 from n = 31 on, and below 0.0795 from n = 126 on: three lengths."""
    for noise, verdict in (
        (
            0.33,
            "bfloat16 hides the difference between n and n + 1 items of figure-5a: hidden from 31 on, up to 128 "
            "(98 of the 98 lengths tried).",
        ),
        (
            0.01,
            "n and n + 1 items are told apart in float32 or bfloat16: hidden at none of the 128 lengths tried, up to "
            "n = 128. bfloat16 on figure-5a comes nearest, its distance 8.89 times ",
        ),
        (
            0.0795,
            "On figure-5a in bfloat16 the pair is not decided: hidden at 3 of the 128 lengths tried, up to 128;",
        ),
    ):
        made = made_collapse(lambda n: 10.0 / n, noise={"float32": 1e-9, "bfloat16": noise})
        (line,) = headlines(measurements(collapse=[made]))
        assert line.verdict.startswith(verdict)
        assert line.verdict == made.findings()[0]


def test_a_pair_that_is_hidden_at_lengths_apart_is_not_called_told_apart() -> None:
    """At 60, 70, and so on to 120 of 128: no range, and apart at the longest."""
    seldom = made_collapse(
        lambda n: 1e-4 if n in range(60, 128, 10) else 1.0,
        noise={"float32": 1e-9, "bfloat16": 1e-3},
        task="figure-5c",
    )
    once = made_collapse(lambda n: 1e-4 if n == 64 else 1.0, noise={"bfloat16": 1e-3})
    measured = {"collapse": [once, seldom]}
    (line,) = headlines(measurements(**measured))
    assert line.verdict == (
        "On figure-5c in bfloat16 the pair is hidden at 7 of the 128 lengths tried, up to 128; a range needs 8 in a row."
    )
    (field,) = [field for field in fields(**measured) if field.name == "Pair hidden"]
    assert (field.state, field.rule[-24:]) == ("not found", ", at 8 lengths in a row?")
    (figure,) = overview(measurements(**measured)).values()
    assert figure.alt_text == f"Distance of the pair and noise, figure-5c. {line.verdict}"


def test_below_the_noise_of_each_but_above_that_of_the_difference_they_can_be_told_apart() -> None:
    made = made_collapse(lambda n: 10.0 / n, noise={"bfloat16": 0.33}, task="figure-5b")
    made = replace(made, frame=made.frame.assign(pair_noise=made.frame["noise"] / 100))
    assert strip(collapse=[made])["Pair hidden"] == "not found"


# --- over-squashing


def position_of(start: float, end: float) -> ost.measure.PositionEffect:
    """Thirds of passages of 12 tokens: the first and the last stand that many decades above the
    middle one.
    """
    by_position = np.concatenate([np.full(4, start), np.zeros(4), np.full(4, end)])
    made = made_position(by_position, np.random.default_rng(0).normal(scale=3.0, size=(5, 12)))
    return replace(
        made,
        provenance=replace(
            PROVENANCE, parameters={"tokens": 12, "passages": 5, "untrained": False}
        ),
    )


@pytest.mark.parametrize(
    ("start", "end", "state", "verdict"),
    [
        (
            1.0,
            2.0,
            "U: over-squashing",
            "The middle of a text counts for less than both its ends (U).",
        ),
        (
            -1.0,
            2.0,
            "recency",
            "The end of a text counts for more than its middle, and its start is not shown to (recency).",
        ),
        (
            0.0,
            0.0,
            "none",
            "Neither end of a text is shown to count for more than its middle, nor both for less.",
        ),
    ],
)
def test_the_place_in_a_text_is_one_of_four_words_and_over_squashing_the_u_alone(
    start: float, end: float, state: str, verdict: str
) -> None:
    """Recency alone is not what the paper predicts, and turns nothing red."""
    made = position_of(start, end)
    (field,) = [field for field in fields(position=made) if field.section == "position"]
    assert (field.state, field.tone == "yes") == (state, state == "U: over-squashing")
    (said,) = headlines(measurements(position=made))
    assert (said.verdict, said.link) == (verdict, "Position")
    assert said.text.startswith("Over 5 passages of 12 tokens, each in three rotations")
    low, high = (
        f"{number(10.0**value)}× [{number(10.0**value)}, {number(10.0**value)}]"
        for value in (start, end)
    )
    assert said.text.endswith(f" The model: first third {low}, last third {high}.")


# --- where answers are wrong

ERRORS = {n: (6, 0) if n < 22 else (0, 6) for n in range(4, 25)} | {21: (1, 5)}
BELOW = (21, 22, 23, 24)


@pytest.mark.parametrize(
    ("hidden", "decoded", "state", "sentence"),
    [
        (
            (),
            2,
            "not found",
            "The answers are wrong where the last token still tells n from n + 1: ",
        ),
        (
            BELOW,
            2,
            "found",
            "The answers are wrong where the last token no longer tells n from n + 1: ",
        ),
        (
            *(BELOW, 5, "not decided"),
            "Whether wrong answers come from hidden pairs cannot be told: the pairs are below the noise, and a probe still "
            "reads the count there (",
        ),
    ],
)
def test_where_answers_are_wrong_leads_if_that_is_decided_and_says_how_the_model_was_asked(
    hidden: tuple[int, ...], decoded: int, state: str, sentence: str
) -> None:
    """Whatever else was found; what cannot be told stands last."""
    collapsed = made_collapse(lambda n: 1e-4, lengths=range(1, 17), noise={"bfloat16": 1e-3})
    found: Any = {
        "failure_stage": made_failure_stage(ERRORS, hidden, decoded),
        "collapse": [collapsed],
    }
    lines = headlines(measurements(**found))
    order = ["failure-stage", "collapse"]
    assert [line.section for line in lines] == (order if state != "not decided" else order[::-1])
    told = lines[order.index("failure-stage") if state != "not decided" else 1]
    assert told.verdict.startswith(
        f"{sentence}of 4 lengths with a wrong answer the pair is told apart at "
    )
    assert told.text == (
        f"103 of 126 answers are right; a linear probe says {21 * decoded} of 126 right. Asked in bfloat16: "
        "count-ones-bernoulli, 4 to 24 items. y is that of the token from which the answer is predicted: '·' (position 40 "
        "at n = 4, position 48 at n = 8), in the chat template, with the answer line begun ('There are')."
    )
    assert strip(**found) | {"Errors where hidden": state, "Pair hidden": "found"} == strip(**found)


def test_no_wrong_answer_tests_nothing() -> None:
    made = made_failure_stage({4: (6, 0), 8: (6, 0)}, hidden=(8,))
    assert strip(failure_stage=made)["Errors where hidden"] == "not tested"
    assert headlines(measurements(failure_stage=made))[0].verdict == "No answer is wrong."


# --- answers and mitigations


def test_answers_are_counted() -> None:
    right, wrong, other = (
        {"length": 2, "correct": True},
        {"length": 8},
        {"length": 8, "kind": "something else"},
    )
    for rows, state in (
        ([right, wrong], "found"),
        ([right], "not found"),
        ([right, other], "not decided"),
    ):
        span = "2 items" if len(rows) == 1 else "2 to 8 items"
        made = made_evaluation(rows)
        assert strip(evaluate=[made])["Wrong answers"] == state
        assert (
            made.findings()[0]
            == f"The model answers 1 of {len(rows)} prompts of count-ones right ({span})."
        )
    assert "1 wrote something that is not an answer, 0 were cut off" in made.findings()[-1]
    cut = made_evaluation([{"length": n, "kind": "cut off"} for n in (2, 8)]).findings()
    assert cut[0] == "None of 2 texts holds an answer in the form that count-ones asks for."


def study_of(verdict: str, baseline: float = 0.5) -> ost.measure.Study:
    row = {
        "mitigation": "hint",
        "quantity": "correct",
        "about": "answers",
        "effect": 0.25,
        "low": 0.1,
        "high": 0.4,
    }
    row |= {
        "verdict_low": 0.05,
        "verdict_high": 0.45,
        "baseline": baseline,
        "value_floored": 0,
        "baseline_floored": 0,
    }
    row |= {"pairs": 8, "scale": "difference"}
    table = pd.DataFrame(
        [
            {
                "mitigation": "hint",
                "answers": verdict,
                "collapse": "not decided",
                "sensitivity": "not decided",
            }
        ]
    )
    provenance = Provenance({}, {"task": "copy-last", "lengths": [4, 8]}, None, {})
    frame = pd.DataFrame({"quantity": "correct", "length": range(8), "seed": 0})
    frame = frame.assign(baseline=[1.0] * int(8 * baseline) + [0.0] * int(8 - 8 * baseline))
    return ost.measure.Study(frame, provenance, pd.DataFrame([row]), table)


@pytest.mark.parametrize(
    ("verdict", "state"),
    [
        ("helps", "found"),
        ("no measurable effect", "not found"),
        ("inactive", "not tested"),
        ("not decided", "not decided"),
    ],
)
def test_a_mitigation_is_what_the_study_says(verdict: str, state: str) -> None:
    made = study_of(verdict)
    assert strip(mitigations=made)["Mitigations"] == state
    assert strip(mitigations=study_of(verdict, baseline=1.0))["Mitigations"] == "not tested"
    first, tried = made.findings()
    assert tried == (
        f"Tried on copy-last: hint (answers: {verdict}). Without a mitigation 4 of 8 answers are right."
    )
    shown = "hint helps answers: +25.0 points [+10.0, +40.0]."
    assert first == (shown if verdict == "helps" else "No mitigation is shown to help or to hurt.")


def test_what_a_mitigation_raises_or_lowers_is_said_of_the_quantity() -> None:
    made = study_of("helps")
    lower = made.effects.assign(
        about="log_probability", quantity="log_probability", effect=-9.4, low=-11.0, high=-7.0
    )
    verdicts_of = made.verdicts.assign(log_probability="smaller")
    made = replace(made, effects=pd.concat([made.effects, lower]), verdicts=verdicts_of)
    assert made.findings()[0] == (
        "hint helps answers: +25.0 points [+10.0, +40.0]; hint lowers log p of the right line: -9.4 [-11, -7]."
    )


# --- the page


def test_the_first_headline_and_chart_are_of_what_was_found() -> None:
    """Collapse is not found here, and a wrong answer is."""
    apart = made_collapse(lambda n: 1.0, lengths=range(1, 17), noise={"bfloat16": 1e-3})
    wrong = made_evaluation([{"length": 2, "correct": True}, {"length": 8}])
    lines = headlines(measurements(collapse=[apart], evaluate=[wrong]))
    assert [line.section for line in lines] == ["evaluate", "collapse"]
    part = screen(measurements(collapse=[apart], evaluate=[wrong]))
    assert [chart.name for chart in part.overview] == ["overview-evaluate", "overview-collapse"]
    hidden = made_collapse(lambda n: 1e-4, lengths=range(1, 17), noise={"bfloat16": 1e-3})
    lines = headlines(measurements(collapse=[hidden], evaluate=[wrong]))
    assert [line.section for line in lines] == ["collapse", "evaluate"]


# --- how much a report measures


@pytest.mark.parametrize("chosen", [FULL, REDUCED, LEAST])
def test_a_verdict_on_answers_rests_on_24_questions(chosen: Extent) -> None:
    assert len(chosen.answer_lengths) * len(chosen.answer_seeds) >= 24
    assert len(extent.STUDY_LENGTHS) * len(chosen.study_seeds) >= 24
    assert len(extent.FAILURE_STAGE_LENGTHS) * len(chosen.stage_seeds) >= 24
