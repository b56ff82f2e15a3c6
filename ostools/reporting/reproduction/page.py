"""The page of a reproduction: every claim in one line, then part by part its charts, rules and numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import altair as alt

from ostools.experiments.figures.figure4 import figure_4_of
from ostools.experiments.reproduce.induction import ATTENTION, LAYERS
from ostools.experiments.reproduce.parts import CERTIFIED, LEMMAS, OVER_SQUASHING, PRINTED
from ostools.experiments.reproduce.reproduction import Reproduction
from ostools.ground.errors import InputError, in_words
from ostools.ground.words import computed_on, number, short_name, title_of
from ostools.measure.profiles.compare import compare
from ostools.reporting.charts import chart_of
from ostools.reporting.charts.figures.claims import claims_chart
from ostools.reporting.page.page import Figure, render
from ostools.reporting.page.section import Part, Section, Table, spelled
from ostools.reporting.page.shell import loading, quoted, stored_at
from ostools.results import Frame, Result, frame_of

Results = Mapping[str, Result]
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
CAVEATS = (
    "The paper's Figures 2 to 4 are of Gemini 1.5, and Figures 5 to 7 of Gemma 7B. “Agrees” says that this model, on "
    "these prompts and lengths, shows what is claimed. “Does not agree” says that it shows otherwise. Both speak of "
    "this model alone.",
    "The rules are the same for every model. Each stands beside its claim. Where a test decides a claim, it is judged "
    "at its own 5%: of many such claims, some are decided by chance.",
    "In Figure 2 the right answer is always 0, so a model that always says 0 is right everywhere. Prompts of drawn digits show "
    "such a model.",
    "“Holds by construction” is not evidence: no model, or no answer, could have spoken against it, for the reason in "
    "the line. What was measured there checks this code. It is not counted among “agrees”.",
    "“Could not be tested” is not evidence in either direction. Its reason stands in the same line.",
    "Measured values, certified bounds, predictions and estimates are named as such. One is never shown in place of another.",
)


def render_reproduction(found: Reproduction, again: str) -> str:
    """The whole page; `again`: the command that makes it."""
    sections = [_claims(found), *_parts(found), _origin(found, again), _reading()]
    name = short_name(found.provenance.model)
    counts = ", ".join(f"{outcome}: {count}" for outcome, count in found.outcomes.items())
    values = {
        "title": f"“Transformers need glasses!” on {name}",
        "lead": (
            f"{len(found.frame)} claims of arXiv 2406.04267, quoted, beside what was measured on this model: {counts}. "
            "The rule of each claim stands below."
        ),
        "sections": [spelled(section) for section in sections],
    }
    return render("report.html.j2", values)


def command(found: Reproduction, out: str, recipe: str | None) -> str:
    """The command line that makes this reproduction again. It cannot give arguments that are not of a file."""
    model: Any = found.provenance.model
    words = ["ostools", "reproduce", *([] if recipe is None else ["--recipe", recipe]), "--model", stored_at(model)]
    if figures := found.provenance.parameters.get("figures"):
        words += ["--figures", ",".join(map(str, figures))]
    words += [*loading(model), "--out", out]
    return " ".join(map(quoted, words))


def _claims(found: Reproduction) -> Section:
    """All claims, one line each, in the paper's order."""
    rows = [
        [f"“{row['words']}”", row["place"], row["outcome"].upper(), row["measured"]]
        for row in frame_of(found).to_dict("records")
    ]
    columns = ["the paper's words", "where", "here", "what was measured, or why nothing could be measured"]
    caption = "The paper's claims, one line each"
    parts = [Part(tables=[Table(caption, columns, rows)])]
    told = [f"{name}: {reason}" for name, reason in found.refused.items()]
    if told:
        parts.append(Part(title="Parts that could not be measured, and why", items=told))
    chart = claims_chart(found)
    parts.append(
        Part(figure=Figure("claims-chart", chart, "Outcomes by claim", "The outcomes of the table above, drawn."))
    )
    return Section("findings", "The claims", "Claims", "", parts)


def _parts(found: Reproduction) -> list[Section]:
    return [_section(name, TITLES[name], found) for name in TITLES if name in found.results]


def _section(name: str, title: str, found: Reproduction) -> Section:
    """The charts of a part, and after them its claims with rules and numbers."""
    frame = frame_of(found)
    mine = frame[frame["parts"].str.split(", ").map(lambda parts: name in parts)]
    parts: list[Part] = []
    for place, (caption, draw) in enumerate(_charts(name, found.results[name])):
        try:
            figure = Figure(
                f"{name}-{place}", draw(), caption, f"{caption}. The claims about it are in the table below."
            )
            parts.append(Part(figure=figure))
        except (InputError, LookupError, ValueError) as error:
            parts.append(Part(notes=[f"{caption} could not be drawn: {in_words(error)}"]))
    checks = [_checks(frame_of(found.results[name][LEMMAS]))] if name == LEMMAS else []
    parts.append(Part(tables=[*checks, _rules(title, mine)]))
    return Section(name, title, title.partition(" (")[0], "", parts)


def _rules(title: str, claims: Frame) -> Table:
    rows = [
        [f"“{row['words']}”", row["outcome"].upper(), row["rule"], row["numbers"] or "none"]
        for row in claims.to_dict("records")
    ]
    return Table(f"Rules and numbers: {title}", ["the paper's words", "here", "the rule", "numbers"], rows)


def _checks(checks: Frame) -> Table:
    """Every check of the lemmas: its figure, what was required of it, and whether it passed."""
    rows = [
        [
            *(row["lemma"], row["hypotheses"], row["computed"], number(row["figure"])),
            f"{row['relation']} {number(row['required'])}",
            "yes" if row["passed"] else "NO",
        ]
        for row in checks.to_dict("records")
    ]
    caption = "Every check on numbers; one without a hypothesis passes only if the statement then breaks"
    return Table(caption, ["lemma", "hypotheses", "computed", "figure", "required", "passed"], rows)


def _charts(name: str, results: Results) -> list[tuple[str, Callable[[], alt.TopLevelMixin]]]:
    """Captions and charts of a part; the lemmas have a table instead."""
    if name == LEMMAS:
        return []
    if name == "figure-3":
        figure: Any = results["figure"]
        return [
            ("Errors of sums and counts", lambda: chart_of(figure)),
            ("How often each number was answered", lambda: chart_of(figure_4_of(figure, 7))),
        ]
    if name == OVER_SQUASHING:
        measured: Any = results["measured-0"]
        paths: Any = results["paths-0"]
        return [
            (
                f"Measured norms beside the certified bound ({CERTIFIED}) and the paper's form ({PRINTED})",
                lambda: chart_of(compare(measured, paths)),
            ),
            ("Spectra of the model's own patterns", lambda: chart_of(results["spectra"])),
        ]
    if name == "answer-only":
        return [(f"Answers to {task}", lambda one=one: chart_of(one)) for task, one in results.items()]
    return [(TITLES[name], lambda: chart_of(next(iter(results.values()))))]


def _origin(found: Reproduction, again: str) -> Section:
    """The model, the arguments of each part, how long it took, and the command."""
    model: Any = found.provenance.model
    size = f"{int(model['n_parameters']):,} parameters" if "n_parameters" in model else "size not known"
    terms = [
        ("model", f"{title_of(model)}, {model.get('architecture')}, {size}"),
        ("weights (sha256)", str(model.get("weight_hash"))),
        ("dtype, device", computed_on(model)),
        ("time", found.provenance.time),
        ("versions", ", ".join(f"{name} {number}" for name, number in found.provenance.versions.items())),
    ]
    asked: Any = found.provenance.parameters["arguments"]
    rows = [
        [name, "; ".join(f"{key} {_short(value)}" for key, value in asked[name].items()) or "none", f"{seconds:,.0f} s"]
        for name, seconds in found.seconds.items()
    ]
    table = Table("What was asked of each part", ["part", "arguments", "measured in"], rows)
    return Section(
        "origin", "Where the numbers come from", "Origin", "", [Part(terms=terms, tables=[table], code=again)]
    )


def _short(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    parts = text.split(",")
    return text if len(parts) <= 6 else f"{','.join(parts[:3])},...,{parts[-1]}"


def _reading() -> Section:
    return Section("reading", "Reading the outcomes", "Reading", "", [Part(items=CAVEATS)])
