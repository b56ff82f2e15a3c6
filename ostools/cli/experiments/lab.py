"""`ostools lab`: the synthetic laboratory."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from ostools.cli.kit import output
from ostools.cli.kit.options import Lengths512, Out, parse_lengths
from ostools.cli.kit.steps import check, give

_SHOWN = ("study", "encoding", "depth", "precision", "question", "quantity")


def lab(
    study: Annotated[str, typer.Option(metavar="NAME", help="positions, depth, precision, validation or all.")] = "all",
    encoding: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="none, alibi, rope-100, rope-10000, rope-1000000, sinusoidal, learned; repeatable. Else all for positions and "
            "validation, none and rope-10000 for the others.",
        ),
    ] = None,
    lengths: Lengths512 = "1:512",
    seed: Annotated[
        list[int] | None, typer.Option(metavar="N", min=0, help="Seed of a decoder; repeatable. Else 0 to 4.")
    ] = None,
    out: Out = None,
) -> None:
    """Study collapse in a random decoder: by positions, depth and precision.

    How fast the last representation and every layer's attention stop changing with one more copy of a token, which law they
    follow, and whether the theorem's assumption about positions is met. Validation: the L1 distance, every encoding in
    float32 and bfloat16.

    \b
    Example:
      ostools lab --study positions --out encodings.png
    """
    check(out)
    wanted = parse_lengths(lengths)
    import torch

    from ostools import experiments
    from ostools.experiments.lab.lab import SEEDS

    # Matrices this small are not worth sharing out: on busy cores two threads wait for each other.
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    with output.progress("running decoders") as progress:
        result = experiments.lab(
            study, encodings=encoding or None, lengths=wanted, seeds=tuple(seed or SEEDS), progress=progress
        )
    give(result, out, _show)


def _show(result: Any) -> None:
    columns = [*_SHOWN, "verdict", "rate", "low", "high", "power k", "seeds low", "seeds high", "fitted"]
    values = ["verdict", "rate", "low", "high", "power_rate", "seeds_low", "seeds_high", "used"]
    rows = result.fits[[*_SHOWN, *values]].itertuples(index=False, name=None)
    title = (
        "How each curve falls: n^-rate or e^(-rate n) with its 95% interval along the curve; power k: of n^-k, whatever the "
        "verdict, with its 95% interval over seeds"
    )
    output.print_table(title, columns, rows, left=7)
    if len(result.collapse):
        by = ["study", "encoding", "precision", "question"]
        lines = [
            (
                *keys,
                *(_found(group[name], int(group["n_max"].iloc[0])) for name in ("pair_collapse", "collapse_length")),
            )
            for keys, group in result.collapse.groupby(by, sort=False)
        ]
        title = "Collapse length: from here on the float64 distance is below rounding noise (by seed)"
        output.print_table(title, [*by, "n, of the difference", "n, of one vector"], lines, left=3)


def _found(lengths: Any, n_max: int) -> str:
    reached = sorted(int(length) for length in lengths.dropna())
    if not reached:
        return f"not shown up to {n_max}"
    span = f"{reached[0]}" if reached[0] == reached[-1] else f"{reached[0]} to {reached[-1]}"
    return span if len(reached) == len(lengths) else f"{span}, {len(lengths) - len(reached)} not shown up to {n_max}"
