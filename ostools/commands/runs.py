"""`ostools run`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import NoReturn

import typer

from ostools import runs
from ostools.commands import output
from ostools.commands.manners import MANNERS

_CELL = ["measurement", "task", "model", "dtype", "mitigation", "seed"]


def run(sweep: Path, out: Path, dry_run: bool, retry_failed: bool) -> None:
    """`ostools run`."""
    asked = runs.read_sweep(sweep)
    if dry_run:
        _show_plan(runs.plan(asked, out, retry_failed=retry_failed, say=output.note))
        return
    stopped: list[int] = []

    def stop(number: int, frame: object) -> NoReturn:
        stopped.append(number)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    # A cell in the making is dropped: its file appears whole or not at all.
    try:
        with output.progress("measuring cells") as progress:
            done = runs.run(
                asked,
                out,
                retry_failed=retry_failed,
                say=output.note,
                progress=progress,
                interrupted=lambda: bool(stopped),
            )
    except KeyboardInterrupt:
        if signal.SIGTERM in stopped:
            raise SystemExit(128 + signal.SIGTERM) from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if MANNERS.json:
        output.print_json({"measured": done.measured, "present": done.present, "failed": list(done.failed)})
    elif not MANNERS.quiet:
        output.print_text(
            [
                f"{done.measured} cells measured, {done.present} were there, {len(done.failed)} failed; ostools results {out}"
            ]
        )
    if done.failed:
        raise typer.Exit(1)


def _show_plan(plan: runs.Plan) -> None:
    rows = [
        (*(cell.columns[name] for name in _CELL), len(cell.lengths), cell.lengths[0], cell.lengths[-1])
        for cell in (job.wanted.cell for job in plan.pending)
    ]
    title = f"{len(plan.pending)} of {len(plan.wanted)} cells are missing"
    names = [*_CELL, "lengths", "from", "to"]
    if MANNERS.json:
        output.print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    output.stdout().print(output.table(title, names, rows, left=6))
