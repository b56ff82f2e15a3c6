"""Commands of more than one step of Python: measurements that read another one (`sensitivity
profile`, `ablate faithfulness`), pages (`report`, `reproduce`, `explore`) and sweeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from ostools.cli import terminal
from ostools.cli.running import at_work
from ostools.cli.terminal import GLOBALS
from ostools.ground import InputError

if TYPE_CHECKING:
    from ostools.ground import Progress, TransformerBridge
    from ostools.measure import Faithfulness, Profile, Sensitivity
    from ostools.measure.faithfulness.faithfulness import Way
    from ostools.measure.unloaded import Unloaded
    from ostools.mitigations import Mitigation
    from ostools.models import Prompt
    from ostools.paper import Reproduction
    from ostools.sweep import SweepPlan
    from ostools.tasks.questions import Question


def profile(
    model: TransformerBridge,
    prompt: str | Prompt | Question,
    **options: Any,
) -> Profile:
    """Say which tokens matter, and test for a U-shape.

    The measured profile with and without the sink, its shape with intervals, and full against
    frozen. A sketch reads Frobenius norms off a few random cotangents, in seconds where exact norms
    take minutes.
    """
    from ostools import measure

    measured = measure.sensitivity(model, prompt, **options)
    return measure.profile(cast("Sensitivity", measured))


def faithfulness(
    model: TransformerBridge,
    prompt: str | Prompt | Question,
    *,
    logit: str | int | Sequence[str | int] | None = None,
    ways: Way | Sequence[Way] | None = None,
    mitigation: Mitigation | str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Faithfulness:
    """Ask whether sensitivity is use: take tokens out.

    Each token before the last is removed, and masked in attention.
    How far the last representation, the answer and the next token move is ranked beside what was
    measured of the token.
    """
    from ostools import measure

    measured = measure.sensitivity(model, prompt, mitigation=mitigation, **options)
    return measure.faithfulness(
        model,
        cast("Sensitivity", measured),
        logit=logit,
        ways=ways,
        mitigation=mitigation,
        progress=progress,
    )


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
        terminal.tell_written(
            reports.report(run=run, out=out, quick=quick, say=terminal.note, **options)
        )
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
    from ostools.paper.claims.parts import claim_questions, parts_of, reproduction_memory
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
    Parts(out).require_ours()

    def memory(unloaded: Unloaded) -> int:
        # Of parts that are stored too: whether they are of this model is known once it is loaded.
        parts = {part.name: settings.parts[part.name] for part in parts_of(claims)}
        return reproduction_memory(unloaded, parts)

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
    the same. Prints its address. Ctrl-C ends it.

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


def run_sweep(
    sweep: Path,
    *,
    out: Path,
    mitigations: Sequence[Mitigation | str] = (),
    dry_run: bool = False,
    retry_failed: bool = False,
    workers: int | None = None,
    ray_address: str | None = None,
    worker_cpus: int = 1,
) -> None:
    """Run a sweep: models x tasks x lengths x dtypes x mitigations x seeds x measurements.

    One cell after the other in this process, or as many at once as Ray has workers. The same
    command again resumes: what is there is not computed again, and what was added to the file is
    measured. A cell that fails is recorded with its error, and the exit code is 1.

    Args:
        sweep: what to measure, a .yaml file; examples/sweep.yaml is one.
        out: the directory where the cells are kept; made if it is missing.
        mitigations: beside those of the file, also ones of a file of your own.
        dry_run: say which cells are missing and the memory they are forecast to take; measure none.
        retry_failed: try the cells that failed before again.
        workers: measure with so many processes, by Ray: on this machine, or at most so many of
            --ray-address.
        ray_address: measure on the Ray cluster at HOST:PORT; auto: the one of this machine.
        worker_cpus: CPUs of each of Ray's workers, which uses at most as many threads.
    """
    from ostools.sweep import RayCluster, plan, read_sweep, run

    checked_sweep, executor = read_sweep(sweep, mitigations=mitigations), None
    if workers is not None or ray_address is not None:
        executor = RayCluster(ray_address, workers=workers, cpus=worker_cpus)
    options: dict[str, Any] = {
        "executor": executor,
        "retry_failed": retry_failed,
        "say": terminal.note,
    }
    if dry_run:
        _show_plan(plan(checked_sweep, out, **options))
        return
    # Ended by a signal, it leaves out the cell in the making: its file appears whole or not at all.
    with terminal.progress("measuring cells") as progress:
        outcome = run(checked_sweep, out, progress=progress, **options)
    if GLOBALS.json:
        terminal.print_json(asdict(outcome))
    elif not GLOBALS.quiet:
        words = (
            f"{outcome.measured} cells measured, {outcome.present} were there before, "
            f"{len(outcome.failed)} failed; 'ostools sweep results {out}' shows them"
        )
        terminal.print_text([words])
    if outcome.failed:
        raise click.exceptions.Exit(1)


def _show_plan(plan: SweepPlan) -> None:
    """Print every missing cell with the bytes that it is forecast to take."""
    from ostools.sweep.executor import forecast

    rows = [
        {
            **cell.columns,
            "lengths": len(cell.lengths),
            "to": cell.lengths[-1],
            "forecast_bytes": forecast(cell, plan.terms.device).memory,
        }
        for cell in (keyed_cell.cell for keyed_cell in plan.pending)
    ]
    terminal.give_tables({f"{len(rows)} of {len(plan.keyed_cells)} cells are missing": rows})


def sweep_results(directory: Path, *, out: Path | None = None) -> None:
    """Show the tidy table of a sweep, finished or not: what there is of each cell.

    Args:
        directory: what --out was of `ostools sweep run`.
        out: all rows, as .parquet, .csv or .json; else what there is of each cell.
    """
    from ostools.results import TABLES, checked_output, save_table, table_as_json
    from ostools.sweep import results

    if out is not None:
        checked_output(out, TABLES, option="--out")
    table = results(directory, say=terminal.note)
    provenance = table.attrs["ostools"]
    if out is not None:
        terminal.tell_written(save_table(table, provenance, out))
        return
    if GLOBALS.json:
        terminal.print_json(table_as_json(table, provenance))
        return
    names = ["measurement", "task", "model", "dtype", "mitigation", "seed", "options"]
    cells = table.groupby(names, sort=False) if len(table) else ()
    rows = [(*key, group["length"].nunique(), len(group)) for key, group in cells]
    counts = provenance["cells"]
    title = (
        f"{counts['measured']} of {counts['asked']} cells measured, {len(table)} rows, "
        f"{counts['failed']} cells failed, {counts['missing']} missing"
    )
    terminal.print_table(title, [*names, "lengths", "rows"], rows)
