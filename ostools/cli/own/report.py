"""`ostools report`: everything in one HTML file, of a model, of two, or of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostools.cli import output
from ostools.cli.global_options import GLOBALS
from ostools.cli.output import tell_written
from ostools.cli.prompts import Prompts
from ostools.cli.running import EMBEDDED, at_work, each_at_work
from ostools.ground.errors import InputError

if TYPE_CHECKING:
    from ostools.cli.memory.limits import Memory
    from ostools.models import Prompt
    from ostools.runs.forecast import Unloaded


def report(
    *,
    models: Sequence[str] | None = None,
    prompt: Prompt | None = None,
    out: Path = Path("report.html"),
    sections: Sequence[str] | None = None,
    lengths: Sequence[int] | None = None,
    run: Path | None = None,
) -> None:
    """Measure everything, write one HTML file.

    The whole chain, in a report that needs no network. For a large model choose sections. With
    --run, a report on the cells of a sweep, finished or not, with what failed and why. With --model
    twice, a report of both models: one is in memory at a time.

    Args:
        models: 'embedded' (else this) or another of `ostools list models`, a directory, or a hub
            id; twice: a report of both.
        out: the HTML file to write; without it report.html.
        sections: collapse, precision, sensitivity, layers, attention, evaluate, failure-stage,
            mitigations, theory; without it all but what takes long.
        lengths: of the collapse sequences; without it 1:256, or what fits.
        run: the directory of a sweep, finished or not; nothing is measured.
    """
    if run is not None:
        asked = {"model": models, "prompt": prompt, "section": sections, "lengths": lengths}
        options = [f"--{name}" for name, value in asked.items() if value]
        loaded = GLOBALS.of_a_loaded_model.items()
        _on_run(run, out, options + [name for name, value in loaded if value is not None])
        return
    from ostools.reporting.report.report import report as report_on
    from ostools.results import checked_output

    checked_output(out, (".html",), option="--out")
    given = None if prompt is None else _given(prompt)
    names = _checked_models(list(models or [EMBEDDED]), given)
    wanted: dict[str, Any] = {"out": out, "sections": sections, "lengths": lengths}
    memory = _memory(given, lengths, sections)
    if len(names) == 2:
        from ostools.cli.memory.limits import within_time

        text: Any = None if given is None else given.given[0]
        loading, progress = each_at_work("measuring", names, memory)
        with within_time():
            written = report_on(models=loading, prompt=text, progress=progress, **wanted)
    else:
        with at_work("measuring", names[0], memory) as (loaded, progress):
            read: Any = None if given is None else given.of(loaded)
            written = report_on(loaded, prompt=read, progress=progress, **wanted)
    tell_written(written)


def _given(prompt: Any) -> Prompts:
    return prompt


def _memory(prompts: Prompts | None, lengths: Sequence[int] | None, sections: Sequence[str] | None) -> Memory:
    """Bytes of the largest section."""

    def memory(model: Unloaded) -> int:
        from ostools.cli.memory import largest
        from ostools.reporting.report.asked import extent_of
        from ostools.reporting.report.report import LONGEST, default_prompt

        text = default_prompt() if prompts is None else prompts.given[0]
        known = extent_of(model.shape).lengths(LONGEST) if lengths is None else lengths
        return largest.report(model, text, known, sections)

    return memory


def _checked_models(names: list[str], prompt: Prompts | None) -> list[str]:
    """One model, or two that differ, whose prompt is a text."""
    if len(names) > 2:
        raise InputError(f"--model: expected one model or two, found {len(names)}: write a report of each pair")
    if len(names) == 2:
        from ostools.models.files.sources import locate

        ids = prompt is not None and not isinstance(prompt.given[0], str)
        if GLOBALS.base is not None or ids:
            raise InputError(
                f"{'--ids' if ids else '--base'} is of one model, found two of --model: "
                f"{'give --prompt' if ids else 'merge the adapter into its base first'}"
            )
        same = names[0] == names[1]
        if same or locate(names[0], None).directory == locate(names[1], None).directory:
            raise InputError(f"--model: expected two models that differ, found {names[0]} twice: leave one out")
    return names


def _on_run(directory: Path, out: Path, given: list[str]) -> None:
    """Report on a sweep; `given`: options that say what to measure."""
    if given:
        raise InputError(
            "--run reports on cells that are there and measures nothing: leave out "
            f"{' and '.join(given)}; what a sweep measures stands in its file"
        )
    from ostools.reporting.report.report import report as report_on

    tell_written(report_on(run=directory, out=out, say=output.note))
