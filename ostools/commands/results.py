"""`ostools results`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from ostools import runs
from ostools.commands import output
from ostools.commands.loading import told_written
from ostools.commands.manners import MANNERS
from ostools.ground.errors import InputError
from ostools.results import TABLES, checked_output, save_table, table_as_json

_CELL = ["measurement", "task", "model", "dtype", "mitigation", "seed"]


def results(directory: Path, out: Path | None, follow: bool) -> None:
    """`ostools results`."""
    if follow:
        from ostools.commands.following import follow as followed

        if out is not None:
            raise InputError("--follow shows how a run goes, and --out writes its table: give one of the two")
        if followed(directory):
            raise typer.Exit(1)
        return
    target = None if out is None else checked_output(out, TABLES)
    table: Any = runs.results(directory, say=output.note)
    provenance = table.attrs.get("ostools", {})
    if target is not None:
        told_written(save_table(table, provenance, target))
        return
    if MANNERS.json:
        output.print_json(table_as_json(table, provenance))
        return
    several = len(table) > 0 and bool((table.groupby("measurement")["options"].nunique() > 1).any())
    names = [*_CELL, "options"] if several else _CELL
    cells = table.groupby(names, sort=False) if len(table) else ()
    rows = [(*key, group["length"].nunique(), len(group)) for key, group in cells]
    title = f"{len(rows)} cells, {len(table)} rows"
    output.stdout().print(output.table(title, [*names, "lengths", "rows"], rows, left=len(names)))
