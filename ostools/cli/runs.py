"""The declarations of the commands about sweeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer


def run(
    sweep: Annotated[Path, typer.Argument(metavar="SWEEP.yaml", help="What to measure; examples/sweep.yaml is one.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the cells are kept; made if it is missing.")],
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Say which cells are missing and what they are forecast to take; measure none."),
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try the cells that failed before again.")
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Measure with N processes, by Ray: on this machine, or at most N of --ray-address."
        ),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Measure on the Ray cluster there; auto: the one of this machine."),
    ] = None,
    worker_cpus: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="CPUs of each of Ray's workers, which uses at most as many threads; 1 unless given.",
        ),
    ] = None,
) -> None:
    """Run a sweep: models x tasks x lengths x dtypes x mitigations x seeds x measurements.

    One cell after the other in this process, or as many at once as Ray has workers.

    The same command again resumes: nothing is computed twice, and what was added to the file is added. A cell that fails is
    recorded with its error, and the exit code is 1.

    \b
    Example:
      ostools run examples/sweep.yaml --out sweep --workers 2
    """
    from ostools.commands.signals import ended_by_signals

    def work(interrupted: Callable[[], bool]) -> None:
        from ostools.commands import runs as command

        command.run(sweep, out, dry_run, retry_failed, workers, ray_address, worker_cpus, interrupted)

    ended_by_signals(work)


def results(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="What --out was of `ostools run`.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="All rows, as .parquet, .csv or .json; else what there is of each cell."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Show how far a run is that goes on elsewhere, until it is over.")
    ] = False,
) -> None:
    """The tidy table of a sweep, finished or not; or how far its run is.

    --follow reads the directory only: cells measured and failed, the rate, the time left; one line a change, or one JSON
    object. Exit code 0 when every cell is measured, 1 when some failed.

    \b
    Example:
      ostools results sweep --out table.csv
      ostools results sweep --follow
    """
    from ostools.commands import results as command

    command.results(directory, out, follow)
