"""What helps: a small study of the paper's comma and hint."""

from __future__ import annotations

import pandas as pd

from ostools.experiments.study.study import Study
from ostools.experiments.study.verdicts import ABOUT, ABOUT_WORDS, QUANTITIES, in_words
from ostools.reporting.charts.answers.study import study_chart
from ostools.reporting.findings.study import study_finding
from ostools.reporting.page.page import Figure
from ostools.reporting.page.section import More, Part, Section, Table
from ostools.reporting.sections.measurements import Measurements

LEAD = (
    "The same questions with each mitigation and without it. The task is the one of the section on behaviour whose share of "
    "right answers is nearest to one half: the model can do better and worse on it. A verdict needs two things: an interval "
    "over lengths that excludes zero, and a sign-flip test. “No measurable effect” does not mean “no effect”."
)


def mitigations_section(found: Measurements) -> Section | None:
    """Where a study was run."""
    if found.study is None:
        return None
    study = found.study
    task = study.provenance.parameters["task"]
    caption, said = f"Mitigations against none, {task}", study_finding(study)
    part = Part(
        figure=Figure("mitigations-chart", study_chart(study), caption, f"{caption}. {said}"),
        findings=[said],
        tables=[_verdicts(study)],
        more=[More("Every effect", findings=study.verdicts["sentence"].tolist(), tables=[_effects(study)])],
    )
    return Section("mitigations", "What helps", "Mitigations", LEAD, [part])


def _verdicts(study: Study) -> Table:
    """Verdicts on what was measured: what was not has no column."""
    measured = [name for name in ABOUT if name in set(study.effects["about"])]
    rows = [[row["mitigation"], *(row[name] for name in measured)] for row in study.verdicts.to_dict("records")]
    return Table(
        "Verdicts, all together at the study's level", ["mitigation", *(ABOUT_WORDS[name] for name in measured)], rows
    )


def _effects(study: Study) -> Table:
    rows = []
    for row in study.effects.to_dict("records"):
        words = in_words(row) if row["pairs"] else row["reason"] or "inactive"
        dtype = "" if pd.isna(row["dtype"]) else f", {row['dtype']}"
        rows.append(
            [row["mitigation"], f"{QUANTITIES[row['quantity']].words}{dtype}", row["kind"], words, str(row["pairs"])]
        )
    return Table("Effects with their intervals", ["mitigation", "quantity", "kind", "effect", "pairs"], rows)
