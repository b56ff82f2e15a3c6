"""The sections on sensitivity: by position in natural text; of one prompt by token and layer, with
bounds; its attention.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ostools.ground.progress import Progress
from ostools.measure import (
    Comparison,
    Sensitivity,
    bounds,
    compare,
    position_effect,
    profile,
    sensitivity,
)
from ostools.measure.attention.attention import attention, patterns_memory
from ostools.measure.bounds.bounds import bounds_memory
from ostools.measure.bounds.variants import undescribed
from ostools.measure.jacobian.memory import sensitivity_memory
from ostools.measure.profiles.position_effect import PositionEffect
from ostools.measure.unloaded import Unloaded
from ostools.models.untrained import bytes_with_untrained
from ostools.reporting.charts.heads_view import interactive_view
from ostools.reporting.findings import SHAPES
from ostools.reporting.findings.effects import contrast_words
from ostools.reporting.page.page import Script
from ostools.reporting.page.section import (
    OVER_SQUASHING,
    UNTESTED,
    Part,
    ScriptView,
    StripField,
    block,
    tables_of,
)
from ostools.reporting.sections.extent import DEAR, PASSAGE_TOKENS
from ostools.reporting.sections.records import (
    LeftOut,
    Measurements,
    Plan,
    ReportSection,
    Run,
    Step,
    dear_from,
)
from ostools.results import Frame, frame_of
from ostools.results.table_head import TableHead

VARIANT_TABLE = TableHead(
    "summary",
    "variant kind linearisation norm holds median_log10_looseness max_log10_looseness spearman believed",
)
CHART_VARIANTS = ("local", "proof", "theorem-b5")
"""The variants in the chart; the table has all that were computed."""
LEAD = (
    "How much of each token v is left in the last token's representation y: norms of the derivative ∂y/∂v. “full” is the real "
    "derivative; “frozen” holds attention patterns and norm scales, as the theorem assumes, and only it stands beside the "
    "certified bounds drawn here."
)
LAYERS_LEAD = (
    "The same derivative with respect to what each block reads: where on the way is a token lost?"
)
ATTENTION_LEAD = (
    "The last token's attention in every head. It says by how much each value is multiplied. It does not say what that does to "
    "the answer."
)
NO_BOUNDS = (
    "Theorem 5.1's bounds: they take minutes on a model of this size, and those of smaller ones are tens of powers of ten "
    "above what is measured; `ostools bounds --variants local --variants theorem-5.1 --mlp-norm product` measures them"
)
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
        norms = run.measure(
            "sensitivity", 25, lambda part: sensitivity(model, prompt, progress=part)
        )
    if norms is not None:
        rows: Frame = frame_of(norms)
        measured.sensitivity = replace(norms, frame=rows[rows["layer"] == 0].reset_index(drop=True))
        measured.profile = run.measure("sensitivity", 0, lambda part: profile(norms))
        _measure_bounds(run, measured.sensitivity)


def _measure_bounds(run: Run, norms: Sensitivity) -> None:
    """Path sums beside the norms, without the forms that the model's blocks do not allow."""
    extent = run.plan.extent
    if not extent.forms:
        run.measured.left_out.append(LeftOut("sensitivity", NO_BOUNDS))
        return
    reasons = undescribed(run.model, list(extent.forms))
    options: Any = {
        "variants": [name for name in extent.forms if name not in reasons],
        "mlp_norm": extent.mlp_norm,
    }
    paths = run.measure(
        "sensitivity", 10, lambda part: bounds(run.model, run.prompt, progress=part, **options)
    )
    if paths is not None:
        run.measured.comparison = compare(norms, paths)
    for reason in dict.fromkeys(reasons.values()):
        names = ", ".join(name for name in reasons if reasons[name] == reason)
        run.measured.left_out.append(LeftOut("sensitivity", f"{names}: {reason}"))


def _profiles_memory(model: Unloaded, plan: Plan) -> Iterable[int]:
    yield sensitivity_memory(model, plan.pos, layers="all" if "layers" in plan.names else (0,))
    if "sensitivity" in plan.names and plan.extent.forms:
        yield bounds_memory(model, plan.pos, variants=plan.extent.forms)


PROFILES = Step(35, _measure_profiles, _profiles_memory)


def _measure_attention(run: Run) -> None:
    run.measured.attention = run.measure(
        "attention", 1, lambda part: attention(run.model, run.prompt)
    )


# --- the sections


def _sensitivity_parts(measured: Measurements) -> list[Part]:
    """The profile, its bounds and its shape."""
    if measured.sensitivity is None:
        return []
    parts = []
    if measured.profile is not None:
        caption = (
            "Sensitivity by thirds of the prompt, the largest shares, and what freezing changes"
        )
        fields: Any = {
            "title": "Which tokens matter?",
            "notes": [SHAPE_NOTE],
            "leads": "Sensitivity",
        }
        parts.append(block(measured.profile, "profile-chart", caption, **fields))
    return [*parts, sensitivity_block(measured.sensitivity, measured.comparison, "profile")]


def sensitivity_block(profile: Sensitivity, comparison: Comparison | None, name: str) -> Part:
    """The norms of one prompt; with bounds and forms beside them where there are some."""
    if comparison is None:
        return block(profile, name, "Sensitivity of y to every token")
    caption = "Sensitivity of y to every token, certified bounds and the paper's forms"
    sentences, tables = (
        [*comparison.findings(), *profile.findings()],
        tables_of(comparison, VARIANT_TABLE),
    )
    return block(
        _chart_variants(comparison), name, caption, sentences, tables=tables, leads="Bounds"
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


def _layers_parts(measured: Measurements) -> list[Part]:
    """Every layer as a heat map."""
    if measured.layers is None:
        return []
    caption = "Sensitivity of y to every token at every layer"
    return [
        block(measured.layers, "layers-chart", caption, [], in_detail=False)
    ]  # every layer times every token


def _attention_parts(measured: Measurements) -> list[Part]:
    """The last token's rows, then an interactive view of whole patterns."""
    if measured.attention is None:
        return []
    caption = "Attention of the last token, a row per layer and head"
    rows = block(measured.attention, "attention-chart", caption)
    source, note = interactive_view(measured.attention, "heads")
    view = ScriptView(
        "heads", "Interactive attention patterns, drawn by circuitsvis", Script(source, "module")
    )
    return [rows, Part(title="Head by head", notes=[note], view=view)]


SENSITIVITY = ReportSection(
    "sensitivity",
    "Sensitivity against its bounds (Theorem 5.1)",
    "Sensitivity and bounds",
    LEAD,
    PROFILES,
    _sensitivity_parts,
    dear=dear_from(DEAR, "and it would take over half an hour on a CPU"),
)
LAYERS = ReportSection(
    "layers",
    "Layers and tokens",
    "Layers and tokens",
    LAYERS_LEAD,
    PROFILES,
    _layers_parts,
    dear=dear_from(1e12, "and {pos} tokens are many for a CPU", per_token=True),
)
ATTENTION = ReportSection(
    "attention",
    "Where the last token looks",
    "Attention",
    ATTENTION_LEAD,
    Step(1, _measure_attention, lambda model, plan: [patterns_memory(model, plan.pos)]),
    _attention_parts,
)


# --- by position, in natural text

POSITION_LEAD = (
    "Over-squashing says that the last token hears some places of a prompt less than others. In one prompt, place and content "
    "are confounded. Here natural passages are rotated by thirds, so that every token stands once at the start, once in the "
    "middle and once at the end: what is left is the place alone."
)


def _measure_position(run: Run) -> None:
    run.measured.position = run.measure("position", 20, lambda part: _position(run, part))


def _position(run: Run, progress: Progress | None) -> PositionEffect:
    # By a sketch: its error is small beside the intervals over hundreds of tokens.
    extent = run.plan.extent
    options: Any = {
        "passages": extent.passages,
        "tokens": PASSAGE_TOKENS,
        "method": "sketch",
        "progress": progress,
    }
    options["cotangents"] = extent.cotangents
    return run.beside_untrained(
        "position",
        lambda with_untrained: position_effect(run.model, untrained=with_untrained, **options),
    )


def _position_memory(model: Unloaded, plan: Plan) -> Iterable[int]:
    """Of the longest passage, beside the untrained model where there is one."""
    options: dict[str, Any] = {"method": "sketch", "cotangents": plan.extent.cotangents}
    alone = sensitivity_memory(model, PASSAGE_TOKENS + 2, linearisations="full", **options)
    yield plan.beside_untrained(model, alone, bytes_with_untrained(alone, model.shape))


def _position_verdict(measured: Measurements) -> StripField:
    """The shape in a word, with its intervals. The paper's claim is a U: over-squashing is said of
    it alone.
    """
    name, effect = "Place in a text", measured.position
    if effect is None:
        return StripField(
            name, UNTESTED, "do both ends of a text count for more than its middle?", "position"
        )
    word = SHAPES[effect.verdict][0]
    rule = f"{contrast_words(effect)[0]} Times the middle third."
    return StripField(name, OVER_SQUASHING if word == "U" else word, rule, "position")


def _position_parts(measured: Measurements) -> list[Part]:
    effect = measured.position
    if effect is None:
        return []
    caption = "Sensitivity by position over rotated passages"
    if effect.provenance.parameters["untrained"]:
        caption += ", beside the same architecture before training"
    parameters = effect.provenance.parameters
    note = (
        f"Measured here: {parameters['passages']} passages of {parameters['tokens']} tokens. "
        "`ost.measure.position_effect(model)` measures 15 of 48. More texts show shapes that fewer do not."
    )
    return [block(effect, "position-chart", caption, notes=[note], leads="Position")]


POSITION = ReportSection(
    "position",
    "Sensitivity by position",
    "Position",
    POSITION_LEAD,
    Step(20, _measure_position, _position_memory),
    _position_parts,
    _position_verdict,
)
