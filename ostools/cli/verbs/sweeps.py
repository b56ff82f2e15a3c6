"""`ostools sweep run` and `ostools sweep results`: measure the cells of a sweep, and show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ostools.cli import terminal
from ostools.cli.global_options import GLOBALS
from ostools.ground.errors import InputError

if TYPE_CHECKING:
    from ostools.mitigations import Mitigation
    from ostools.results import Frame
    from ostools.sweep import Executor, SweepPlan

_CELL_COLUMNS = ["measurement", "task", "model", "dtype", "mitigation", "seed"]


def run(
    sweep: Path,
    *,
    out: Path,
    mitigations: Sequence[Mitigation | str] = (),
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
        mitigations: beside those of the file, also ones of a file of your own.
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

    checked_sweep = read_sweep(sweep, mitigations=mitigations)
    executor = _executor(workers, ray_address, worker_cpus)
    if dry_run:
        cells = plan(
            checked_sweep, out, executor=executor, retry_failed=retry_failed, say=terminal.note
        )
        _show_plan(cells)
        return
    if executor is not None:
        terminal.note(f"measuring on the Ray cluster at {ray_address or 'this machine'}")
    # Ended by a signal, it leaves out the cell in the making: its file appears whole or not at all.
    with terminal.progress("measuring cells") as progress:
        outcome = run_sweep(
            checked_sweep,
            out,
            executor=executor,
            retry_failed=retry_failed,
            say=terminal.note,
            progress=progress,
        )
    counts = asdict(outcome) | {"failed": list(outcome.failed)}
    if GLOBALS.json:
        terminal.print_json(counts)
    elif not GLOBALS.quiet:
        words = f"{outcome.measured} cells measured, {outcome.present} were there before, "
        words += f"{len(outcome.failed)} failed"
        terminal.print_text([f"{words}; 'ostools sweep results {out}' shows them"])
    if outcome.failed:
        raise click.exceptions.Exit(1)


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


def _show_plan(plan: SweepPlan) -> None:
    """Print every missing cell with its forecast memory; the title sets the largest beside what is
    free.
    """
    rows: list[Mapping[str, object]] = []
    for job in plan.pending:
        cell = job.keyed_cell.cell
        row = {name: cell.columns[name] for name in _CELL_COLUMNS}
        row |= {"lengths": len(cell.lengths), "from": cell.lengths[0], "to": cell.lengths[-1]}
        is_known = job.forecast.work is not None
        rows.append(row | {"forecast_bytes": job.forecast.memory if is_known else None})
    if GLOBALS.json:
        terminal.print_json(rows)
        return
    title = f"{len(rows)} of {len(plan.keyed_cells)} cells are missing"
    if rows:
        from ostools.ground.memory import free_memory

        largest = max(job.forecast.memory for job in plan.pending) / 2**30
        # A GPU may be a worker's, of which nothing is known here.
        is_here = plan.terms.device == "cpu"
        place = f"found {free_memory()}" if is_here else f"on {plan.terms.device}"
        title += f"; forecast {largest:.2f} GiB at most, {place}; the first cells measure the time"
    names = [*_CELL_COLUMNS, "lengths", "from", "to", "forecast_bytes"]
    cells = ([row[name] for name in names] for row in rows)
    terminal.print_table(title, names, cells, text_columns=6)


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
    table: Frame = sweep_results(directory, say=terminal.note)
    provenance = table.attrs.get("ostools", {})
    if target is not None:
        terminal.tell_written(save_table(table, provenance, target))
    elif GLOBALS.json:
        terminal.print_json(table_as_json(table, provenance))
    else:
        _show_cells(table, provenance["cells"])


def _show_cells(table: Frame, counts: dict[str, int]) -> None:
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
