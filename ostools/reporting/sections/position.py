"""Sensitivity by position in natural text, with the tokens' identity taken out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ostools.experiments import position_effect
from ostools.measure.jacobian.memory import sensitivity_memory
from ostools.measure.unloaded import Unloaded
from ostools.reporting.findings.effects import FALLS_BEHIND, contrast_words, position_headline
from ostools.reporting.page.section import FOUND, NOT_FOUND, UNTESTED, Headline, Part, StripField
from ostools.reporting.sections.blocks import block, in_detail
from ostools.reporting.sections.extent import PASSAGE_TOKENS, PASSAGES
from ostools.reporting.sections.records import Measurements, Plan, ReportSection, Run, Step
from ostools.results.table_head import TableHead

LEAD = (
    "Over-squashing says that the last token hears some places of a prompt less than others. In one prompt, place and content "
    "are confounded. Here natural passages are rotated by thirds, so that every token stands once at the start, once in the "
    "middle and once at the end: what is left is the place alone."
)


def _measure(run: Run) -> None:
    # By a sketch: its error is small beside the intervals over hundreds of tokens.
    extent = run.plan.extent
    sizes: Any = {"passages": PASSAGES, "tokens": PASSAGE_TOKENS}
    sizes |= {"cotangents": extent.cotangents, "untrained": extent.untrained}
    run.measured.position = run.measure(
        "position", 20, lambda part: position_effect(run.model, method="sketch", progress=part, **sizes)
    )


def _memory(model: Unloaded, plan: Plan) -> Iterable[int]:
    """Of the longest passage, beside the copy of the model with random weights where there is one."""
    options: dict[str, Any] = {"method": "sketch", "cotangents": plan.extent.cotangents}
    copy_bytes = model.copy_bytes if plan.extent.untrained else 0
    yield sensitivity_memory(model, PASSAGE_TOKENS + 2, linearisations="full", **options) + copy_bytes


def _verdict(measured: Measurements) -> StripField:
    """Decided on natural text whose tokens are rotated: one prompt confounds place and content."""
    state = UNTESTED
    if measured.position is not None:
        state = FOUND if measured.position.verdict in FALLS_BEHIND else NOT_FOUND
    return StripField("Over-squashing", state, "is the middle of a text weaker than its end?", "position")


def _headlines(measured: Measurements) -> list[Headline]:
    return [] if measured.position is None else [position_headline(measured.position)]


def _parts(measured: Measurements) -> list[Part]:
    effect = measured.position
    if effect is None:
        return []
    caption = "Sensitivity by position over rotated passages"
    if effect.provenance.parameters["untrained"]:
        caption += ", beside the same architecture before training"
    sentences, aloud = [position_headline(effect).sentence], " ".join(contrast_words(effect))
    scale = "Decades (log10) above the middle third, with 95% intervals over passages (low, high)."
    more = [in_detail(effect, TableHead("contrasts"), notes=[scale])]
    return [block(effect, "position-chart", caption, sentences, aloud=aloud, more=more)]


POSITION = ReportSection(
    "position", "Sensitivity by position", "Position", LEAD, Step(20, _measure, _memory), _parts, _headlines, _verdict
)
