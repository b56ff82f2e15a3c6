"""A section of the report, as one record: what it measures, what that takes, and what a page says
of it.

`SECTIONS` (`sections/__init__.py`) lists the records. The names that `report(sections=...)` takes,
the order of measuring, the progress bar, the forecast of memory, the verdicts of the first screen,
and the page itself follow from them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ostools.ground import InputError, Progress, part_of
from ostools.ground.progress import name_part
from ostools.hooks import HookError
from ostools.measure import (
    Attention,
    Collapse,
    Comparison,
    Evaluation,
    FailureStage,
    PositionEffect,
    Profile,
    Sensitivity,
    Study,
)
from ostools.mitigations import MitigationError
from ostools.models import Prompt
from ostools.models.shape import Shape
from ostools.reporting.page.section import UNTESTED, Part, Section, StripField
from ostools.reporting.sections.extent import Extent
from ostools.results import Provenance, Result

if TYPE_CHECKING:
    from ostools.ground import TransformerBridge
    from ostools.measure import Unloaded

Outcome = TypeVar("Outcome")


class LeftOut(NamedTuple):
    """Something that a section does not show, and why."""

    section: str
    reason: str


@dataclass
class Measurements:
    """Results of a run: a section of the report exists where its data do.

    collapses: a result for each prompt of Figure 5, the model cast. precision: one of the prompts
    again, with parts stored in few bits.
    sensitivity: at the embeddings; layers: at every layer. reduced: words on what is less than on a
    small model.
    """

    provenance: Provenance
    prompt: str
    collapses: list[Collapse] = field(default_factory=list)
    precision: Collapse | None = None
    sensitivity: Sensitivity | None = None
    layers: Sensitivity | None = None
    profile: Profile | None = None
    position: PositionEffect | None = None
    comparison: Comparison | None = None
    attention: Attention | None = None
    evaluations: list[Evaluation] = field(default_factory=list)
    failure_stage: FailureStage | None = None
    study: Study | None = None
    left_out: list[LeftOut] = field(default_factory=list)
    reduced: str = ""

    @property
    def empty(self) -> bool:
        """Whether nothing was measured on the model."""
        lists = self.collapses or self.evaluations
        return not lists and not any(isinstance(value, Result) for value in vars(self).values())


@dataclass(frozen=True)
class ReportPlan:
    """What a report measures: the names of its sections, lengths of collapse, tokens of the prompt,
    how much of each.
    """

    names: tuple[str, ...]
    lengths: tuple[int, ...]
    pos: int
    extent: Extent


@dataclass
class Measuring:
    """The measuring of one report: results go to `measured`; what is refused is noted there and
    left out.
    """

    model: TransformerBridge
    prompt: Prompt
    plan: ReportPlan
    measured: Measurements
    progress: Progress | None

    def measure(
        self,
        section: str,
        work: Callable[[Progress | None], Outcome],
        subject: str = "",
        part: tuple[int, int] = (0, 1),
    ) -> Outcome | None:
        """Outcome of `work`; None where it is refused. part: which of how many of its section."""
        names, (index, count) = self.plan.names, part
        start = names.index(section) * count + index
        name_part(f"section {section}, {1 + names.index(section)} of {len(names)}")
        try:
            return work(part_of(self.progress, start, start + 1, len(names) * count))
        except (InputError, HookError, MitigationError) as error:
            self.measured.left_out.append(LeftOut(section, f"{subject}{error}"))
            return None

    def by_name(
        self, section: str, names: Collection[str], work: Callable[[str, Progress | None], Outcome]
    ) -> list[Outcome]:
        """The outcomes by name; the reasons of refusals are noted with their names."""
        outcomes = [
            self.measure(
                section, lambda part, name=name: work(name, part), f"{name}: ", (index, len(names))
            )
            for index, name in enumerate(names)
        ]
        return [outcome for outcome in outcomes if outcome is not None]


def dear_from(most: float, words: str, *, per_token: bool = False) -> Callable[[Shape, int], str]:
    """Why a model is too large on a CPU: its blocks have more than `most` parameters, or parameters
    times tokens.
    """

    def dear(shape: Shape, pos: int) -> str:
        parameters = shape.n_layers * shape.block_parameters
        large = shape.device == "cpu" and parameters * (pos if per_token else 1) > most
        reason = (
            f"the blocks have {parameters / 1e6:,.0f} million parameters, {words.format(pos=pos)}"
        )
        return reason if large else ""

    return dear


@dataclass(frozen=True)
class ReportSection:
    """One section of the report.

    name: of `report(sections=...)`, and the anchor on the page. measure: fills `measured`; two
    sections may share one. memory: bytes that its parts hold beside the model, each at its time. parts: the
    blocks of its results, empty where there are none; those that lead have a headline on the first
    screen. question: the name and the rule of its field of the strip there; state: its word, of
    what was measured. dear: why a model of that shape has the section only where
    it is named; empty where it has it always.
    """

    name: str
    title: str
    nav: str
    lead: str
    measure: Callable[[Measuring], None]
    memory: Callable[[Unloaded, ReportPlan], Iterable[int]]
    parts: Callable[[Measurements], Sequence[Part]]
    question: tuple[str, str] = ("", "")
    state: Callable[[Measurements], str] = lambda measured: UNTESTED
    dear: Callable[[Shape, int], str] = lambda shape, pos: ""

    def section(self, measured: Measurements) -> Section | None:
        """The section on the page; None where its data are absent."""
        parts = self.parts(measured)
        return Section(self.name, self.title, self.nav, self.lead, parts) if parts else None

    def verdict(self, measured: Measurements, is_present: bool) -> StripField:
        """Its field of the strip, which leads to the section where that is present."""
        link, good = self.name if is_present else "", self.name == "mitigations"
        return StripField(self.question[0], self.state(measured), self.question[1], link, good)
