"""Does the distance predict the error? Collapse and sensitivity of each prompt, against right or wrong of its answer.

The paper shows that representations collapse and that answers fail, each against the length of the prompt (Figures 2, 3 and 5).
Whether the prompts that collapse are those that fail it leaves open. Here both are measured on the same prompts.

Length is a confounder: a longer prompt is closer to its neighbour, and is answered wrongly more often, whether or not the one
has to do with the other. So every number is tested three times. Over all prompts; among prompts of the same length alone; and
with the length held, in a regression. Only the last two say that the distance tells more than the length does.

The first two are areas under the ROC curve (`statistics.separation`): they ask for an order, and for no shape. The third is
logistic regression (`statistics.logistic`): it says by how much the odds of a right answer change, and believes that their
logarithm is a straight line in those of distance and length. All are relations and no causes: `ablation` and `study` intervene.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from transformer_lens.model_bridge import TransformerBridge

from ostools import tasks
from ostools.ground.names import checked_name
from ostools.ground.progress import Progress, part_of, tell
from ostools.ground.whole_numbers import checked_lengths
from ostools.measure.answers.behaviour import behaviour
from ostools.measure.answers.reading import ANSWERED
from ostools.measure.collapse.collapse import collapse
from ostools.measure.jacobian.linearisations import LINEARISATIONS
from ostools.measure.jacobian.one_linearisation import METHODS
from ostools.measure.jacobian.sensitivity import sensitivity
from ostools.measure.measurement import measurement
from ostools.measure.posed import carrier_positions, pose
from ostools.results import Provenance, Result
from ostools.tasks import Task
from ostools.tasks.base import seeds_of
from ostools.theory.statistics.logistic import odds_ratio
from ostools.theory.statistics.separation import area

LENGTHS = range(8, 41, 8)
SEEDS = tuple(range(16))
LEVEL = 0.95
ALL, SAME_LENGTH = "all prompts", "same length"
LENGTH, NOTHING_ELSE = "log10 length", "nothing"
"""What a regression holds; where there is one length only, nothing."""
_INTERVALS = 3
"""Of each predictor: two areas and an odds ratio."""
DISTANCES = {"distance_residual": "residual", "distance_y": "y"}
"""The columns of distances, and at which site of `collapse` each is measured."""
SENSITIVITIES = ("sensitivity", "sensitivity_share")
LARGER, SMALLER, NO_RELATION = "larger where right", "smaller where right", "no relation seen"
NO_INTERVAL, UNTESTED = "no interval", "could not be tested"
_KEYS = ["task", "length", "seed", "tokens", "key", "answer", "text", "ended", "kind", "correct"]


@dataclass(frozen=True, eq=False)
class ErrorPrediction(Result):
    """`frame`: one row a prompt (length and seed), with its greedy answer and what was measured on the prompt.

    Columns: task, length, seed, tokens, key, answer, text, ended, kind, correct (as in `Behaviour`); distance_residual and
    distance_y (||v - v*|| / ||v|| in float64, L2, of the last token: of v^(L), the last block's output, and of y, after the
    final norm; v* is the prompt with one more item); sensitivity (mean over the tokens that carry the answer of the Frobenius
    norm of d y_n / d v_i^(0)), sensitivity_share (their sum over the sum of all tokens; NaN of both where no item carries the
    answer), method ("exact" | "estimate").

    `summary`: areas under the ROC curve, one row a predictor and comparison, see `summarise`. `odds`: odds ratios, one row a
    predictor, see `regress`. All intervals of both tables hold together at 95%; each is at `level`.
    """

    summary: pd.DataFrame
    odds: pd.DataFrame


@measurement
def error_prediction(
    model: TransformerBridge,
    task: Task | str = "count-ones-bernoulli",
    *,
    lengths: Iterable[int] = LENGTHS,
    seeds: Sequence[int] | None = None,
    linearisation: str | None = "full",
    method: str = "auto",
    chat: bool | None = None,
    max_new_tokens: int | None = None,
    progress: Progress | None = None,
) -> ErrorPrediction:
    """Whether small distances and small sensitivities go with wrong answers.

    Args:
        task: one with text after its sequence, so that two prompts end in the same token. It should draw its sequences: another
            task has one prompt for each length, and then distance and length cannot be told apart.
        lengths: numbers of items. Those at which some answers are right and others wrong tell most.
        seeds: of the sequences; None: 16 of them, if the task draws them. All intervals are over seeds, because the prompts of
            one seed begin alike. The interval of an area needs 9 seeds. That of an odds ratio needs 8, of which 5 have a right
            answer and 5 a wrong one.
        linearisation: of the sensitivity ("full", "frozen", ...). None: it is not measured; it is most of the cost.
        method: of the sensitivity, as in `sensitivity`.
        chat, max_new_tokens: as in `behaviour`.
        progress: called as progress(done, total), in percent.

    Raises `InputError` for what `behaviour`, `collapse` and `sensitivity` refuse. Cost: an answer to every prompt, a
    `collapse` in float64, and a sensitivity of every prompt.

    Source: arXiv 2406.04267, Sections 3 to 5, which measure both and do not relate them.
    """
    form = tasks.task(task)
    if linearisation is not None:
        checked_name("linearisation", linearisation, LINEARISATIONS)
    checked_name("method", method, METHODS)
    wanted, chosen = (
        checked_lengths(lengths),
        seeds_of(form, (SEEDS if form.random else (0,)) if seeds is None else seeds),
    )
    told = partial(part_of, progress, whole=3, units=100)
    # Without worked examples: the answer and what is to predict it are of one prompt.
    chat = bool(getattr(model.tokenizer, "chat_template", None)) if chat is None else chat
    asked: dict[str, Any] = {"lengths": wanted, "seeds": chosen, "chat": chat}
    said = behaviour(model, form, **asked, max_new_tokens=max_new_tokens, probability=False, progress=told(0, 1))
    frame: Any = said.frame[_KEYS]
    frame = frame.merge(_distances(model, form, asked, told(1, 2)), on=["length", "seed"], validate="1:1")
    predictors = [*DISTANCES, *(SENSITIVITIES if linearisation else ())]
    if linearisation is not None:
        found = _sensitivities(model, form, asked, linearisation, method, told(2, 3))
        frame = frame.merge(found, on=["length", "seed"], validate="1:1")
    else:
        tell(progress, 100, 100)
    kept = ("chat", "max_new_tokens", "stop", "batches", "cache")
    provenance = Provenance.collect(
        model,
        measurement="error-prediction",
        task=tasks.label(form),
        **asked | {name: said.provenance.parameters[name] for name in kept},
        linearisation=linearisation,
        method=method,
        level=LEVEL,
    )
    return ErrorPrediction(frame, provenance, summarise(frame, predictors), regress(frame, predictors))


def _distances(model: TransformerBridge, form: Task, asked: dict[str, Any], progress: Progress | None) -> pd.DataFrame:
    """The relative distance of every prompt and the one with one more item, in float64, a row a prompt."""
    table: Any = collapse(model, form, dtypes=["float64"], progress=progress, **asked).reference
    table = table[(table["weights"] == "given") & table["site"].isin(DISTANCES.values())]
    wide = table.pivot(index=["length", "seed"], columns="site", values="relative")
    return wide.rename(columns={site: name for name, site in DISTANCES.items()})[list(DISTANCES)].reset_index()


def _sensitivities(
    model: TransformerBridge,
    form: Task,
    asked: dict[str, Any],
    linearisation: str,
    method: str,
    progress: Progress | None,
) -> pd.DataFrame:
    """The norms of the tokens that carry the answer, a row a prompt; NaN where none does."""
    pairs = [(length, seed) for length in asked["lengths"] for seed in asked["seeds"]]
    rows = []
    for done, (length, seed) in enumerate(pairs, start=1):
        row: dict[str, Any] = {"length": length, "seed": seed, **dict.fromkeys(SENSITIVITIES, math.nan), "method": ""}
        if form.carriers(form.items(length, seed)):
            posed = pose(model, form, length, seed=seed, chat=asked["chat"])
            found: Any = sensitivity(model, posed.prompt, linearisations=(linearisation,), method=method).frame
            norms = found["frobenius_norm"].to_numpy()
            carriers = norms[list(carrier_positions(model, posed))]
            row |= {"sensitivity": carriers.mean(), "sensitivity_share": carriers.sum() / norms.sum()}
            row["method"] = str(found["method"].iloc[0])
        rows.append(row)
        tell(progress, done, len(pairs))
    return pd.DataFrame(rows)


def summarise(frame: pd.DataFrame, predictors: Sequence[str]) -> pd.DataFrame:
    """One row a predictor and comparison: do right answers have the larger values?

    Columns: predictor, compared ("all prompts": of any length, so that length may be what predicts; "same length": only
    prompts of equal length), right and wrong (answers that enter), left_out (prompts without an answer, or without a value),
    pairs (of a right and a wrong answer that are compared), area (the share of pairs in which the right one has the larger
    value, ties half; 0.5: it says nothing), low and high (its interval over seeds, at `level`: those of `regress` counted, all
    intervals hold together at 95%), verdict, why.

    verdict: "larger where right", as the theory expects, or "smaller where right", where the interval leaves 0.5 out; "no
    relation seen" where it holds 0.5; "no interval" with the reason; "could not be tested" where there is no pair, as all
    answers are right, or all wrong.
    """
    level = _level(predictors)
    rows = [_area(frame, name, compared, level) for name in predictors for compared in (ALL, SAME_LENGTH)]
    return pd.DataFrame(rows)


def regress(frame: pd.DataFrame, predictors: Sequence[str]) -> pd.DataFrame:
    """One row a predictor: by what factor the odds of a right answer grow where its value is one standard deviation larger.

    Logistic regression of right on log10 of the value, with log10 of the length beside it where lengths vary
    (`logistic.odds_ratio`, clustered by seed). Where the length explains most of the value, a step at the same length is longer
    than any that was seen: then the interval is wide.

    Columns: predictor, held ("log10 length" or "nothing"), right, wrong and left_out (as in `summarise`), seeds (that enter),
    spread (decades: one standard deviation of log10 of the value, over all prompts, which is one step), odds_ratio (1: it says
    nothing), low and high (its interval over seeds, at `level`), verdict, why.

    verdict: as in `summarise`, by whether the interval leaves 1 out; "could not be tested" with the reason where there is no
    odds ratio: all answers right or all wrong, values of 0, too few seeds, a threshold that tells right from wrong (its odds
    ratio has no end, and the areas say so), a value that follows from the length.
    """
    level = _level(predictors)
    return pd.DataFrame([_odds(frame, name, level) for name in predictors])


def _level(predictors: Sequence[str]) -> float:
    return 1 - (1 - LEVEL) / (_INTERVALS * len(predictors))


def _entering(frame: Any, name: str) -> tuple[Any, np.ndarray]:
    """The prompts with an answer and a value, and which of them are answered rightly."""
    here = frame[frame["kind"].eq(ANSWERED) & frame[name].notna()]
    return here, here["correct"].to_numpy(dtype=bool)


def _odds(frame: Any, name: str, level: float) -> dict[str, Any]:
    here, right = _entering(frame, name)
    lengths = here["length"].to_numpy(dtype=float)
    varying = len(np.unique(lengths)) > 1
    found = odds_ratio(
        here[name].to_numpy(dtype=float), right, here["seed"].to_numpy(), lengths if varying else None, level=level
    )
    verdict, why = _verdict(found.low, found.high, 1.0), _of_prompts(found.why)
    if found.why:
        verdict, why = UNTESTED, _untested(right) if right.all() or not right.any() else why
    return {
        "predictor": name,
        "held": LENGTH if varying else NOTHING_ELSE,
        "right": int(right.sum()),
        "wrong": int((~right).sum()),
        "left_out": len(frame) - len(here),
        "seeds": found.groups,
        "spread": found.spread,
        "odds_ratio": found.value,
        "low": found.low,
        "high": found.high,
        "level": level,
        "verdict": verdict,
        "why": why,
    }


def _of_prompts(why: str) -> str:
    """A reason in the words of this experiment."""
    words = {"groups": "seeds", "rows": "prompts", "row": "prompt", "what is held": "the length"}
    return re.sub("|".join(words), lambda found: words[found[0]], why)


def _area(frame: Any, name: str, compared: str, level: float) -> dict[str, Any]:
    here, right = _entering(frame, name)
    strata = here["length"].to_numpy() if compared == SAME_LENGTH else None
    found = area(here[name].to_numpy(dtype=float), right, here["seed"].to_numpy(), strata, level=level)
    verdict, why = _verdict(found.low, found.high, 0.5), _of_prompts(found.why)
    if not found.pairs:
        verdict, why = UNTESTED, _untested(right)
    elif np.isnan(found.low):
        verdict = NO_INTERVAL
    return {
        "predictor": name,
        "compared": compared,
        "right": int(right.sum()),
        "wrong": int((~right).sum()),
        "left_out": len(frame) - len(here),
        "pairs": found.pairs,
        "area": found.value,
        "low": found.low,
        "high": found.high,
        "level": level,
        "verdict": verdict,
        "why": why,
    }


def _verdict(low: float, high: float, nothing: float) -> str:
    return LARGER if low > nothing else SMALLER if high < nothing else NO_RELATION


def _untested(right: Any) -> str:
    if not len(right):
        return "there is no answer with a value"
    if right.all() or not right.any():
        return f"all {len(right)} answers are {'right' if right[0] else 'wrong'}"
    return "at no length are some answers right and others wrong"
