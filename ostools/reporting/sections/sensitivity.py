"""Sensitivity by position, against its bounds and other forms, and layer by layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ostools.ground.names import METHOD_KINDS, known_norm
from ostools.ground.words import number
from ostools.measure import Comparison, Profile, Sensitivity
from ostools.reporting.charts.sensitivity.over_tokens import comparison_chart, sensitivity_chart
from ostools.reporting.charts.sensitivity.position import position_chart
from ostools.reporting.charts.sensitivity.shape_and_layers import layers_chart, profile_chart
from ostools.reporting.findings import sensitivity as findings
from ostools.reporting.findings.position import contrast_words, position_headline
from ostools.reporting.look.theme import KINDS, display_token
from ostools.reporting.page.page import Figure
from ostools.reporting.page.section import More, Part, Section, Table
from ostools.reporting.sections.measurements import Measurements
from ostools.results import Frame, frame_of

DRAWN = ("local", "proof", "theorem-b5")
"""The variants in the chart; the table has all that were computed."""
LAYERS_DRAWN = 24
"""The most rows of the heat map. A deeper model shows this many layers, evenly spread, with the first and the last."""
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


def sensitivity_section(found: Measurements) -> Section | None:
    """Where sensitivity was measured."""
    if found.sensitivity is None:
        return None
    parts = [_against(found.sensitivity, found.comparison)]
    if found.profile is not None:
        parts.append(_matter(found.profile))
    return Section("sensitivity", "Sensitivity against its bounds (Theorem 5.1)", "Sensitivity and bounds", LEAD, parts)


def _against(profile: Sensitivity, comparison: Comparison | None) -> Part:
    said = findings.sensitivity_findings(profile)
    values = More("The numbers, token by token", tables=[_values(profile)])
    if comparison is None:
        caption = "Sensitivity of y to every token"
        figure = Figure("profile", sensitivity_chart(profile), caption, f"{caption}. {said[0]}")
        return Part(figure=figure, findings=said, more=[values])
    caption = "Sensitivity of y to every token, certified bounds and the paper's forms"
    chart = comparison_chart(_drawn(comparison))
    everything = More("Every variant, in words", findings=[*said, *findings.comparison_findings(comparison)])
    return Part(
        figure=Figure("profile", chart, caption, f"{caption}. {said[0]}"),
        findings=[*findings.bounds_summary(comparison), *findings.forms_summary(comparison)],
        tables=[_variants(comparison)],
        more=[everything, values],
    )


def _matter(result: Profile) -> Part:
    """The shape of the profile, tested, and the tokens with the largest shares."""
    said = findings.shape_headline(result)
    words = [] if said is None else [f"{said.verdict} {said.text}"]
    caption = "Sensitivity by thirds of the prompt, the largest shares, and what freezing changes"
    note = (
        "The test compares means of log10 norms over fifteen blocks of neighbouring tokens, five to a third. A shape is named "
        "only where the 95% interval of a contrast excludes zero."
    )
    figure = Figure("profile-chart", profile_chart(result), caption, f"{caption}. {' '.join(words)}")
    return Part(title="Which tokens matter?", figure=figure, findings=words, notes=[note])


def _drawn(comparison: Comparison) -> Comparison:
    """Without the variants that would only crowd the chart."""
    frame: Frame = frame_of(comparison)
    summary: Frame = comparison.summary
    keep = frame["kind"].isin(("measured", "estimated")) | frame["source"].isin(DRAWN)
    return replace(
        comparison,
        frame=frame[keep].reset_index(drop=True),
        summary=summary[summary["variant"].isin(DRAWN)].reset_index(drop=True),
    )


def _variants(comparison: Comparison) -> Table:
    rows = []
    kinds = list(KINDS)
    for row in sorted(comparison.summary.to_dict(orient="records"), key=lambda row: kinds.index(str(row["kind"]))):
        holds = findings.whether_it_holds(row["holds"]) if row["kind"] == "certified" else "no claim"
        cells = [str(row["variant"]), KINDS[str(row["kind"])]]
        cells += [f"{row['linearisation']}, {findings.NORMS[str(row['norm'])]}", holds]
        for name in ("median_log10_looseness", "max_log10_looseness", "spearman"):
            value: Any = row[name]
            cells.append("–" if value != value else f"{float(value):.2f}")
        cells.append(str(row["words"]).partition(":")[0])
        rows.append(cells)
    columns = [
        "variant",
        "kind",
        "stands beside",
        "holds?",
        "median log10 ratio",
        "max log10 ratio",
        "Spearman",
        "believed?",
    ]
    caption = "Each variant against the norm beside it: does it hold, how loose is it, does its shape predict?"
    return Table(caption, columns, rows)


def _values(profile: Sensitivity) -> Table:
    """The numbers behind the chart: a row per token; of an operator norm, an estimate knows a lower bound only."""
    frame = frame_of(profile)
    norm = known_norm(frame["method"])
    columns = [f"{METHOD_KINDS[str(row['method'])]}, {row['linearisation']}" for row in frame.to_dict(orient="records")]
    table = frame.assign(column=columns).pivot(index=["position", "token"], columns="column", values=f"{norm}_norm")
    rows = [
        [str(position), display_token(str(token)), *(number(float(value)) for value in row)]
        for (position, token), row in zip(table.index, table.to_numpy(), strict=True)
    ]
    return Table(f"The {findings.NORMS[norm]}s, token by token", ["position", "token", *table.columns], rows)


def layers_section(found: Measurements) -> Section | None:
    """Where every layer was measured."""
    if found.layers is None:
        return None
    shown, rule = _fewer_layers(found.layers)
    said = findings.layers_finding(found.layers)
    caption = "Sensitivity of y to every token at every layer"
    part = Part(
        figure=Figure("layers-chart", layers_chart(shown), caption, f"{caption}. {said}"),
        findings=[said],
        notes=[rule] if rule else (),
    )
    lead = "The same derivative with respect to what each block reads: where on the way is a token lost?"
    return Section("layers", "Layers and tokens", "Layers and tokens", lead, [part])


def _fewer_layers(result: Sensitivity) -> tuple[Sensitivity, str]:
    """At most LAYERS_DRAWN layers, and the rule in words where some were left out."""
    frame: Frame = frame_of(result)
    layers = sorted(set(frame["layer"]))
    if len(layers) <= LAYERS_DRAWN:
        return result, ""
    step = (len(layers) - 1) / (LAYERS_DRAWN - 1)
    chosen = {layers[round(index * step)] for index in range(LAYERS_DRAWN)}
    rule = f"Drawn are {len(chosen)} of {len(layers)} layers, evenly spread. All were measured."
    return replace(result, frame=frame[frame["layer"].isin(chosen)].reset_index(drop=True)), rule


def position_section(found: Measurements) -> Section | None:
    """Where the position effect was measured."""
    if found.position is None:
        return None
    headline = position_headline(found.position)
    caption = "Sensitivity by position over rotated passages, beside the same architecture before training"
    words = " ".join(contrast_words(found.position))
    figure = Figure("position-chart", position_chart(found.position), caption, f"{caption}. {words}")
    part = Part(
        figure=figure,
        findings=[f"{headline.verdict} {headline.text}"],
        more=[More("The contrasts in numbers", tables=[_contrasts(found.position.contrasts)])],
    )
    return Section("position", "Sensitivity by position", "Position", POSITION_LEAD, [part])


def _contrasts(contrasts: Frame) -> Table:
    rows = []
    for row in contrasts.to_dict("records"):
        ends = [_interval(row, end) for end in ("start", "end")]
        rows.append([str(row["source"]), str(row["passages"]), *ends, str(row["shape"])])
    columns = ["of", "passages", "first third over the middle", "last third over the middle", "shape"]
    return Table("How many times the middle third's norm, with 95% intervals over passages", columns, rows)


def _interval(row: dict[Any, Any], end: str) -> str:
    value, low, high = (number(10.0 ** float(row[f"{end}{part}"])) for part in ("", "_low", "_high"))
    return f"{value} [{low}, {high}], p = {number(float(row[f'{end}_p']))}"
