"""`ostools reproduce`: every claim of the paper, measured on a model and judged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostools.cli.kit import output
from ostools.cli.kit.manners import MANNERS
from ostools.cli.kit.steps import at_work

if TYPE_CHECKING:
    from ostools.experiments import Reproduction


def reproduce(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the parts and the report are kept; made if missing.")],
    figure: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="The claims of that figure alone, 2 to 9; repeatable. Default: all claims."),
    ] = None,
    recipe: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.yaml",
            help="Model and lengths of your own; examples/gemma-7b.yaml is the paper's. Default: small ones.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="'embedded', a directory, or a hub id. Default: the recipe's, or 'embedded'."
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="'auto' or a torch device. Default: the recipe's, or 'auto'.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(metavar="NAME", help="To load the model in. Default: the recipe's, or float32.")
    ] = None,
) -> None:
    """Judge every claim of the paper by what is measured on a model.

    Writes DIR/report.html, DIR/claims.csv and the tables of every part. Each claim is one line: the paper's words, what was
    measured, and agrees, holds by construction, does not agree, or could not be tested, with the reason. The same command again
    resumes: parts that are there are not measured twice.

    \b
    Example:
      ostools reproduce --out paper
      ostools reproduce --figure 5 --figure 9 --out figures
      ostools reproduce --recipe examples/gemma-7b.yaml --out gemma
    """
    from ostools.cli.kit import largest
    from ostools.experiments.reproduce.claims import chosen_claims
    from ostools.experiments.reproduce.parts import checked_arguments, parts_of
    from ostools.reporting.reproduction.recipe import Recipe, read_recipe
    from ostools.reporting.reproduction.reproduce import reproduce as reproduced
    from ostools.reporting.reproduction.stored import Parts

    claims = chosen_claims(figure)
    asked = Recipe() if recipe is None else read_recipe(recipe)
    store, arguments = Parts(out), checked_arguments(asked.arguments)
    store.require_ours()
    wanted = {part.name: arguments[part.name] for part in parts_of(claims) if not store.has(part.name)}
    name, where = model or asked.model or "embedded", device or asked.device or "auto"
    dtype = dtype or asked.dtype or "float32"
    with at_work("measuring", name, where, dtype, lambda on: largest.reproduction(on, wanted)) as (
        loaded,
        progress,
    ):
        found = reproduced(
            loaded,
            figure or None,
            out=out,
            arguments=asked.arguments,
            recipe=None if recipe is None else str(recipe),
            progress=progress,
            say=output.note,
        )
    _show(found)


def _show(found: Reproduction) -> None:
    if MANNERS.json:
        output.print_json(
            found.as_json() | {"outcomes": found.outcomes, "refused": dict(found.refused), "written": str(found.page)}
        )
        return
    frame: Any = found.frame
    rows = frame[["claim", "place", "outcome", "measured"]].itertuples(index=False, name=None)
    counts = ", ".join(f"{outcome}: {count}" for outcome, count in found.outcomes.items())
    output.print_table(
        f"{len(frame)} claims of the paper: {counts}", ["claim", "place", "outcome", "measured"], rows, left=4
    )
    if not MANNERS.quiet:
        output.print_text([f"wrote {found.page}"])
