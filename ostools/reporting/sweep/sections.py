"""The sections of a sweep's page: a block for each stored result, and a table of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from ostools.ground.errors import InputError
from ostools.ground.names import known_norm
from ostools.ground.words import number, runs
from ostools.measure import Collapse, Evaluation, Sensitivity
from ostools.reporting.findings.collapse import verdicts_at_y
from ostools.reporting.page.section import Part, Section, Table
from ostools.reporting.sections.answers import (
    FAILURE_STAGE_LEAD,
    evaluation_block,
    failure_stage_block,
    intervention_block,
    probe_block,
)
from ostools.reporting.sections.collapse import collapse_block
from ostools.reporting.sections.sensitivity import sensitivity_block
from ostools.reporting.sweep.bounds import bounds_part
from ostools.reporting.sweep.cells import Cells, cells_of, require_finite
from ostools.results import Frame, frame_of
from ostools.runs.cell_file import UNREADABLE
from ostools.runs.measurements.bounds import BOUNDS
from ostools.runs.measurements.collapse import COLLAPSE
from ostools.runs.measurements.evaluate import EVALUATION
from ostools.runs.measurements.probes import DECODABLE, FAILURE_STAGE, INTERVENTION
from ostools.runs.measurements.record import Measurement
from ostools.runs.measurements.sensitivity import SENSITIVITY
from ostools.runs.reading import Reading

MOST_BLOCKS = 24
"""The most results of a measurement that are drawn; the table has all."""
_ANSWERS = "Prompts of the tasks and what was answered. The last answer line is read. It is right if it holds the right answer."
_DISTANCES = (
    "A sequence and the same with one item more: how far apart are the two representations of the last token, y? A "
    "distance below the rounding noise of the difference is hidden in that dtype."
)
_DECODED = (
    "How often linear probes of the last token say the right answer, at every place. A probe is tested on sequences that it "
    "was not trained on. Other sequences of the same lengths, lengths between and longer ones are three tests. Beside them "
    "stand the same probes with shuffled labels and, where it was asked for, on the same architecture with random weights."
)
_READ = (
    "A representation is moved so that the probe there says the next answer. By how much does the answer of the output move? A "
    "number is of all lengths of a cell together."
)
_PROFILES = (
    "How much of each token v is left in the last token's representation y: norms of the derivative ∂y/∂v. “full” is the real "
    "derivative; “frozen” holds attention patterns and norm scales, as the theorem assumes. Drawn is the longest prompt of "
    "each condition, with its least seed; the table has every prompt."
)
_PATHS = (
    "Theorem 5.1's sums over paths. A certified bound is one of the operator norm of the derivative that stands beside it. The "
    "paper's forms are not bounds. Drawn is the longest prompt of each condition."
)


@dataclass(frozen=True)
class CellsSection:
    """The section of a measurement.

    by: the columns that tell results apart, beside model and task. block: shows a result.
    cells_of_table: its cells in the table of all, by header. has_block: which results have a block.
    """

    measurement: Measurement[Any]
    name: str
    title: str
    nav: str
    lead: str
    block: Callable[[Cells, Any, str], Part]
    by: tuple[str, ...]
    cells_of_table: Mapping[str, Callable[[Any], str]] = field(default_factory=dict)
    has_block: Callable[[Cells], bool] = lambda cells: True

    def of(self, sweep: Reading) -> Section | None:
        """The section; None where nothing was measured."""
        results = list(cells_of(sweep, self.measurement, self.by))
        parts, rows = [], []
        for cells in results:
            part, row = self._part_and_row(cells, f"{self.name}-{len(parts)}", len(parts) < MOST_BLOCKS)
            parts += [] if part is None else [part]
            rows += [] if row is None else [row]
        if self.cells_of_table and rows:
            columns = ["model", "task", *self.by, "options", *self.cells_of_table]
            fewer = len(parts) < len(results)
            notes = [f"Drawn are {len(parts)} of {len(results)} results. The table has all."] if fewer else []
            parts.insert(0, Part(tables=[Table(f"{self.nav}: every result", columns, rows)], notes=notes))
        return Section(self.name, self.title, self.nav, self.lead, parts) if parts else None

    def _part_and_row(self, cells: Cells, name: str, room: bool) -> tuple[Part | None, list[str] | None]:
        """The part and table row of a result; where the stored rows cannot make it, the reason."""
        row = None
        try:
            result = self.measurement.read(cells.rows, cells.provenance)
            key = [cells.value(column) for column in ("model", "task", *self.by, "options")]
            row = [*key, *(cell(result) for cell in self.cells_of_table.values())] if self.cells_of_table else None
            if row is not None and not (room and self.has_block(cells)):
                return None, row
            part = self.block(cells, result, name)
        except UNREADABLE as error:
            why = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
            return Part(title=cells.title, findings=[f"This could not be drawn from what is stored: {why}"]), row
        figure = part.figure and replace(part.figure, caption=f"{part.figure.caption}{cells.made_by}")
        return replace(part, title=cells.title, figure=figure), row


def _any_block(block: Callable[..., Part]) -> Callable[[Cells, Any, str], Part]:
    return lambda cells, result, name: block(result, name)


def _intervention(cells: Cells, result: Any, name: str) -> Part:
    lengths = runs([*map(int, cells.value("over_lengths").split(", "))])
    return intervention_block(result, name, notes=[f"Over the lengths {lengths}."])


def _profile(cells: Cells, result: Sensitivity, name: str) -> Part:
    require_finite(cells.rows, [f"{known_norm(cells.rows['method'])}_norm"])
    return sensitivity_block(result, None, name)


def _sum(table: Frame, column: str) -> int:
    return int(table[column].sum())


def _fewest(result: Evaluation) -> str:
    summary: Any = result.summary
    worst = summary.loc[summary["accuracy"].idxmin()]
    return f"{int(worst['right'])} of {int(worst['asked'])} at {int(worst['length'])}"


def _log_probability(result: Evaluation) -> str:
    prompts: Any = result.frame.drop_duplicates(["length", "seed"])
    mean = prompts["log_probability"].mean()
    return "–" if pd.isna(mean) else number(float(mean))


def _norms(name: str, statistic: Callable[[Any], float]) -> Callable[[Sensitivity], str]:
    """A cell: a statistic of a linearisation's norms, where those are finite."""

    def cell(result: Sensitivity) -> str:
        frame = frame_of(result)
        frame = frame[frame["linearisation"] == name].sort_values("position")
        norms = frame[f"{known_norm(frame['method'])}_norm"].astype(float) if len(frame) else frame["position"]
        return number(float(statistic(norms))) if len(norms) and float(norms.abs().max()) < float("inf") else "–"

    return cell


_ENDS: dict[str, Callable[[Any], float]] = {
    "least": lambda norms: norms.min(),
    "median": lambda norms: norms.median(),
    "largest": lambda norms: norms.max(),
    "first token": lambda norms: norms.iloc[0],
    "last token": lambda norms: norms.iloc[-1],
}
_ANSWER_CELLS: dict[str, Callable[[Evaluation], str]] = {
    "right": lambda result: " of ".join(str(_sum(result.summary, name)) for name in ("right", "asked")),
    "fewest": _fewest,
    "mean log p (nats)": _log_probability,
    "answers it changed nothing of": lambda result: str(int(frame_of(result)["status"].eq("inactive").sum())),
}


def _hidden(result: Collapse) -> str:
    """The lengths at which the pair is hidden at y, by dtype."""
    if result.reference.empty:
        return "not known"
    return "; ".join(f"{dtype}: {verdict.where}" for dtype, verdict in verdicts_at_y(result).items())


_PROMPT, _CONDITION = ("dtype", "mitigation", "seed", "length"), ("mitigation", "seed")
SECTIONS: dict[str, CellsSection] = {
    section.measurement.name: section
    for section in (
        CellsSection(
            EVALUATION,
            "evaluate",
            "What the models answer",
            "Evaluation",
            _ANSWERS,
            _any_block(evaluation_block),
            ("mitigation", "dtype"),
            _ANSWER_CELLS,
        ),
        CellsSection(
            FAILURE_STAGE,
            "failure-stage",
            "Where is the answer lost?",
            "Where it is lost",
            FAILURE_STAGE_LEAD,
            _any_block(failure_stage_block),
            ("seed",),
        ),
        CellsSection(
            DECODABLE,
            "decodable",
            "What do probes decode?",
            "Decoded",
            _DECODED,
            _any_block(probe_block),
            _CONDITION,
        ),
        CellsSection(INTERVENTION, "probe-intervention", "Is it read?", "Read out", _READ, _intervention, _CONDITION),
        CellsSection(
            COLLAPSE,
            "collapse",
            "Representational collapse (Theorem 4.2)",
            "Collapse",
            _DISTANCES,
            _any_block(collapse_block),
            ("mitigation",),
            {"the pair at y is hidden from n (–: no range)": _hidden},
        ),
        CellsSection(
            SENSITIVITY,
            "sensitivity",
            "Sensitivity (Section 5)",
            "Sensitivity",
            _PROFILES,
            _profile,
            _PROMPT,
            {
                f"{end}, {name}": _norms(name, statistic)
                for name in ("full", "frozen")
                for end, statistic in _ENDS.items()
            },
            lambda cells: cells.is_longest,
        ),
        CellsSection(
            BOUNDS,
            "bounds",
            "Bounds and forms (Theorem 5.1)",
            "Bounds",
            _PATHS,
            bounds_part,
            ("dtype", "mitigation"),
        ),
    )
}
"""The section of each measurement, in the order of the page."""
