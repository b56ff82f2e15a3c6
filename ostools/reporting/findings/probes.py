"""Sentences on probes, and on where answers are lost."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from ostools.ground.words import runs
from ostools.measure import Decodability, FailureStage
from ostools.measure.probes.failure_stage import VERDICTS, best_probe, untrained_as_good
from ostools.measure.probes.scores import DECODABLE, TESTS
from ostools.measure.probes.wrong_answers import ErrorVerdict, explain_errors
from ostools.reporting.findings import first_few, present, where_read, which_token
from ostools.results import Frame, frame_of

# --- where the answer is lost


def error_verdict(result: FailureStage) -> ErrorVerdict:
    """Where wrong answers fall, in the first dtype."""
    dtype = str(result.provenance.parameters["dtypes"][0])
    stages, answers = (_of(table, dtype) for table in (frame_of(result), result.answers))
    right = answers.groupby("length")["correct"].sum()
    wrong = answers.groupby("length")["correct"].count() - right
    hidden = stages.set_index("length")["indistinguishable"].astype(bool)
    reads = _reads(result.probes, dtype, stages[stages["indistinguishable"].astype(bool)])
    return explain_errors(right.to_dict(), wrong.to_dict(), hidden.to_dict(), reads)


def _of(table: Frame, dtype: str) -> Frame:
    return table[table["dtype"] == dtype]


def _reads(probes: Decodability, dtype: str, rows: Frame) -> bool | None:
    """Whether a probe says most right answers at these lengths, by more than its controls; None
    where none was tested.
    """
    tested = int(rows["prompts"].sum())
    if not tested:
        return None
    best, _ = best_probe(probes, dtype)
    by_more = best["finding"] == DECODABLE and not untrained_as_good(probes, best)
    return by_more and float((rows["decoded"] * rows["prompts"]).sum()) > tested / 2


def failure_stage_findings(result: FailureStage) -> list[str]:
    """Whether answers are wrong where the last token still tells n from n + 1, and how it was asked
    (a sweep has no answers); then verdicts, and the probe of the first dtype."""
    frame, dtype = frame_of(result), str(result.provenance.parameters["dtypes"][0])
    verdicts = [
        f"{name}, mitigation {mitigation}: {_verdicts(group)}."
        for (mitigation, name), group in frame.groupby(["mitigation", "dtype"], sort=False)
    ]
    answers = len(result.answers) > 0
    return [
        *([error_verdict(result).sentence, _answer_counts(result, dtype)] if answers else []),
        " ".join(verdicts),
        *([] if result.probes.frame.empty else [_probe_words(result.probes, dtype)]),
    ]


def _answer_counts(result: FailureStage, dtype: str) -> str:
    """How many answers in a dtype are right, how many a probe says, the task, and the token that
    was read.
    """
    parameters = result.provenance.parameters
    answers, frame = (_of(table, dtype) for table in (result.answers, frame_of(result)))
    tested, decoded = frame["prompts"].sum(), (frame["decoded"] * frame["prompts"]).sum()
    read_at = parameters.get("read_at")
    return (
        f"{int(answers['correct'].sum())} of {len(answers)} answers are right; a linear probe says "
        f"{decoded:.0f} of {tested} right. Asked in {dtype}: {parameters['task']}, "
        f"{frame['length'].min()} to {frame['length'].max()} items. "
        f"{which_token(read_at) if read_at else ''}"
    ).strip()


def _verdicts(rows: Frame) -> str:
    """Each verdict with its lengths, and its reason where it has one."""
    return "; ".join(
        f"{name} at n = {runs(group['length'].tolist())}{f' ({reason})' if reason else ''}"
        for name in VERDICTS
        for reason, group in rows[rows["verdict"] == name].groupby("reason", sort=False)
    )


# --- probes


def probe_findings(result: Decodability) -> list[str]:
    """Where the prompt was read; for each dtype the best place and its controls."""
    dtypes = [str(name) for name in frame_of(result)["dtype"].unique() if name != "none"]
    places = [_probe_words(result, dtype) for dtype in dtypes]
    return first_few(present(where_read(result.provenance.parameters), *places))


def _probe_words(probes: Decodability, dtype: str) -> str:
    """The place where the probe is right most often, its share right by test, and those of its
    controls, each with its interval.
    """
    best, _ = best_probe(probes, dtype)
    frame = frame_of(probes)
    alone = frame["site"] == "length"
    at_best = frame[["site", "layer", "dtype"]].eq([best["site"], best["layer"], dtype]).all(axis=1)
    names = frame["control"].replace("none", "probe").mask(alone, "length alone")
    rows = frame.assign(name=names)[at_best | alone]
    tests = [
        f"{test}: {', '.join(map(_right, of_test.to_dict('records')))}"
        for test in TESTS
        if len(of_test := rows[rows["test"] == test])
    ]
    return (
        f"{dtype}: {best['finding']}. The probe is right most often at {best['site']}, layer "
        f"{best['layer']}. {'; '.join(tests)}."
    )


def _right(row: Mapping[Hashable, Any]) -> str:
    return f"{row['name']} {row['accuracy']:.0%} [{row['low']:.0%}, {row['high']:.0%}]"
