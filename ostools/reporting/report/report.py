"""The report: measure what its sections show on a model, say what the numbers say, write one HTML file.

The file needs no network. Cost, by section: `collapse` and `precision` one pass a prompt and dtype; `sensitivity` and
`layers` d_model backward passes over the prompt, or an estimate's;
`evaluate` and `mitigations` some two hundred short answers; `failure_stage` sixty, and a second model with random weights. On
the embedded model and two CPU cores less than a minute. A large model's user chooses sections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from transformer_lens.model_bridge import TransformerBridge

from ostools import tasks
from ostools.ground.errors import InputError
from ostools.ground.names import checked_names
from ostools.ground.progress import Progress, part_of
from ostools.ground.whole_numbers import checked_lengths, in_a_row
from ostools.measure.measurement import measurement
from ostools.measure.prompts import as_prompt
from ostools.models import Prompt, context_length
from ostools.models.shape import Shape
from ostools.reporting.page.shell import loading, quoted, stored_at
from ostools.reporting.report.asked import NAMES, extent_of
from ostools.reporting.report.measuring import measure
from ostools.reporting.report.rendering import render_report
from ostools.reporting.report.two import measure_two, render_two
from ostools.reporting.sections.measurements import Measurements
from ostools.reporting.sweep.report import sweep_report
from ostools.results import checked_output, write_atomically

ONES = 32
"""How long the sequence of the default prompt is: the paper's copy prompt then has some 160 tokens at one character each, and
64 of the embedded model's, where the test of the middle against the end needs 60."""
LONGEST = 256
"""The longest default sequence of the collapse sections."""


def default_prompt() -> str:
    """The paper's copy prompt (Appendix C.1): the last digit of 1...10."""
    return tasks.AppendixTask("copy-last").prompt(ONES)


@measurement()
def report(
    model: TransformerBridge | None = None,
    *,
    models: Iterable[TransformerBridge] | None = None,
    run: str | Path | None = None,
    prompt: str | Prompt | None = None,
    out: str | Path = "report.html",
    sections: Sequence[str] | None = None,
    lengths: Iterable[int] | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Path:
    """Measure what the sections show, or read what a sweep has stored, and write a self-contained HTML report to `out`.

    Args:
        model: the model that is measured.
        models: two models in place of one, for a report of both. They are taken one after the other, so
            `(load_model(name) for name in names)` holds one of them in memory at a time. The prompt then has to be a text.
        run: the directory of a sweep, finished or not, in place of a model. Nothing is measured then, and progress is not told.
        prompt: a text or its tokens, whose sensitivity, layers and attention are measured; the default is the paper's copy
            prompt.
        sections: some of "collapse", "precision", "sensitivity", "layers", "attention",
            "evaluate", "failure-stage", "mitigations". None: all of them, except what takes long on a model of this
            size (`asked.unasked`).
        lengths: the lengths of the sequences of collapse and precision. The default is 1 to 256, and fewer if the context is
            short.
        progress: called as progress(done, total).
        say: with `run`, called with one line for every stored file that is not as it was written. The report says so as well.

    What cannot be measured on this model (a tokenizer that merges digits, a family that the formulas do not know, a dtype that
    overflows) is left out, and the report says what and why. Raises `InputError`, before anything is measured, for an unknown
    section, a path that cannot be written, a prompt that cannot be encoded, and a `run` together with a model or with what is
    measured on one. Raises it too if nothing at all could be measured.
    """
    if run is not None:
        given = {"model": model, "models": models, "prompt": prompt, "sections": sections, "lengths": lengths}
        too_many = [name for name, value in given.items() if value is not None]
        if too_many:
            raise InputError(f"report: run={str(run)!r} measures nothing; leave out {', '.join(too_many)}")
        return sweep_report(run, out, say)
    if (model is None) == (models is None):
        number = "neither" if model is None else "model and models"
        raise InputError(f"report: expected a model, or two in models=, or run=DIRECTORY of a sweep; found {number}")
    target = checked_output(out, (".html",), option="out")
    chosen = None if sections is None else _checked(sections)
    wanted = None if lengths is None else checked_lengths(lengths)
    if model is not None:
        found = _measured(model, prompt, chosen, wanted, progress)
        html = render_report(found, _command([found.provenance.model], out, prompt, sections=chosen, lengths=wanted))
    else:
        html = _of_two(models or (), out, prompt, chosen, wanted, progress)
    return write_atomically(target, lambda part: part.write_text(html, encoding="utf-8"))


def _measured(
    model: TransformerBridge,
    prompt: str | Prompt | None,
    sections: list[str] | None,
    lengths: list[int] | None,
    progress: Progress | None,
) -> Measurements:
    """What the sections show; refused where nothing could be measured."""
    wanted = extent_of(Shape.of(model)).lengths(_longest(model)) if lengths is None else lengths
    encoded = as_prompt(model, default_prompt() if prompt is None else prompt)
    found = measure(model, encoded, wanted, sections, progress)
    if found.empty:
        reasons = "; ".join(f"{one.section}: {one.reason}" for one in found.left_out[:1])
        raise InputError(f"nothing could be measured, so there is nothing to report: {reasons}")
    return found


def _of_two(
    models: Iterable[TransformerBridge],
    out: str | Path,
    prompt: str | Prompt | None,
    sections: list[str] | None,
    lengths: list[int] | None,
    progress: Progress | None,
) -> str:
    """The page of both. Token ids are of one tokenizer: the prompt of two models is a text."""
    if isinstance(prompt, Prompt):
        raise InputError(
            "report: expected the prompt of two models as a text, found tokens, which are of one tokenizer"
        )

    def measured(model: TransformerBridge, before: Sequence[Measurements]) -> Measurements:
        place = len(before)
        return _measured(model, prompt, sections, lengths, part_of(progress, place, place + 1, 2, 100))

    both = measure_two(models, measured)
    command = _command([one.provenance.model for one in both], out, prompt, sections=sections, lengths=lengths)
    return render_two(both, command)


def _checked(sections: Sequence[str]) -> list[str]:
    """The names in the report's order, each once."""
    chosen = checked_names("section", sections, NAMES)
    return [name for name in NAMES if name in chosen]


def _longest(model: TransformerBridge) -> int:
    """The longest default sequence: a comma after every third digit and the question have to fit as well."""
    return max(1, min(LONGEST, (context_length(model) - 64) * 7 // 10))


def _command(
    models: Sequence[Any],
    out: str | Path,
    prompt: str | Prompt | None,
    sections: list[str] | None,
    lengths: list[int] | None,
) -> str:
    """The command line that makes this report again, whatever the prompt."""
    words = ["ostools", "report", *(word for model in models for word in ("--model", stored_at(model)))]
    if prompt is not None:
        words += (
            ["--ids", ",".join(map(str, prompt.ids.tolist()))] if isinstance(prompt, Prompt) else ["--prompt", prompt]
        )
    words += [word for name in sections or () for word in ("--section", name)]
    words += [] if lengths is None else ["--lengths", lengths_text(lengths)]
    words += [*loading(models[0]), "--out", str(out)]
    return " ".join(map(quoted, words))


def lengths_text(lengths: Sequence[int]) -> str:
    """The lengths as `--lengths` takes them: 1:8,16."""
    return ",".join(f"{row[0]}:{row[-1]}" if len(row) > 1 else str(row[0]) for row in in_a_row(lengths))
