"""The command about the synthetic laboratory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ostools.commands import output
from ostools.commands.loading import check, saved
from ostools.commands.options import parse_lengths

_SHOWN = ("study", "encoding", "depth", "precision", "question", "quantity")


def lab(
    study: str, encodings: Sequence[str] | None, lengths: str, seeds: Sequence[int] | None, out: Path | None
) -> None:
    """`ostools lab`."""
    check(out)
    wanted = parse_lengths(lengths)
    import torch

    from ostools.experiments.lab.lab import SEEDS
    from ostools.experiments.lab.lab import lab as run

    # Matrices this small are not worth sharing out: on busy cores two threads wait for each other.
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    with output.progress("running decoders") as progress:
        result = run(
            study,
            encodings=encodings or None,
            lengths=wanted,
            seeds=tuple(seeds or SEEDS),
            progress=progress,
        )
    if not saved(result, out):
        _show(result)


def _show(result: Any) -> None:
    columns = [*_SHOWN, "verdict", "rate", "low", "high", "power k", "seeds low", "seeds high", "fitted"]
    values = ["verdict", "rate", "low", "high", "power_rate", "seeds_low", "seeds_high", "used"]
    rows = result.fits[[*_SHOWN, *values]].itertuples(index=False, name=None)
    title = (
        "How each curve falls: n^-rate or e^(-rate n) with its 95% interval along the curve; power k: of n^-k, whatever the "
        "verdict, with its 95% interval over seeds"
    )
    output.stdout().print(output.table(title, columns, rows, left=7))
    if len(result.collapse):
        by = ["encoding", "precision", "question"]
        lines = [
            (
                *keys,
                *(_found(group[name], int(group["n_max"].iloc[0])) for name in ("pair_collapse", "collapse_length")),
            )
            for keys, group in result.collapse.groupby(by, sort=False)
        ]
        title = "Collapse length: from here on the float64 distance is below rounding noise (by seed)"
        output.stdout().print(output.table(title, [*by, "n, of the difference", "n, of y_n alone"], lines, left=2))


def _found(lengths: Any, n_max: int) -> str:
    reached = sorted(int(length) for length in lengths.dropna())
    if not reached:
        return f"not shown up to {n_max}"
    span = f"{reached[0]}" if reached[0] == reached[-1] else f"{reached[0]} to {reached[-1]}"
    return span if len(reached) == len(lengths) else f"{span}, {len(lengths) - len(reached)} not shown up to {n_max}"
