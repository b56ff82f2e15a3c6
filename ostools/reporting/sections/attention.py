"""Where the last token looks: a heat map of every head, and the interactive view."""

from __future__ import annotations

from ostools.measure import Spectra
from ostools.reporting.charts.attention.cells import attention_findings
from ostools.reporting.charts.attention.heat import attention_chart
from ostools.reporting.charts.attention.view import interactive_view
from ostools.reporting.charts.sensitivity.spectra import spectra_chart
from ostools.reporting.page.page import Figure, Script
from ostools.reporting.page.section import Part, Section, View
from ostools.reporting.sections.measurements import Measurements
from ostools.results import Frame

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
    if found.spectra is not None:
        parts.append(_spectra(found.spectra))
    return Section("attention", "Where the last token looks", "Attention", LEAD, parts)


def _spectra(result: Spectra) -> Part:
    """What repeated attention would leave: eigenvalues, products over depth, powers."""
    depth: Frame = result.depth
    last = depth[(depth["matrix"] == "pattern") & (depth["blocks"] == depth["blocks"].max())]
    said = (
        f"The product of all blocks' mean patterns puts {float(last['first_mass_last'].iloc[0]):.1%} of the last token's "
        "weight on the first token. Proposition 5.2 says that all of it ends there if the stack is repeated without end."
    )
    caption = "Spectra of the attention patterns: eigenvalues, products over depth, powers"
    figure = Figure("spectra-chart", spectra_chart(result), caption, f"{caption}. {said}")
    return Part(title="What would more layers do?", figure=figure, findings=[said])
