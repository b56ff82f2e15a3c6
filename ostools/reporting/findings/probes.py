"""What probes, the output and the verdicts say, in sentences."""

from __future__ import annotations

from typing import Any

from mitigations.named import NONE
from ostools.ground.words import runs
from ostools.measure import Decodability, FailureStage, ProbeIntervention
from ostools.measure.mitigated_prompts import ACTIVE
from ostools.measure.probes.failure_stage import BREAKS, REPAIRS, UNDECODABLE, VERDICTS, best_probe
from ostools.measure.probes.splits import BETWEEN, BEYOND, SAME, TESTS
from ostools.results import Frame, frame_of

_LENGTHS = {SAME: "the same lengths", BETWEEN: "interpolated lengths", BEYOND: "extrapolated lengths"}
"""What a test asks of, in a sentence."""
_MEANT = {
    UNDECODABLE: "Undecodable: a linear probe trained on so many examples does not decode the answer. Probes that are "
    "not linear, and more examples, were not tried."
}


def failure_stage_findings(result: FailureStage) -> list[str]:
    """A sentence a dtype and mitigation on the verdicts; what the best probe found without a mitigation, or under the only one,
    and which sublayer writes and overwrites it; and what each mitigation changed."""
    frame, said = frame_of(result), []
    arms = list(frame["mitigation"].unique())
    for (mitigation, dtype), here in frame.groupby(["mitigation", "dtype"], sort=False):
        under = "" if mitigation == NONE else f" under {mitigation}"
        said.append(f"{dtype}{under}: {_verdicts(here)}.")
        probes = result.probes if mitigation == NONE else result.under.get(str(mitigation))
        if probes is not None and not probes.frame.empty and (mitigation == NONE or len(arms) < 3):
            said += [_best(probes, str(dtype), under), *_steps(probes, str(dtype), under)]
    said += [_changed(result, str(name)) for name in arms if name != NONE and NONE in arms]
    return said + [words for name, words in _MEANT.items() if (frame["verdict"] == name).any()]


def failure_stage_in_short(result: FailureStage) -> list[str]:
    """For a chart that draws the rest: the verdicts of each dtype, where they are of one arm, and what the best probe found."""
    frame, said = frame_of(result), []
    several = frame["dtype"].nunique() > 1
    for dtype, here in frame.groupby("dtype", sort=False) if frame["mitigation"].nunique() == 1 else ():
        said.append(f"{dtype if several else 'Verdict'}: {_verdicts(here)}.")
    return said + ([] if result.probes.frame.empty else probe_in_short(result.probes))


def _verdicts(here: Frame) -> str:
    """Each verdict with the lengths that have it, and its reason where it has one."""
    said = []
    for name in VERDICTS:
        own = here[here["verdict"] == name]
        for reason, rows in own.groupby("reason", sort=False):
            said.append(f"{name} at n = {runs(rows['length'].tolist())}{f' ({reason})' if reason else ''}")
    return "; ".join(said)


def probe_in_short(result: Decodability) -> list[str]:
    """A sentence a dtype: what was found, at which place, and how often the probe is right there, by test."""
    said = []
    dtypes = [str(name) for name in frame_of(result)["dtype"].unique() if name != "none"]
    for dtype in dtypes:
        best, here = _at_best(result, dtype)
        own = here[here["control"] == "none"].set_index("test")["accuracy"]
        shares = ", ".join(f"{own[test]:.0%} ({test})" for test in TESTS if test in own.index)
        of = f"Probes in {dtype}" if len(dtypes) > 1 else "Probes"
        said.append(f"{of}: {best['finding']}; most often right {_at(best)}, {shares}.")
    return said


def intervention_in_short(result: ProbeIntervention) -> list[str]:
    """A sentence a dtype and direction: by how much it moves the answer, where it moves it most, and what follows."""
    said, several = [], frame_of(result)["dtype"].nunique() > 1
    for (dtype, direction), here in frame_of(result).groupby(["dtype", "direction"], sort=False):
        most = here.loc[here["intervention"].abs().idxmax()]
        follows = (
            f"; {most['followed']:.0%} of {most['asked']} right prompts then answer the next" if most["asked"] else ""
        )
        along = f"{f'{dtype}, along' if several else 'Along'} the {direction}"
        said.append(f"{along}: the expected answer moves most {_at(most)}, by {most['intervention']:+.2f}{follows}.")
    return said


def _changed(result: FailureStage, name: str) -> str:
    """Which verdicts a mitigation repairs and breaks."""
    frame, changes = frame_of(result), result.repaired()
    status = frame[frame["mitigation"] == name]["status"]
    if not (status == ACTIVE).any():
        return f"{name} is {status.iloc[0]}: it changed nothing."
    words = []
    for change in (REPAIRS, BREAKS):
        here = changes[(changes["mitigation"] == name) & (changes["change"] == change)]
        grouped: Any = here.groupby(["dtype", "before", "after"], sort=False)
        each = [
            f"{before} to {after} at n = {', '.join(map(str, rows['length']))} ({dtype})"
            for (dtype, before, after), rows in grouped
        ]
        words += [f"{change} {'; '.join(each)}"] if each else []
    return f"{name}: {', and '.join(words) or 'changes no verdict'}."


def probe_findings(result: Decodability) -> list[str]:
    """What stands out: the best place, its controls, and the sublayers that write and overwrite."""
    frame = frame_of(result)
    dtypes = [str(name) for name in frame["dtype"].unique() if name != "none"]
    return [words for dtype in dtypes for words in (_best(result, dtype), *_steps(result, dtype))]


def intervention_findings(result: ProbeIntervention) -> list[str]:
    """Whether moving along a direction moves the answer, at the place where it moves it most."""
    frame, said = frame_of(result), []
    several = frame["dtype"].nunique() > 1
    for (dtype, direction), here in frame.groupby(["dtype", "direction"], sort=False):
        most = here.loc[here["intervention"].abs().idxmax()]
        of = "the weights of the probe" if direction == "probe" else "the direction of the data"
        by = "1 more" if most["predicted"] == 1 else f"{most['predicted']:.2g} more in the mean"
        follows = (
            f" Of {most['asked']} prompts whose likeliest answer was right, {most['followed']:.0%} then answer the next one."
            if most["asked"]
            else ""
        )
        said.append(
            f"{f'{dtype}: a' if several else 'A'} move along {of}, until the probe says {by}, changes the expected answer most "
            f"{_at(most)}: by {most['intervention']:+.2f} in the mean.{follows}"
        )
    return said


def _place(row: Any) -> str:
    name = str(row["site"])
    return {
        "residual": f"v^({row['layer']})",
        "residual_mid": f"between attention and MLP of block {row['layer']}",
    }.get(name, name)


def _at(row: Any) -> str:
    place = _place(row)
    return place if place.startswith("between") else f"at {place}"


def _at_best(probes: Decodability, dtype: str) -> tuple[Any, Frame]:
    """The row of the best probe, and all rows of its place."""
    best, _ = best_probe(probes, dtype)
    frame = frame_of(probes)
    return best, frame[(frame["site"] == best["site"]) & (frame["layer"] == best["layer"]) & (frame["dtype"] == dtype)]


def _best(probes: Decodability, dtype: str, under: str = "") -> str:
    best, here = _at_best(probes, dtype)
    frame = frame_of(probes)
    words = [f"{dtype}{under}: {best['finding']}, by the place where the probe is right most often ({_place(best)}):"]
    for test in (test for test in TESTS if (here["test"] == test).any()):
        rows = here[here["test"] == test].set_index("control")
        own = rows.loc["none"]
        words.append(f"{own['accuracy']:.0%} right on {_LENGTHS[test]} [{own['low']:.0%}, {own['high']:.0%}]")
        shares = {name: rows.loc[name]["accuracy"] for name in ("shuffled", "random weights") if name in rows.index}
        length = frame[(frame["site"] == "length") & (frame["test"] == test)]["accuracy"]
        shares |= {"length alone": length.iloc[0]} if len(length) else {}
        words.append(f"({', '.join(f'{name} {share:.0%}' for name, share in shares.items())});")
    return " ".join(words).rstrip(";") + "."


def _steps(result: Decodability, dtype: str, under: str = "") -> list[str]:
    """The sublayer whose step is largest, of those whose whole interval is above 0; and of those below."""
    table: Frame = result.steps
    here = table[(table["dtype"] == dtype) & (table["test"] == table["test"].iloc[0])]
    said = []
    for words, sure, pick in (("rises", here["low"] > 0, "idxmax"), ("falls", here["high"] < 0, "idxmin")):
        if sure.any():
            row = here.loc[getattr(here["step"][sure], pick)()]
            name = (
                f"the {row['sublayer']} of block {row['block']}"
                if row["sublayer"] != "final norm"
                else "the final norm"
            )
            said.append(
                f"{dtype}{under}: the share that is decoded {words} most at {name}, from {row['before']:.0%} before it to "
                f"{row['behind']:.0%} after it."
            )
    return said
