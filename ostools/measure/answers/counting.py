"""Corollary 6.2 / B.10 on a model: the count from which answers are not expected to differ, beside
those it gets wrong.

Predicted, from a collapse curve: once the prompts of n and n + 1 items are closer at the last token
than the rounding noise of their difference in a dtype, the first tokens of the answers are not
expected to differ, and where the right ones do, at most one of the two is expected to be right.
Only logits that are the same bit for bit cannot differ.

Measured: what the model answers. The corollary is one-sided, and speaks of the first token
generated: errors below that count are not its business, and neither are later tokens, which see
different caches. So the answer line is begun in the prompt (`prefilled`): after the bare prompt,
which `evaluate` asks, the first token is the same for every count, right or wrong.

Cost: `collapse` by its loop (a pass over every prompt, in every dtype and in float64), and an
answer to every prompt in every dtype, a few tokens each. Over all counts up to n that is O(n^2)
tokens read, and O(n^3) in attention.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, cast

import pandas as pd

from ostools.ground import Progress, Seed, TransformerBridge, checked_lengths, checked_name, part_of
from ostools.measure.answers.answers import Answer
from ostools.measure.answers.judging import judge_prefilled
from ostools.measure.answers.prefilled import prefilled_answers, require_room, running
from ostools.measure.answers.reading import CUT_OFF, SOMETHING_ELSE
from ostools.measure.collapse.collapse import collapse
from ostools.measure.collapse.prompt_sets import RenderedPairs
from ostools.measure.collapse.result import Collapse
from ostools.measure.measurement import measurement
from ostools.measure.mitigated_prompts import MitigatedPrompts, of_the_pass
from ostools.measure.passes.precisions import checked_precisions
from ostools.measure.position import ReadPrompt
from ostools.mitigations import Mitigation
from ostools.models import Prompt
from ostools.models.tokens import token_text
from ostools.results import Chart, Frame, Provenance, Result, TableHead, frame_of
from ostools.tasks import AppendixTask
from ostools.tasks.appendix_c import COUNTING

_NUMBERS = ("distance", "pair_noise", "machine_line")
COLUMNS = (
    {"task": "str", "seed": "int64", "length": "int64", "tokens": "int64", "dtype": "str"}
    | {"key": "str", "answer": "str", "kind": "str", "number": "Int64", "absolute_error": "Int64"}
    | {"correct": "boolean", "first_token": "str", "first_token_right": "boolean"}
    | dict.fromkeys(("same_first_token", "next_right", "right_ones_differ"), "boolean")
    | dict.fromkeys(_NUMBERS, "float64")
)
_NO_VERDICT = "no verdict: float64 is the reference, whose own noise is not known"


@dataclass(frozen=True, eq=False)
class Counting(Result):
    """One row per count (`length`, items of the sequence) and dtype: what is predicted to be
    possible, and what was answered.

    Columns: task, seed, length, tokens (of the prompt with its line begun), dtype (a precision by
    name); key (the right answer), answer (the rest of the begun line), kind, number, absolute_error
    and correct (as in `Evaluation`); first_token, first_token_right; and of n against n + 1:
    same_first_token (measured), next_right (whether n + 1's first token is right),
    right_ones_differ (the keys' first tokens), distance (L2 at y, float64), pair_noise (of the
    difference) and machine_line (of that dtype, at y).

    `summary`: one row a dtype, see `summarise`. `curve`: the collapse behind the distances.
    """

    tables: ClassVar = (
        TableHead(columns="dtype length key answer absolute_error distance pair_noise"),
    )

    summary: pd.DataFrame
    curve: Collapse

    def chart(self) -> Chart:
        from ostools.reporting.charts.answers import counting_chart

        return counting_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.answers import counting_findings

        return counting_findings(self)


def counting_task(task: AppendixTask | str) -> AppendixTask:
    """The task itself. Raises `InputError` for one whose answer is no count."""
    form = task if isinstance(task, AppendixTask) else AppendixTask(task)
    checked_name("counting task", form.name, COUNTING)
    return form


@measurement(
    command="evaluate counting",
    examples=("--task count-ones --dtypes float32 --out counting.png",),
    memory=["answers", "logits"],
    in_chunks=True,
    checks=(counting_task, checked_precisions),
)
def counting(
    model: TransformerBridge,
    task: AppendixTask | str = "count-ones",
    *,
    lengths: Iterable[int] = range(1, 65),
    dtypes: Sequence[str] = ("float32", "bfloat16"),
    seed: Seed = 0,
    bos: bool | None = None,
    mitigation: Mitigation | str | None = None,
    progress: Progress | None = None,
) -> Counting:
    """Measure the count from which counting is predicted to be impossible in each dtype, and from
    which the model errs (6.2 / B.10).

    Args:
        task: "sum-ones", "count-ones", "count-ones-bernoulli", "count-ones-figure-5" or
            "count-word", or an `AppendixTask`.
        lengths: numbers of items. Each is compared with the next one. A prediction needs eight
            lengths in a row at which the pair is hidden (`Collapse.hidden_ranges`).
        dtypes: precisions to answer in, by name, as in `collapse`. Copies are cast; the model stays
            as it is.
        seed: seed of the sequence, if the task draws one.
        bos: whether the tokenizer's BOS stands before the prompts, which are in no chat template;
            None: as the tokenizer does by itself.
        mitigation: a `mitigations.Mitigation` of the forward pass or its name with options
            ("sliding-window:window=16"). Every pass is under its hooks. In every dtype it has to
            change a logit of the longest prompt.
        progress: called as progress(done, total), in percent.

    Raises `InputError` for another task, for what `collapse` refuses, for a mitigation that
    rewrites prompts or changes nothing here, and for a tokenizer with which the answer lines of
    different counts do not begin alike. Source: arXiv 2406.04267, Corollary 6.2 / B.10, Appendix
    C.1.
    """
    form = counting_task(task)
    precisions, length_list = checked_precisions(dtypes), checked_lengths(lengths)
    acting = of_the_pass(
        "counting", mitigation, "ost.evaluate and ost.collapse take it with a task"
    )
    pairs = RenderedPairs(model, form, encoding={"bos": bos, "chat": False})
    prompts = pairs.prompts(sorted({*length_list, *(n + 1 for n in length_list)}), seed)
    require_room(model, list(prompts.values()))
    part_progress = partial(part_of, progress, shares=1 + len(precisions), units=100)
    curve = collapse(
        model,
        pairs,
        lengths=length_list,
        dtypes=[precision.name for precision in precisions],
        seeds=[seed],
        mitigation=acting,
        progress=part_progress(0, 1),
    )
    curve.require_finite("counting")
    tables = []
    for step, precision in enumerate(precisions, start=1):
        with running(model, list(prompts.values()), precision, None) as prepared:
            longest = Prompt.from_ids(prepared, prompts[max(prompts)].ids)
            with MitigatedPrompts.of_rewritten("counting", longest, acting).acting(prepared):
                answer_list = prefilled_answers(
                    prepared, list(prompts.values()), part_progress(step, step + 1)
                )
        rows = _rows(model, prompts, dict(zip(prompts, answer_list, strict=True)), length_list)
        tables.append(rows.assign(dtype=precision.name))
    at_y = frame_of(curve).query("site == 'y' and per == 'vector' and norm == 'l2'")
    distances = at_y.rename(columns={"float64_distance": "distance"})
    keys = ["dtype", "length"]
    frame: Frame = pd.concat(tables).merge(distances[[*keys, *_NUMBERS]], on=keys, validate="1:1")
    frame = frame.assign(task=form.name, seed=seed)[list(COLUMNS)].astype(COLUMNS)
    about = {"measurement": "counting", "options": repr(form)}
    provenance = Provenance.collect(
        model, prompts[max(prompts)].ids, **{**curve.provenance.parameters, **about}
    )
    return Counting(frame, provenance, summarise(frame, curve), curve)


def _rows(
    model: TransformerBridge,
    prompts: dict[int, ReadPrompt],
    answer_by_count: dict[int, Answer],
    lengths: Sequence[int],
) -> pd.DataFrame:
    first_tokens = {n: answer.ids[0] for n, answer in answer_by_count.items()}
    right = {n: first_tokens[n] == prompt.token for n, prompt in prompts.items()}
    rows = []
    for n in lengths:
        key = prompts[n].task_prompt.key
        verdict = judge_prefilled(answer_by_count[n], key)
        judged = {
            name: getattr(verdict, name) for name in ("kind", "number", "absolute_error", "correct")
        }
        first_token = {
            "first_token": token_text(model.tokenizer, first_tokens[n]),
            "first_token_right": right[n],
            "same_first_token": first_tokens[n] == first_tokens[n + 1],
            "next_right": right[n + 1],
            "right_ones_differ": prompts[n].token != prompts[n + 1].token,
        }
        about = {"length": n, "tokens": len(prompts[n].ids), "key": key, "answer": verdict.line}
        rows.append(about | judged | first_token)
    return pd.DataFrame(rows)


def summarise(frame: pd.DataFrame, curve: Collapse) -> pd.DataFrame:
    """One row a dtype: predicted, measured, and whether the two can stand together.

    predicted: impossible_from, where the first range of lengths begins at which the pair is hidden
    at y (NA: there is none); impossible_status, the verdict with all ranges in words. measured:
    errors (answers with a wrong number), first_error (the first of them), always_errs_from (the
    first after the last right number; NA: none, of the counts measured), something_else and cut_off
    (answers of these kinds: neither right nor an error), counts (how many were asked). together:
    pairs_hidden (n, n + 1 with n in one of the ranges), differ_hidden (those whose measured first
    tokens differ all the same: below the noise is not equal, and small steps add up), tested_pairs
    (those whose right first tokens differ), right_once and right_twice of them. verdict:
    "contradicted" where a tested pair was right twice (the prediction fails); "differs below the
    noise" where differ_hidden is not 0; "consistent" where a tested pair was right once, and so
    could have been right twice; else "not tested": nothing was right that could have contradicted.
    """
    verdicts = {
        dtype: verdict
        for (_, dtype, site, _), verdict in curve.verdicts_over_seeds().items()
        if site == "y"
    }
    rows, table = [], cast(Frame, frame)
    for dtype, dtype_rows in table.groupby("dtype", sort=False):
        verdict = verdicts.get(dtype)
        ranges = () if verdict is None else verdict.ranges
        row = {
            "dtype": dtype,
            "impossible_from": ranges[0].first if ranges else None,
            "impossible_status": _NO_VERDICT if verdict is None else verdict.words,
        }
        hidden = [
            any(span.first <= n <= span.last for span in ranges) for n in dtype_rows["length"]
        ]
        rows.append(row | _errors(dtype_rows) | _hidden_pairs(dtype_rows[hidden]))
    return pd.DataFrame(rows).astype(
        dict.fromkeys(("impossible_from", "first_error", "always_errs_from"), "Int64")
    )


def _errors(rows: Frame) -> dict[str, object]:
    wrong = rows.loc[rows["absolute_error"].gt(0).fillna(False), "length"]
    last_right = rows.loc[
        rows["correct"], "length"
    ].max()  # NaN where none is right: no count compares as smaller
    return {
        "first_error": wrong.min(),
        "always_errs_from": wrong[~(wrong <= last_right)].min(),
        "errors": len(wrong),
        "something_else": int(rows["kind"].eq(SOMETHING_ELSE).sum()),
        "cut_off": int(rows["kind"].eq(CUT_OFF).sum()),
        "counts": len(rows),
    }


def _hidden_pairs(hidden: Frame) -> dict[str, object]:
    tested = hidden[hidden["right_ones_differ"]]
    differ = int((~hidden["same_first_token"]).sum())
    right_once = int((tested["first_token_right"] ^ tested["next_right"]).sum())
    right_twice = int((tested["first_token_right"] & tested["next_right"]).sum())
    verdict = "differs below the noise" if differ else "consistent" if right_once else "not tested"
    return {
        "pairs_hidden": len(hidden),
        "differ_hidden": differ,
        "tested_pairs": len(tested),
        "right_once": right_once,
        "right_twice": right_twice,
        "verdict": "contradicted" if right_twice else verdict,
    }
