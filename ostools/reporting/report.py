"""The report: measure everything on a model, say what it shows, write one HTML file that needs no network.

Cost: one sensitivity (d_model backward passes over the prompt), one path sum, one pass for the attention, and for each of
Figure 5's four prompts a pass per dtype. On the embedded model and two CPU cores about a minute.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from transformer_lens.model_bridge import TransformerBridge

from hooks import HookError
from ostools import tasks
from ostools.errors import InputError
from ostools.measure import Collapse, Comparison, Sensitivity, collapse, compare, path_sum, sensitivity
from ostools.measure.prompts import Progress
from ostools.measure.variants import VARIANTS
from ostools.models import Prompt, context_length, encode
from ostools.reporting.attention import Attention, last_token_attention
from ostools.reporting.sections import render_report
from ostools.results import Provenance, checked_output, write_atomically

Found = TypeVar("Found")

ONES = 24
"""How long the sequence of the default prompt is: the paper's copy prompt then has some 150 tokens at one character each."""
LONGEST = 256
DTYPES = ("float32", "bfloat16", "float16")
# A norm for every pair of tokens: what is left out of a report would take longer than all that is in it.
_DEAR = ("heads", "edge", "windowed(1)", "local-full", "edge-full")
# Shares of the whole run that its parts took on the embedded model; only the progress bar uses them.
_SHARES = {"sensitivity": 40, "path sum": 15, "attention": 1, "collapse": 10}


@dataclass
class Measurements:
    """What a run measured, as far as it came: a section of the report exists where its data do."""

    provenance: Provenance
    prompt: Prompt
    sensitivity: Sensitivity | None = None
    comparison: Comparison | None = None
    attention: Attention | None = None
    collapses: list[Collapse] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def default_prompt() -> str:
    """The paper's copy prompt (Appendix C.1): the last digit of 1...10."""
    return tasks.AppendixTask("copy-last").prompt(ONES)


def report(
    model: TransformerBridge,
    *,
    prompt: str | None = None,
    out: str | Path = "report.html",
    lengths: Iterable[int] | None = None,
    progress: Progress | None = None,
) -> Path:
    """Measure collapse, sensitivity, bounds and attention on `model` and write a self-contained HTML report to `out`.

    Args:
        prompt: the text whose sensitivity and attention are measured; by default the paper's copy prompt.
        lengths: of the collapse sequences; by default 1 to 256, fewer where the context is short.
        progress: called as progress(done, total).

    What cannot be measured on this model (a tokenizer that merges digits, a family that the formulas do not know, a dtype
    that overflows) is left out, and the report says what and why. Raises `InputError` for a path that cannot be written and
    for a prompt that cannot be encoded, before anything is measured, and where nothing could be measured at all.
    """
    target = checked_output(out, (".html",))
    words = default_prompt() if prompt is None else prompt
    encoded = encode(model, words)
    wanted = list(lengths) if lengths is not None else list(range(1, _longest(model) + 1))
    found = measure(model, encoded, wanted, progress)
    if found.sensitivity is None and not found.collapses:
        raise InputError(f"nothing could be measured, so there is nothing to report: {found.skipped[0]}")
    html = render_report(found, _command(found.provenance, prompt, out))
    return write_atomically(target, lambda part: part.write_text(html, encoding="utf-8"))


def measure(
    model: TransformerBridge, prompt: Prompt, lengths: list[int], progress: Progress | None = None
) -> Measurements:
    """Everything that a report shows; what is refused is noted and left out."""
    ids = tuple(prompt.ids.tolist())
    found = Measurements(Provenance.collect(model, ids, measurement="report", lengths=lengths, dtypes=DTYPES), prompt)
    steps = _Steps(progress, found.skipped)
    found.sensitivity = steps.run("sensitivity", "sensitivity", lambda part: sensitivity(model, prompt, progress=part))
    variants = [name for name in VARIANTS if name not in _DEAR]
    paths = steps.run("path sum", "path sums", lambda part: path_sum(model, prompt, variants=variants, progress=part))
    if found.sensitivity is not None and paths is not None:
        found.comparison = compare(found.sensitivity, paths)
    found.attention = steps.run("attention", "attention", lambda part: last_token_attention(model, prompt))
    for name in tasks.FIGURE_5:
        curve = steps.run(
            "collapse", f"collapse on {name}", lambda part, name=name: _collapse(model, name, lengths, part, found)
        )
        if curve is not None:
            found.collapses.append(curve)
    return found


def _collapse(
    model: TransformerBridge, name: str, lengths: list[int], progress: Progress | None, found: Measurements
) -> Collapse:
    """The curve in every dtype, or without float16 where that overflows."""
    try:
        return collapse(model, name, lengths=lengths, dtypes=DTYPES, progress=progress)
    except InputError as error:
        if "float16" not in str(error) or "finite" not in str(error):
            raise
        found.skipped.append(f"collapse on {name} in float16: {error}")
        return collapse(model, name, lengths=lengths, dtypes=DTYPES[:-1], progress=progress)


class _Steps:
    """Runs the parts of a report one after the other, telling the progress of the whole and noting what was refused."""

    def __init__(self, progress: Progress | None, skipped: list[str]) -> None:
        self.progress = progress
        self.skipped = skipped
        self.done = 0
        self.total = 100 * (sum(_SHARES.values()) + _SHARES["collapse"] * (len(tasks.FIGURE_5) - 1))

    def run(self, share: str, words: str, work: Callable[[Progress | None], Found]) -> Found | None:
        start, size = self.done, 100 * _SHARES[share]
        self.done += size
        try:
            return work(lambda done, total: self._tell(start + size * done // max(total, 1)))
        except (InputError, HookError) as error:
            self.skipped.append(f"{words}: {error}")
            return None
        finally:
            self._tell(self.done)

    def _tell(self, done: int) -> None:
        if self.progress is not None:
            self.progress(done, self.total)


def _longest(model: TransformerBridge) -> int:
    """The longest default sequence: a comma after every third digit and the question have to fit as well."""
    return max(1, min(LONGEST, (context_length(model) - 64) * 7 // 10))


def _command(provenance: Provenance, prompt: str | None, out: str | Path) -> str:
    """The command line that makes this report again."""
    model: Any = provenance.model
    words = ["ostools", "report", "--model", str(model["name"])]
    if prompt is not None:
        words += ["--prompt", prompt]
    return shlex.join([*words, "--dtype", str(model["dtype"]), "--device", str(model["device"]), "--out", str(out)])
