"""`ostools behaviour`: load, ask, then save to a file or show on the terminal."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mitigations
import ostools as ost
from ostools.commands import output
from ostools.commands.loading import check, load, saved
from ostools.commands.options import parse_lengths

if TYPE_CHECKING:
    from ostools.measure.answers.behaviour import Behaviour


@dataclass(frozen=True)
class Asked:
    """How every prompt is asked: the options of `ost.behaviour` by their names."""

    seeds: tuple[int, ...]
    chat: bool | None
    temperature: float
    samples: int
    max_new_tokens: int | None
    probability: bool


def behaviour(
    model: str,
    task: str,
    mode: str | None,
    lengths: str,
    mitigation: str | None,
    asked: Asked,
    out: Path | None,
    device: str,
    dtype: str,
) -> None:
    """`ostools behaviour`."""
    check(out)
    wanted = parse_lengths(lengths)
    # Before a model is loaded: what is no task and no mitigation.
    form = ost.tasks.task(task if mode is None else f"{task}{',' if ':' in task else ':'}mode={mode}")
    given = None if mitigation is None else mitigations.mitigation(mitigation)
    loaded = load(model, device, dtype)
    with output.progress("asking") as progress:
        result = ost.behaviour(loaded, form, lengths=wanted, mitigation=given, **asdict(asked), progress=progress)
    if not saved(result, out):
        _show(result)


def _show(result: Behaviour) -> None:
    from ostools.reporting.findings.behaviour import behaviour_findings

    summary: Any = result.summary
    shown, part = output.some_of(summary["length"])
    frame: Any = result.frame
    under = frame["mitigation"].iloc[0]
    title = f"Answers to {frame['task'].iloc[0]}{'' if under == 'none' else f' under {under}'}{part}"
    names = ["n", "right", "of", "share", "95% from", "to", "unparsable", "mean error", "p(right line)", "acted"]
    columns = ["length", "right", "asked", "accuracy", "wilson_low", "wilson_high", "unparsable", "mean_absolute_error"]
    columns += ["probability", "active"]
    # What there is nothing of has no column: an interval, an error, a probability, a mitigation.
    kept = [
        (name, column)
        for name, column in zip(names, columns, strict=True)
        if summary[column].notna().any() and (column != "active" or under != "none")
    ]
    rows = summary[summary["length"].isin(shown)][[column for _, column in kept]].itertuples(index=False, name=None)
    output.stdout().print(output.table(title, [name for name, _ in kept], rows))
    output.print_text(["", *behaviour_findings(result)])
