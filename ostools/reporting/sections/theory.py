"""The paper's lemmas, checked on numbers."""

from __future__ import annotations

from ostools.ground.words import number
from ostools.reporting.charts.figures.theory import theory_chart
from ostools.reporting.page.page import Figure
from ostools.reporting.page.section import More, Part, Section, Table
from ostools.reporting.sections.measurements import Measurements
from ostools.results import frame_of

LEAD = (
    "The statements that the measurements rely on are computed on numbers drawn from a seed, without a model. A row that "
    "leaves out one of the hypotheses passes only if the statement then breaks."
)


def theory_section(found: Measurements) -> Section | None:
    """Where the lemmas were run."""
    if found.theory is None:
        return None
    frame = frame_of(found.theory)
    passed, lemmas = int(frame["passed"].sum()), frame["lemma"].nunique()
    said = f"{passed} of {len(frame)} checks of {lemmas} statements pass."
    if passed < len(frame):
        said += f" FAILED: {', '.join(dict.fromkeys(frame.loc[~frame['passed'], 'lemma']))}."
    caption = "The lemmas on numbers, a panel each"
    rows = [
        [
            *(str(row[name]) for name in ("lemma", "hypotheses", "computed")),
            number(float(row["figure"])),
            f"{row['relation']} {number(float(row['required']))}",
            "yes" if row["passed"] else "NO",
        ]
        for row in frame.to_dict(orient="records")
    ]
    table = Table("Every check", ["lemma", "hypotheses", "computed", "figure", "required", "passed"], rows)
    statements = frame.drop_duplicates("lemma")
    meant = [f"{row['lemma']}: {row['statement']}." for row in statements.to_dict(orient="records")]
    part = Part(
        figure=Figure("theory-chart", theory_chart(found.theory), caption, f"{caption}. {said}"),
        findings=[said],
        more=[More("What each says", findings=meant), More("Check by check", tables=[table])],
    )
    return Section("theory", "Do the lemmas hold?", "Theory checks", LEAD, [part])
