"""`ostools theory`: the paper's lemmas as checks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostools.commands import output
from ostools.commands.loading import check, saved
from ostools.commands.options import parse_lengths

if TYPE_CHECKING:
    from ostools.experiments import TheoryChecks

_FAILED = 1


def theory(lemmas: Sequence[str] | None, seed: int, lengths: str | None, out: Path | None) -> int:
    """`ostools theory`: the exit code."""
    check(out)
    wanted = None if lengths is None else parse_lengths(lengths)
    from ostools import experiments

    with output.progress("checking lemmas") as progress:
        result = experiments.theory(seed=seed, lemmas=lemmas or None, lengths=wanted, progress=progress)
    if not saved(result, out):
        _show_theory(result)
    return 0 if result.passed else _FAILED


def _show_theory(result: TheoryChecks) -> None:
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
    output.stdout().print(output.table("The paper's lemmas on numbers", columns, rows, left=2))
    failed = int((~frame["passed"]).sum())
    verdict = f"{failed} of {len(frame)} checks FAILED" if failed else f"all {len(frame)} checks passed"
    without = int((frame["hypotheses"] != STATED).sum())
    output.print_text(
        ["", f"{verdict}; {without} of them take a hypothesis away, and pass because the statement breaks without it."]
    )
