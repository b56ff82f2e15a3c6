"""The commands about the paper's lemmas and figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ostools as ost
from ostools.commands import output
from ostools.commands.loading import check, load, saved
from ostools.commands.options import parse_lengths

if TYPE_CHECKING:
    from ostools.experiments import TheoryChecks

TITLES = {
    5: "Linf distance of the last representations, over heads and seeds",
    8: "L1 distance of the last representations after one attention layer, over seeds",
    9: "total variation delta of a softmax, over seeds",
}
"""The figures there are, and what their tables hold."""
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


def figure(
    number: int,
    model: str | None,
    lengths: str | None,
    seeds: Sequence[int] | None,
    dtypes: Sequence[str] | None,
    device: str | None,
    out: Path | None,
) -> None:
    """`ostools figure`."""
    if number not in TITLES:
        raise ost.InputError(f"unknown figure {number}: known are {', '.join(map(str, TITLES))}")
    check(out)
    chosen: dict[str, Any] = {} if lengths is None else {"lengths": parse_lengths(lengths)}
    chosen |= {"seeds": tuple(seeds)} if seeds else {}
    if number == 5:
        chosen |= {"dtypes": tuple(dtypes)} if dtypes else {}
        result = _figure_5(model or "embedded", device or "auto", chosen)
    else:
        for name, value in (("--model", model), ("--dtype", dtypes), ("--device", device)):
            if value:
                raise ost.InputError(f"figure {number} has no model, and so no {name}: leave it out")
        from ostools import experiments

        with output.progress(f"drawing figure {number}"):
            result = (experiments.figure_8 if number == 8 else experiments.figure_9)(**chosen)
    if not saved(result, out):
        _show_figure(number, result)


def _figure_5(model: str, device: str, chosen: dict[str, Any]) -> Any:
    if "dtypes" in chosen:
        from ostools.theory.distances import dtype_named

        for name in chosen["dtypes"]:
            dtype_named(name)
    loaded = load(model, device, "float32")
    from ostools import experiments

    with output.progress("comparing pairs") as progress:
        return experiments.figure_5(loaded, progress=progress, **chosen)


def _show_theory(result: TheoryChecks) -> None:
    from ostools.experiments.checks.check import STATED

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


def _show_figure(number: int, result: Any) -> None:
    """At some lengths the mean, least and greatest; then the fitted laws in words."""
    frame, by = result.frame, {5: ["panel", "pair", "dtype"], 8: ["reading"], 9: []}[number]
    value = {5: "mean", 8: "l1", 9: "delta"}[number]
    shown, part = output.some_of(frame["length"])
    table = frame[frame["length"].isin(shown)].groupby([*by, "length"], sort=False)
    if number == 5:
        rows = table.agg({"mean": "mean", "head_minimum": "min", "head_maximum": "max"})
    else:
        rows = table[value].agg(["mean", "min", "max"])
    keys = [key if isinstance(key, tuple) else (key,) for key in rows.index]
    cells = ((*key, *map(float, row)) for key, row in zip(keys, rows.to_numpy(), strict=True))
    names = [*by, "n", "mean", "least", "greatest"]
    output.stdout().print(output.table(f"Figure {number}: {TITLES[number]}{part}", names, cells, left=len(by) + 1))
    if number != 5:
        from ostools.reporting.decay_charts import figure_9_notes, in_words

        fits = result.fits.to_dict("records")
        laws = (f"{' '.join(map(str, [*(fit[k] for k in by), fit['quantity']]))}: {in_words(fit)}" for fit in fits)
        output.print_text(["", *laws, *(figure_9_notes(result) if number == 9 else [])])
