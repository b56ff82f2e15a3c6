"""The sections that every report has: findings, what was run, how to read it, how to run it again."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from ostools.reporting.sections.section import Finding, More, Part, Section
from ostools.reporting.summary import summary

if TYPE_CHECKING:
    from ostools.reporting.measurements import Measurements

CAVEATS = (
    "Measured norms are exact derivatives; estimated ones come from random probes and have intervals.",
    "Certified bounds hold for the derivative with attention patterns and norm scales frozen, the assumptions of Theorem 5.1. "
    "Of the real one they bound nothing.",
    "The paper's printed forms need constants that a real model does not have. They are drawn as what the paper shows, not as "
    "bounds.",
    "Predictions (second moments) assume that every step meets a randomly rotated direction. They bound nothing.",
    "Theorem 4.2 assumes that positional information decays with distance. Rotary positions do not satisfy that: whether a "
    "distance falls is measured here, not deduced.",
    "Two sequences are called collapsed in a dtype from the length on at which the float64 distance stays below its rounding "
    "noise, with a margin of lengths behind it; “not reached” is what a shorter range says too.",
    "Norms say how far y can move, not whether an answer depends on a token: a small norm may be enough, a large one unused.",
    "Intervals of answers (Wilson, 95%) are over the prompts that were drawn; a greedy answer to one prompt has none.",
)


def findings_section(found: Measurements, present: Sequence[str]) -> Section:
    """The report's first lines; each leads to its section where that is there."""
    said = [Finding(title, text, name if name in present else "") for title, text, name in summary(found)]
    nothing = () if said else ("Nothing could be measured; the reasons stand below.",)
    return Section("findings", "Findings", "Findings", "", [Part(first=said, findings=nothing)])


def run_section(found: Measurements) -> Section:
    """Provenance, the prompt, and what was left out."""
    ids = found.provenance.token_ids or ()
    more = More(f"Its {len(ids)} token ids", code=" ".join(map(str, ids)))
    parts = [
        Part(terms=_provenance(found)),
        Part(title="The prompt of sensitivity, layers and attention", quote=found.prompt, more=[more]),
    ]
    if found.left_out:
        parts.append(Part(title="Left out, and why", terms=[(one.section, one.reason) for one in found.left_out]))
    return Section("run", "What was run", "What was run", "", parts)


def _provenance(found: Measurements) -> list[tuple[str, str]]:
    """Terms and values."""
    model: Any = found.provenance.model
    versions = {**found.provenance.versions, "altair": version("altair"), "circuitsvis": version("circuitsvis")}
    size = (
        f"{int(model['n_parameters']):,} parameters: {model['n_layers']} layers, d_model {model['d_model']}, "
        f"{model['n_heads']} heads ({model['n_key_value_heads']} key/value), vocabulary {int(model['d_vocab']):,}"
    )
    rows = [
        ("model", str(model["name"])),
        ("revision", str(model["revision"] or "none (not from a hub)")),
        ("weights (sha256)", str(model["weight_hash"])),
        ("architecture", f"{model['architecture']}, {size}"),
        ("dtype, device", f"{model['dtype']} on {model['device']}, {model['attention_implementation']} attention"),
        ("time", found.provenance.time),
        ("versions", ", ".join(f"{name} {number}" for name, number in versions.items())),
    ]
    if found.provenance.edits:
        rows.append(("active edits", "; ".join(found.provenance.edits)))
    return rows


def reading_section() -> Section:
    """How far the numbers carry."""
    return Section("reading", "Reading the numbers", "Reading the numbers", "", [Part(items=CAVEATS)])


def again_section(command: str) -> Section:
    """The exact command."""
    return Section("again", "Run it again", "Run it again", "", [Part(code=command)])
