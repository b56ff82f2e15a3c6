"""The sections that every report has: findings, what was run, how to read it, how to run it again."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from ostools.ground.words import computed_on
from ostools.reporting.page.section import Finding, More, Part, Section
from ostools.reporting.sections.measurements import Measurements
from ostools.reporting.sections.summary import summary

CAVEATS = (
    "Measured norms are exact derivatives; estimated ones come from random probes and have intervals.",
    "The certified bounds drawn here are of the derivative with attention patterns and norm scales frozen, the assumptions of "
    "Theorem 5.1. Of the real one they bound nothing.",
    "The paper's forms of Theorem 5.1 need constants that a real model does not have. They are drawn as what the paper shows, "
    "not as bounds.",
    "Predictions (second moments) assume that every step meets a randomly rotated direction. They bound nothing.",
    "Theorem 4.2 assumes that positional information decays with distance, “e.g. as in RoPE”. Rotary positions did not do that "
    "where it was measured (`ostools lab`): whether a distance falls is measured here, not deduced.",
    "Two sequences are called collapsed in a dtype from the length on at which the float64 distance stays below its rounding "
    "noise, with a margin of lengths behind it; “not reached” is what a shorter range says too.",
    "Norms say how far y can move, not whether an answer depends on a token: a small norm may be enough, a large one unused.",
    "Intervals of answers (Wilson, 95%) are over the prompts that were drawn; a greedy answer to one prompt has none.",
)


NEEDED = {
    "Collapse": ("collapse",),
    "Precision": ("precision",),
    "Sensitivity": ("sensitivity", "looseness"),
    "Bounds": ("sensitivity", "looseness"),
    "Behaviour": ("behaviour", "mitigations"),
}
"""The sections that each finding is made of, in the order in which their reasons matter."""


def findings_section(found: Measurements, present: Sequence[str]) -> Section:
    """The report's first lines; each leads to its section where that is there."""
    said = [Finding(title, text, name if name in present else "") for title, text, name in summary(found)]
    nothing = found.empty and found.theory is None and found.left_out
    missing = ["Nothing could be measured; the reasons stand below."] if nothing else _missing(found, said)
    if not said and not missing:
        missing = ["What was asked for has no headline of its own; its findings stand in its section."]
    return Section("findings", "Findings", "Findings", "", [Part(first=said, findings=missing)])


def _missing(found: Measurements, said: Sequence[Finding]) -> list[str]:
    """The findings that were asked for and are not there, as something was refused that they need; with the first reason."""
    titles, asked = {one.title for one in said}, found.provenance.parameters.get("sections", ())
    lines = []
    for title, needed in NEEDED.items():
        # The curves of the model cast are measured once, and what is refused of them is noted with the section on collapse.
        names = (*needed, "collapse") if title == "Precision" else needed
        reasons = [one.reason for name in names for one in found.left_out if one.section == name]
        if reasons and title not in titles and set(needed) & set(asked):
            more = f" ({len(reasons) - 1} more below)" if len(reasons) > 1 else ""
            lines.append(f"{title}: no finding, as it was left out. {reasons[0]}{more}.")
    return lines


def run_section(found: Measurements) -> Section:
    """Provenance, the prompt, and what was left out."""
    ids = found.provenance.token_ids or ()
    more = More(f"Its {len(ids)} token ids", code=" ".join(map(str, ids)))
    parts = [Part(terms=_provenance(found))]
    if used := _of_the_prompt(found):
        parts.append(Part(title=f"The prompt of {used}", quote=found.prompt, more=[more]))
    if found.left_out:
        parts.append(Part(title="Left out, and why", terms=[(one.section, one.reason) for one in found.left_out]))
    return Section("run", "What was run", "What was run", "", parts)


def _of_the_prompt(found: Measurements) -> str:
    """The sections that show something of the prompt, in words."""
    measured = {"sensitivity": found.sensitivity, "layers": found.layers, "attention": found.attention}
    names = [name for name, one in measured.items() if one is not None]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


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
        ("dtype, device", f"{computed_on(model)}, {model['attention_implementation']} attention"),
        ("time", found.provenance.time),
        ("versions", ", ".join(f"{name} {number}" for name, number in versions.items())),
    ]
    if found.provenance.edits:
        rows.append(("active edits", "; ".join(found.provenance.edits)))
    return rows


def reading_section() -> Section:
    """How far the numbers carry."""
    return Section("reading", "Reading the numbers", "Reading the numbers", "", [Part(items=CAVEATS)])


def again_section(command: str, prompt: str) -> Section:
    """The exact command, where one can be given."""
    said = (
        "No command line can hold the NUL in this prompt: bash ends the prompt there. Give it in Python, "
        "`ost.report(model, prompt=...)`; all else is as in this command.",
    )
    return Section(
        "again", "Run it again", "Run it again", "", [Part(findings=said if "\x00" in prompt else (), code=command)]
    )
