"""The sections on sensitivity: by position in natural text; of one prompt by token and layer, with
bounds; its attention.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Literal

from ostools.measure import (
    Comparison,
    PositionEffect,
    Sensitivity,
    Unloaded,
    attention,
    bounds,
    bytes_of,
    compare,
    position_effect,
    profile,
    sensitivity,
)
from ostools.measure.bounds.variants import undescribed
from ostools.models.untrained import bytes_with_untrained
from ostools.reporting.charts.tokens import comparison_chart
from ostools.reporting.findings import SHAPES
from ostools.reporting.page.section import OVER_SQUASHING, Part, block
from ostools.reporting.sections.extent import DEAR, PASSAGE_TOKENS
from ostools.reporting.sections.records import (
    Measurements,
    Measuring,
    ReportPlan,
    ReportSection,
    dear_from,
)
from ostools.results import Chart, Frame, Looks, frame_of

CHART_VARIANTS = ("local", "proof", "theorem-b5")
"""The variants in the chart; the table has all that were computed."""
LEAD = (
    "How much of each token v is left in the last token's representation y: norms of the "
    "derivative ∂y/∂v. “full” is the real derivative; “frozen” holds attention patterns and norm "
    "scales, as the theorem assumes, and only it stands beside the certified bounds drawn here."
)
LAYERS_LEAD = (
    "The same derivative with respect to what each block reads: where on the way is a token lost?"
)
ATTENTION_LEAD = (
    "The last token's attention in every head. It says by how much each value is multiplied. It "
    "does not say what that does to the answer."
)
NO_BOUNDS = (
    "Theorem 5.1's bounds: they take minutes on a model of this size, and those of smaller ones "
    "are tens of powers of ten above what is measured; `ostools bounds --variants local "
    "--variants theorem-5.1 --mlp-norm product` measures them"
)
SHAPE_NOTE = (
    "The test compares means of log10 norms over fifteen blocks of neighbouring tokens, five to "
    "a third. A shape is named only where the 95% interval of a contrast excludes zero."
)
POSITION_LEAD = (
    "Over-squashing says that the last token hears some places of a prompt less than others. In "
    "one prompt, place and content are confounded. Here natural passages are rotated by thirds, "
    "so that every token stands once at the start, once in the middle and once at the end: what "
    "is left is the place alone."
)


# --- what is measured


def _measure_profiles(run: Measuring) -> None:
    """Sensitivity at the embeddings and at every layer in one pass, with shape and path sums."""
    names, results = run.plan.names, run.measured.results
    section = "sensitivity" if "sensitivity" in names else "layers"
    norms = run.measure(
        section,
        partial(sensitivity, run.model, run.prompt, layers=_layers(run.plan)),
        part=(0, 2),
        key="layers",
    )
    if norms is None or section == "layers":
        return
    if "layers" not in names:
        del results["layers"]
    rows: Frame = frame_of(norms)
    of_embeddings = replace(norms, frame=rows[rows["layer"] == 0].reset_index(drop=True))
    results["sensitivity"] = [of_embeddings]
    run.measure(section, lambda progress: profile(norms), key="profile")
    _measure_bounds(run, of_embeddings)


def _layers(plan: ReportPlan) -> Literal["all"] | tuple[int]:
    return "all" if "layers" in plan.names else (0,)


def _measure_bounds(run: Measuring, norms: Sensitivity) -> None:
    """Path sums beside the norms, without the forms that the model's blocks do not allow."""
    extent, left_out = run.plan.extent, run.measured.left_out
    if not extent.forms:
        left_out.append(("sensitivity", NO_BOUNDS))
        return
    reasons = undescribed(run.model, list(extent.forms))
    left_out += [("sensitivity", f"{name}: {reason}") for name, reason in reasons.items()]
    variants = [name for name in extent.forms if name not in reasons]
    sums = partial(bounds, run.model, run.prompt, variants=variants, mlp_norm=extent.mlp_norm)
    # What is believed `compare` says, by the norms that are measured already.
    run.measure(
        "sensitivity",
        lambda progress: compare(norms, sums(believe=False, progress=progress)),
        part=(1, 2),
        key="comparison",
    )


def _profiles_memory(model: Unloaded, plan: ReportPlan) -> Iterable[int]:
    yield bytes_of(sensitivity, model, plan.pos, layers=_layers(plan))
    if plan.extent.forms:
        yield bytes_of(bounds, model, plan.pos, variants=plan.extent.forms)


def _measure_attention(run: Measuring) -> None:
    run.measure("attention", lambda progress: attention(run.model, run.prompt))


def _measure_position(run: Measuring) -> None:
    # By a sketch: its error is small beside the intervals over hundreds of tokens.
    extent = run.plan.extent
    effect = partial(
        position_effect,
        run.model,
        passages=extent.passages,
        tokens=PASSAGE_TOKENS,
        method="sketch",
        cotangents=extent.cotangents,
        untrained=extent.untrained,
    )
    run.measure("position", effect)


def _position_memory(model: Unloaded, plan: ReportPlan) -> Iterable[int]:
    """Of the longest passage, beside the untrained model where there is one."""
    sketch = {"method": "sketch", "cotangents": plan.extent.cotangents}
    alone = bytes_of(sensitivity, model, PASSAGE_TOKENS + 2, **sketch)
    yield bytes_with_untrained(alone, model.shape) if plan.extent.untrained else alone


# --- the sections


def _sensitivity_parts(measured: Measurements) -> list[Part]:
    """The profile and its shape, then the norms, with bounds and forms beside them where there are
    some.
    """
    (norms,) = measured.of("sensitivity")
    parts = [
        block(
            shape,
            "profile-chart",
            "Sensitivity by thirds of the prompt, the largest shares, and what freezing changes",
            title="Which tokens matter?",
            notes=[SHAPE_NOTE],
            leads="Sensitivity",
        )
        for shape in measured.of("profile")
    ]
    caption = "Sensitivity of y to every token"
    for comparison in measured.of("comparison"):
        caption += ", certified bounds and the paper's forms"
        sentences = [*comparison.findings(), *norms.findings()]
        looks: Looks = {"chart": _chart_variants, "leads": "Bounds"}
        return [*parts, block(comparison, "profile", caption, sentences, **looks)]
    return [*parts, block(norms, "profile", caption)]


def _chart_variants(comparison: Comparison) -> Chart:
    """The chart without the variants that would only crowd it."""
    crowding = set(comparison.summary["variant"]) - set(CHART_VARIANTS)
    return comparison_chart(comparison, sorted(crowding))


def _layers_parts(measured: Measurements) -> list[Part]:
    """Every layer as a heat map; its table, of every layer times every token, is too long."""
    caption = "Sensitivity of y to every token at every layer"
    (result,) = measured.of("layers")
    return [block(result, "layers-chart", caption, [], in_detail=False)]


def _attention_parts(measured: Measurements) -> list[Part]:
    """The last token's rows, then an interactive view of whole patterns."""
    from ostools.reporting.charts.attention import interactive_view

    (result,) = measured.of("attention")
    caption = "Attention of the last token, a row per layer and head"
    return [block(result, "attention-chart", caption), interactive_view(result, "heads")]


def _position_state(results: list[PositionEffect]) -> str:
    """The shape in a word. The paper's claim is a U: over-squashing is said of it alone."""
    word = SHAPES[results[0].verdict][0]
    return OVER_SQUASHING if word == "U" else word


def _position_parts(measured: Measurements) -> list[Part]:
    (result,) = measured.of("position")
    note = (
        "`ost.measure.position_effect(model)` measures 15 passages of 48 tokens. More texts show "
        "shapes that fewer do not."
    )
    caption = "Sensitivity by position over rotated passages"
    return [block(result, "position-chart", caption, notes=[note], leads="Position")]


SENSITIVITY = ReportSection(
    "sensitivity",
    "Sensitivity against its bounds (Theorem 5.1)",
    "Sensitivity and bounds",
    LEAD,
    _measure_profiles,
    _profiles_memory,
    _sensitivity_parts,
    dear=dear_from(DEAR, "and it would take over half an hour on a CPU"),
)
LAYERS = replace(
    SENSITIVITY,
    name="layers",
    title="Layers and tokens",
    nav="Layers and tokens",
    lead=LAYERS_LEAD,
    parts=_layers_parts,
    dear=dear_from(1e12, "and {pos} tokens are many for a CPU", per_token=True),
)
ATTENTION = ReportSection(
    "attention",
    "Where the last token looks",
    "Attention",
    ATTENTION_LEAD,
    _measure_attention,
    lambda model, plan: [bytes_of(attention, model, plan.pos)],
    _attention_parts,
)
POSITION = ReportSection(
    "position",
    "Sensitivity by position",
    "Position",
    POSITION_LEAD,
    _measure_position,
    _position_memory,
    _position_parts,
    ("Place in a text", "do both ends of a text count for more than its middle?"),
    _position_state,
)
