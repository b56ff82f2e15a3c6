"""Corollary 6.2 / B.10 on a model: the count from which answers are not expected to differ, beside those it gets wrong.

Predicted, from a collapse curve: once the prompts of n and n + 1 items are closer at the last token than the rounding noise of
their difference in a dtype, the first tokens of the answers are not expected to differ, and where the right ones do, at most
one of the two is expected to be right. Only logits that are the same bit for bit cannot differ.

Measured: what the model answers. The corollary is one-sided, and speaks of the first token generated: errors below that
count are not its business, and neither are later tokens, which see different caches. So the answer line is begun in the prompt
(`tasks.counting`): after the bare prompt the first token is the same for every count, right or wrong.
Whether the model would give the same answer by itself is tried at three counts (`same_behind_bare_prompt`).

Cost: `collapse` by its loop (a pass over every prompt, in every dtype and in float64), and an answer to every prompt in every
dtype, a few tokens each. Over all counts up to n that is O(n^2) tokens read, and O(n^3) in attention.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import pandas as pd
from transformer_lens.model_bridge import TransformerBridge

from mitigations import Mitigation
from ostools import tasks
from ostools.ground.errors import InputError
from ostools.ground.names import checked_name
from ostools.ground.out_of_memory import in_smaller_chunks
from ostools.ground.progress import Progress, part_of
from ostools.ground.whole_numbers import checked_lengths, whole_number
from ostools.measure.answers.answers import Answer, answers, line_written
from ostools.measure.answers.evaluate import evaluate_memory
from ostools.measure.answers.judging import judge_prefilled
from ostools.measure.answers.reading import CUT_OFF, SOMETHING_ELSE, reader
from ostools.measure.collapse.collapse import collapse
from ostools.measure.collapse.distances import collapse_memory
from ostools.measure.collapse.prompt_sets import ModelEncoder
from ostools.measure.collapse.result import Collapse
from ostools.measure.collapse.verdicts import IDENTICAL, CurveVerdict
from ostools.measure.measurement import measurement
from ostools.measure.mitigated_prompts import MitigatedPrompts, of_the_pass
from ostools.measure.passes.precisions import Precision, checked_precisions
from ostools.measure.unloaded import Unloaded
from ostools.models import Prompt, context_length, encode
from ostools.models.tokens import token_text
from ostools.results import Provenance, Result
from ostools.results.table_head import TableHead
from ostools.tasks.appendix_c import AppendixTask
from ostools.tasks.counting import COUNTING, PrefilledPairs, PrefilledPrompt

COLUMNS = {
    **{"task": "str", "seed": "int64", "length": "int64", "tokens": "int64", "dtype": "str"},
    **{"key": "str", "answer": "str", "kind": "str", "number": "Int64", "absolute_error": "Int64"},
    **{"correct": "boolean"},
    **{"first_token": "str", "first_token_right": "boolean", "same_first_token": "boolean"},
    **{"next_right": "boolean", "right_ones_differ": "boolean"},
    **{"distance": "float64", "noise": "float64", "pair_noise": "float64", "machine_line": "float64"},
    **{"same_top_token": "boolean", "identical_logits": "boolean"},
}
# Room after the longest right answer, to see that an answer ends where it should.
_SPARE_TOKENS = 4
_NOT_TESTED, _CONSISTENT, _CONTRADICTED = "not tested", "consistent", "contradicted"
_DIFFERS = "differs below the noise"


@dataclass(frozen=True, eq=False)
class Counting(
    Result,
    chart="answers:counting_chart",
    findings=("findings.answers:counting_findings",),
    tables=(TableHead(columns="dtype length key answer absolute_error distance pair_noise"),),
):
    """One row per count (`length`, items of the sequence) and dtype: what is predicted to be possible, and what was answered.

    Columns: task, seed, length, tokens (of the prompt with its line begun), dtype (a precision by name); key (the right
    answer), answer (the rest of the begun line, which is the answer), kind ("answered": with one whole number, right or
    wrong; "something else"; "cut off" before the line's end), number (that in it) and absolute_error (|number - key|), NA of
    another kind; correct (absolute_error is 0); first_token, first_token_right; and of n against n + 1: same_first_token
    (measured), next_right (whether n + 1's first token is right), right_ones_differ (the keys' first tokens), distance (L2 at
    y, float64), noise, pair_noise (of the difference) and machine_line (of that dtype, at y), same_top_token and
    identical_logits (`collapse`'s own passes; next to same_first_token they show two routes to the same token, which may part
    where two tokens are as good as equal).

    `summary`: one row a dtype, see `summarise`. `curve`: the collapse behind the distances.
    """

    summary: pd.DataFrame
    curve: Collapse


@measurement(
    command="evaluate counting",
    examples=("--task count-ones --dtype float32 --out counting.png",),
    check="counting",
    memory="measure.answers.counting:counting_memory",
)
@in_smaller_chunks
def counting(
    model: TransformerBridge,
    task: AppendixTask | str = "count-ones",
    *,
    lengths: Iterable[int] = range(1, 65),
    dtypes: Sequence[str] = ("float32", "bfloat16"),
    seed: int = 0,
    mitigation: Mitigation | str | None = None,
    progress: Progress | None = None,
) -> Counting:
    """Measure the count from which counting is predicted to be impossible in each dtype, and from which the model errs
    (6.2 / B.10).

    Args:
        task: "sum-ones", "count-ones", "count-ones-bernoulli", "count-ones-figure-5" or "count-word", or an `AppendixTask` with
            options.
        lengths: numbers of items. Each is compared with the next one. A prediction needs eight lengths in a row at which the
            pair is hidden (`Collapse.hidden_ranges`).
        dtypes: precisions to answer in, by name, as in `collapse`. Copies are cast; the model stays
            as it is.
        seed: seed of the sequence, if the task draws one.
        mitigation: a `mitigations.Mitigation` of the forward pass or its name with options ("sliding-window:window=16"). Every
            pass is under its hooks. In every dtype it has to change a logit of the longest prompt.
        progress: called as progress(done, total), in percent.

    Raises `InputError` for another task, for what `collapse` refuses, for a mitigation that rewrites
    prompts or changes nothing here, and for a tokenizer with which the answer lines of different
    counts do not begin alike. Source: arXiv 2406.04267, Corollary 6.2 / B.10, Appendix C.1.
    """
    form = task if isinstance(task, AppendixTask) else AppendixTask(checked_name("counting task", task, COUNTING))
    dtypes = [precision.name for precision in checked_precisions(dtypes)]
    prefilled_pairs = PrefilledPairs(form)
    seed, length_list = whole_number("seed", seed), checked_lengths(lengths)
    acting = of_the_pass("counting", mitigation, "ost.evaluate and ost.collapse take it with a task")
    _require_room(model, prefilled_pairs, max(length_list) + 1, seed)
    part_progress = partial(part_of, progress, shares=1 + len(dtypes), units=100)
    options: dict[str, Any] = {"lengths": length_list, "dtypes": dtypes, "seeds": [seed], "mitigation": acting}
    curve = collapse(model, prefilled_pairs, **options, progress=part_progress(0, 1))
    curve.require_finite("counting")
    measured_lengths, names = curve.provenance.parameters["lengths"], curve.provenance.parameters["dtypes"]
    prompts = prefilled_pairs.prompts(
        ModelEncoder(model), sorted({*measured_lengths, *(n + 1 for n in measured_lengths)}), seed
    )
    tables, same_by_dtype = [], {}
    for dtypes_done, name in enumerate(names, start=1):
        answer_by_count, same_by_dtype[name] = _answers_in(
            model, Precision.of_name(name), form, prompts, seed, acting, part_progress(dtypes_done, dtypes_done + 1)
        )
        tables.append(_rows(model, prompts, answer_by_count, measured_lengths).assign(dtype=name))
    frame: Any = pd.concat(tables, ignore_index=True).merge(_distances(curve), on=["dtype", "length"], validate="1:1")
    frame = frame.assign(task=form.name, seed=seed)[list(COLUMNS)].astype(COLUMNS)
    parameters: dict[str, Any] = {**curve.provenance.parameters, "measurement": "counting", "options": repr(form)}
    provenance = Provenance.collect(model, prompts[max(prompts)].ids, **parameters)
    return Counting(
        frame, provenance, summarise(frame, curve).assign(same_behind_bare_prompt=same_by_dtype.values()), curve
    )


def summarise(frame: pd.DataFrame, curve: Collapse) -> pd.DataFrame:
    """One row a dtype: predicted, measured, and whether the two can stand together.

    predicted: impossible_from, where the first range of lengths begins at which the pair is hidden at y (NA: there is none);
    impossible_status, the verdict with all ranges in words. measured: identical_from (the first range in which the logits of n
    and n + 1 are the same bit for bit; identical_status), errors (answers with a wrong number), first_error (the first of
    them), always_errs_from (the first after the last right number; NA: none, of the counts measured), something_else and
    cut_off (answers of these kinds: neither right nor an error), counts (how many were asked). `counting` adds
    same_behind_bare_prompt: at how many of the shortest, middle and longest counts the model gives the same answer line by
    itself. Below all, what is measured is what it answers once the line is begun for it, not what it would say. together:
    pairs_hidden (n, n + 1 with n in one of the ranges), differ_hidden (those whose measured first tokens differ all the same:
    below the noise is not equal, and small steps add up), tested_pairs (those whose right first tokens differ), right_once and
    right_twice of them. verdict: "contradicted" where a tested pair was right twice (the prediction fails), or where logits
    that are the same bit for bit gave different first tokens (`same_logits_differ`: two passes of one model disagree); "differs
    below the noise" where differ_hidden is not 0; "consistent" where a tested pair was right once, and so could have been right
    twice; else "not tested": nothing was right that could have contradicted.
    """
    rows = [
        _verdict(str(name), dtype_rows, curve) for name, dtype_rows in cast(Any, frame).groupby("dtype", sort=False)
    ]
    integer_columns = dict.fromkeys(("impossible_from", "identical_from", "first_error", "always_errs_from"), "Int64")
    return pd.DataFrame(rows).astype(integer_columns)


def _verdict(name: str, rows: Any, curve: Collapse) -> dict[str, Any]:
    rows = rows.sort_values("length")
    impossible, identical = (_verdict_at(curve, name, site) for site in ("y", IDENTICAL))
    right = rows["correct"]
    wrong = rows.loc[rows["absolute_error"].gt(0).fillna(False), "length"]
    last_right = rows.loc[right, "length"].max()  # NaN where none is right: no count compares as smaller
    always = wrong[~(wrong <= last_right)]
    spans = impossible.ranges if impossible is not None else ()
    inside = rows[[any(span.first <= n <= span.last for span in spans) for n in rows["length"]]]
    tested = inside[inside["right_ones_differ"]]
    right_twice = int((tested["first_token_right"] & tested["next_right"]).sum())
    right_once = int((tested["first_token_right"] ^ tested["next_right"]).sum())
    disagree = int((rows["identical_logits"] & ~rows["same_first_token"]).sum())
    differ = int((~inside["same_first_token"]).sum())
    verdict = _DIFFERS if differ else _CONSISTENT if right_once else _NOT_TESTED
    return {
        "dtype": name,
        "impossible_from": _first(impossible),
        "impossible_status": _status(impossible),
        "identical_from": _first(identical),
        "identical_status": _status(identical),
        "first_error": None if wrong.empty else int(wrong.iloc[0]),
        "always_errs_from": None if always.empty else int(always.iloc[0]),
        "errors": len(wrong),
        "something_else": int(rows["kind"].eq(SOMETHING_ELSE).sum()),
        "cut_off": int(rows["kind"].eq(CUT_OFF).sum()),
        "counts": len(rows),
        "pairs_hidden": len(inside),
        "differ_hidden": differ,
        "tested_pairs": len(tested),
        "right_once": right_once,
        "right_twice": right_twice,
        "same_logits_differ": disagree,
        "verdict": _CONTRADICTED if right_twice or disagree else verdict,
    }


def _verdict_at(curve: Collapse, name: str, site: str) -> CurveVerdict | None:
    """Over which lengths the pair cannot be told apart at a site in that dtype; None of float64, which is the reference."""
    every = curve.verdicts_over_seeds().items()
    return next((verdict for (_, dtype, at, _), verdict in every if (dtype, at) == (name, site)), None)


def _first(verdict: CurveVerdict | None) -> int | None:
    return verdict.ranges[0].first if verdict is not None and verdict.ranges else None


def _status(verdict: CurveVerdict | None) -> str:
    return "no verdict: float64 is the reference, whose own noise is not known" if verdict is None else verdict.words


def _require_room(model: TransformerBridge, prefilled_pairs: PrefilledPairs, longest: int, seed: int) -> None:
    """Refuse before any pass what would not fit at the end."""
    prompt = prefilled_pairs.prompts(ModelEncoder(model), [longest], seed)[longest]
    needed, context = len(prompt.ids) + _room({longest: prompt}), context_length(model)
    if needed > context:
        raise InputError(
            f"{prefilled_pairs.name}: {longest - 1} items and one more take {needed} tokens with their answer, the model's "
            f"context holds {context}: ask for shorter lengths"
        )


def _room(prompts: dict[int, PrefilledPrompt]) -> int:
    """Number of tokens that an answer may have."""
    return max(len(prefilled.answer) for prefilled in prompts.values()) + _SPARE_TOKENS


def _answers_in(
    model: TransformerBridge,
    precision: Precision,
    form: AppendixTask,
    prompts: dict[int, PrefilledPrompt],
    seed: int,
    mitigation: Mitigation | None,
    progress: Progress | None,
) -> tuple[dict[int, Answer], str]:
    """Answers at every count in one precision; and how many of three counts get the same answer after the bare prompt."""
    prepared = precision.prepared(model)
    room = _room(prompts)
    longest = max((prefilled.ids for prefilled in prompts.values()), key=len)
    counts = sorted(prompts)
    probes = sorted({counts[0], counts[len(counts) // 2], counts[-1]})
    bare_prompts = [encode(prepared, form.prompt(n, seed)) for n in probes]
    line = form.answer_line("")
    prefix_length = max(len(prompts[n].ids) - len(prompt.ids) for n, prompt in zip(probes, bare_prompts, strict=True))
    mitigated = MitigatedPrompts.of_rewritten("counting", Prompt.from_ids(prepared, longest), mitigation)
    with mitigated.acting(prepared), precision.running(prepared, longest):
        encoded_prompts = [Prompt.from_ids(prepared, prompts[n].ids) for n in counts]
        ends = [line_written] * len(encoded_prompts)
        prefilled_answers = answers(prepared, encoded_prompts, max_new_tokens=room, stops=ends, progress=progress)
        readers = [reader(form, form.items(n, seed)) for n in probes]
        free_answers = answers(
            prepared,
            bare_prompts,
            max_new_tokens=prefix_length + room,
            stops=[answer_reader.closed for answer_reader in readers],
        )
    answer_by_count = dict(zip(counts, prefilled_answers, strict=True))
    free_lines = [
        answer_reader.read(answer.text, answer.ended).line
        for answer_reader, answer in zip(readers, free_answers, strict=True)
    ]
    same = sum(
        answer_line == line + judge_prefilled(answer_by_count[n], prompts[n].key).line
        for n, answer_line in zip(probes, free_lines, strict=True)
    )
    return answer_by_count, f"{same} of {len(probes)}"


def _rows(
    model: TransformerBridge,
    prompts: dict[int, PrefilledPrompt],
    answer_by_count: dict[int, Answer],
    lengths: Sequence[int],
) -> pd.DataFrame:
    """Rows of the answers at every count, each beside the answer at the next count."""
    right = {n: answer_by_count[n].ids[0] == prefilled.answer[0] for n, prefilled in prompts.items()}
    rows = []
    for n in lengths:
        prefilled_prompt, answer = prompts[n], answer_by_count[n]
        against = judge_prefilled(answer, prefilled_prompt.key)
        rows.append(
            {
                "length": n,
                "tokens": len(prefilled_prompt.ids),
                "key": prefilled_prompt.key,
                "answer": against.line,
                "kind": against.kind,
                "number": against.number,
                "absolute_error": against.absolute_error,
                "correct": against.correct,
                "first_token": token_text(model.tokenizer, answer.ids[0]),
                "first_token_right": right[n],
                "same_first_token": answer.ids[0] == answer_by_count[n + 1].ids[0],
                "next_right": right[n + 1],
                "right_ones_differ": prefilled_prompt.answer[0] != prompts[n + 1].answer[0],
            }
        )
    return pd.DataFrame(rows)


def _distances(curve: Collapse) -> pd.DataFrame:
    """Distances of n against n + 1 on the collapse curve, a row per dtype and length."""
    frame: Any = curve.frame
    vector_rows = frame[(frame["per"] == "vector") & (frame["norm"] == "l2")]
    keys = ["dtype", "length"]
    at_y = vector_rows[vector_rows["site"] == "y"][[*keys, "weights", "noise", "pair_noise", "machine_line"]]
    logit_rows = vector_rows[vector_rows["site"] == "logits"][[*keys, "same_top_token", "identical_logits"]]
    reference: Any = curve.reference
    exact = reference[reference["site"] == "y"][["weights", "length", "distance"]]
    return at_y.merge(logit_rows, on=keys, validate="1:1").merge(exact, on=["weights", "length"], validate="m:1")


def counting_memory(
    model: Unloaded,
    task: AppendixTask | str,
    lengths: Sequence[int],
    *,
    dtypes: Sequence[str],
    mitigation: Mitigation | str | None = None,
) -> int:
    """Bytes of the distances of the counts, and of the answers."""
    form = tasks.task(task)
    distances = collapse_memory(model, form, lengths, dtypes=dtypes, mitigation=mitigation)
    return max(distances, evaluate_memory(model, form, lengths, mitigation=mitigation))
