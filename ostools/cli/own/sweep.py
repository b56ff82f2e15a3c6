"""`ostools sweep run`: measure the cells of a sweep."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ostools.cli import output
from ostools.cli.global_options import GLOBALS
from ostools.ground.errors import InputError
from ostools.ground.signals import ended_by_signals

if TYPE_CHECKING:
    from ostools import runs
    from ostools.runs.workers.executor import Job

CELL = ["measurement", "task", "model", "dtype", "mitigation", "seed"]


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
    for option, count in (("--workers", workers), ("--worker-cpus", worker_cpus)):
        if count is not None and count < 1:
            raise InputError(f"{option}: expected a whole number of at least 1, found {count}")

    def work(interrupted: Callable[[], bool]) -> None:
        from ostools import runs

        asked = runs.read_sweep(sweep)
        executor = _executor(workers, ray_address, worker_cpus)
        if dry_run:
            _show_plan(runs.plan(asked, out, executor=executor, retry_failed=retry_failed, say=_note))
            return
        if executor is not None:
            output.note(
                f"measuring on {'Ray on this machine' if ray_address is None else f'the Ray cluster at {ray_address}'}"
            )
        # Ended by a signal, it drops the cell in the making: its file appears whole or not at all.
        with output.progress("measuring cells") as progress:
            done = runs.run(
                asked,
                out,
                executor=executor,
                retry_failed=retry_failed,
                say=_note,
                progress=progress,
                interrupted=interrupted,
            )
        try:
            _tell(done, out)
        except BrokenPipeError:
            if not done.failed:
                raise
        if done.failed:
            raise click.exceptions.Exit(1)

    ended_by_signals(work)


def _tell(done: runs.Outcome, out: Path) -> None:
    if GLOBALS.json:
        output.print_json({"measured": done.measured, "present": done.present, "failed": list(done.failed)})
    elif not GLOBALS.quiet:
        output.print_text(
            [
                f"{done.measured} cells measured, {done.present} were there, {len(done.failed)} failed; "
                f"ostools sweep results {out}"
            ]
        )


def _note(text: str) -> None:
    """A note; where whoever reads them has left, the sweep goes on without."""
    with suppress(BrokenPipeError):
        output.note(text)


def _executor(workers: int | None, ray_address: str | None, worker_cpus: int | None) -> runs.Executor | None:
    """Ray's workers where any of its options is given; None: this process."""
    from ostools.runs import RayCluster

    if workers is None and ray_address is None:
        if worker_cpus is not None:
            raise InputError("--worker-cpus: expected --workers or --ray-address with it, found neither")
        return None
    return RayCluster(ray_address, workers=workers, cpus=worker_cpus or 1, say=_note)


def _show_plan(plan: runs.Plan) -> None:
    """Every missing cell with the memory it is forecast to take; in the title whether the largest fits."""
    rows = [_planned(job) for job in plan.pending]
    names = [*CELL, "lengths", "from", "to"]
    if GLOBALS.json:
        output.print_json([dict(zip([*names, "forecast_bytes"], row, strict=True)) for row in rows])
        return
    title = f"{len(plan.pending)} of {len(plan.keyed_cells)} cells are missing"
    if rows:
        most, unknown = max(job.forecast.memory for job in plan.pending), any(row[-1] is None for row in rows)
        title += f"; forecast {_memory(most, plan, at_least=unknown)}; the first cells measure the time"
    shown = [(*row[:-1], "unknown" if row[-1] is None else f"{row[-1] / 2**30:.2f}") for row in rows]
    output.print_table(title, [*names, "forecast GiB"], shown, left=6)


def _planned(job: Job) -> tuple[Any, ...]:
    """A cell's columns and lengths, and at the end the bytes that it is forecast to take: None where nothing is known of it."""
    cell, forecast = job.keyed_cell.cell, job.forecast
    memory = None if forecast.work is None else forecast.memory
    return (*(cell.columns[name] for name in CELL), len(cell.lengths), cell.lengths[0], cell.lengths[-1], memory)


def _memory(most: int, plan: runs.Plan, at_least: bool) -> str:
    """The largest forecast beside what is free; a GPU's may be a worker's, of which nothing is known here."""
    said = f"{most / 2**30:.2f} GiB at {'least' if at_least else 'most'}"
    if plan.terms.device != "cpu":
        return f"{said} on {plan.terms.device}"
    from ostools.ground.memory import free_memory

    free, fits = free_memory(), "may fit into" if at_least else "fits into"
    return f"{said}: {fits if most <= free.bytes else 'does NOT fit into'} {free}"
