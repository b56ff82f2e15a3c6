"""`ostools sweep run` and `ostools sweep results`: measure the cells of a sweep, and show them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ostools.cli import terminal
from ostools.cli.global_options import GLOBALS
from ostools.cli.limits import in_time
from ostools.ground.errors import InputError
from ostools.ground.signals import ended_by_signals

if TYPE_CHECKING:
    from ostools import runs
    from ostools.runs.executor import Job
    from ostools.runs.following import HowFar

_CELL_COLUMNS = ["measurement", "task", "model", "dtype", "mitigation", "seed"]
_INTERVAL = 0.5
"""Seconds between two looks at a run; more where a look takes long."""
_SILENCE = 60.0
"""Seconds without a change after which a note says so."""


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

        plan = runs.read_sweep(sweep)
        executor = _executor(workers, ray_address, worker_cpus)
        options: dict[str, Any] = {"executor": executor, "retry_failed": retry_failed, "say": note}
        if dry_run:
            _show_plan(runs.plan(plan, out, **options))
            return
        if executor is not None:
            place = "Ray on this machine" if ray_address is None else f"the Ray cluster at {ray_address}"
            terminal.note(f"measuring on {place}")
        # Ended by a signal, it drops the cell in the making: its file appears whole or not at all.
        with terminal.progress("measuring cells") as progress:
            outcome = runs.run(plan, out, **options, progress=progress, interrupted=interrupted)
        try:
            _show_outcome(outcome, out)
        except BrokenPipeError:
            if not outcome.failed:
                raise
        if outcome.failed:
            raise click.exceptions.Exit(1)

    ended_by_signals(work)


def note(text: str) -> None:
    """Write a note; where whoever reads them has left, the sweep goes on without."""
    with suppress(BrokenPipeError):
        terminal.note(text)


def _executor(workers: int | None, ray_address: str | None, worker_cpus: int | None) -> runs.Executor | None:
    """Ray's workers where any of its options is given; None: this process."""
    from ostools.runs import RayCluster

    if workers is None and ray_address is None:
        if worker_cpus is not None:
            raise InputError("--worker-cpus: expected --workers or --ray-address with it, found neither")
        return None
    return RayCluster(ray_address, workers=workers, cpus=worker_cpus or 1, say=note)


def _show_outcome(outcome: runs.Outcome, out: Path) -> None:
    measured, present, failed = outcome.measured, outcome.present, list(outcome.failed)
    if GLOBALS.json:
        terminal.print_json({"measured": measured, "present": present, "failed": failed})
    elif not GLOBALS.quiet:
        counts = f"{measured} cells measured, {present} were there, {len(failed)} failed"
        terminal.print_text([f"{counts}; ostools sweep results {out}"])


def _show_plan(plan: runs.Plan) -> None:
    """Print every missing cell with its forecast memory; the title says whether the largest fits."""
    rows = [_planned_row(job) for job in plan.pending]
    names = [*_CELL_COLUMNS, "lengths", "from", "to"]
    if GLOBALS.json:
        terminal.print_json([dict(zip([*names, "forecast_bytes"], row, strict=True)) for row in rows])
        return
    title = f"{len(plan.pending)} of {len(plan.keyed_cells)} cells are missing"
    if rows:
        largest = max(job.forecast.memory for job in plan.pending)
        fit = _fit(largest, plan.terms.device, at_least=any(row[-1] is None for row in rows))
        title += f"; forecast {fit}; the first cells measure the time"
    in_gib = ["unknown" if row[-1] is None else f"{row[-1] / 2**30:.2f}" for row in rows]
    printed = [(*row[:-1], size) for row, size in zip(rows, in_gib, strict=True)]
    terminal.print_table(title, [*names, "forecast GiB"], printed, text_columns=6)


def _planned_row(job: Job) -> tuple[Any, ...]:
    """A cell's columns, its lengths, and its forecast bytes; None where nothing is known of it."""
    cell, forecast = job.keyed_cell.cell, job.forecast
    memory = None if forecast.work is None else forecast.memory
    columns = (cell.columns[name] for name in _CELL_COLUMNS)
    return (*columns, len(cell.lengths), cell.lengths[0], cell.lengths[-1], memory)


def _fit(size: int, device: str, at_least: bool) -> str:
    """The largest forecast beside what is free; a GPU may be a worker's, of which none is known."""
    words = f"{size / 2**30:.2f} GiB at {'least' if at_least else 'most'}"
    if device != "cpu":
        return f"{words} on {device}"
    from ostools.ground.memory import free_memory

    free, fits = free_memory(), "may fit into" if at_least else "fits into"
    return f"{words}: {fits if size <= free.bytes else 'does NOT fit into'} {free}"


# ---- results


def results(directory: Path, *, out: Path | None = None, follow: bool = False) -> None:
    """Show the tidy table of a sweep, finished or not; or how far its run is.

    --follow reads the directory only: cells measured and failed, the rate, the time left; one line
    a change, or one JSON object. Exit code 0 when every cell is measured, 1 when some failed.

    Args:
        directory: what --out was of `ostools sweep run`.
        out: all rows, as .parquet, .csv or .json; else what there is of each cell.
        follow: show how far a run is that goes on elsewhere, until it is over.
    """
    if follow:
        if out is not None:
            raise InputError("--follow shows how a run goes, and --out writes its table: give one of the two")
        if follow_run(directory):
            raise click.exceptions.Exit(1)
        return
    from ostools import runs
    from ostools.results import TABLES, checked_output, save_table, table_as_json

    target = None if out is None else checked_output(out, TABLES, option="--out")
    table: Any = runs.results(directory, say=terminal.note)
    provenance = table.attrs.get("ostools", {})
    if target is not None:
        terminal.tell_written(save_table(table, provenance, target))
    elif GLOBALS.json:
        terminal.print_json(table_as_json(table, provenance))
    else:
        _show_cells(table)


def _show_cells(table: Any) -> None:
    """Print a row a cell; its options where a measurement has several."""
    many_options = len(table) > 0 and (table.groupby("measurement")["options"].nunique() > 1).any()
    names = [*_CELL_COLUMNS, "options"] if many_options else _CELL_COLUMNS
    cells = table.groupby(names, sort=False) if len(table) else ()
    rows = [(*key, group["length"].nunique(), len(group)) for key, group in cells]
    title = f"{len(rows)} cells, {len(table)} rows"
    terminal.print_table(title, [*names, "lengths", "rows"], rows, text_columns=len(names))


def follow_run(
    directory: Path,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Show every change until all cells are measured or failed; return whether some failed."""
    from ostools.runs.following import Following

    watch = Following(directory)
    has_bar = sys.stderr.isatty() and not GLOBALS.json
    before: HowFar | None = None
    first: tuple[float, int] | None = None
    changed, silence_noted = clock(), False
    with terminal.progress("measured elsewhere") as progress:
        while True:
            start = clock()
            state = watch.look()
            count = state.measured + state.failed
            first = first or (start, count)
            if state != before:
                _show_state(state, before, _rate(first, (clock(), count)), directory, lines=not has_bar)
                changed, silence_noted = clock(), False
            if state.cell_count:
                progress(count, state.cell_count)
            if state.over:
                break
            if state.running is None and not silence_noted and clock() - changed > _SILENCE:
                terminal.note(
                    f"nothing has changed for {_SILENCE:.0f} s, and this system does not say whether a run is under way"
                )
                silence_noted = True
            before = state
            sleep(max(_INTERVAL, 10 * (clock() - start)))
    if has_bar:
        terminal.print_text([_in_words(state, None)])
    return state.failed > 0


def _rate(first: tuple[float, int], last: tuple[float, int]) -> float | None:
    """Cells a second between two looks; None before a cell was done."""
    seconds, count = last[0] - first[0], last[1] - first[1]
    return count / seconds if count > 0 and seconds > 0 else None


def _show_state(state: HowFar, before: HowFar | None, rate: float | None, directory: Path, lines: bool) -> None:
    """Print what is new: the counts, failures, and that nobody is seen to measure."""
    failures = [text for text in state.failures if before is None or text not in before.failures]
    remaining = state.remaining_count
    if GLOBALS.json:
        seconds = remaining / rate if rate else None
        counts = {**asdict(state), "failures": failures, "left": remaining}
        counts |= {"cells_per_second": rate, "seconds_left": seconds}
        print(json.dumps(counts, allow_nan=False), flush=True)
        return
    for text in failures:
        terminal.note(f"failed: {text}")
    if state.running is False and remaining and (before is None or before.running is not False):
        terminal.note(
            f"no process seen from here holds {directory}: its run has ended, or goes on elsewhere; "
            "the same `ostools sweep run` command resumes it"
        )
    if lines and (before is None or _in_words(state, None) != _in_words(before, None)):
        print(_in_words(state, rate), flush=True)


def _in_words(state: HowFar, rate: float | None) -> str:
    if not state.cell_count:
        return "nothing is asked yet: the run is beginning"
    words = f"{state.measured} of {state.cell_count} cells measured"
    words += f", {state.failed} failed" if state.failed else ""
    if rate is None or not state.remaining_count:
        return words
    return f"{words}; {60 * rate:.3g} cells a minute, about {in_time(state.remaining_count / rate)} left"
