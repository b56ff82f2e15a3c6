"""Sentences on probes, on whether the output reads them, and on where answers are lost."""

from __future__ import annotations

from typing import Any

from mitigations.named import NONE
from ostools.ground.words import runs
from ostools.measure import Decodability, FailureStage, ProbeIntervention
from ostools.measure.mitigated_prompts import ACTIVE
from ostools.measure.probes.failure_stage import BREAKS, REPAIRS, UNDECODABLE, VERDICTS, best_probe
from ostools.measure.probes.scores import BETWEEN, BEYOND, SAME, TESTS
from ostools.results import Frame, frame_of

_LENGTHS = {SAME: "the same lengths", BETWEEN: "interpolated lengths", BEYOND: "extrapolated lengths"}
UNDECODABLE_WORDS = (
    "Undecodable: a linear probe trained on so many examples does not decode the answer. Probes that are "
    "not linear, and more examples, were not tried."
)


def failure_stage_findings(result: FailureStage) -> list[str]:
    """Verdicts by dtype and mitigation, the best probe and its sublayers, and each mitigation's change."""
    frame, sentences = frame_of(result), []
    names = [str(name) for name in frame["mitigation"].unique()]
    for (mitigation, dtype), rows in frame.groupby(["mitigation", "dtype"], sort=False):
        under = "" if mitigation == NONE else f" under {mitigation}"
        sentences.append(f"{dtype}{under}: {_verdicts(rows)}.")
        probes = result.probes if mitigation == NONE else result.under.get(str(mitigation))
        if probes is not None and not probes.frame.empty and (mitigation == NONE or len(names) < 3):
            sentences += [_best(probes, str(dtype), under), *_steps(probes, str(dtype), under)]
    sentences += [_changed(result, name) for name in names if name != NONE and NONE in names]
    return sentences + ([UNDECODABLE_WORDS] if (frame["verdict"] == UNDECODABLE).any() else [])


def failure_stage_in_short(result: FailureStage) -> list[str]:
    """For a chart that draws the rest: verdicts of each dtype of one mitigation, and the best probe."""
    frame, sentences = frame_of(result), []
    if frame["mitigation"].nunique() == 1:
        one_dtype = frame["dtype"].nunique() == 1
        for dtype, rows in frame.groupby("dtype", sort=False):
            sentences.append(f"{'Verdict' if one_dtype else dtype}: {_verdicts(rows)}.")
    return sentences + ([] if result.probes.frame.empty else probe_in_short(result.probes))


def _verdicts(rows: Frame) -> str:
    """Each verdict with its lengths, and its reason where it has one."""
    parts = []
    for name in VERDICTS:
        for reason, group in rows[rows["verdict"] == name].groupby("reason", sort=False):
            parts.append(f"{name} at n = {runs(group['length'].tolist())}{f' ({reason})' if reason else ''}")
    return "; ".join(parts)


def _changed(result: FailureStage, name: str) -> str:
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
    """The best place, its controls, and the sublayers that write and overwrite."""
    return [words for dtype in _dtypes(result) for words in (_best(result, dtype), *_steps(result, dtype))]


def probe_in_short(result: Decodability) -> list[str]:
    """A sentence for each dtype: the best place, and how often the probe is right there by test."""
    sentences, dtypes = [], _dtypes(result)
    for dtype in dtypes:
        best, rows = _at_best(result, dtype)
        accuracy = rows[rows["control"] == "none"].set_index("test")["accuracy"]
        shares = ", ".join(f"{accuracy[test]:.0%} ({test})" for test in TESTS if test in accuracy.index)
        subject = f"Probes in {dtype}" if len(dtypes) > 1 else "Probes"
        sentences.append(f"{subject}: {best['finding']}; most often right {_at(best)}, {shares}.")
    return sentences


def intervention_findings(result: ProbeIntervention) -> list[str]:
    """Whether moving along a direction moves the answer, at the place where it moves it most."""
    frame, sentences = frame_of(result), []
    one_dtype = frame["dtype"].nunique() == 1
    for (dtype, direction), rows in frame.groupby(["dtype", "direction"], sort=False):
        most = rows.loc[rows["intervention"].abs().idxmax()]
        along = "the weights of the probe" if direction == "probe" else "the direction of the data"
        more = "1 more" if most["predicted"] == 1 else f"{most['predicted']:.2g} more in the mean"
        follows = (
            f" Of {most['asked']} prompts whose likeliest answer was right, {most['followed']:.0%} then answer the next one."
            if most["asked"]
            else ""
        )
        sentences.append(
            f"{'A' if one_dtype else f'{dtype}: a'} move along {along}, until the probe says {more}, changes the expected "
            f"answer most {_at(most)}: by {most['intervention']:+.2f} in the mean.{follows}"
        )
    return sentences


def intervention_in_short(result: ProbeIntervention) -> list[str]:
    """A sentence for each dtype and direction: where it moves the answer most, and what follows."""
    frame, sentences = frame_of(result), []
    one_dtype = frame["dtype"].nunique() == 1
    for (dtype, direction), rows in frame.groupby(["dtype", "direction"], sort=False):
        most = rows.loc[rows["intervention"].abs().idxmax()]
        follows = (
            f"; {most['followed']:.0%} of {most['asked']} right prompts then answer the next" if most["asked"] else ""
        )
        along = f"{'Along' if one_dtype else f'{dtype}, along'} the {direction}"
        sentences.append(
            f"{along}: the expected answer moves most {_at(most)}, by {most['intervention']:+.2f}{follows}."
        )
    return sentences


def _place(row: Any) -> str:
    names = {
        "residual": f"v^({row['layer']})",
        "residual_mid": f"between attention and MLP of block {row['layer']}",
    }
    return names.get(str(row["site"]), str(row["site"]))


def _at(row: Any) -> str:
    place = _place(row)
    return place if place.startswith("between") else f"at {place}"


def _at_best(probes: Decodability, dtype: str) -> tuple[Any, Frame]:
    """The row of the best probe, and all rows of its place."""
    best, _ = best_probe(probes, dtype)
    frame = frame_of(probes)
    same_place = (frame["site"] == best["site"]) & (frame["layer"] == best["layer"])
    return best, frame[same_place & (frame["dtype"] == dtype)]


def _best(probes: Decodability, dtype: str, under: str = "") -> str:
    best, place_rows = _at_best(probes, dtype)
    frame = frame_of(probes)
    words = [f"{dtype}{under}: {best['finding']}, by the place where the probe is right most often ({_place(best)}):"]
    for test in (test for test in TESTS if (place_rows["test"] == test).any()):
        rows = place_rows[place_rows["test"] == test].set_index("control")
        probe = rows.loc["none"]
        words.append(f"{probe['accuracy']:.0%} right on {_LENGTHS[test]} [{probe['low']:.0%}, {probe['high']:.0%}]")
        shares = {name: rows.loc[name]["accuracy"] for name in ("shuffled", "random weights") if name in rows.index}
        length = frame[(frame["site"] == "length") & (frame["test"] == test)]["accuracy"]
        shares |= {"length alone": length.iloc[0]} if len(length) else {}
        words.append(f"({', '.join(f'{name} {share:.0%}' for name, share in shares.items())});")
    return " ".join(words).rstrip(";") + "."


def _steps(result: Decodability, dtype: str, under: str = "") -> list[str]:
    """The sublayer with the largest step up, of those whose interval is above 0; and the largest down."""
    table: Frame = result.steps
    rows = table[(table["dtype"] == dtype) & (table["test"] == table["test"].iloc[0])]
    sentences = []
    for words, certain, pick in (("rises", rows["low"] > 0, "idxmax"), ("falls", rows["high"] < 0, "idxmin")):
        if certain.any():
            row = rows.loc[getattr(rows["step"][certain], pick)()]
            final = row["sublayer"] == "final norm"
            name = "the final norm" if final else f"the {row['sublayer']} of block {row['block']}"
            sentences.append(
                f"{dtype}{under}: the share that is decoded {words} most at {name}, from {row['before']:.0%} before it to "
                f"{row['behind']:.0%} after it."
            )
    return sentences
