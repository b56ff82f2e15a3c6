"""`ostools reproduce`: every claim of the paper, measured on a model and judged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostools.cli import output
from ostools.cli.global_options import GLOBALS
from ostools.cli.running import EMBEDDED, at_work

if TYPE_CHECKING:
    from ostools.experiments import Reproduction


def reproduce(
    *,
    out: Path,
    figures: Sequence[int] | None = None,
    recipe: Path | None = None,
    model: str | None = None,
) -> None:
    """Judge every claim of the paper by what is measured on a model.

    Writes DIR/report.html, DIR/claims.csv and the tables of every part. Each claim is one line: the
    paper's words, what was measured, and agrees, holds by construction, does not agree, or could
    not be tested, with the reason. The same command again resumes: parts that are there are not
    measured twice.

    Args:
        out: the directory where the parts and the report are kept; made if it is missing.
        figures: the claims of these figures alone, out of 2:9; without it all claims.
        recipe: a .yaml file with model and lengths of your own; examples/gemma-7b.yaml is the
            paper's.
    """
    from ostools.cli.memory import largest
    from ostools.experiments.reproduce.claims import chosen_claims
    from ostools.experiments.reproduce.parts import checked_arguments, parts_of
    from ostools.reporting.reproduction.recipe import Recipe, read_recipe
    from ostools.reporting.reproduction.reproduce import reproduce as reproduced
    from ostools.reporting.reproduction.stored import Parts

    numbers = None if figures is None else list(figures)
    claims = chosen_claims(numbers)
    asked = Recipe() if recipe is None else read_recipe(recipe)
    store, arguments = Parts(out), checked_arguments(asked.arguments)
    store.require_ours()
    missing = [part.name for part in parts_of(claims) if not store.has(part.name)]
    parts = {name: arguments[name] for name in missing}
    device = GLOBALS.device or asked.device
    dtype = GLOBALS.load_dtype or asked.dtype or ""
    name = model or asked.model or EMBEDDED
    with at_work("measuring", name, lambda on: largest.reproduction(on, parts), device=device, dtype=dtype) as (
        loaded,
        progress,
    ):
        found = reproduced(
            loaded,
            numbers,
            out=out,
            arguments=asked.arguments,
            recipe=None if recipe is None else str(recipe),
            progress=progress,
            say=output.note,
        )
    _show(found)


def _show(found: Reproduction) -> None:
    if GLOBALS.json:
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
    if not GLOBALS.quiet:
        output.print_text([f"wrote {found.page}"])
