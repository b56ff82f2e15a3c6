"""The results that a report is made of; no model is needed to render them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ostools.experiments.position import PositionEffect
from ostools.experiments.study.study import Study
from ostools.measure import Collapse, Comparison, FailureStage, Profile, Sensitivity
from ostools.measure.answers.evaluate import Evaluation
from ostools.measure.attention.attention import Attention
from ostools.results import Provenance


@dataclass(frozen=True)
class LeftOut:
    """Something that a section does not show, and why."""

    section: str
    reason: str


@dataclass
class Measurements:
    """Results of a run: a section of the report exists where its data do.

    collapses: a result for each prompt of Figure 5, the model cast. casts: the same, for the section
    on precision. precision: one of the prompts again, with parts stored in few bits. sensitivity: at
    the embeddings; layers: at every layer. reduced: words on what is less than on a small model.
    """

    provenance: Provenance
    prompt: str
    tokens: tuple[str, ...]
    collapses: list[Collapse] = field(default_factory=list)
    casts: list[Collapse] = field(default_factory=list)
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
        single = (
            self.precision,
            self.sensitivity,
            self.layers,
            self.attention,
            self.position,
            self.failure_stage,
            self.study,
        )
        return not (self.collapses or self.casts or self.evaluations or any(result is not None for result in single))
