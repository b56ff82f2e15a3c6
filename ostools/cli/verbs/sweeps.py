"""`ostools sweep run` and `ostools sweep results`: measure the cells of a sweep, and show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ostools.cli import terminal
from ostools.cli.terminal import GLOBALS

if TYPE_CHECKING:
    from ostools.mitigations import Mitigation
    from ostools.sweep import SweepPlan


def run(
    sweep: Path,
    *,
    out: Path,
    mitigations: Sequence[Mitigation | str] = (),
    dry_run: bool = False,
    retry_failed: bool = False,
    workers: int | None = None,
    ray_address: str | None = None,
    worker_cpus: int = 1,
) -> None:
    """Run a sweep: models x tasks x lengths x dtypes x mitigations x seeds x measurements.

    One cell after the other in this process, or as many at once as Ray has workers. The same
    command again resumes: what is there is not computed again, and what was added to the file is
    measured. A cell that fails is recorded with its error, and the exit code is 1.

    Args:
        sweep: what to measure, a .yaml file; examples/sweep.yaml is one.
        out: the directory where the cells are kept; made if it is missing.
        mitigations: beside those of the file, also ones of a file of your own.
        dry_run: say which cells are missing and the memory they are forecast to take; measure none.
        retry_failed: try the cells that failed before again.
        workers: measure with so many processes, by Ray: on this machine, or at most so many of
            --ray-address.
        ray_address: measure on the Ray cluster at HOST:PORT; auto: the one of this machine.
        worker_cpus: CPUs of each of Ray's workers, which uses at most as many threads.
    """
    from ostools.sweep import RayCluster, plan, read_sweep
    from ostools.sweep import run as run_sweep

    checked_sweep, executor = read_sweep(sweep, mitigations=mitigations), None
    if workers is not None or ray_address is not None:
        executor = RayCluster(ray_address, workers=workers, cpus=worker_cpus)
    options: dict[str, Any] = {
        "executor": executor,
        "retry_failed": retry_failed,
        "say": terminal.note,
    }
    if dry_run:
        _show_plan(plan(checked_sweep, out, **options))
        return
    # Ended by a signal, it leaves out the cell in the making: its file appears whole or not at all.
    with terminal.progress("measuring cells") as progress:
        outcome = run_sweep(checked_sweep, out, progress=progress, **options)
    if GLOBALS.json:
        terminal.print_json(asdict(outcome))
    elif not GLOBALS.quiet:
        words = (
            f"{outcome.measured} cells measured, {outcome.present} were there before, "
            f"{len(outcome.failed)} failed; 'ostools sweep results {out}' shows them"
        )
        terminal.print_text([words])
    if outcome.failed:
        raise click.exceptions.Exit(1)


def _show_plan(plan: SweepPlan) -> None:
    """Print every missing cell with the bytes that it is forecast to take."""
    from ostools.sweep.executor import forecast

    rows = [
        {
            **cell.columns,
            "lengths": len(cell.lengths),
            "to": cell.lengths[-1],
            "forecast_bytes": forecast(cell, plan.terms.device).memory,
        }
        for cell in (keyed_cell.cell for keyed_cell in plan.pending)
    ]
    terminal.give_tables({f"{len(rows)} of {len(plan.keyed_cells)} cells are missing": rows})


def results(directory: Path, *, out: Path | None = None) -> None:
    """Show the tidy table of a sweep, finished or not: what there is of each cell.

    Args:
        directory: what --out was of `ostools sweep run`.
        out: all rows, as .parquet, .csv or .json; else what there is of each cell.
    """
    from ostools.results import TABLES, checked_output, save_table, table_as_json
    from ostools.sweep import results as sweep_results

    if out is not None:
        checked_output(out, TABLES, option="--out")
    table = sweep_results(directory, say=terminal.note)
    provenance = table.attrs["ostools"]
    if out is not None:
        terminal.tell_written(save_table(table, provenance, out))
        return
    if GLOBALS.json:
        terminal.print_json(table_as_json(table, provenance))
        return
    names = ["measurement", "task", "model", "dtype", "mitigation", "seed", "options"]
    cells = table.groupby(names, sort=False) if len(table) else ()
    rows = [(*key, group["length"].nunique(), len(group)) for key, group in cells]
    counts = provenance["cells"]
    title = (
        f"{counts['measured']} of {counts['asked']} cells measured, {len(table)} rows, "
        f"{counts['failed']} cells failed, {counts['missing']} missing"
    )
    terminal.print_table(title, [*names, "lengths", "rows"], rows)
