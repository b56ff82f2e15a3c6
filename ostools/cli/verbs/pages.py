"""`ostools report`, `ostools reproduce` and `ostools explore`: measure a model into a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostools.cli import terminal
from ostools.cli.running import at_work
from ostools.cli.terminal import GLOBALS
from ostools.ground import InputError

if TYPE_CHECKING:
    from ostools.measure.unloaded import Unloaded
    from ostools.paper import Reproduction


def report(
    *,
    model: str | None = None,
    prompt: str | None = None,
    out: Path = Path("report.html"),
    sections: Sequence[str] | None = None,
    lengths: Sequence[int] | None = None,
    quick: bool = False,
    run: Path | None = None,
) -> None:
    """Measure everything, write one HTML file.

    The whole chain, in a report that needs no network. For a large model choose sections. With
    --run, a report on the cells of a sweep, finished or not, with what failed and why.

    Args:
        model: 'embedded' (the default) or another of `ostools list models`, a directory, or a hub
            id.
        prompt: the text whose sensitivity, layers and attention are measured; without it the
            paper's copy prompt.
        out: the HTML file to write; without it report.html.
        sections: collapse, precision, position, sensitivity, layers, attention, evaluate,
            failure-stage, mitigations; without it all but what takes long.
        lengths: of the collapse sequences; without it 1:256, or what fits.
        quick: a first look: fewer lengths, answers and sections; the page says which.
        run: the directory of a sweep, finished or not; nothing is measured.
    """
    from ostools.reporting.report import report as reports
    from ostools.reporting.sections.extent import extent_of
    from ostools.results import checked_output

    options: dict[str, Any] = {"prompt": prompt, "sections": sections, "lengths": lengths}
    if run is not None:
        if used := ["--model"] * (model is not None) + GLOBALS.of_a_loaded_model:
            raise InputError(f"--run measures nothing: leave out {' and '.join(used)}")
        terminal.tell_written(reports.report(run=run, out=out, say=terminal.note, **options))
        return
    checked_output(out, (".html",), option="--out")
    reports.checked_sections(sections)

    def memory(unloaded: Unloaded) -> int:
        measured = lengths or extent_of(unloaded.shape, quick).lengths(reports.LONGEST)
        text = prompt or reports.default_prompt()
        return reports.report_memory(unloaded, text, measured, sections, quick)

    with at_work("measuring", model, memory) as (loaded, progress):
        page = reports.report(loaded, out=out, quick=quick, progress=progress, **options)
    terminal.tell_written(page)


def reproduce(
    *,
    out: Path,
    figures: Sequence[int] | None = None,
    recipe: Path | None = None,
    answers: Path | None = None,
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
        model: 'embedded' (the default) or another of `ostools list models`, a directory, or a hub
            id.
        recipe: a .yaml file with model and lengths of your own; examples/gemma-7b.yaml is the
            paper's.
        answers: answers of a model that runs elsewhere, --model, to the prompts of 'ostools
            evaluate prompts --figure all'; the claims about answers are judged.
    """
    from ostools.measure import read_answers
    from ostools.paper.claims.parts import (
        claim_questions,
        parts_of,
        reproduction_memory,
    )
    from ostools.paper.reproduction.reproduce import Parts, Recipe, chosen_claims, read_recipe
    from ostools.paper.reproduction.reproduce import reproduce as write_reproduction

    claims = chosen_claims(figures)
    if answers is not None:
        if used := ["--recipe"] * (recipe is not None) + GLOBALS.of_a_loaded_model:
            raise InputError(
                f"{used[0]} is of a model that is loaded here: leave it out with --answers"
            )
        hosted = read_answers(answers, claim_questions(), model=model)
        _show_claims(write_reproduction(hosted, figures, out=out, say=terminal.note))
        return
    settings = Recipe() if recipe is None else read_recipe(recipe)
    store = Parts(out)
    store.require_ours()

    def memory(unloaded: Unloaded) -> int:
        names = [part.name for part in parts_of(claims)]
        missing = {n: settings.parts[n] for n in names if not store.record_of(n).exists()}
        return reproduction_memory(unloaded, missing)

    name, device = model or settings.model, GLOBALS.device or settings.device
    dtype = GLOBALS.load_dtype or settings.dtype
    with at_work("measuring", name, memory, device=device, dtype=dtype) as (loaded, progress):
        reproduction = write_reproduction(
            loaded,
            figures,
            out=out,
            progress=progress,
            say=terminal.note,
            arguments=settings.parts,
            recipe=recipe and str(recipe),
        )
    _show_claims(reproduction)


def _show_claims(result: Reproduction) -> None:
    if GLOBALS.json:
        verdicts = {"outcomes": result.outcomes, "refused": dict(result.refused)}
        terminal.print_json(result.as_json() | verdicts | {"written": str(result.page)})
        return
    terminal.show(result)
    terminal.tell_written(result.page)


def explore(*, model: str | None = None, prompt: str = "", port: int = 0) -> None:
    """Look at a prompt in the browser, as you type it.

    A page on this machine: the tokens of the prompt, coloured by attention at once, by a sketch of
    the sensitivity and by the measured norms a little later, with charts, and the code that gives
    the same. Another prompt or a mitigation may stand beside it. Prints its address. Ctrl-C
    ends it.

    Args:
        model: 'embedded' (the default) or another of `ostools list models`, a directory, or a hub
            id.
        prompt: what stands in the field at first.
        port: the port to listen on; 0 takes a free one.
    """
    from ostools.explorer import explore as start_explorer
    from ostools.explorer.serve import require_port

    require_port(port)
    with at_work("starting the explorer", model) as (loaded, _):
        explorer = start_explorer(loaded, prompt, port=port)
    try:
        if GLOBALS.json:
            terminal.print_json({"url": explorer.url})
        else:
            terminal.print_text([explorer.url])
        explorer.wait()
    finally:
        explorer.stop()
