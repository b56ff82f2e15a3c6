"""`ostools theory`: the paper's lemmas as checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostools.cli.kit import output
from ostools.cli.kit.options import Out, parse_lengths
from ostools.cli.kit.steps import check, give

if TYPE_CHECKING:
    from ostools.experiments import TheoryChecks


def theory(
    lemma: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="B.1, 4.1, B.4, B.6, B.7, 5.2, 6.1, 6.2, windows, or an appendix name; repeatable."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the numbers.")] = 0,
    lengths: Annotated[
        str | None, typer.Option(metavar="RANGE", help="At which n: of B.1, 4.1 and B.4 (even n only).")
    ] = None,
    out: Out = None,
) -> None:
    """Check the paper's lemmas on numbers, with and without their hypotheses.

    Exit code 0 if all pass, 1 if one fails, 2 for what cannot be done.

    \b
    Example:
      ostools theory --lemma B.4 --lemma 5.2 --out lemmas.png
    """
    check(out)
    wanted = None if lengths is None else parse_lengths(lengths)
    from ostools import experiments

    with output.progress("checking lemmas") as progress:
        result = experiments.theory(seed=seed, lemmas=lemma or None, lengths=wanted, progress=progress)
    give(result, out, _show)
    raise typer.Exit(0 if result.passed else 1)


def _show(result: TheoryChecks) -> None:
    from ostools.experiments.lemmas.check import STATED

    frame: Any = result.frame
    rows: list[tuple[object, ...]] = []
    for lemma, checks in frame.groupby("lemma", sort=False):
        failed = int((~checks["passed"]).sum())
        rows.append((lemma, checks["statement"].iloc[0], "", "", f"{failed} FAILED" if failed else "pass"))
        for row in checks.itertuples():
            given = "" if row.hypotheses == STATED else f"{row.hypotheses}: "
            within = f" ± {row.tolerance:.0e}" if row.tolerance else ""
            required = f"{row.relation} {row.required:.6g}{within}"
            rows.append(
                ("", f"  {given}{row.computed}", f"{row.figure:.6g}", required, "pass" if row.passed else "FAIL")
            )
    columns = ["lemma", "what was computed", "figure", "required", "result"]
    output.print_table("The paper's lemmas on numbers", columns, rows, left=2)
    failed = int((~frame["passed"]).sum())
    verdict = f"{failed} of {len(frame)} checks FAILED" if failed else f"all {len(frame)} checks passed"
    without = int((frame["hypotheses"] != STATED).sum())
    output.print_text(
        ["", f"{verdict}; {without} of them take a hypothesis away, and pass because the statement breaks without it."]
    )
