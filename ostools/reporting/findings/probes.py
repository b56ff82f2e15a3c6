"""Sentences on probes, on whether the output reads them, and on where answers are lost."""

from __future__ import annotations

from typing import Any

from ostools.ground.words import runs
from ostools.measure import Decodability, FailureStage, ProbeIntervention
from ostools.measure.mitigated_prompts import ACTIVE
from ostools.measure.probes.failure_stage import (
    BREAKS,
    REPAIRS,
    UNDECODABLE,
    VERDICTS,
    best_probe,
    untrained_as_good,
)
from ostools.measure.probes.scores import BETWEEN, BEYOND, DECODABLE, SAME, TESTS
from ostools.measure.probes.wrong_answers import ErrorVerdict, explain_errors
from ostools.mitigations.named import NONE
from ostools.reporting.findings import MOST, first_few
from ostools.reporting.findings.position import where_read
from ostools.results import Frame, Row, frame_of

_LENGTHS = {
    SAME: "the same lengths",
    BETWEEN: "interpolated lengths",
    BEYOND: "extrapolated lengths",
}
UNDECODABLE_WORDS = (
    "Undecodable: a linear probe trained on so many examples does not decode the answer. Probes that are "
    "not linear, and more examples, were not tried."
)


def error_verdict(result: FailureStage) -> ErrorVerdict:
    """Where wrong answers fall, in the first dtype and without a mitigation."""
    dtype = str(result.provenance.parameters["dtypes"][0])
    tables: list[Any] = [frame_of(result), result.answers]
    stages, answers = (
        table[(table["dtype"] == dtype) & (table["mitigation"] == NONE)] for table in tables
    )
    right = answers.groupby("length")["correct"].sum()
    wrong = answers.groupby("length")["correct"].count() - right
    is_hidden = stages.set_index("length")["indistinguishable"].astype(bool)
    below = stages[stages["indistinguishable"].astype(bool)]
    return explain_errors(
        right.to_dict(), wrong.to_dict(), is_hidden.to_dict(), _reads(result.probes, dtype, below)
    )


def _reads(probes: Decodability, dtype: str, rows: Any) -> bool | None:
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
    """Whether answers are wrong where the last token still tells n from n + 1; how it was asked;
    then verdicts and probes of the first dtype, and what mitigations change."""
    frame, dtype = frame_of(result), str(result.provenance.parameters["dtypes"][0])
    mitigations = [str(name) for name in frame["mitigation"].unique()]
    first = mitigations[0]
    under_it = "" if first == NONE else f" under {first}"
    rows = frame[frame["mitigation"] == first]
    probes = result.probes if first == NONE else result.under.get(first)
    undecodable = f" {UNDECODABLE_WORDS}" if (rows["verdict"] == UNDECODABLE).any() else ""
    verdicts = " ".join(
        f"{name}{under_it}: {_verdicts(group)}."
        for name, group in rows.groupby("dtype", sort=False)
    )
    of_dtype = f"{dtype}: " if frame["dtype"].nunique() > 1 else ""
    sentences = (
        [f"{of_dtype}{error_verdict(result).sentence}"]
        if first == NONE and len(result.answers)
        else []
    )
    sentences += (
        [_answer_counts(result, dtype, first)] if len(result.answers) else []
    )  # rows of a sweep have none
    sentences.append(f"{verdicts}{undecodable}")
    if probes is not None and len(probes.frame):
        sentences.append(
            " ".join([_best(probes, dtype, under_it), *_steps(probes, dtype, under_it)])
        )
    if first == NONE and len(mitigations) > 1:
        sentences.append(" ".join(mitigation_changes(result, name) for name in mitigations[1:]))
    return sentences


def _answer_counts(result: FailureStage, dtype: str, mitigation: str) -> str:
    """How many answers in a dtype are right, how many a probe says, the task, and the token that
    was read.
    """
    parameters = result.provenance.parameters
    tables: list[Any] = [
        table[(table["dtype"] == dtype) & (table["mitigation"] == mitigation)]
        for table in (result.answers, frame_of(result))
    ]
    answers, frame = tables
    right: Any = answers["correct"].sum()
    tested, decoded = (
        int(frame["prompts"].sum()),
        float((frame["decoded"] * frame["prompts"]).sum()),
    )
    probed = f"; a linear probe says {decoded:.0f} of {tested} right" if tested else ""
    where = " ".join(where_read(parameters)[:1])
    return (
        f"{int(right)} of {len(answers)} answers are right{probed}. Asked in {dtype}: {parameters['task']}, "
        f"{frame['length'].min()} to {frame['length'].max()} items. {where}"
    ).strip()


def _verdicts(rows: Frame) -> str:
    """Each verdict with its lengths, and its reason where it has one."""
    parts = []
    for name in VERDICTS:
        for reason, group in rows[rows["verdict"] == name].groupby("reason", sort=False):
            parts.append(
                f"{name} at n = {runs(group['length'].tolist())}{f' ({reason})' if reason else ''}"
            )
    return "; ".join(parts)


def mitigation_changes(result: FailureStage, name: str) -> str:
    """Which verdicts a mitigation repairs and breaks."""
    frame, changes = frame_of(result), result.repaired()
    status = frame[frame["mitigation"] == name]["status"]
    if not (status == ACTIVE).any():
        return f"{name} is {status.iloc[0]}: it changed nothing."
    words = []
    for change in (REPAIRS, BREAKS):
        rows = changes[(changes["mitigation"] == name) & (changes["change"] == change)]
        groups: Any = rows.groupby(["dtype", "before", "after"], sort=False)
        parts = [
            f"{before} to {after} at n = {', '.join(map(str, group['length']))} ({dtype})"
            for (dtype, before, after), group in groups
        ]
        words += [f"{change} {'; '.join(parts)}"] if parts else []
    return f"{name}: {', and '.join(words) or 'changes no verdict'}."


def _dtypes(result: Decodability) -> list[str]:
    return [str(name) for name in frame_of(result)["dtype"].unique() if name != "none"]


def probe_findings(result: Decodability) -> list[str]:
    """Where the prompt was read; for each dtype the best place, its controls, and the sublayers
    that write and overwrite.
    """
    where = " ".join(where_read(result.provenance.parameters))
    places = [" ".join([_best(result, dtype), *_steps(result, dtype)]) for dtype in _dtypes(result)]
    return [*([where] if where else []), *first_few(places, MOST - 1)]


def intervention_findings(result: ProbeIntervention) -> list[str]:
    """For each dtype and direction: where moving along it moves the answer most, and what follows."""
    frame, sentences = frame_of(result), []
    one_dtype = frame["dtype"].nunique() == 1
    for (dtype, direction), rows in frame.groupby(["dtype", "direction"], sort=False):
        most = rows.loc[rows["intervention"].abs().idxmax()]
        along = "the weights of the probe" if direction == "probe" else "the direction of the data"
        follows = (
            f"; of {most['asked']} prompts with the right answer's first token as the likeliest, {most['followed']:.0%} then "
            "have the next answer's"
            if most["asked"]
            else ""
        )
        sentences.append(
            f"{'Along' if one_dtype else f'{dtype}, along'} {along}, until the probe says {most['predicted']:.2g} more: the "
            f"expected answer moves most {_at(most)}, by {most['intervention']:+.2f} in the mean{follows}."
        )
    return first_few(sentences)


def _at(row: Row) -> str:
    """The place of a probe: at v^(l), at y, or between the two sublayers of a block."""
    if row["site"] == "residual_mid":
        return f"between attention and MLP of block {row['layer']}"
    return f"at v^({row['layer']})" if row["site"] == "residual" else f"at {row['site']}"


def _best(probes: Decodability, dtype: str, under_it: str = "") -> str:
    """The place where the probe is right most often, its share right by test, and those of its
    controls.
    """
    best, _ = best_probe(probes, dtype)
    frame = frame_of(probes)
    same_place = (
        (frame["site"] == best["site"])
        & (frame["layer"] == best["layer"])
        & (frame["dtype"] == dtype)
    )
    tests = []
    of_test = dict(list(frame[same_place].groupby("test", sort=False)))
    for test in (test for test in TESTS if test in of_test):
        rows = of_test[test].set_index("control")
        probe, shares = rows.loc["none"], rows.drop(index="none")["accuracy"].to_dict()
        length = frame[(frame["site"] == "length") & (frame["test"] == test)]["accuracy"]
        shares |= {"length alone": length.iloc[0]} if len(length) else {}
        controls = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        has_interval = probe["high"] - probe["low"] < 1  # of 0% to 100% nothing is known
        interval = (
            f"[{probe['low']:.0%}, {probe['high']:.0%}]"
            if has_interval
            else "(too few to say within what interval)"
        )
        where = f"{probe['accuracy']:.0%} right on {_LENGTHS[test]} {interval}"
        tests.append(f"{where} ({controls})" if controls else where)
    return f"{dtype}{under_it}: {best['finding']}. The probe is right most often {_at(best)}: {'; '.join(tests)}."


def _steps(result: Decodability, dtype: str, under_it: str = "") -> list[str]:
    """The sublayer with the largest step up, of those whose interval is above 0; and the largest
    down.
    """
    table: Frame = result.steps
    rows = table[(table["dtype"] == dtype) & (table["test"] == table["test"].iloc[0])]
    sentences = []
    for words, certain, pick in (
        ("rises", rows["low"] > 0, "idxmax"),
        ("falls", rows["high"] < 0, "idxmin"),
    ):
        if certain.any():
            row = rows.loc[getattr(rows["step"][certain], pick)()]
            final = row["sublayer"] == "final norm"
            name = "the final norm" if final else f"the {row['sublayer']} of block {row['block']}"
            sentences.append(
                f"{dtype}{under_it}: the share that is decoded {words} most at {name}, from {row['before']:.0%} before it to "
                f"{row['behind']:.0%} after it."
            )
    return sentences
