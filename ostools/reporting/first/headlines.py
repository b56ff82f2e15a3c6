"""The report's headlines: the verdict first, then the number that it rests on, then the section where more stands.

No headline is chosen after looking. The prediction that is told of is the first of `PREDICTIONS` that was computed; the
derivative is the first of the profile; collapse is told of every prompt. What was not tested, or not decided, is said to be so.
"""

from __future__ import annotations

import math
from typing import Any

from ostools.experiments.study.study import Study
from ostools.experiments.study.verdicts import ABOUT, HELPS, HURTS, NO_EFFECT, NOTHING, UNDECIDED, in_words
from ostools.ground.words import factor, number
from ostools.measure import Collapse, Comparison
from ostools.measure.answers.behaviour import Behaviour
from ostools.reporting.findings import sensitivity as of_sensitivity
from ostools.reporting.findings.behaviour import answered
from ostools.reporting.findings.collapse import collapse_ends, collapse_summary
from ostools.reporting.findings.position import position_headline
from ostools.reporting.findings.precision import Tail, below_at_the_end, tails
from ostools.reporting.look import theme
from ostools.reporting.page.section import Finding
from ostools.reporting.sections.measurements import Measurements
from ostools.results import Frame, frame_of

RIGHT_RANK, RIGHT_FACTOR = 0.9, 2.0
"""From which rank correlation on a prediction's shape is called right, and within which factor its size. Fixed beforehand."""
FEWEST = 8
"""With fewer tokens no shape is called right: three are in the right order by chance in one case of six."""
PREDICTIONS = ("second-moment-full", "second-moment")
"""The prediction of the headline: the first of these that was computed. Chosen before anything is measured."""
ONES = ("figure-5a", "figure-5c", "figure-5d")
"""The prompts whose sequence is ones."""


def headlines(found: Measurements) -> list[Finding]:
    """A headline for each question whose data exist."""
    said = [
        collapse_headline(found.casts or found.collapses),
        None if found.position is None else position_headline(found.position),
        of_sensitivity.shape_headline(found.profile),
        bounds_headline(found.comparison),
        prediction_headline(found.comparison),
        *map(behaviour_headline, found.behaviours),
        mitigations_headline(found.study),
    ]
    return [one for one in said if one is not None]


def task_of(result: Collapse | Behaviour) -> str:
    return str(frame_of(result)["task"].iloc[0])


def counted(result: Behaviour) -> tuple[int, int]:
    """How many answers are right, of how many."""
    summary: Frame = result.summary
    right, asked = summary["right"].to_numpy(dtype=int), summary["asked"].to_numpy(dtype=int)
    return int(right.sum()), int(asked.sum())


def nearest(results: list[Collapse]) -> tuple[Collapse, Tail] | None:
    """The prompt and the precision in which the pair is nearest to the rounding noise, at the end of the lengths."""
    every = [(result, tail) for result in results for tail in tails(result)]
    return min(every, key=lambda one: one[1].margin, default=None)


def reached(results: list[Collapse], which: str = "collapse_length") -> list[tuple[int, str, str]]:
    """Length, precision and prompt of each collapse length that was reached, the shortest first."""
    ends = [(result, dtype, n) for result in results for dtype, n in collapse_ends(result, which).items()]
    return sorted((n, dtype, task_of(result)) for result, dtype, n in ends if n is not None)


def late(results: list[Collapse]) -> list[tuple[int, str, str]]:
    """The same of precisions below the noise at the end, with too few lengths after it to call it a collapse."""
    return sorted(
        (n, dtype, task_of(result))
        for result in results
        for dtype, n in below_at_the_end(result).items()
        if n is not None and collapse_ends(result).get(dtype) is None
    )


def collapse_headline(results: list[Collapse]) -> Finding | None:
    """From which length on the pair cannot be told apart; else how far the nearest is from that."""
    near = nearest(results)
    if near is None:
        return None
    trend = " ".join(collapse_summary(results))
    lost, below, undecided = reached(results, "pair_collapse_length"), reached(results), late(results)
    if lost:
        n, dtype, task = lost[0]
        items = "ones" if task in ONES else "items"
        verdict = f"{dtype} cannot tell {n} {items} from {n + 1}."
        text = (
            f"From there on the two representations on {task} are closer than the rounding noise of their difference. "
            f"{_of_all(len(lost), results)}"
        )
    elif below:
        n, dtype, task = below[0]
        verdict = f"{dtype} rounds away more than the difference between {n} items and {n + 1}."
        text = (
            f"On {task} the pair is closer than the rounding noise of one sequence from there on. "
            f"The noise of the difference is smaller, so the two can still be told apart. {_of_all(len(below), results)}"
        )
    else:
        verdict, text = "The two sequences do not collapse over these lengths.", ""
        if undecided:
            n, dtype, task = undecided[0]
            verdict = "Whether the two sequences collapse is not decided."
            text = f"On {task} in {dtype} they are below the rounding noise from n = {n} on. Too few lengths follow. "
        text += _nearest(near, results)
    return Finding(verdict, f"{text} {trend}".strip(), "collapse", "Collapse")


def _of_all(count: int, results: list[Collapse]) -> str:
    """How many cases there are beside the shortest, which alone is told of: it was picked after looking."""
    cases = sum(len(tails(one)) for one in results)
    return f"This is the shortest such length. {count} of {cases} cases (a prompt in a precision) reach one."


def _nearest(near: tuple[Collapse, Tail], results: list[Collapse]) -> str:
    result, tail = near
    n_max = max(int(frame_of(one)["length"].max()) for one in results)
    count = f"{len(results)} prompts" if len(results) > 1 else "the prompt"
    return (
        f"Of {count} and lengths up to {n_max}, {tail.dtype} on {task_of(result)} comes nearest: there the distance is "
        f"{number(tail.margin)} times the rounding noise."
    )


def bounds_headline(result: Comparison | None) -> Finding | None:
    """Whether every certified bound holds, and how loose the tightest is."""
    if result is None:
        return None
    table: Frame = result.summary
    certified = table[table["kind"] == "certified"].sort_values("median_log10_looseness")
    if certified.empty:
        return None
    verdicts = certified["holds"].map(of_sensitivity.whether_it_holds)
    broken = certified.loc[verdicts == "NO", "variant"].tolist()
    undecided = int((verdicts == "undecided").sum())
    row: Any = certified.iloc[0].to_dict()
    size = factor(float(row["median_log10_looseness"]))
    tightest = f"the tightest is {size} times the {of_sensitivity.norm_said(row)}."
    if broken:
        state = f"CERTIFIED BOUNDS FAIL: {', '.join(broken)}."
    elif undecided:
        state = (
            f"The estimate does not decide whether {undecided} of {len(certified)} certified bounds hold; {tightest}"
        )
    else:
        state = f"Every certified bound holds; {tightest}"
    text = (
        f"The tightest is `{row['variant']}`, by the median over tokens. It stands beside the {row['linearisation']} "
        "derivative."
    )
    if broken:
        text += " A certified bound that fails is a defect of this software or of the run: please report it."
    return Finding(state, text, "sensitivity", "Bounds")


def prediction_headline(result: Comparison | None) -> Finding | None:
    """Shape and size of the prediction that was named before."""
    if result is None:
        return None
    table = result.summary.set_index("variant")
    name = next((one for one in PREDICTIONS if one in table.index), None)
    if name is None:
        return None
    row: Any = table.loc[name]
    rank, size = float(row["spearman"]), float(row["median_log10_looseness"])
    tokens = of_sensitivity.tokens_of(result)
    if tokens < FEWEST or rank != rank or size != size:
        reason = f"The prompt has {tokens} tokens. The test needs {FEWEST}, and norms that are known and not all alike."
        return Finding(
            "Whether the prediction has the right shape was not tested.", reason, "sensitivity", "Prediction"
        )
    shape, fits = rank >= RIGHT_RANK, abs(size) <= math.log10(RIGHT_FACTOR)
    words = {
        (True, True): "has the right shape ({}) and size ({}×)",
        (True, False): "has the right shape ({}), and misses the size ({}×)",
        (False, True): "misses the shape ({}), and has the right size ({}×)",
        (False, False): "misses the shape ({}) and the size ({}×)",
    }[shape, fits]
    verdict = f"The prediction from one forward pass {words.format(f'{rank:.2f}', factor(size))}."
    word = "measured" if row["method"] == "exact" else "estimated"
    text = (
        f"The prediction is `{name}`, which was named before the measurement. It stands beside the {word} "
        f"{row['linearisation']} derivative. The numbers are the rank correlation over tokens and the median ratio; they do "
        f"not have an interval. Fixed beforehand: a shape is right from a rank correlation of {RIGHT_RANK:g} on, a size "
        f"within a factor of {RIGHT_FACTOR:g}. A prediction does not bound anything."
    )
    return Finding(verdict, text, "sensitivity", "Prediction")


def behaviour_headline(result: Behaviour) -> Finding:
    """How many answers to a task are right."""
    right, asked = counted(result)
    task = theme.inert(task_of(result))
    return Finding(
        f"The model answers {right} of {asked} prompts of {task} right.", answered(result), "behaviour", "Behaviour"
    )


def mitigations_headline(study: Study | None) -> Finding | None:
    """What helps or hurts the answers, by the study's verdicts."""
    if study is None:
        return None
    parameters: Any = study.provenance.parameters
    effects: Frame = study.effects
    answers = effects[(effects["quantity"] == "correct") & (effects["pairs"] > 0)]
    base = (
        f"Without a mitigation {float(answers['baseline'].iloc[0]):.0%} of the answers are right."
        if len(answers)
        else ""
    )
    said = []
    for row in study.verdicts.to_dict("records"):
        for about in ABOUT:
            if row.get(about) in (HELPS, HURTS):
                change = effects[(effects["mitigation"] == row["mitigation"]) & (effects["about"] == about)]
                words = in_words(change.iloc[0].to_dict())
                said.append(f"{row['mitigation']} {row[about]} ({about}: {words})")
    verdict = f"{'; '.join(said)}." if said else "No mitigation is shown to help or to hurt."
    return Finding(
        verdict, f"Tried on {parameters['task']}: {_tried(study)}. {base}".strip(), "mitigations", "Mitigations"
    )


def _tried(study: Study) -> str:
    """Each mitigation with its verdict on the answers in words: what was inactive or not decided was not tested."""
    told = {NOTHING: "inactive, it changed nothing", UNDECIDED: "not decided", NO_EFFECT: "no measurable effect"}
    rows = study.verdicts.to_dict("records")
    return "; ".join(f"{row['mitigation']} (answers: {told.get(row['answers'], row['answers'])})" for row in rows)
