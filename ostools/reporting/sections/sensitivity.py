"""Sensitivity of one prompt: token by token against its bounds, and layer by layer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ostools.ground.names import METHOD_KINDS, known_norm
from ostools.ground.words import number
from ostools.measure import Comparison, Profile, Sensitivity, bounds, compare, profile, sensitivity
from ostools.measure.bounds.bounds import bounds_memory
from ostools.measure.bounds.variants import undescribed
from ostools.measure.jacobian.memory import sensitivity_memory
from ostools.measure.unloaded import Unloaded
from ostools.models.shape import Shape
from ostools.reporting.findings import sensitivity as findings
from ostools.reporting.page.section import (
    FAIL,
    HOLD,
    NO_SIZE,
    OPEN,
    UNTESTED,
    Headline,
    More,
    Part,
    Table,
    table_from,
)
from ostools.reporting.sections.blocks import block
from ostools.reporting.sections.extent import parameters_in_words
from ostools.reporting.sections.records import LeftOut, Measurements, Plan, ReportSection, Run, Step, Verdict
from ostools.reporting.style.theme import KINDS, display_token
from ostools.results import Frame, frame_of

CHART_VARIANTS = ("local", "proof", "theorem-b5")
"""The variants in the chart; the table has all that were computed."""
HUGE, HUGE_TOKENS = 2e9, 1e12
"""Parameters of the blocks from which on the sensitivity of the embeddings takes over half an hour on a CPU; parameters times
tokens, from which on that of all layers does."""
MOST_LAYERS = 24
"""The most rows of the heat map; a deeper model shows so many layers, evenly spread, with both ends."""
LEAD = (
    "How much of each token v is left in the last token's representation y: norms of the derivative ∂y/∂v. “full” is the real "
    "derivative; “frozen” holds attention patterns and norm scales, as the theorem assumes, and only it stands beside the "
    "certified bounds drawn here."
)
LAYERS_LEAD = "The same derivative with respect to what each block reads: where on the way is a token lost?"
SHAPE_NOTE = (
    "The test compares means of log10 norms over fifteen blocks of neighbouring tokens, five to a third. A shape is named "
    "only where the 95% interval of a contrast excludes zero."
)


# --- what is measured


def _measure_profiles(run: Run) -> None:
    """Sensitivity at the embeddings and at every layer in one pass, with shape and path sums."""
    measured, model, prompt = run.measured, run.model, run.prompt
    norms: Sensitivity | None = None
    if run.has("layers"):
        norms = measured.layers = run.measure(
            "layers", 25, lambda part: sensitivity(model, prompt, layers="all", progress=part)
        )
    if not run.has("sensitivity"):
        return
    if norms is None:  # every layer may be too much where the embeddings alone are not
        norms = run.measure("sensitivity", 25, lambda part: sensitivity(model, prompt, progress=part))
    if norms is not None:
        rows: Frame = frame_of(norms)
        measured.sensitivity = replace(norms, frame=rows[rows["layer"] == 0].reset_index(drop=True))
        measured.profile = run.measure("sensitivity", 0, lambda part: profile(norms))
        _measure_bounds(run, measured.sensitivity)


def _measure_bounds(run: Run, norms: Sensitivity) -> None:
    """Path sums beside the norms, without the forms that the model's blocks do not allow."""
    extent = run.plan.extent
    reasons = undescribed(run.model, list(extent.forms))
    for reason in dict.fromkeys(reasons.values()):
        names = ", ".join(name for name in reasons if reasons[name] == reason)
        run.measured.left_out.append(LeftOut("sensitivity", f"{names}: {reason}"))
    options: Any = {"variants": [name for name in extent.forms if name not in reasons], "mlp_norm": extent.mlp_norm}
    paths = run.measure("sensitivity", 10, lambda part: bounds(run.model, run.prompt, progress=part, **options))
    if paths is not None:
        run.measured.comparison = compare(norms, paths)


def _profiles_memory(model: Unloaded, plan: Plan) -> Iterable[int]:
    yield sensitivity_memory(model, plan.pos, layers="all" if "layers" in plan.names else (0,))
    if "sensitivity" in plan.names:
        yield bounds_memory(model, plan.pos, variants=plan.extent.forms)


PROFILES = Step(35, _measure_profiles, _profiles_memory)


def _dear_sensitivity(shape: Shape, pos: int) -> str:
    is_dear = shape.device == "cpu" and shape.n_layers * shape.block_parameters > HUGE
    return f"{parameters_in_words(shape)}, and it would take over half an hour on a CPU" if is_dear else ""


def _dear_layers(shape: Shape, pos: int) -> str:
    is_dear = shape.device == "cpu" and shape.n_layers * shape.block_parameters * pos > HUGE_TOKENS
    return f"{parameters_in_words(shape)}, and {pos} tokens are many for a CPU" if is_dear else ""


# --- the first screen


def _state(measured: Measurements) -> str:
    comparison = measured.comparison
    if comparison is None:
        return UNTESTED
    certified: Frame = comparison.summary[comparison.summary["kind"] == "certified"]
    if certified.empty:
        return UNTESTED
    if (certified["holds"] == False).fillna(False).any():  # noqa: E712 - the column may hold NA
        return FAIL
    if certified["holds"].isna().any():
        return OPEN
    return NO_SIZE if findings.no_size(float(certified["median_log10_looseness"].min())) else HOLD


def _sensitivity_headlines(measured: Measurements) -> list[Headline | None]:
    return [findings.shape_headline(measured.profile), findings.certificate_headline(measured.sensitivity)]


def _bounds_headlines(measured: Measurements) -> list[Headline | None]:
    return [] if measured.comparison is None else [findings.bounds_headline(measured.comparison)]


def _forms_headlines(measured: Measurements) -> list[Headline | None]:
    return [] if measured.comparison is None else [findings.forms_headline(measured.comparison)]


# --- the sections


def _sensitivity_parts(measured: Measurements) -> list[Part]:
    """The profile, its bounds and its shape."""
    if measured.sensitivity is None:
        return []
    parts = [sensitivity_block(measured.sensitivity, measured.comparison, "profile")]
    return [*parts, *([] if measured.profile is None else [_shape(measured.profile)])]


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


def _layers_parts(measured: Measurements) -> list[Part]:
    """Every layer as a heat map."""
    if measured.layers is None:
        return []
    fewer, rule = _fewer_layers(measured.layers)
    caption, sentences = "Sensitivity of y to every token at every layer", [findings.layers_finding(measured.layers)]
    return [block(fewer, "layers-chart", caption, sentences, notes=[rule] if rule else ())]


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


SENSITIVITY = ReportSection(
    "sensitivity",
    "Sensitivity against its bounds (Theorem 5.1)",
    "Sensitivity and bounds",
    LEAD,
    PROFILES,
    _sensitivity_parts,
    {"Sensitivity": _sensitivity_headlines, "Bounds": _bounds_headlines, "Forms": _forms_headlines},
    Verdict("Bounds", "do all certified bounds hold, and is the tightest within 10^3?", _state),
    _dear_sensitivity,
)
LAYERS = ReportSection(
    "layers", "Layers and tokens", "Layers and tokens", LAYERS_LEAD, PROFILES, _layers_parts, dear=_dear_layers
)
