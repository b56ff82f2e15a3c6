"""A section of the report, as one record: what it measures, what that takes, and what a page says
of it.

`SECTIONS` (`sections/__init__.py`) lists the records. The names that `report(sections=...)` takes,
the order of measuring, the progress bar, the forecast of memory, the verdicts of the first screen,
and the page itself follow from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from ostools.ground import InputError, Progress, name_part, part_of
from ostools.hooks import HookError
from ostools.measure import bytes_of
from ostools.mitigations import MitigationError
from ostools.models import Prompt
from ostools.models.shape import Shape
from ostools.reporting.page.section import UNTESTED, Part, Section, StripField
from ostools.reporting.sections.extent import Extent
from ostools.results import Provenance, Result

if TYPE_CHECKING:
    from ostools.ground import TransformerBridge
    from ostools.measure import Unloaded

Calls: TypeAlias = Mapping[str, tuple[Callable[..., Result], Mapping[str, Any]]]
"""Measurements with their options, by the subject that a refusal names."""


@dataclass
class Measurements:
    """Results of a run, by section: a section of the report exists where its results do.

    "sensitivity" is of the embeddings, with its "profile" and "comparison"; "unmitigated" are
    answers that only the study needs. left_out: section and reason. reduced: words on what is less
    than on a small model.
    """

    provenance: Provenance
    prompt: str
    results: dict[str, list[Any]] = field(default_factory=dict)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    reduced: str = ""

    def of(self, name: str) -> list[Any]:
        """The results of that name."""
        return self.results.get(name, [])


@dataclass(frozen=True)
class ReportPlan:
    """What a report measures: the names of its sections, lengths of collapse (and of the prompt of
    ones), tokens of the prompt, how much of each, in which dtype the model answers.
    """

    names: tuple[str, ...]
    lengths: tuple[int, ...]
    of_ones: tuple[int, ...]
    pos: int
    extent: Extent
    dtype: str


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
        work: Callable[..., Any],
        subject: str = "",
        part: tuple[int, int] = (0, 1),
        key: str = "",
    ) -> Any:
        """Outcome of `work(progress=...)`, which is kept by its section, or `key`; None where it is
        refused.

        part: which of how many of its section.
        """
        names, (index, count) = self.plan.names, part
        start = names.index(section) * count + index
        name_part(f"section {section}, {1 + names.index(section)} of {len(names)}")
        part_of_all = part_of(self.progress, start, start + 1, len(names) * count)
        try:
            outcome = work(progress=part_of_all)
        except (InputError, HookError, MitigationError) as error:
            self.measured.left_out.append((section, f"{subject}{error}"))
            return None
        self.measured.results.setdefault(key or section, []).append(outcome)
        return outcome

    def call(self, section: str, calls: Calls, key: str = "") -> None:
        """Measure each of the calls."""
        for index, (name, (function, options)) in enumerate(calls.items()):
            self.measure(
                section,
                partial(function, self.model, **options),
                f"{name}: " if len(calls) > 1 else "",
                (index, len(calls)),
                key,
            )


def measures(section: str, calls: Callable[[ReportPlan], Calls]) -> Callable[[Measuring], None]:
    """What measures the calls of a section."""
    return lambda run: run.call(section, calls(run.plan))


def forecasts(
    calls: Callable[[ReportPlan], Calls],
) -> Callable[[Unloaded, ReportPlan], list[int]]:
    """What forecasts the memory of each of the calls."""
    return lambda model, plan: [
        bytes_of(function, model, **options) for function, options in calls(plan).values()
    ]


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
    sections may share one. memory: bytes that its parts hold beside the model, each at its time.
    parts: the blocks of its results; those that lead have a headline on the first screen. question:
    the name and the rule of its field of the strip there; state: its word, of the section's
    results. dear: why a model of that shape has the section only where it is named; empty where it
    has it always.
    """

    name: str
    title: str
    nav: str
    lead: str
    measure: Callable[[Measuring], None]
    memory: Callable[[Unloaded, ReportPlan], Iterable[int]]
    parts: Callable[[Measurements], Sequence[Part]]
    question: tuple[str, str] = ("", "")
    state: Callable[[list[Any]], str] = lambda results: UNTESTED
    dear: Callable[[Shape, int], str] = lambda shape, pos: ""

    def section(self, measured: Measurements) -> Section | None:
        """The section on the page; None where its results are absent."""
        if not measured.of(self.name):
            return None
        return Section(self.name, self.title, self.nav, self.lead, self.parts(measured))

    def verdict(self, measured: Measurements, is_present: bool) -> StripField:
        """Its field of the strip, which leads to the section where that is present."""
        results = measured.of(self.name)
        state = self.state(results) if results else UNTESTED
        link, good = self.name if is_present else "", self.name == "mitigations"
        return StripField(self.question[0], state, self.question[1], link, good)
