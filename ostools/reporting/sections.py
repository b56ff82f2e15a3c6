"""From measurements to the sections of the report: figures, tables and the paragraphs under them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from ostools import tasks
from ostools.models.families import EMBEDDED
from ostools.models.sources import EMBEDDED_DIRECTORY
from ostools.reporting import charts, findings
from ostools.reporting.attention import COLUMNS, attention_findings, interactive_view, pooling_rule
from ostools.reporting.frames import Frame, frame_of
from ostools.reporting.page import Figure, Script, render
from ostools.reporting.theme import KINDS, METHODS, display_token
from ostools.reporting.words import number

if TYPE_CHECKING:
    from ostools.measure import Collapse, Comparison, Sensitivity
    from ostools.reporting.attention import Attention
    from ostools.reporting.report import Measurements

CAVEATS = (
    "Certified bounds hold for the derivative with attention patterns and norm scales frozen, the assumptions of Theorem 5.1. "
    "They stand beside the measured frozen derivative and no other; of the real one they bound nothing.",
    "The paper's printed forms need constants that a real model does not have: a gated MLP has no global Lipschitz constant, "
    "and several heads are averaged into one. They are drawn as what the paper shows, not as bounds.",
    "Predictions (second moments) assume that every step meets a randomly rotated direction. They bound nothing.",
    "Theorem 4.2 assumes bounded tokens, and positional information that decays with distance. Rotary positions do not satisfy "
    "the second: whether a distance falls is measured here, not deduced.",
    "A distance below the rounding noise of a dtype is not information. Two sequences are called collapsed in a dtype from the "
    "length on at which the float64 distance stays below that noise, with a margin of lengths behind it.",
    "Norms say how far y can move, not whether an answer depends on a token: a small norm may be enough, a large one unused.",
)

QUESTIONS = {
    "figure-5a": "ones behind a counting question",
    "figure-5b": "random digits that end in ones, behind a counting question",
    "figure-5c": "ones behind a copying question",
    "figure-5d": "ones with a comma after every third, behind a copying question",
}


@dataclass(frozen=True)
class Table:
    """A table of the report; every cell is text, and is escaped by the template."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def render_report(found: Measurements, command: str) -> str:
    """The whole page."""
    model: Any = found.provenance.model
    card = _card(str(model["name"]))
    accuracy = card.get("accuracy", []) if card else []
    trained = model.get("trained_lengths")
    view: Script | None = None
    attention: dict[str, Any] | None = None
    if found.attention is not None:
        source, holds = interactive_view(found.attention, "heads")
        view = Script(source, "module")
        attention = _attention(found.attention, holds)
    values = {
        "title": f"Over-squashing and collapse in {_named(str(model['name']))}",
        "model": model,
        "summary": _summary(found, accuracy),
        "run": _run(found),
        "prompt": found.prompt.text,
        "prompt_length": len(found.prompt.tokens),
        "token_ids": " ".join(map(str, found.provenance.token_ids or ())),
        "collapses": [_collapse(result, trained) for result in found.collapses],
        "sensitivity": _sensitivity(found),
        "attention": attention,
        "accuracy": _accuracy(accuracy),
        "caveats": CAVEATS,
        "command": command,
        "skipped": found.skipped,
    }
    return render("report.html.j2", values, () if view is None else (view,))


def _named(name: str) -> str:
    return "the embedded model" if name == EMBEDDED else display_token(name, 80)


def _summary(found: Measurements, accuracy: Sequence[Mapping[str, Any]]) -> list[str]:
    said = findings.collapse_summary(found.collapses)
    if found.sensitivity is not None:
        said += findings.sensitivity_summary(found.sensitivity)
    if found.comparison is not None:
        said += findings.comparison_summary(found.comparison)
    return (
        [*said, *(f"Behaviour, from the card of the shipped weights. {' '.join(findings.card_findings(accuracy))}",)]
        if (accuracy)
        else said
    )


def _run(found: Measurements) -> list[tuple[str, str]]:
    """Provenance, as terms and values."""
    model: Any = found.provenance.model
    versions = {**found.provenance.versions, "altair": version("altair"), "circuitsvis": version("circuitsvis")}
    rows = [
        ("model", str(model["name"])),
        ("revision", str(model["revision"] or "none (not from a hub)")),
        ("weights (sha256)", str(model["weight_hash"])),
        ("architecture", str(model["architecture"])),
        (
            "size",
            f"{int(model['n_parameters']):,} parameters: {model['n_layers']} layers, d_model {model['d_model']}, "
            f"{model['n_heads']} heads ({model['n_key_value_heads']} key/value), vocabulary {int(model['d_vocab']):,}",
        ),
        ("dtype, device", f"{model['dtype']} on {model['device']}"),
        ("attention", str(model["attention_implementation"])),
        ("time", found.provenance.time),
        ("versions", ", ".join(f"{name} {number}" for name, number in versions.items())),
    ]
    return rows


def _collapse(result: Collapse, trained: Mapping[str, int] | None) -> dict[str, Any]:
    name = str(frame_of(result)["task"].iloc[0])
    said = findings.collapse_findings(result, trained)
    chart = charts.collapse_chart(result, ("y",))
    route = result.provenance.parameters
    caption = "L2 distance of the two y against the number of items, one panel per dtype"
    return {
        "title": f"{name}: {QUESTIONS.get(name, 'task')}",
        "example": tasks.get(name).example if name in tasks.COLLAPSE_TASKS else "",
        "figure": Figure(name, chart, caption, f"{caption}. {said[0] if said else ''}", said),
        "lengths": _lengths(result, name),
        "route": f"Computed by {route.get('route', 'one pass')}: {route.get('route_reason', '')}"
        if route.get("route")
        else "",
    }


def _lengths(result: Collapse, name: str) -> Table:
    """The collapse lengths of every site and dtype."""
    table: Frame = result.collapse_lengths()
    shown = ["pair", "seed", "dtype", "site", "status"]
    rows = [[str(row[column]) for column in shown] for row in table.to_dict(orient="records")]
    return Table(f"Collapse lengths, {name}", ["pair", "seed", "dtype", "site", "collapse"], rows)


def _sensitivity(found: Measurements) -> dict[str, Any] | None:
    if found.sensitivity is None:
        return None
    said = findings.sensitivity_findings(found.sensitivity)
    if found.comparison is None:
        chart, caption, table = (
            charts.sensitivity_chart(found.sensitivity),
            "Sensitivity of y to every token",
            None,
        )
    else:
        chart, table = charts.comparison_chart(found.comparison), _looseness(found.comparison)
        caption = "Sensitivity of y to every token, certified bounds, the paper's forms and predictions"
        said += findings.comparison_findings(found.comparison)
    figure = Figure("profile", chart, caption, f"{caption}. {said[0]}", said)
    return {"figure": figure, "table": table, "values": _values(found.sensitivity)}


def _looseness(comparison: Comparison) -> Table:
    rows = []
    for row in comparison.summary.to_dict(orient="records"):
        holds = findings.whether_it_holds(row["holds"]) if row["kind"] == "certified" else "no claim"
        cells = [
            row["variant"],
            KINDS[row["kind"]],
            f"{row['linearisation']}, {findings.NORMS[str(row['norm'])]}",
            holds,
        ]
        for name in ("median_log10_looseness", "max_log10_looseness", "spearman"):
            value = float(row[name])
            cells.append("–" if value != value else f"{value:.2f}")
        rows.append(cells)
    columns = [
        "variant",
        "kind",
        "stands beside",
        "holds?",
        "median log10 ratio",
        "max log10 ratio",
        "Spearman",
    ]
    return Table(
        "Each variant against the norm that it stands beside: does it hold, how loose is it, does its shape predict",
        columns,
        rows,
    )


def _values(profile: Sensitivity) -> Table:
    """The numbers behind the chart: a row per token; of an operator norm, an estimate knows a lower bound only."""
    frame = frame_of(profile)
    norm = "frobenius" if (frame["method"] == "estimate").any() else "operator"
    columns = [f"{METHODS[str(row['method'])]}, {row['linearisation']}" for row in frame.to_dict(orient="records")]
    table = frame.assign(column=columns).pivot(index=["position", "token"], columns="column", values=f"{norm}_norm")
    rows = [
        [str(position), display_token(str(token)), *(number(float(value)) for value in row)]
        for (position, token), row in zip(table.index, table.to_numpy(), strict=True)
    ]
    return Table(f"The {findings.NORMS[norm]}s, token by token", ["position", "token", *table.columns], rows)


def _attention(attention: Attention, holds: str) -> dict[str, Any]:
    said = attention_findings(attention)
    caption = "Attention of the last token, a row per layer and head"
    rule = pooling_rule(len(attention.tokens), COLUMNS)
    return {
        "figure": Figure("attention", charts.attention_chart(attention), caption, f"{caption}. {said[0]}", said),
        "rule": f"In the heat map {rule}." if rule else "",
        "holds": holds,
    }


def _card(name: str) -> dict[str, Any] | None:
    """The card of the embedded model; other models have none."""
    path = EMBEDDED_DIRECTORY / "card.json"
    return json.loads(path.read_text(encoding="utf-8")) if name == EMBEDDED and path.is_file() else None


def _accuracy(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Accuracy by task and length, inside and beyond the trained lengths in two tables."""
    if not rows:
        return None
    tables = []
    for within, words in ((True, "Inside the trained lengths"), (False, "Beyond the trained lengths")):
        chosen = [row for row in rows if bool(row["within_training"]) is within]
        bands = sorted({(int(row["length_from"]), int(row["length_to"])) for row in chosen})
        shares = {(_variant(row), int(row["length_from"])): f"{float(row['accuracy']):.0%}" for row in chosen}
        labels = dict.fromkeys(_variant(row) for row in chosen)
        body = [[label, *(shares.get((label, low), "") for low, _ in bands)] for label in labels]
        if chosen:
            tables.append(Table(words, ["task", *(f"{low}–{high}" for low, high in bands)], body))
    return {"tables": tables, "findings": findings.card_findings(rows)}


def _variant(row: Mapping[str, Any]) -> str:
    options = [name for name in ("uniform", "interleave", "hint") if row.get(name)]
    if row.get("separator_every"):
        options.append(f"comma every {row['separator_every']}")
    words = f" ({', '.join(options)})" if options else ""
    return f"{row['task']}{words}"
