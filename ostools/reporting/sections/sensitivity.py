"""Sections on sensitivity: by position, against its bounds, layer by layer; and on attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ostools.ground.names import METHOD_KINDS, known_norm
from ostools.ground.words import number
from ostools.measure import Comparison, Profile, Sensitivity
from ostools.reporting.charts.attention import attention_findings
from ostools.reporting.charts.heads_view import interactive_view
from ostools.reporting.findings import sensitivity as findings
from ostools.reporting.findings.effects import contrast_words, position_headline
from ostools.reporting.page.page import Script
from ostools.reporting.page.section import More, Part, ScriptView, Section, Table, table_from
from ostools.reporting.sections.blocks import block
from ostools.reporting.sections.measurements import Measurements
from ostools.reporting.style.theme import KINDS, display_token
from ostools.results import Frame, frame_of

CHART_VARIANTS = ("local", "proof", "theorem-b5")
"""The variants in the chart; the table has all that were computed."""
MOST_LAYERS = 24
"""The most rows of the heat map; a deeper model shows so many layers, evenly spread, with both ends."""
LEAD = (
    "How much of each token v is left in the last token's representation y: norms of the derivative ∂y/∂v. “full” is the real "
    "derivative; “frozen” holds attention patterns and norm scales, as the theorem assumes, and only it stands beside the "
    "certified bounds drawn here."
)
POSITION_LEAD = (
    "Over-squashing says that the last token hears some places of a prompt less than others. In one prompt, place and content "
    "are confounded. Here natural passages are rotated by thirds, so that every token stands once at the start, once in the "
    "middle and once at the end: what is left is the place alone."
)
ATTENTION_LEAD = (
    "The last token's attention in every head. It says by how much each value is multiplied. It does not say what that does to "
    "the answer."
)
LAYERS_LEAD = "The same derivative with respect to what each block reads: where on the way is a token lost?"
SHAPE_NOTE = (
    "The test compares means of log10 norms over fifteen blocks of neighbouring tokens, five to a third. A shape is named "
    "only where the 95% interval of a contrast excludes zero."
)


def position_section(measured: Measurements) -> Section | None:
    """The position effect; None where it was not measured."""
    effect = measured.position
    if effect is None:
        return None
    headline = position_headline(effect)
    caption = "Sensitivity by position over rotated passages, beside the same architecture before training"
    columns: dict[str, Any] = {
        "of": "source",
        "passages": "passages",
        "first third over the middle": lambda row: _times(row, "start"),
        "last third over the middle": lambda row: _times(row, "end"),
        "shape": "shape",
    }
    title = "How many times the middle third's norm, with 95% intervals over passages"
    table = table_from(title, effect.contrasts.to_dict("records"), columns)
    sentences, aloud = [f"{headline.verdict} {headline.text}"], " ".join(contrast_words(effect))
    more = [More("The contrasts in numbers", tables=[table])]
    part = block(effect, "position-chart", caption, sentences, aloud=aloud, more=more)
    return Section("position", "Sensitivity by position", "Position", POSITION_LEAD, [part])


def _times(row: Any, end: str) -> str:
    value, low, high = (number(10.0 ** float(row[f"{end}{suffix}"])) for suffix in ("", "_low", "_high"))
    return f"{value} [{low}, {high}], p = {number(float(row[f'{end}_p']))}"


def sensitivity_section(measured: Measurements) -> Section | None:
    """The profile, its bounds and its shape; None where sensitivity was not measured."""
    if measured.sensitivity is None:
        return None
    parts = [sensitivity_block(measured.sensitivity, measured.comparison, "profile")]
    if measured.profile is not None:
        parts.append(_shape(measured.profile))
    title = "Sensitivity against its bounds (Theorem 5.1)"
    return Section("sensitivity", title, "Sensitivity and bounds", LEAD, parts)


def sensitivity_block(profile: Sensitivity, comparison: Comparison | None, name: str, **part_fields: Any) -> Part:
    """The norms of one prompt; with bounds and forms beside them where there are some."""
    sentences, values = findings.sensitivity_findings(profile), _values(profile)
    numbers = More("The numbers, token by token", tables=[values])
    if comparison is None:
        caption = "Sensitivity of y to every token"
        return block(profile, name, caption, sentences, more=[numbers], **part_fields)
    caption = "Sensitivity of y to every token, certified bounds and the paper's forms"
    all_variants = [*sentences, *findings.comparison_findings(comparison)]
    headlines = findings.bounds_headline(comparison), findings.forms_headline(comparison)
    return block(
        _chart_variants(comparison),
        name,
        caption,
        [f"{line.verdict} {line.text}" for line in headlines if line is not None],
        aloud=sentences[0],
        tables=[_variants(comparison)],
        more=[More("Every variant, in words", findings=all_variants), numbers],
        **part_fields,
    )


def _chart_variants(comparison: Comparison) -> Comparison:
    """The comparison without the variants that would only crowd the chart."""
    frame: Frame = frame_of(comparison)
    summary: Frame = comparison.summary
    keep = frame["kind"].isin(("measured", "estimated")) | frame["source"].isin(CHART_VARIANTS)
    return replace(
        comparison,
        frame=frame[keep].reset_index(drop=True),
        summary=summary[summary["variant"].isin(CHART_VARIANTS)].reset_index(drop=True),
    )


def _variants(comparison: Comparison) -> Table:
    """A row for each variant, beside its norm."""

    def two_digits(name: str) -> Any:
        return lambda row: "–" if row[name] != row[name] else f"{float(row[name]):.2f}"

    def holds(row: Any) -> str:
        return findings.whether_it_holds(row["holds"]) if row["kind"] == "certified" else "no claim"

    kinds = list(KINDS)
    rows = sorted(comparison.summary.to_dict("records"), key=lambda row: kinds.index(str(row["kind"])))
    columns: dict[str, Any] = {
        "variant": "variant",
        "kind": lambda row: KINDS[str(row["kind"])],
        "stands beside": lambda row: f"{row['linearisation']}, {findings.NORMS[str(row['norm'])]}",
        "holds?": holds,
        "median log10 ratio": two_digits("median_log10_looseness"),
        "max log10 ratio": two_digits("max_log10_looseness"),
        "Spearman": two_digits("spearman"),
        "believed?": lambda row: str(row["words"]).partition(":")[0],
    }
    caption = "Each variant against the norm beside it: does it hold, how loose is it, does its shape predict?"
    return table_from(caption, rows, columns)


def _values(profile: Sensitivity) -> Table:
    """The numbers behind the chart, a row for each token."""
    frame = frame_of(profile)
    norm = known_norm(frame["method"])
    columns = [f"{METHOD_KINDS[str(row['method'])]}, {row['linearisation']}" for row in frame.to_dict("records")]
    table = frame.assign(column=columns).pivot(index=["position", "token"], columns="column", values=f"{norm}_norm")
    rows = [
        [str(position), display_token(str(token)), *(number(float(value)) for value in row)]
        for (position, token), row in zip(table.index, table.to_numpy(), strict=True)
    ]
    caption = f"The {findings.NORMS[norm]}s, token by token"
    return Table(caption, ["position", "token", *table.columns], rows)


def _shape(result: Profile) -> Part:
    """The shape of the profile, tested, and the tokens with the largest shares."""
    headline = findings.shape_headline(result)
    sentences = [] if headline is None else [f"{headline.verdict} {headline.text}"]
    caption = "Sensitivity by thirds of the prompt, the largest shares, and what freezing changes"
    title = "Which tokens matter?"
    return block(result, "profile-chart", caption, sentences, title=title, notes=[SHAPE_NOTE])


def layers_section(measured: Measurements) -> Section | None:
    """Every layer as a heat map; None where it was not measured."""
    if measured.layers is None:
        return None
    fewer, rule = _fewer_layers(measured.layers)
    caption, sentences = "Sensitivity of y to every token at every layer", [findings.layers_finding(measured.layers)]
    part = block(fewer, "layers-chart", caption, sentences, notes=[rule] if rule else ())
    return Section("layers", "Layers and tokens", "Layers and tokens", LAYERS_LEAD, [part])


def _fewer_layers(result: Sensitivity) -> tuple[Sensitivity, str]:
    """At most MOST_LAYERS layers, and the rule in words where some were left out."""
    frame: Frame = frame_of(result)
    layers = sorted(set(frame["layer"]))
    if len(layers) <= MOST_LAYERS:
        return result, ""
    step = (len(layers) - 1) / (MOST_LAYERS - 1)
    some_layers = {layers[round(index * step)] for index in range(MOST_LAYERS)}
    rule = f"Drawn are {len(some_layers)} of {len(layers)} layers, evenly spread. All were measured."
    return replace(result, frame=frame[frame["layer"].isin(some_layers)].reset_index(drop=True)), rule


def attention_section(measured: Measurements) -> Section | None:
    """The last token's rows, then an interactive view of whole patterns; None without attention."""
    if measured.attention is None:
        return None
    caption = "Attention of the last token, a row per layer and head"
    rows = block(measured.attention, "attention-chart", caption, attention_findings(measured.attention))
    source, note = interactive_view(measured.attention, "heads")
    view = ScriptView("heads", "Interactive attention patterns, drawn by circuitsvis", Script(source, "module"))
    parts = [rows, Part(title="Head by head", notes=[note], view=view)]
    return Section("attention", "Where the last token looks", "Attention", ATTENTION_LEAD, parts)
