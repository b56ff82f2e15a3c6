"""Where an answer is lost: of every length and precision one verdict, with the numbers behind it.

Cost: `probe`, an answer to every prompt in every precision, and a collapse curve of the begun
prompts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Unpack, cast

import numpy as np
import pandas as pd

from ostools.ground import Lengths, Progress, TransformerBridge, part_of
from ostools.measure.answers.judging import judge
from ostools.measure.answers.prefilled import prefilled_answers, running
from ostools.measure.collapse.collapse import collapse
from ostools.measure.collapse.result import Collapse
from ostools.measure.measurement import measurement
from ostools.measure.mitigated_prompts import ACTIVE, INACTIVE, REFUSED, EffectStatus
from ostools.measure.passes.precisions import Precision, checked_precisions
from ostools.measure.probes.probe import (
    FLOAT32,
    Decodability,
    ProbeTask,
    probe,
    require_groups,
)
from ostools.measure.probes.scores import BETWEEN, BEYOND, DECODABLE, LENGTH, LOGITS, SAME
from ostools.mitigations import Mitigation
from ostools.models import EncodingOptions
from ostools.models.tokenizer_calls import decoded
from ostools.results import Chart, Frame, Provenance, Result, Row, TableHead, frame_of
from ostools.tasks import Task

READ, NOT_READ, UNDECODABLE, SAME_VECTOR, UNTESTED = (
    "read",
    "unread",
    "undecodable",
    "indistinguishable",
    "not tested",
)
UNDECIDED = "not decided"
VERDICTS = (READ, NOT_READ, UNDECODABLE, SAME_VECTOR, UNDECIDED, UNTESTED)
COLUMNS = (
    dict.fromkeys(("task", "mitigation", "dtype"), "str")
    | {"length": "int64", "verdict": "str", "prompts": "int64"}
    | dict.fromkeys(("read", "unread", "undecodable", "answered", "decoded"), "float64")
    | {"site": "str", "layer": "int64", "test": "str", "trained": "int64"}
    | {"distance": "float64", "pair_noise": "float64", "indistinguishable": "boolean"}
    | {"status": "str", "reason": "str"}
)

PAIR_SEEDS = 3
"""Sequences of which the pairs of n and n + 1 items are compared."""
_STATUS = (ACTIVE, REFUSED, INACTIVE)  # of several prompts, the first that is there


@dataclass(frozen=True, eq=False)
class FailureStage(Result):
    """One row per dtype and length: what becomes of the answers.

    Of every prompt it is asked whether the model's answer is right (greedily, after the begun
    line), and whether a linear probe that has not seen its sequence says the right answer. Columns:
    task, mitigation ("none", or its name), dtype, length; prompts (those that a probe was
    tested on); read (the share answered right), unread (answered wrong, and the probe is right),
    undecodable (answered wrong, and the probe is wrong too): together 1; answered and decoded (the
    shares right of the model and of the probe); site, layer, test and trained (prompts) of that
    probe: of all places from the embedding to y the one with the highest accuracy over all lengths,
    tested on other sequences of the same lengths, or where a task has one sequence a length on
    lengths left out (and the longest beyond them); distance, pair_noise and indistinguishable (of
    `collapse`, n against n + 1 items at y after the begun line: whether the float64 distance is
    below the noise of the difference in that dtype, in all sequences compared); status ("inactive":
    the mitigation changed neither a text nor a logit at that length; "refused": it acts on the
    model as it was loaded and not in that dtype; else "active").

    verdict: "read", where that is the largest share; else "unread", where that is the largest share
    and the probe is "decodable" over all lengths (`Decodability`); else "indistinguishable", where
    the pair is; else "undecodable". "not tested": answered wrong, the pair is apart, and no probe
    could be tested there (the shortest length of a task with one sequence a length). "not decided",
    with its `reason`: it would be unread, but a probe of random weights is right as often at that
    place (its accuracy is not below the 95% interval of the model's own); or the pair is
    indistinguishable, but the probe is right on most prompts. Undecodable means not linearly
    decodable from so many examples, and no more.

    `answers`: a row per prompt. `probes`: what `probe` found.
    """

    tables: ClassVar = (
        TableHead(
            columns="mitigation dtype length verdict prompts read unread undecodable "
            "indistinguishable status"
        ),
    )

    answers: pd.DataFrame
    probes: Decodability

    def chart(self) -> Chart:
        from ostools.reporting.charts.answers import failure_stage_chart

        return failure_stage_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.answers import failure_stage_findings

        return failure_stage_findings(self)


@measurement(
    command="probe stage",
    examples=(
        "--task count-ones-bernoulli --lengths 4,8,16,32,48,64 --out stage.png",
        "--task count-ones --lengths 4,8,16,32,48,64 --mitigation sliding-window:window=16",
    ),
    defaults={"task": "count-ones-bernoulli", "lengths": "4,8,12,16,24,32,48,64,96,128,144,160"},
    lines_of=(probe,),
    memory=["probes", "logits"],
    untrained_by="random_weights",
    in_chunks=True,
    checks=(checked_precisions, require_groups),
)
def failure_stage(
    model: TransformerBridge,
    task: Task | str,
    *,
    lengths: Lengths,
    dtypes: Sequence[str] = (FLOAT32, "bfloat16"),
    seeds: Sequence[int] | None = None,
    mitigation: Mitigation | str | None = None,
    random_weights: bool = True,
    progress: Progress | None = None,
    **encoding: Unpack[EncodingOptions],
) -> FailureStage:
    """Say whether answers are lost before they can be decoded, or can be decoded and are not
    read, at every length and dtype.

    Args: as in `probe`, with every layer. All is read at the token from which the answer is
    predicted. There is no other position: a stage compares what a probe decodes there with what the
    model writes from there.

    Raises `InputError` for what `probe`, `evaluate` and `collapse` refuse. n + 1 items have to fit
    into the context too.
    """
    probe_task = ProbeTask.of(model, task, lengths, seeds, mitigation, **encoding)
    names = [precision.name for precision in checked_precisions(dtypes)]
    described = probe_task.described
    common: dict[str, Any] = {
        "lengths": described["lengths"],
        "dtypes": names,
        "mitigation": probe_task.mitigation,
    }
    part = partial(part_of, progress, shares=4)
    probes = probe(
        model,
        probe_task.form,
        **common,
        seeds=described["seeds"],
        random_weights=random_weights,
        progress=part(0, 2),
        **encoding,
    )
    of_dtype = partial(part_of, part(2, 3), shares=len(names))
    answer_rows: Frame = pd.concat(
        [_answer_rows(probe_task, name, of_dtype(k, k + 1)) for k, name in enumerate(names)],
        ignore_index=True,
    )
    curve = collapse(
        model,
        probe_task.form,
        **common,
        seeds=described["seeds"][:PAIR_SEEDS],
        progress=part(3, 4),
        **encoding,
    )
    status = answer_rows.groupby(["dtype", "length"])["status"].agg(
        lambda statuses: min(statuses, key=_STATUS.index)
    )
    rows = pd.DataFrame(list(_rows(answer_rows, probes, _pairs(curve))))
    frame: Frame = rows.join(status, on=["dtype", "length"]).assign(**probe_task.names)
    parameters = {"measurement": "failure-stage", "pair_seeds": PAIR_SEEDS}
    provenance = Provenance.collect(model, **{**probes.provenance.parameters, **parameters})
    return FailureStage(
        frame[list(COLUMNS)].astype(COLUMNS),
        provenance,
        answer_rows.assign(**probe_task.names),
        probes,
    )


def _answer_rows(probe_task: ProbeTask, name: str, progress: Progress | None) -> pd.DataFrame:
    prompts, mitigation = probe_task.prompts, probe_task.mitigation
    with running(probe_task.model, prompts, Precision.of_name(name), mitigation) as prepared:
        answer_list = prefilled_answers(prepared, prompts, progress)
    tokenizer: Any = prepared.tokenizer
    effect_status, rows = EffectStatus(probe_task.model, probe_task.mitigation), []
    for prompt, answer in zip(prompts, answer_list, strict=True):
        ids = (*prompt.ids, *answer.ids[:-1])
        prefix_text = decoded(tokenizer, prompt.ids[-prompt.line :]) if prompt.line else ""
        verdict = judge(prompt.task_prompt, replace(answer, text=prefix_text + answer.text))
        rows.append(
            {
                "dtype": name,
                "length": prompt.task_prompt.length,
                "seed": prompt.task_prompt.seed,
                "key": prompt.task_prompt.key,
                "answer": answer.text,
                "correct": verdict.correct,
                "first_token_right": answer.ids[0] == prompt.token,
                "status": effect_status.status(prompt.task_prompt, ids, prepared)[0],
            }
        )
    return pd.DataFrame(rows)


def _pairs(curve: Collapse) -> Frame:
    """Mean distance and noise at y for every dtype and length, and whether all pairs are below the
    noise.
    """
    rows: Frame = curve.summary
    hidden = rows["hidden"].fillna(rows["distance"] == 0).astype(bool)  # NA: of float64 itself
    columns = {
        "distance": ("exact_distance", "mean"),
        "pair_noise": ("noise", "mean"),
        "indistinguishable": ("hidden", "all"),
    }
    return rows.assign(hidden=hidden).groupby(["dtype", "length"]).agg(**columns)


def _rows(answer_rows: Frame, probes: Decodability, pairs: Frame) -> Iterator[dict[str, object]]:
    for dtype, dtype_rows in answer_rows.groupby("dtype", sort=False):
        best, tested = best_probe(probes, str(dtype))
        as_good, keys = untrained_as_good(probes, best), ["length", "seed"]
        place = {"dtype": dtype} | best[["site", "layer", "trained"]].to_dict()
        joined = dtype_rows.merge(tested[[*keys, "right", "test"]], on=keys, how="left")
        for length, prompts in joined.groupby("length"):
            pair = pairs.loc[(dtype, length)].to_dict()
            verdict = _verdict(prompts, best, bool(pair["indistinguishable"]), as_good)
            yield place | {"length": length} | pair | verdict


def best_probe(probes: Decodability, dtype: str) -> tuple[Row, Frame]:
    """The row of the place from which most right answers are decoded over all lengths, and what was
    said there of each prompt,
    once: on the same lengths, or lengths between, or the longest beyond them."""
    table, every = frame_of(probes), cast(Frame, probes.predictions)
    table, every = (
        part[
            (part["control"] == "none")
            & (part["dtype"] == dtype)
            & ~part["site"].isin([LENGTH.site, LOGITS])
        ]
        for part in (table, every)
    )
    main = SAME if (table["test"] == SAME).any() else BETWEEN
    table = table[table["test"] == main]
    best = table.loc[table["accuracy"].idxmax()]
    place_rows = every[(every["site"] == best["site"]) & (every["layer"] == best["layer"])]
    order = place_rows["test"].map({main: 0, BEYOND: 1})
    once = place_rows[order.notna()].assign(order=order).sort_values("order", kind="stable")
    return best, once.drop_duplicates(["length", "seed"])


def untrained_as_good(probes: Decodability, best: Row) -> str:
    """Reason why a probe shows nothing: one of random weights is right as often, by the 95%
    interval; empty without one.
    """
    table = frame_of(probes)
    keys = ["dtype", "site", "layer", "test"]
    same = (table[keys] == best[keys]).all(axis=1) & (table["control"] == "random weights")
    untrained = float(table.loc[same, "accuracy"].max())  # NaN without one
    least = best["accuracy"] if pd.isna(best["low"]) else best["low"]
    if not untrained >= least:
        return ""
    return (
        f"the probe of random weights is as good ({untrained:.0%} against {best['accuracy']:.0%})"
    )


def _verdict(prompts: Frame, best: Row, hidden: bool, as_good: str) -> dict[str, object]:
    """The shares of a length and its verdict, with the reason where there is none. `as_good`: why
    a probe shows nothing.
    """
    tested = prompts[prompts["right"].notna()]
    is_tested = len(tested) > 0
    rows = tested if is_tested else prompts
    correct = rows["correct"].to_numpy(bool)
    right = rows["right"].eq(True).to_numpy(bool)
    shares = {
        READ: float(correct.mean()),
        NOT_READ: float((~correct & right).mean()),
        UNDECODABLE: float((~correct & ~right).mean()),
    }
    decoded, largest = float(right.mean()) if is_tested else np.nan, max(shares.values())
    reason = ""
    if shares[READ] == largest:
        verdict = READ
    elif is_tested and best["finding"] == DECODABLE and shares[NOT_READ] == largest:
        verdict, reason = UNDECIDED if as_good else NOT_READ, as_good
    elif hidden:
        verdict = SAME_VECTOR
        if decoded > 0.5:  # not so where no probe was tested: NaN
            share, verdict = f"{decoded:.0%} of the prompts", UNDECIDED
            reason = f"the pair is below the noise, but the probe is right on {share}"
    else:
        verdict = UNDECODABLE if is_tested else UNTESTED
    if not is_tested:
        shares |= {NOT_READ: np.nan, UNDECODABLE: np.nan}
    return {
        "prompts": len(tested),
        **shares,
        "answered": shares[READ],
        "decoded": decoded,
        "test": str(tested["test"].iloc[0]) if is_tested else UNTESTED,
        "verdict": verdict,
        "reason": reason,
    }
