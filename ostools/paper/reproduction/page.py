"""The page of a reproduction: every claim in one line, then part by part its charts and rules."""

import shlex
from collections.abc import Mapping
from typing import Any

import pandas as pd

import ostools as ost
from ostools.ground import title_of
from ostools.paper.behaviour import figure_4_of
from ostools.paper.claims.claim import Reproduction
from ostools.paper.claims.parts import ATTENTION, CERTIFIED, LAYERS, LEMMAS, OVER_SQUASHING, PRINTED
from ostools.reporting.page.page import loading, stored_at
from ostools.reporting.page.section import (
    Part,
    Section,
    Table,
    block,
    frame_table,
    render_sections,
)
from ostools.reporting.sections.about import again_section, origin_terms
from ostools.results import Frame, Result, frame_of

TITLES = {
    "figure-2": "Copying the first and the last digit (Figure 2)",
    "figure-3": "Sums and counts (Figures 3, 4, 6 and 7)",
    "answer-only": "Sums and counts, with the answer alone asked for (section 3.2)",
    "figure-5": "Representational collapse and precision (Figure 5, Theorem 4.2)",
    ATTENTION: "The attention of a repeated last token (proof of Theorem B.3)",
    LAYERS: "The distance after every block (proof of Theorem B.3)",
    "figure-8": "A synthetic layer (Figure 8)",
    "figure-9": "Total variation of softmax (Figure 9)",
    OVER_SQUASHING: "Over-squashing (Theorem 5.1, Proposition 5.2)",
    "retrieval": "The U-shape (section 5)",
    LEMMAS: "Lemmas and propositions on numbers (appendix B)",
    "counting": "Counting (Corollary 6.2)",
    "remedies": "Commas and hints on drawn digits (sections 3 and 4)",
}
_CHECKS = (
    "Every check on numbers; one without a hypothesis passes only if the statement then breaks"
)
CAVEATS = (
    "The paper's Figures 2 to 4 are of Gemini 1.5, and Figures 5 to 7 of Gemma 7B. “Agrees” says "
    "that this model, on these prompts and lengths, shows what is claimed. “Does not agree” says "
    "that it shows otherwise. Both speak of this model alone.",
    "The rules are the same for every model. Each stands beside its claim. Where a test decides a "
    "claim, it is judged at its own 5%: of many such claims, some are decided by chance.",
    "In Figure 2 the right answer is always 0, so a model that always says 0 is right everywhere. "
    "Prompts of drawn digits show such a model.",
    "“Holds by construction” is not evidence: no model, or no answer, could have spoken against "
    "it, for the reason in the line. What was measured there checks this code. It is not counted "
    "among “agrees”.",
    "“Could not be tested” is not evidence in either direction. Its reason stands in the same "
    "line.",
    "Measured values, certified bounds, predictions and estimates are named as such. One is never "
    "shown in place of another.",
)


def render_reproduction(reproduction: Reproduction, again: str) -> str:
    """The page; `again`: the command that makes it."""
    counts = ", ".join(f"{outcome}: {count}" for outcome, count in reproduction.outcomes.items())
    title = f"“Transformers need glasses!” on {title_of(reproduction.provenance.model)}"
    lead = (
        f"{len(reproduction.frame)} claims of arXiv 2406.04267, quoted, beside what was measured "
        f"on this model: {counts}. The rule of each claim stands below."
    )
    reading = Section("reading", "Reading the outcomes", "Reading", "", [Part(items=CAVEATS)])
    parts = [_section(name, reproduction) for name in TITLES if name in reproduction.results]
    sections = [_claims(reproduction), *parts, _origin(reproduction), reading, again_section(again)]
    return render_sections(title, lead, sections)


def command(reproduction: Reproduction, out: str, recipe: str | None) -> str:
    """The command line of this reproduction. It cannot give arguments that are not of a file."""
    model: Any = reproduction.provenance.model
    parameters = reproduction.provenance.parameters
    if parameters.get("hosted"):
        options = ["--answers", "answers.jsonl", "--model", model["name"]]
    else:
        figures = ",".join(map(str, parameters["figures"] or ()))
        value_by_option = {"--recipe": recipe, "--model": stored_at(model), "--figures": figures}
        options = [
            word for name, value in value_by_option.items() if value for word in (name, value)
        ]
        options += loading(model)
    return shlex.join(["ostools", "reproduce", *options, "--out", out])


def _claims_table(caption: str, claims: Frame, **columns: str) -> Table:
    """The paper's words and the outcome of each claim, and these columns by their headers."""
    quotes = claims["words"].map("“{}”".format)
    names = {
        "here": claims["outcome"].str.upper(),
        **{name: claims[column] for column, name in columns.items()},
    }
    return frame_table(caption, pd.DataFrame({"the paper's words": quotes, **names}))


def _claims(reproduction: Reproduction) -> Section:
    """All claims, one line each, in the paper's order."""
    headers = {"place": "where", "measured": "what was measured, or why nothing could be measured"}
    caption = "The paper's claims, one line each"
    parts = [Part(tables=[_claims_table(caption, frame_of(reproduction), **headers)])]
    reasons = [f"{name}: {reason}" for name, reason in reproduction.refused.items()]
    if reasons:
        parts.append(Part(title="Parts that could not be measured, and why", items=reasons))
    parts.append(block(reproduction, "claims-chart", "Outcomes by claim"))
    return Section("findings", "The claims", "Claims", "", parts)


def _section(name: str, reproduction: Reproduction) -> Section:
    """The charts of a part, and after them its claims with their rules."""
    frame, results, title = frame_of(reproduction), reproduction.results[name], TITLES[name]
    claims = frame[frame["parts"].str.split(", ").map(lambda parts: name in parts)]
    charts = _charts(name, results).items()
    parts = [block(result, f"{name}-{n}", words) for n, (words, result) in enumerate(charts)]
    checks = [frame_table(_CHECKS, frame_of(results[LEMMAS]))] if name == LEMMAS else []
    rules = _claims_table(f"Rules: {title}", claims, rule="the rule")
    parts.append(Part(tables=[*checks, rules]))
    return Section(name, title, title.partition(" (")[0], "", parts)


def _charts(name: str, results: Mapping[str, Any]) -> dict[str, Result]:
    """The results of a part that are drawn, by caption; the lemmas have a table instead."""
    if name == "figure-3":
        figure_4 = figure_4_of(results["figure"], 7)
        return {TITLES[name]: results["figure"], "How often each number was answered": figure_4}
    if name == OVER_SQUASHING:
        caption = (
            f"Measured norms beside the certified bound ({CERTIFIED}) and the paper's form "
            f"({PRINTED})"
        )
        return {caption: ost.compare(results["measured-0"], results["paths-0"])}
    if name == "answer-only":
        return {f"Answers to {task}": result for task, result in results.items()}
    return {} if name == LEMMAS else {TITLES[name]: next(iter(results.values()))}


def _origin(reproduction: Reproduction) -> Section:
    """The model, and the arguments and seconds of each part."""
    arguments: Any = reproduction.provenance.parameters["arguments"]
    rows = [
        [name, "; ".join(f"{key} {value}" for key, value in arguments[name].items()), f"{s:,.0f} s"]
        for name, s in reproduction.seconds.items()
    ]
    table = Table("What was asked of each part", ["part", "arguments", "measured in"], rows)
    part = Part(terms=origin_terms(reproduction.provenance), tables=[table])
    return Section("origin", "Where the numbers come from", "Origin", "", [part])
