"""`ostools lab`: the synthetic laboratory."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from ostools.cli.kit import output
from ostools.cli.kit.options import Lengths512, Out, parse_lengths
from ostools.cli.kit.steps import check, give
from ostools.ground.errors import InputError

_SHOWN = ("study", "encoding", "depth", "precision", "question", "quantity")


def lab(
    study: Annotated[str, typer.Option(metavar="NAME", help="positions, depth, precision, validation or all.")] = "all",
    encoding: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="none, alibi, rope-100, rope-10000, rope-1000000, sinusoidal, learned; repeatable. Default: all for positions "
            "and validation, 'none' and 'rope-10000' for the others.",
        ),
    ] = None,
    lengths: Lengths512 = "1:512",
    seed: Annotated[
        list[int] | None, typer.Option(metavar="N", min=0, help="Seed of a decoder; repeatable. Default: 0 to 4.")
    ] = None,
    trained: Annotated[
        bool, typer.Option("--trained", help="Show the models that were trained, from the table in the package.")
    ] = False,
    out: Out = None,
) -> None:
    """Study collapse in a random decoder: by positions, depth and precision.

    How fast the last representation and every layer's attention stop changing with one more copy of a token, which law they
    follow, and whether the theorem's assumption about positions is met. Validation: the L1 distance, every encoding in
    float32 and bfloat16.

    With --trained: small decoders, equal but for positions, depth or windows, before and after training on the same prompts.

    \b
    Example:
      ostools lab --study positions --out encodings.png
      ostools lab --trained --out trained.html
    """
    check(out)
    if trained:
        if (study, encoding, lengths, seed) != ("all", None, "1:512", None):
            raise InputError(
                "--trained shows a table that is there: leave out --study, --encoding, --lengths and --seed"
            )
        from ostools import experiments

        give(experiments.trained_lab(), out, _show_trained)
        return
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


def _show_trained(result: Any) -> None:
    from ostools import experiments

    told = result.provenance.parameters
    print(f"{told['measured']} of the {told['planned']} models of the grid")
    table = experiments.trained_summary(result)
    kind = ["encoding", "n_layers", "window", "sinks", "norm", "trained_in", "forced", "weights"]
    words = ["encoding", "layers", "window", "sinks", "norm", "trained in", "forced", "weights", "models"]
    collapse = [
        f"{reached} of {seeds}"
        + ("" if not reached else f", from {first}" if first == last else f", from {first} to {last}")
        for reached, seeds, first, last in table[
            ["collapse_reached", "seeds", "collapse_first", "collapse_last"]
        ].itertuples(index=False, name=None)
    ]
    rates = table[["rate", "rate_low", "rate_high"]].itertuples(index=False, name=None)
    rows = [(*keys, *rate, one) for keys, rate, one in zip(_keys(table, kind), rates, collapse, strict=True)]
    title = (
        "How the float64 distance at y falls beyond the trained lengths (k of n^-k, 95% over models), and in how many models "
        "it stays below bfloat16's noise, and from which length on"
    )
    output.print_table(title, [*words, "k", "low", "high", "below the noise"], rows, left=8)
    values = [f"{question}_{when}" for question in ("first", "last", "count") for when in ("seen", "unseen")]
    only: Any = table[table["weights"] == "trained"]
    shares = only[values].itertuples(index=False, name=None)
    rows = [(*keys, *share) for keys, share in zip(_keys(only, kind), shares, strict=True)]
    title = "Share of right answers of the trained models, on trained lengths (seen) and beyond (mean over lengths and models)"
    output.print_table(title, [*words, *(name.replace("_", ", ") for name in values)], rows, left=8)

    columns = ["question", "length", "quantity", "rank correlation", "low", "high", "models", "different shares"]
    rows = experiments.trained_prediction(result).itertuples(index=False, name=None)
    title = "Does it go with the share of right answers at that length, from model to model (95%, too narrow)?"
    output.print_table(title, columns, rows, left=3)
    held: Any = experiments.trained_decodable(result)
    if len(held):
        columns = ["question", "length", "right", "decodable", "surplus", "surplus_low", "surplus_high"]
        columns += ["before", "in_bfloat16", "lost", "lost_low", "lost_high"]
        shares = held[columns].itertuples(index=False, name=None)
        rows = [(*keys, *share) for keys, share in zip(_keys(held, kind[:-1]), shares, strict=True)]
        title = (
            "Share of right answers, and of answers that a linear probe reads off y (decodable; before: before training), of "
            "the same prompts, with the 95% interval of the difference over seeds"
        )
        output.print_table(title, [*words[:-2], "models", *columns], rows, left=7)
    precisions = experiments.trained_precisions(result)
    precisions["seen"] = precisions["seen"].map({True: "seen", False: "unseen"})
    columns = ["question", "lengths", "float32", "bfloat16", "difference", "low", "high"]
    title = "Share of right answers in float32 and run in bfloat16, with the 95% interval of the difference over seeds"
    output.print_table(title, columns, precisions.itertuples(index=False, name=None), left=2)
    changes = experiments.trained_changes(result)
    if len(changes):
        title = (
            "What one change does: models of one seed with it and without it, with the 95% interval of the difference"
        )
        output.print_table(title, list(changes.columns), changes.itertuples(index=False, name=None), left=8)


def _keys(table: Any, kind: list[str]) -> Any:
    """What a row is of: 0 keys of a window are none."""
    shown = table.assign(
        window=table["window"].replace(0, "none"), forced=table["forced"].map({True: "yes", False: "no"})
    )
    return shown[[*kind, "seeds"]].itertuples(index=False, name=None)


def _found(lengths: Any, n_max: int) -> str:
    reached = sorted(int(length) for length in lengths.dropna())
    if not reached:
        return f"not shown up to {n_max}"
    span = f"{reached[0]}" if reached[0] == reached[-1] else f"{reached[0]} to {reached[-1]}"
    return span if len(reached) == len(lengths) else f"{span}, {len(lengths) - len(reached)} not shown up to {n_max}"
