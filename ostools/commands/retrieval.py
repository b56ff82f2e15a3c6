"""`ostools retrieval`: load, sweep the positions, then save to a file or show on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostools.commands import output
from ostools.commands.loading import check, load, saved

if TYPE_CHECKING:
    from ostools.experiments.retrieval import Retrieval


def retrieval(model: str, options: Mapping[str, Any], out: Path | None, device: str, dtype: str) -> None:
    """`ostools retrieval`; `options`: the arguments of `experiments.retrieval`, None for those left out."""
    from ostools.tasks.retrieve import RetrieveTask

    check(out)
    RetrieveTask(records=options["records"])  # refuses records that are none, before a model is loaded
    loaded = load(model, device, dtype)
    from ostools import experiments

    with output.progress("measuring") as progress:
        given = {name: value for name, value in options.items() if value is not None}
        result = experiments.retrieval(loaded, progress=progress, **given)
    if not saved(result, out):
        _show(result)


def _show(result: Retrieval) -> None:
    from ostools.reporting.charts.answers.retrieval import retrieval_notes

    frame: Any = result.frame
    rows = []
    for position, here in frame.groupby("position"):
        means = [float(here[name].mean()) for name in ("log_probability", "sensitivity_mean", "sensitivity_others")]
        rows.append((position, len(here), int(here["found"].sum()), *means))
    title = f"Retrieving one of {frame['length'].iloc[0]} records, by its position; means over seeds"
    names = ["position", "seeds", "found", "log p", "sensitivity", "of the others"]
    output.stdout().print(output.table(title, names, rows))
    output.print_text(["", *retrieval_notes(result)])
