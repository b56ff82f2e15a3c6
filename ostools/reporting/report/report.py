"""The report: measurements of one model, and sentences on them, in one HTML file.

Cost, by section: `collapse` and `precision` one pass a prompt and dtype; `sensitivity` and `layers`
d_model backward passes over the prompt, or an estimate's; `evaluate` and `mitigations` some two
hundred short answers; `failure_stage` sixty, and a second model with random weights. On the
embedded model and two CPU cores less than a minute. Cheaper: fewer `sections`.
"""

import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ostools import tasks
from ostools.ground import (
    InputError,
    Progress,
    TransformerBridge,
    checked_lengths,
    checked_names,
    in_a_row,
    name_part,
)
from ostools.measure import Unloaded, measurement
from ostools.measure.prompts import as_prompt
from ostools.mitigations.passes import own_windows
from ostools.models import Prompt, context_length
from ostools.models.describe import shared_models
from ostools.models.shape import Shape
from ostools.reporting.page.page import loading, stored_at
from ostools.reporting.sections import SECTIONS
from ostools.reporting.sections.extent import LONGEST_WINDOW, NOT_QUICK, extent_of
from ostools.reporting.sections.records import Measurements, Measuring, ReportPlan
from ostools.results import Provenance, checked_output, write_atomically

ONES = 32
"""Items of the default prompt: 64 tokens of the embedded model, where the test of shapes needs 60.
"""
LONGEST = 256
"""The longest default sequence of the collapse sections."""


def default_prompt() -> str:
    """The paper's copy prompt (Appendix C.1): the last digit of 1...10."""
    return tasks.AppendixTask("copy-last").prompt(ONES)


@measurement()
def report(
    model: TransformerBridge | None = None,
    *,
    run: str | Path | None = None,
    prompt: str | Prompt | None = None,
    out: str | Path = "report.html",
    sections: Sequence[str] | None = None,
    lengths: Iterable[int] | None = None,
    quick: bool = False,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Path:
    """Measure a model, or read a stored sweep, and write a self-contained HTML report to `out`.

    Args:
        model: the model that is measured.
        run: the directory of a sweep, finished or not, in place of a model. Nothing is measured
            then.
        prompt: a text or its tokens, whose sensitivity, layers and attention are measured; the
            default is the paper's copy prompt.
        sections: some of "collapse", "precision", "position", "sensitivity", "layers", "attention",
            "evaluate", "failure-stage", "mitigations"; None: all that take minutes at most at this
            size.
        lengths: of the sequences of collapse and precision; the default is 1 to 256, or what fits.
        quick: fewer lengths, answers and sections, for a first look; the page says which.
        progress: called as progress(done, total).
        say: with `run`, called with one line for every stored file that is not as it was written.

    What cannot be measured on this model is left out, and the report says what and why. Raises
    `InputError`, before anything is measured, for an unknown section, a path that cannot be
    written, a prompt that cannot be encoded, and a `run` together with a model or with what is
    measured on one. Raises it too if nothing at all could be measured.
    """
    if run is not None:
        values: dict[str, Any] = {"model": model, "prompt": prompt, "sections": sections}
        values |= {"lengths": lengths, "quick": quick or None}
        if names := [name for name, value in values.items() if value is not None]:
            raise InputError(
                f"report: run={str(run)!r} measures nothing; leave out {', '.join(names)}"
            )
        from ostools.reporting.sweep.report import sweep_report

        return sweep_report(run, out, say)
    if model is None:
        raise InputError("report: expected a model, or run=DIRECTORY of a sweep; found neither")
    target = checked_output(out, (".html",), option="out")
    names = checked_sections(sections)
    encoded = as_prompt(model, default_prompt() if prompt is None else prompt)
    if lengths is None:
        # Commas after every third digit and the question fit too.
        longest = max(1, min(LONGEST, (context_length(model) - 64) * 7 // 10))
        of_sequences = extent_of(Shape.of(model), quick).lengths(longest)
    else:
        of_sequences = lengths = checked_lengths(lengths)
    measured = measure(model, encoded, of_sequences, names, progress, quick)
    if not measured.results:
        reasons = "; ".join(": ".join(omission) for omission in measured.left_out[:1])
        raise InputError(f"nothing could be measured, so there is nothing to report: {reasons}")
    from ostools.reporting.report.rendering import render_report  # what draws is imported then

    command = _command(measured.provenance.model, out, prompt, names, lengths, quick)
    html = render_report(measured, command)
    return write_atomically(target, lambda part: part.write_text(html, encoding="utf-8"))


# --- what is measured


def measure(
    model: TransformerBridge,
    prompt: Prompt,
    lengths: list[int],
    sections: Collection[str] | None = None,
    progress: Progress | None = None,
    quick: bool = False,
) -> Measurements:
    """Results of the sections; None: of all but what takes long at this size (`only_by_name`)."""
    ids, shape = tuple(prompt.ids.tolist()), Shape.of(model)
    # One pass holds all lengths of ones, which go on past the sliding window; not in a quick
    # report.
    sliding = () if quick else own_windows(model).values()
    windows = [window for window in sliding if window <= LONGEST_WINDOW]
    of_ones = sorted({*lengths, *range(32, max(windows, default=0) + 32, 32)})
    plan = _plan(shape, len(ids), lengths, sections, quick, next(model.parameters()).dtype)
    plan = replace(plan, of_ones=tuple(of_ones))
    names = [name for name in SECTIONS if sections is None or name in sections]
    settings = {"lengths": lengths, "sections": names} | ({"quick": True} if quick else {})
    measured = Measurements(
        Provenance.collect(model, ids, measurement="report", **settings),
        "".join(prompt.tokens) if prompt.text is None else prompt.text,
    )
    if sections is None:
        reasons = only_by_name(shape, len(ids), quick)
        measured.left_out += reasons.items()
    measured.reduced = plan.extent.words(quick)
    # What two sections share is measured once.
    run = Measuring(model, prompt, plan, measured, progress)
    with shared_models():
        for step in dict.fromkeys(SECTIONS[name].measure for name in plan.names):
            step(run)
    name_part("")
    return measured


def checked_sections(sections: Iterable[str] | None) -> list[str] | None:
    """The sections in the report's order, each once; None for None, an `InputError` for others."""
    if sections is None:
        return None
    names = checked_names("section", sections, SECTIONS)
    return [name for name in SECTIONS if name in names]


def report_memory(
    model: Unloaded,
    prompt: str | Sequence[int],
    lengths: Sequence[int],
    sections: Collection[str] | None,
    quick: bool = False,
) -> int:
    """Bytes of the largest section of a report; None: of those that are measured by default."""
    plan = _plan(model.shape, model.pos(prompt), lengths, sections, quick, model.dtype)
    sizes = [size for name in plan.names for size in SECTIONS[name].memory(model, plan)]
    return max(sizes, default=0)


def only_by_name(shape: Shape, pos: int, quick: bool = False) -> dict[str, str]:
    """The sections that a model and prompt of this size, or a quick report, have only by name, each
    with the reason.
    """
    reasons = {name: section.dear(shape, pos) for name, section in SECTIONS.items()}
    reasons |= dict.fromkeys(NOT_QUICK if quick else (), "a quick report leaves it out")
    return {
        name: f"{reason}; `--sections {name}` measures it"
        for name, reason in reasons.items()
        if reason
    }


def _plan(
    shape: Shape,
    pos: int,
    lengths: Sequence[int],
    sections: Collection[str] | None,
    quick: bool,
    dtype: torch.dtype,
) -> ReportPlan:
    dear = only_by_name(shape, pos, quick)
    names = [
        name for name in SECTIONS if (name not in dear if sections is None else name in sections)
    ]
    extent, name = extent_of(shape, quick), str(dtype).removeprefix("torch.")
    return ReportPlan(tuple(names), tuple(lengths), tuple(lengths), pos, extent, name)


# --- the command that makes it again


def _command(
    model: Mapping[str, object],
    out: str | Path,
    prompt: str | Prompt | None,
    sections: Iterable[str] | None,
    lengths: Sequence[int] | None,
    quick: bool,
) -> str:
    """The command line that makes this report again, whatever the prompt."""
    words = ["ostools", "report", "--model", stored_at(model)]
    if isinstance(prompt, Prompt):
        words += ["--ids", ",".join(map(str, prompt.ids.tolist()))]
    elif prompt is not None:
        words += ["--prompt", prompt]
    words += [word for name in sections or () for word in ("--sections", name)]
    words += [] if lengths is None else ["--lengths", lengths_text(lengths)]
    return shlex.join([*words, *["--quick"] * quick, *loading(model), "--out", str(out)])


def lengths_text(lengths: Sequence[int]) -> str:
    """The lengths as `--lengths` takes them: 1:8,16."""
    return ",".join(
        f"{row[0]}:{row[-1]}" if len(row) > 1 else str(row[0]) for row in in_a_row(lengths)
    )
