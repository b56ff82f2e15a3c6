"""The sections that every page has: what was run, how to read it, how to run it again."""

from __future__ import annotations

from collections.abc import Mapping

from ostools.ground.words import computed_on, title_of
from ostools.reporting.page.section import Part, Section
from ostools.reporting.sections.glossary import GLOSSARY
from ostools.reporting.sections.records import Measurements
from ostools.results import Provenance

CAVEATS = (
    (
        "Measured norms are exact derivatives. Estimated norms come from random probes and have "
        "intervals."
    ),
    "The certified bounds drawn here are bounds of the derivative with attention patterns and "
    "norm scales frozen. Those are the assumptions of Theorem 5.1. They do not bound the real "
    "derivative.",
    "Theorem 4.2 assumes that positional information decays with distance, “e.g. as in RoPE”. "
    "Rotary positions did not do that where it was measured, on random decoders. Whether a "
    "distance falls is therefore measured here.",
    "A U, in the strip at the top: over natural passages that are rotated by thirds, both outer "
    "thirds have larger norms than the middle one, and both 95% intervals over passages exclude "
    "zero. That is the paper's over-squashing. Recency: the last third alone. Primacy: the first "
    "alone. None: the test shows neither. One prompt's profile confounds place and content.",
    "Norms say how far y can move. They do not say whether an answer depends on a token: a small "
    "norm may be enough, and a large one may not be used.",
    (
        "Intervals of answers (Wilson, 95%) are over the prompts that were drawn. A greedy "
        "answer to one prompt has no interval."
    ),
)


def run_section(measured: Measurements) -> Section:
    """Provenance, the prompt, and what was left out."""
    parts = [Part(terms=origin_terms(measured.provenance))]
    if measured.sensitivity or measured.layers or measured.attention:
        parts.append(Part("The prompt whose tokens are measured", quote=measured.prompt))
    if measured.reduced:
        parts.append(
            Part("Less than in a full report of a small model", findings=[measured.reduced])
        )
    if measured.left_out:
        omissions = [f"{omission.section}: {omission.reason}" for omission in measured.left_out]
        parts.append(Part("Left out, and why", items=omissions))
    return Section("run", "What was run", "What was run", "", parts)


def origin_terms(provenance: Provenance) -> list[tuple[str, str]]:
    """Where numbers of one model come from, as terms and values; what is not known is left out."""
    model = provenance.model
    size = "size not known"
    if "n_parameters" in model:
        size = f"{int(model['n_parameters']):,} parameters"
    if "n_layers" in model:
        size += (
            f": {model['n_layers']} layers, d_model {model['d_model']}, {model['n_heads']} heads "
            f"({model['n_key_value_heads']} key/value), vocabulary {int(model['d_vocab']):,}"
        )
    attention = model.get("attention_implementation")
    rows = {
        "model": title_of(model),
        "revision": str(model.get("revision") or "none (not from a hub)"),
        "stored as": model.get("quantisation"),
        "weights (sha256)": str(model.get("weight_hash")),
        "architecture": f"{model.get('architecture')}, {size}",
        "dtype, device": computed_on(model) + (f", {attention} attention" if attention else ""),
        "time": provenance.time,
        "versions": versions_of(provenance.versions),
        "active edits": "; ".join(provenance.edits),
    }
    return [(term, str(value)) for term, value in rows.items() if value]


def versions_of(versions: Mapping[str, str]) -> str:
    """Libraries and their versions, in one line."""
    return ", ".join(f"{name} {number}" for name, number in versions.items())


def reading_section() -> Section:
    """How far the numbers carry, and what the words mean."""
    words = Part("Words", terms=[(term.name, term.explained) for term in GLOSSARY])
    return Section(
        "reading", "Reading the numbers", "Reading the numbers", "", [Part(items=CAVEATS), words]
    )


def again_section(command: str) -> Section:
    """The exact command."""
    return Section("again", "Run it again", "Run it again", "", [Part(code=command)])
