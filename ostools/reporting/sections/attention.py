"""Where the last token looks: a heat map of every head, and the interactive view."""

from __future__ import annotations

from ostools.reporting.charts.attention.cells import attention_findings
from ostools.reporting.charts.attention.heat import attention_chart
from ostools.reporting.charts.attention.view import interactive_view
from ostools.reporting.page.page import Figure, Script
from ostools.reporting.page.section import Part, Section, View
from ostools.reporting.sections.measurements import Measurements

LEAD = (
    "The last token's attention in every head. It says by how much each value is multiplied. It does not say what that does to "
    "the answer."
)


def attention_section(found: Measurements) -> Section | None:
    """Where attention was captured: the last token's rows first, then whole patterns."""
    if found.attention is None:
        return None
    said = attention_findings(found.attention)
    caption = "Attention of the last token, a row per layer and head"
    figure = Figure("attention-chart", attention_chart(found.attention), caption, f"{caption}. {said[0]}")
    source, holds = interactive_view(found.attention, "heads")
    view = View("heads", "Interactive attention patterns, drawn by circuitsvis", Script(source, "module"))
    parts = [Part(figure=figure, findings=said), Part(title="Head by head", notes=[holds], view=view)]
    return Section("attention", "Where the last token looks", "Attention", LEAD, parts)
