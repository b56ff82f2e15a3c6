"""`ostools study`: mitigations against none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostools.cli.kit import output
from ostools.cli.kit.options import RANGE, Chat, Device, Elicit, LoadDtype, Model, Out, Seeds, Task, parse_lengths
from ostools.cli.kit.steps import at_work, check, check_precisions, give

if TYPE_CHECKING:
    from ostools.experiments import Study
    from ostools.runs.forecast import Unloaded

THE_PAPERS = ("separator:every=3", "hint", "interleave")


def study(
    mitigation: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:OPTIONS]",
            help="Such as separator:every=3, 'hint + sliding-window:window=64'; repeatable. Default: separator, hint, "
            "interleave.",
        ),
    ] = None,
    task: Task = "copy-last",
    lengths: Annotated[str, typer.Option(metavar="RANGE", help=RANGE.format("4:64", "4:32,64"))] = "4:64",
    seed: Seeds = None,
    dtypes: Annotated[
        list[str] | None,
        typer.Option(
            "--dtype", metavar="NAME", help="Of the collapse distance; repeatable. Default: float32 and bfloat16."
        ),
    ] = None,
    elicitation: Elicit = None,
    chat: Chat = None,
    level: Annotated[
        float, typer.Option(metavar="P", help="Of the intervals; all verdicts hold together at it.")
    ] = 0.95,
    sensitivity_lengths: Annotated[
        int, typer.Option(metavar="N", help="Sensitivity, bound and time at so many of the lengths, evenly spread.")
    ] = 12,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    load_dtype: LoadDtype = "float32",
) -> None:
    """Compare mitigations with none: answers, collapse, sensitivity, bound and cost.

    Every question is asked with each mitigation and without it. Effects have intervals over lengths. Each mitigation has its
    verdicts, which may be "no measurable effect".

    \b
    Example:
      ostools study --task count-ones --mitigation separator:every=3 --mitigation hint --lengths 4:64 --out study.html
    """
    from mitigations import mitigation as named
    from ostools import experiments, tasks
    from ostools.cli.kit import largest

    check(out)
    wanted, form = parse_lengths(lengths), tasks.task(task)
    compared = [named(one) for one in mitigation or THE_PAPERS]
    precisions = tuple(dtypes or ("float32", "bfloat16"))
    check_precisions(precisions)
    seeds = tuple(seed or (0,))

    def memory(on: Unloaded) -> int:
        how: dict[str, Any] = {"elicitation": elicitation, "chat": chat, "closely": sensitivity_lengths}
        return largest.study(on, form, compared, wanted, precisions, seeds=len(seeds), **how)

    with at_work("comparing", model, device, load_dtype, memory) as (loaded, progress):
        result = experiments.study(
            loaded,
            form,
            mitigations=compared,
            lengths=wanted,
            seeds=seeds,
            dtypes=precisions,
            elicitation=elicitation,
            chat=chat,
            level=level,
            sensitivity_lengths=sensitivity_lengths,
            progress=progress,
        )
    give(result, out, _show)


def _show(result: Study) -> None:
    from ostools.experiments.study.verdicts import ABOUT, ABOUT_WORDS, QUANTITIES, in_words
    from ostools.reporting.findings.study import floor_or_ceiling

    parameters = result.provenance.parameters
    verdicts: Any = result.verdicts
    effects: Any = result.effects
    rows = verdicts[["mitigation", *ABOUT]].itertuples(index=False, name=None)
    title = f"Mitigations against none on {parameters['task']}: verdicts"
    if limit := floor_or_ceiling(result):
        output.print_text([limit])
    output.print_table(title, ["mitigation", *(ABOUT_WORDS[name] for name in ABOUT)], rows, left=5)
    said = [
        (
            row["mitigation"],
            QUANTITIES[row["quantity"]].words + (f", {row['dtype']}" if isinstance(row["dtype"], str) else ""),
            row["kind"],
            in_words(row) if row["pairs"] else "-",
            row["lengths"],
            f"{row['inactive']} inactive" if row["inactive"] else row["reason"][:60],
        )
        for row in effects.to_dict("records")
    ]
    names = ["mitigation", "quantity", "kind", f"effect, {parameters['level']:.0%} interval", "lengths", ""]
    output.print_table("Effects: with the mitigation against without", names, said, left=4)
    output.print_text(["", *verdicts["sentence"], *notes(result)])


def notes(result: Study) -> list[str]:
    """How the verdicts are to be read."""
    from ostools.experiments.study.verdicts import ABOUT

    parameters = result.provenance.parameters
    count = len(ABOUT) * len(parameters["mitigations"])
    said = [
        f"Verdicts are read from {parameters['verdict_level']:.2%} intervals and a sign-flip test at that level, so that all "
        f"{count} of them hold together at {parameters['level']:.0%} (Bonferroni). Intervals are over lengths, on this model "
        "and task. Seconds are this machine's, of one forward pass each."
    ]
    within: Any = result.frame["within_training"].dropna()
    if len(within) and not within.any():
        said.append("Every length is beyond the trained ones: a failure there does not show over-squashing.")
    elif not within.all():
        said.append("Lengths beyond the trained ones are measured. Effects and verdicts leave them out.")
    return said
