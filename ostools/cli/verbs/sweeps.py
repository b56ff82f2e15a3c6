"""`ostools sweep run` and `ostools sweep results`: measure the cells of a sweep, and show them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ostools.cli import terminal
from ostools.cli.global_options import GLOBALS
from ostools.ground.errors import InputError

if TYPE_CHECKING:
    from ostools.sweep import Executor, Outcome, SweepPlan

_CELL_COLUMNS = ["measurement", "task", "model", "dtype", "mitigation", "seed"]


def run(
    sweep: Path,
    *,
    out: Path,
    dry_run: bool = False,
    retry_failed: bool = False,
    workers: int | None = None,
    ray_address: str | None = None,
    worker_cpus: int | None = None,
) -> None:
    """Run a sweep: models x tasks x lengths x dtypes x mitigations x seeds x measurements.

    One cell after the other in this process, or as many at once as Ray has workers. The same
    command again resumes: what is there is not computed again, and what was added to the file is
    measured. A cell that fails is recorded with its error, and the exit code is 1.

    Args:
        sweep: what to measure, a .yaml file; examples/sweep.yaml is one.
        out: the directory where the cells are kept; made if it is missing.
        dry_run: say which cells are missing and the memory they are forecast to take; measure none.
        retry_failed: try the cells that failed before again.
        workers: measure with so many processes, by Ray: on this machine, or at most so many of
            --ray-address.
        ray_address: measure on the Ray cluster at HOST:PORT; auto: the one of this machine.
        worker_cpus: CPUs of each of Ray's workers, which uses at most as many threads; 1 unless
            given.
    """
    from ostools.sweep import plan, read_sweep
    from ostools.sweep import run as run_sweep

    checked_sweep = read_sweep(sweep)
    executor = _executor(workers, ray_address, worker_cpus)
    options: dict[str, Any] = {"executor": executor, "retry_failed": retry_failed, "say": note}
    if dry_run:
        _show_plan(plan(checked_sweep, out, **options))
        return
    if executor is not None:
        place = (
            "Ray on this machine" if ray_address is None else f"the Ray cluster at {ray_address}"
        )
        terminal.note(f"measuring on {place}")
    # Ended by a signal, it leaves out the cell in the making: its file appears whole or not at all.
    with terminal.progress("measuring cells") as progress:
        outcome = run_sweep(checked_sweep, out, **options, progress=progress)
    try:
        _show_outcome(outcome, out)
    except BrokenPipeError:
        if not outcome.failed:
            raise
    if outcome.failed:
        raise click.exceptions.Exit(1)


def note(text: str) -> None:
    """Write a note; where whoever reads them has left, the sweep goes on without."""
    with suppress(BrokenPipeError):
        terminal.note(text)


def _executor(
    workers: int | None, ray_address: str | None, worker_cpus: int | None
) -> Executor | None:
    from ostools.sweep import RayCluster

    if workers is None and ray_address is None:
        if worker_cpus is not None:
            raise InputError(
                "--worker-cpus: expected --workers or --ray-address with it, found neither"
            )
        return None
    return RayCluster(ray_address, workers=workers, cpus=1 if worker_cpus is None else worker_cpus)


def _show_outcome(outcome: Outcome, out: Path) -> None:
    measured, present, failed = outcome.measured, outcome.present, list(outcome.failed)
    if GLOBALS.json:
        terminal.print_json({"measured": measured, "present": present, "failed": failed})
    elif not GLOBALS.quiet:
        was_there = f"{present} {'was' if present == 1 else 'were'} there before"
        counts = (
            f"{measured} cell{'s' * (measured != 1)} measured, {was_there}, {len(failed)} failed"
        )
        terminal.print_text([f"{counts}; ostools sweep results {out}"])


def _show_plan(plan: SweepPlan) -> None:
    """Print every missing cell with its forecast memory; the title sets the largest beside what is
    free.
    """
    names, rows = [*_CELL_COLUMNS, "lengths", "from", "to", "forecast_bytes"], []
    for job in plan.pending:
        cell, forecast = job.keyed_cell.cell, job.forecast
        size = None if forecast.work is None else forecast.memory
        columns = (cell.columns[name] for name in _CELL_COLUMNS)
        rows.append((*columns, len(cell.lengths), cell.lengths[0], cell.lengths[-1], size))
    if GLOBALS.json:
        terminal.print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    title = f"{len(plan.pending)} of {len(plan.keyed_cells)} cells are missing"
    if rows:
        from ostools.ground.memory import free_memory

        largest = max(job.forecast.memory for job in plan.pending) / 2**30
        bound = "least" if any(row[-1] is None for row in rows) else "most"
        # A GPU may be a worker's, of which nothing is known here.
        place = (
            f"found {free_memory()}" if plan.terms.device == "cpu" else f"on {plan.terms.device}"
        )
        title += (
            f"; forecast {largest:.2f} GiB at {bound}, {place}; the first cells measure the time"
        )
    printed = [
        (*row[:-1], "unknown" if row[-1] is None else f"{row[-1] / 2**30:.2f}") for row in rows
    ]
    terminal.print_table(title, [*names[:-1], "forecast GiB"], printed, text_columns=6)


# ---- results


def results(directory: Path, *, out: Path | None = None) -> None:
    """Show the tidy table of a sweep, finished or not: what there is of each cell.

    Args:
        directory: what --out was of `ostools sweep run`.
        out: all rows, as .parquet, .csv or .json; else what there is of each cell.
    """
    from ostools.results import TABLES, checked_output, save_table, table_as_json
    from ostools.sweep import results as sweep_results

    target = None if out is None else checked_output(out, TABLES, option="--out")
    table: Any = sweep_results(directory, say=terminal.note)
    provenance = table.attrs.get("ostools", {})
    if target is not None:
        terminal.tell_written(save_table(table, provenance, target))
    elif GLOBALS.json:
        terminal.print_json(table_as_json(table, provenance))
    else:
        _show_cells(table, provenance["cells"])


def _show_cells(table: Any, counts: dict[str, int]) -> None:
    """Print a row a cell; its options where a measurement has several."""
    many_options = len(table) > 0 and (table.groupby("measurement")["options"].nunique() > 1).any()
    names = [*_CELL_COLUMNS, "options"] if many_options else _CELL_COLUMNS
    cells = table.groupby(names, sort=False) if len(table) else ()
    rows = [(*key, group["length"].nunique(), len(group)) for key, group in cells]
    title = f"{counts['measured']} of {counts['asked']} cells measured, {len(table)} rows"
    title += "".join(
        f", {counts[state]} cells {state}" for state in ("failed", "missing") if counts[state]
    )
    terminal.print_table(title, [*names, "lengths", "rows"], rows, text_columns=len(names))
