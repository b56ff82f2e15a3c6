"""Everything of the paper that can be measured on one model: its parts, resumed where they are there, and a line a claim.

Cost: on the embedded model and two CPU cores less than ten minutes; parts that are stored cost a reading.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_lens.model_bridge import TransformerBridge

from hooks import HookError
from mitigations import MitigationError
from ostools.experiments.reproduce.claims import Reproduction, chosen_claims, judged
from ostools.experiments.reproduce.parts import Arguments, Part, Results, checked_arguments, parts_of
from ostools.ground.errors import InputError, in_words
from ostools.ground.progress import Progress, part_of, tell
from ostools.measure.measurement import measurement
from ostools.reporting.reproduction.page import command, render_reproduction
from ostools.reporting.reproduction.stored import Parts
from ostools.results import Provenance, Result, save_table, write_atomically
from ostools.runs.cell_file import UNREADABLE
from ostools.runs.cells import code_version, digest

_MEASURING = (
    "experiments/figures",
    "experiments/lemmas.py",
    "experiments/study",
    "experiments/decay.py",
    "experiments/retrieval.py",
    "experiments/reproduce/parts.py",
)
"""What decides a part's numbers beside what decides a sweep's; a rule that judges them is applied anew each time."""
CLAIMS_FILE, PAGE_FILE = "claims.csv", "report.html"


@measurement()
def reproduce(
    model: TransformerBridge,
    figures: Iterable[int] | int | None = None,
    *,
    out: str | Path,
    arguments: Mapping[str, Arguments] | None = None,
    recipe: str | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Reproduction:
    """Measure what the paper's claims need on `model`, judge each claim, and write DIR/report.html and DIR/claims.csv.

    Args:
        figures: numbers of figures (2 to 9). Only their claims are judged. None: all claims, those about lemmas and theorems
            too.
        out: the directory DIR, a new one or that of an earlier run. A part that is there, of the same model (its weights),
            arguments and code, is not measured again.
        arguments: arguments of the parts, by part and name, where they differ from those of
            `ostools.experiments.reproduce.parts.PARTS`. `read_recipe` reads them from a file.
        recipe: the file that they come from, for the report's command.
        progress: called as progress(done, total).
        say: called with one line for each part that is measured, and for what in the directory cannot be used.

    What cannot be measured on this model (a tokenizer that merges digits, a prompt longer than the context) leaves its claims
    "could not be tested", with that reason. Raises `InputError`, before anything is measured, for an unknown figure, part or
    argument, and for a directory that belongs to something else or cannot be written.
    """
    claims = chosen_claims([figures] if isinstance(figures, int) else figures)
    asked = checked_arguments(arguments or {})
    parts, store = parts_of(claims), Parts(Path(out), say)
    wanted = None if figures is None else sorted({figures} if isinstance(figures, int) else set(figures))
    origin = Provenance.collect(
        model, measurement="reproduce", figures=wanted, arguments={part.name: asked[part.name] for part in parts}
    )
    with store.locked():
        run = _Run(model, store, asked, origin, say)
        found, refused = run.measured(parts, progress)
        frame = judged(claims, found, refused)
        seconds = {name: store.seconds(name) for name in found}
        page = Path(out) / PAGE_FILE
        result = Reproduction(frame, origin, found, refused, seconds, page)
        save_table(frame, origin.as_dict(), Path(out) / CLAIMS_FILE)
        text = render_reproduction(result, command(result, str(out), recipe))
        write_atomically(page, lambda part: part.write_text(text, encoding="utf-8"))
    return result


@dataclass(frozen=True)
class _Run:
    """The parts of one call, each taken from the directory or measured and kept there."""

    model: TransformerBridge
    store: Parts
    asked: Mapping[str, Arguments]
    origin: Provenance
    say: Callable[[str], None]

    def measured(
        self, parts: Sequence[Part], progress: Progress | None
    ) -> tuple[dict[str, Mapping[str, Result]], dict[str, str]]:
        """The results of each part, and why the others have none."""
        found: dict[str, Mapping[str, Result]] = {}
        refused: dict[str, str] = {}
        total = 100 * sum(part.weight for part in parts)
        done = 0
        for part in parts:
            told = part_of(progress, done, done + 100 * part.weight, total, total)
            try:
                found[part.name] = self._one(part, told)
            except (InputError, HookError, MitigationError) as error:
                refused[part.name] = str(error)
                self.say(f"{part.name}: {error}")
            done += 100 * part.weight
            tell(progress, done, max(total, 1))
        return found, refused

    def _one(self, part: Part, progress: Progress | None) -> Results:
        key = self._key(part)
        there = self.store.kept(part.name, key)
        if there is not None:
            return there
        self.say(f"measuring {part.name}")
        start = time.perf_counter()
        results = part.measure(self.model, self.asked[part.name], progress)
        seconds = time.perf_counter() - start
        try:
            self.store.keep(part.name, key, results, seconds)
        except UNREADABLE as error:
            raise InputError(f"{part.name}: the rows cannot be stored: {in_words(error)}") from error
        again = self.store.kept(part.name, key)  # what is judged is what is stored, now and when it is resumed
        if again is None:
            raise InputError(f"{part.name}: was measured, and could not be read back from {self.store.directory}")
        return again

    def _key(self, part: Part) -> str:
        """What defines a part's numbers."""
        described: Mapping[str, Any] = self.origin.model if part.needs_model else {}
        return digest(
            {
                "part": part.name,
                "model": {name: str(value) for name, value in described.items()},
                "arguments": self.asked[part.name],
                "code": code_version(*_MEASURING),
            }
        )
