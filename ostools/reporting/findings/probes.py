"""Sentences on probes, and on where answers are lost."""

from __future__ import annotations

from ostools.ground.words import runs
from ostools.measure import Decodability, FailureStage
from ostools.measure.probes.failure_stage import (
    UNDECODABLE,
    VERDICTS,
    best_probe,
    untrained_as_good,
)
from ostools.measure.probes.scores import BETWEEN, BEYOND, DECODABLE, SAME, TESTS
from ostools.measure.probes.wrong_answers import ErrorVerdict, explain_errors
from ostools.reporting.findings import (
    MOST,
    as_one_finding,
    first_few,
    present,
    where_read,
    which_token,
)
from ostools.results import Frame, Row, frame_of

_LENGTHS = {
    SAME: "the same lengths",
    BETWEEN: "interpolated lengths",
    BEYOND: "extrapolated lengths",
}
UNDECODABLE_WORDS = (
    "Undecodable: a linear probe trained on so many examples does not decode the answer. Probes "
    "that are not linear, and more examples, were not tried."
)


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
    if (frame["verdict"] == UNDECODABLE).any():
        verdicts.append(UNDECODABLE_WORDS)
    answers = len(result.answers) > 0
    return [
        *([error_verdict(result).sentence, _answer_counts(result, dtype)] if answers else []),
        as_one_finding(verdicts),
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
    return present(where_read(result.provenance.parameters), *first_few(places, MOST - 1))


def _probe_words(probes: Decodability, dtype: str) -> str:
    """The place where the probe is right most often, its share right by test, and those of its
    controls.
    """
    best, _ = best_probe(probes, dtype)
    frame = frame_of(probes)
    alone = frame["site"] == "length"
    at_best = frame[["site", "layer", "dtype"]].eq([best["site"], best["layer"], dtype]).all(axis=1)
    rows = frame.assign(name=frame["control"].mask(alone, "length alone"))[at_best | alone]
    tests = [
        _test_words(test, rows[rows["test"] == test].set_index("name"))
        for test in TESTS
        if test in set(frame.loc[at_best, "test"])
    ]
    return f"{dtype}: {best['finding']}. The probe is right most often {_at(best)}: {'; '.join(tests)}."


def _test_words(test: str, rows: Frame) -> str:
    """The share right by one test with its interval, and in brackets those of its controls."""
    probe, shares = rows.loc["none"], rows["accuracy"].drop("none")
    controls = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    interval = f"[{probe['low']:.0%}, {probe['high']:.0%}]"
    if probe["high"] - probe["low"] == 1:  # of 0% to 100% nothing is known
        interval = "(too few to say within what interval)"
    return f"{probe['accuracy']:.0%} right on {_LENGTHS[test]} {interval} ({controls or 'no controls'})"


def _at(row: Row) -> str:
    """The place of a probe: at v^(l), at y, or between the two sublayers of a block."""
    if row["site"] == "residual_mid":
        return f"between attention and MLP of block {row['layer']}"
    return f"at v^({row['layer']})" if row["site"] == "residual" else f"at {row['site']}"
