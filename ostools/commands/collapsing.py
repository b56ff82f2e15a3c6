"""The commands about collapse: load, measure, then save to a file or show on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import ostools as ost
from ostools.commands import output
from ostools.commands.loading import check, load, saved
from ostools.commands.options import parse_lengths
from ostools.ground.errors import InputError, unknown_name

if TYPE_CHECKING:
    from ostools.experiments import Repeats
    from ostools.measure import Collapse
    from ostools.tasks import CollapseTask

DTYPES = ("float32", "bfloat16", "float16")
ITEMS = ("text", "ids")


@dataclass(frozen=True)
class Sequences:
    """The options that say which sequences `ostools collapse` compares."""

    task: str | None
    prompt: str | None
    item: str | None
    items: str
    bos: bool

    def chosen(self) -> CollapseTask:
        """The task of that name, or the user's own text. Raises `InputError` for options that exclude each other."""
        if self.items not in ITEMS:
            raise unknown_name("items", self.items, ITEMS)
        if self.prompt is None:
            if self.item is not None:
                raise InputError("--item is what --prompt repeats: give --prompt too")
            return ost.tasks.task(f"{self.task or 'figure-5a'}:items={self.items}", ost.tasks.CollapseTask)
        if self.task is not None:
            raise InputError("--task and --prompt exclude each other: leave one out")
        # Without an item the text's own last token is repeated, which is done on ids.
        return ost.tasks.RepeatTask("prompt", self.prompt, self.item, cast(Any, self.items) if self.item else "ids")


def collapse(
    model: str,
    sequences: Sequences,
    lengths: str,
    dtypes: Sequence[str] | None,
    seeds: Sequence[int] | None,
    out: Path | None,
    device: str,
) -> None:
    """`ostools collapse`."""
    check(out)
    wanted, chosen = parse_lengths(lengths), sequences.chosen()
    _check_precisions(dtypes)
    loaded = load(model, device, "float32")
    with output.progress("comparing pairs") as progress:
        result = ost.collapse(
            loaded,
            chosen,
            lengths=wanted,
            dtypes=tuple(dtypes or DTYPES),
            seeds=tuple(seeds or (0,)),
            bos=sequences.bos,
            progress=progress,
        )
    if not saved(result, out):
        _show_collapse(result)


def repeats(
    model: str, prompts: Sequence[str] | None, lengths: str, dtypes: Sequence[str] | None, out: Path | None, device: str
) -> None:
    """`ostools repeats`."""
    from ostools.experiments.repeats import TASKS

    check(out)
    wanted, chosen = parse_lengths(lengths), [ost.tasks.task(name, ost.tasks.CollapseTask) for name in prompts or TASKS]
    _check_precisions(dtypes)
    loaded = load(model, device, "float32")
    with output.progress("comparing pairs") as progress:
        result = ost.experiments.repeats(
            loaded, chosen, lengths=wanted, dtypes=tuple(dtypes or DTYPES[:2]), progress=progress
        )
    if not saved(result, out):
        _show_repeats(result)


def _check_precisions(names: Sequence[str] | None) -> None:
    """Refuse an unknown one before a model is loaded."""
    from ostools.measure.passes.precisions import Precision

    for name in names or ():
        Precision.named(name)


def _show_repeats(result: Repeats) -> None:
    summary: Any = result.summary
    columns = ["task", "sink", "first_token", "first_token_share", "verdict", "rate", "low", "high", "status"]
    names = ["task", "BOS", "first token", "its share", "decay", "rate", "low", "high", "collapse at y"]
    rows = summary[columns].itertuples(index=False, name=None)
    output.stdout().print(
        output.table("||y - y*|| in float64 against copies n; 95% interval of the rate", names, rows, left=2)
    )


def _show_collapse(result: Collapse) -> None:
    from ostools.reporting.findings import profiles as findings

    frame: Any = result.frame
    frame = frame[(frame["site"] == "y") & (frame["per"] == "vector") & (frame["norm"] == "l2")]
    shown, part = output.some_of(frame["length"])
    table = frame[frame["length"].isin(shown)].pivot(
        index=["pair", "seed", "length"], columns="dtype", values=["mean", "noise", "machine_line"]
    )
    dtypes = list(dict.fromkeys(frame["dtype"]))
    columns = [(value, dtype) for dtype in dtypes for value in ("mean", "noise", "machine_line")]
    words = {"mean": "", "noise": " noise", "machine_line": " step"}
    rows = ((*map(str, key), *map(float, row)) for key, row in zip(table.index, table[columns].to_numpy(), strict=True))
    title = f"L2 distance at y, {frame['task'].iloc[0]}{part}; rounding noise and one representable step beside it"
    names = ["pair", "seed", "n", *(f"{dtype}{words[value]}" for value, dtype in columns)]
    output.stdout().print(output.table(title, names, rows))
    trained = result.provenance.model.get("trained_lengths")
    output.print_text(["", *findings.collapse_findings(result, trained)])
