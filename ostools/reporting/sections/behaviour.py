"""What the model answers: measured now, and, of the shipped weights, what their card says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ostools.measure.answers.behaviour import Behaviour
from ostools.models.families import EMBEDDED
from ostools.models.files.sources import EMBEDDED_DIRECTORY
from ostools.reporting.charts.answers.behaviour import behaviour_chart
from ostools.reporting.findings.behaviour import answered, behaviour_findings, card_findings, unread_texts
from ostools.reporting.page.page import Figure
from ostools.reporting.page.section import More, Part, Section, Table
from ostools.reporting.sections.measurements import Measurements
from ostools.results import frame_of

LEAD = (
    "Prompts of Appendix C.1, answered greedily in this run. The last answer line of the text is read. It is right if it "
    "holds the right answer. Beside it stands what the text asserts in whatever words (by content)."
)


def behaviour_section(found: Measurements) -> Section | None:
    """Where answers were asked for and some could be read."""
    if not found.behaviours:
        return None
    parts = [_part(result, f"behaviour-{index}") for index, result in enumerate(found.behaviours)]
    model: Any = found.provenance.model
    parts += _card(str(model["name"]))
    return Section("behaviour", "What the model answers", "Behaviour", LEAD, parts)


def _part(result: Behaviour, name: str) -> Part:
    task = str(frame_of(result)["task"].iloc[0])
    said = answered(result)
    caption = f"Answers by length, {task}"
    more = More(
        "In detail", findings=behaviour_findings(result) + unread_texts(result), tables=[_lengths(result, task)]
    )
    figure = Figure(name, behaviour_chart(result), caption, f"{caption}. {said}")
    return Part(title=task, figure=figure, findings=[said], more=[more])


def _lengths(result: Behaviour, task: str) -> Table:
    rows = []
    for row in result.summary.to_dict(orient="records"):
        low, high = float(row["wilson_low"]), float(row["wilson_high"])
        interval = "–" if low != low else f"{low:.0%} to {high:.0%}"
        trained = {True: "yes", False: "no"}.get(row["within_training"], "not known")
        rows.append(
            [
                *(str(row["length"]), f"{row['right']} of {row['asked']}", interval),
                f"{row['content_right']} of {row['content_read']}",
                *(str(row["something_else"]), str(row["cut_off"]), trained),
            ]
        )
    columns = ["items", "right", "Wilson 95%", "right by content", "something else", "cut off", "length trained"]
    return Table(f"Answers, {task}", columns, rows)


def _card(name: str) -> list[Part]:
    """Tables from the card of the shipped weights; other models have none."""
    path = EMBEDDED_DIRECTORY / "card.json"
    if name != EMBEDDED or not path.is_file():
        return []
    accuracy = json.loads(path.read_text(encoding="utf-8")).get("accuracy", [])
    if not accuracy:
        return []
    more = More("The card's table", tables=_card_tables(accuracy))
    note = (
        "This was not measured in this run. The model's card states it, from when the weights were trained. In the paper's own "
        "sequences the answer to copy-last and copy-first is always a zero. Only rows marked “uniform” tell whether the model "
        "reads the sequence."
    )
    return [Part(title="From the model's card", findings=card_findings(accuracy), notes=[note], more=[more])]


def _card_tables(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Accuracy by task and length, inside and beyond the trained lengths in two tables."""
    tables = []
    for within, words in ((True, "Inside the trained lengths"), (False, "Beyond the trained lengths")):
        chosen = [row for row in rows if bool(row["within_training"]) is within]
        bands = sorted({(int(row["length_from"]), int(row["length_to"])) for row in chosen})
        shares = {(_variant(row), int(row["length_from"])): f"{float(row['accuracy']):.0%}" for row in chosen}
        labels = dict.fromkeys(_variant(row) for row in chosen)
        body = [[label, *(shares.get((label, low), "") for low, _ in bands)] for label in labels]
        if chosen:
            tables.append(Table(words, ["task", *(f"{low}–{high}" for low, high in bands)], body))
    return tables


def _variant(row: Mapping[str, Any]) -> str:
    options = [name for name in ("uniform", "interleave", "hint") if row.get(name)]
    if row.get("separator_every"):
        options.append(f"comma every {row['separator_every']}")
    words = f" ({', '.join(options)})" if options else ""
    return f"{row['task']}{words}"
