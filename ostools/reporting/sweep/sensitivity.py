"""Of a sweep's cells: sensitivity over the tokens of a prompt, at several lengths."""

from __future__ import annotations

from ostools.ground.names import METHOD_KINDS, known_norm
from ostools.ground.words import number
from ostools.reporting.findings.sensitivity import NORMS
from ostools.reporting.look.theme import display_token, inert
from ostools.reporting.page.page import Figure
from ostools.reporting.page.section import Part, Table
from ostools.reporting.sweep.charts import profiles_chart
from ostools.reporting.sweep.parts import CellsSection, Here, few_panels, finite, groups, panels
from ostools.results import Frame
from ostools.runs.measurements.sensitivity import SENSITIVITY

_LENGTHS = 5
"""How many lengths are drawn at most."""
_PROFILES = (
    "How much of each token v is left in the last token's representation y: norms of the derivative ∂y/∂v. “full” is the real "
    "derivative; “frozen” holds attention patterns and norm scales, as the theorem assumes."
)


def _profiles(here: Here) -> Part:
    task, linearisation = here.task, here.one("linearisation")
    norm = known_norm(here.rows["method"])
    rows = here.rows.assign(panel=panels(here.rows), value=here.rows[f"{norm}_norm"].astype(float))
    caption = f"{linearisation}: {NORMS[norm]} over the tokens of the prompt{here.made}"
    title = f"Sensitivity of y to every token, {task}, {here.model}"
    figure = None
    known, notes = finite(rows)
    if not notes:
        shown, said, notes = _profiles_shown(rows)
        kinds = " and ".join(dict.fromkeys(METHOD_KINDS[str(method)] for method in rows["method"]))
        chart = profiles_chart(shown, norm, title, [f"{kinds}, {linearisation}; {said}."])
        aloud = (
            f"{caption}. The table has the least, the median and the largest norm, the first token's and the last's."
        )
        figure = Figure(here.name, chart, caption, aloud)
    tables = [_least_and_largest(known, norm, task, linearisation)] if len(known) else []
    return Part(title=f"{here.title}: {linearisation}", figure=figure, tables=tables, notes=notes)


def _profiles_shown(rows: Frame) -> tuple[Frame, str, list[str]]:
    """What is drawn: of each condition its least seed, at a few lengths; that in words; what of them is left out."""
    least = rows.groupby("panel")["seed"].transform("min")
    first = rows[rows["seed"] == least]
    last = first.groupby(["panel", "length"])["position"].transform("max")
    first = first.assign(place=first["position"] / last.clip(lower=1))
    lengths = sorted(set(first["length"]))
    chosen = sorted({lengths[round(i * (len(lengths) - 1) / (_LENGTHS - 1))] for i in range(_LENGTHS)})
    shown, left = few_panels(first[first["length"].isin(chosen)], "table has")
    tokens = [inert(display_token(str(token))) for token in shown["token"]]
    seeds = sorted(set(shown["seed"]))
    of_seeds = f"seed {seeds[0]}" if len(seeds) == 1 else f"each condition's least seed ({', '.join(map(str, seeds))})"
    said = f"lengths {', '.join(map(str, chosen))} of {len(lengths)}, {of_seeds}"
    return shown[["panel", "length", "place", "value"]].assign(token=tokens), said, left


def _least_and_largest(rows: Frame, norm: str, task: str, linearisation: str) -> Table:
    """Of the shortest and the longest length: the least, the median and the largest norm, the first token's and the last's."""
    ends = [rows["length"].min(), rows["length"].max()]
    body = []
    for (dtype, mitigation, length), here in groups(rows[rows["length"].isin(ends)], "dtype", "mitigation", "length"):
        by_place = here.sort_values("position").groupby("seed")["value"]
        values = here["value"]
        figures = (values.min(), values.median(), values.max(), by_place.first().median(), by_place.last().median())
        body.append([dtype, mitigation, length, *(number(float(value)) for value in figures)])
    columns = ["dtype", "mitigation", "items", "least", "median", "largest", "first token", "last token"]
    return Table(f"{NORMS[norm]}, {task}, {linearisation}; over tokens and seeds", columns, body)


SECTION = CellsSection(
    SENSITIVITY,
    "sensitivity",
    "Sensitivity (Section 5)",
    "Sensitivity",
    _PROFILES,
    "profiles",
    _profiles,
    by=["linearisation"],
)
