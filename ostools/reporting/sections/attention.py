"""Where the last token looks: its attention in every head, and whole patterns head by head."""

from __future__ import annotations

from collections.abc import Iterable

from ostools.measure.attention.attention import attention, patterns_memory
from ostools.measure.unloaded import Unloaded
from ostools.reporting.charts.attention import attention_findings
from ostools.reporting.charts.heads_view import interactive_view
from ostools.reporting.page.page import Script
from ostools.reporting.page.section import Part, ScriptView
from ostools.reporting.sections.blocks import block
from ostools.reporting.sections.records import Measurements, Plan, ReportSection, Run, Step

LEAD = (
    "The last token's attention in every head. It says by how much each value is multiplied. It does not say what that does to "
    "the answer."
)


def _measure(run: Run) -> None:
    run.measured.attention = run.measure("attention", 1, lambda part: attention(run.model, run.prompt))


def _memory(model: Unloaded, plan: Plan) -> Iterable[int]:
    yield patterns_memory(model, plan.pos)


def _parts(measured: Measurements) -> list[Part]:
    """The last token's rows, then an interactive view of whole patterns."""
    if measured.attention is None:
        return []
    caption = "Attention of the last token, a row per layer and head"
    rows = block(measured.attention, "attention-chart", caption, attention_findings(measured.attention))
    source, note = interactive_view(measured.attention, "heads")
    view = ScriptView("heads", "Interactive attention patterns, drawn by circuitsvis", Script(source, "module"))
    return [rows, Part(title="Head by head", notes=[note], view=view)]


ATTENTION = ReportSection(
    "attention", "Where the last token looks", "Attention", LEAD, Step(1, _measure, _memory), _parts
)
