"""What the page shows of a result: a number a token with its kind, the chart of reporting/, and how to have it again."""

from __future__ import annotations

import math
from typing import Any

from ostools.explorer.views import View, code, command
from ostools.ground.errors import InputError
from ostools.measure import Contributions, Flow, Looseness, PathSum, Sensitivity
from ostools.reporting.look.theme import KINDS, METHODS, display_token
from ostools.reporting.page.page import Figure
from ostools.results import Frame, Result

_NORMS = {
    "operator norm": ("operator_norm", "operator_lower", "operator_upper"),
    "Frobenius norm": ("frobenius_norm", "frobenius_lower", "frobenius_upper"),
}


def answer(view: View, prompt: str, result: Result, draws: bool = True) -> dict[str, Any]:
    """Plain values, as the page takes them: kind, tokens, chart (None, with the reason, where there is none), code, command.

    `draws`: with the chart, which takes longer than a prediction itself.
    """
    model: Any = result.provenance.model
    return {
        "words": view.words,
        "kind": _kind(result),
        "tokens": _tokens(view, result),
        **(_chart(view, result) if draws else {"chart": None, "title": "", "notes": []}),
        "code": code(view, prompt, model),
        "command": command(view, prompt, model),
    }


def _kind(result: Result) -> str:
    """What kind of statement its numbers are, in the words of every legend."""
    if isinstance(result, PathSum):
        return KINDS[str(result.frame["kind"].iloc[0])]
    if isinstance(result, Sensitivity):
        return KINDS[METHODS[str(result.frame["method"].iloc[0])]]
    if isinstance(result, Looseness):
        return "certified bounds against measured norms"
    return KINDS["predicted"] if isinstance(result, Flow) else KINDS["measured"]


def _tokens(view: View, result: Result) -> list[dict[str, Any]]:
    """One entry a token: position, token (as charts write it), value (what colours it, or None), numbers (name, value, lower
    and upper limit)."""
    if isinstance(result, Looseness):
        groups = result.frame.groupby("position", sort=True)
        return [_entry(rows.iloc[0], None, _parts(rows)) for _, rows in groups]
    if view.column is None:
        return []
    frame: Frame = result.of_tokens if isinstance(result, Contributions) else result.frame
    return [_entry(row, _plain(row[view.column]), _numbers(view, result, row)) for _, row in frame.iterrows()]


def _entry(row: Any, value: float | None, numbers: list[dict[str, Any]]) -> dict[str, Any]:
    token = display_token(str(row["token"]))
    return {"position": int(row["position"]), "token": token, "value": value, "numbers": numbers}


def _parts(rows: Frame) -> list[dict[str, Any]]:
    names = zip(rows["part"], rows["larger"], rows["smaller"], rows["log10"], strict=True)
    return [_number(f"{part} ({larger} / {smaller}), decades", value) for part, larger, smaller, value in names]


def _numbers(view: View, result: Result, row: Any) -> list[dict[str, Any]]:
    if isinstance(result, Sensitivity):
        return [_number(name, *(row[column] for column in columns)) for name, columns in _NORMS.items()]
    if isinstance(result, PathSum):
        return [_number(f"{str(row['norm']).capitalize()} norm, {row['linearisation']}", row["value"])]
    return [
        _number(f"part of the logit of {display_token(str(result.provenance.parameters['token']))}", row[view.column])
    ]


def _number(name: str, value: Any, low: Any = None, high: Any = None) -> dict[str, Any]:
    """An exact number has its limits equal to itself, and is shown without them."""
    is_interval = low is not None and not low == value == high
    return {"name": name, "value": _plain(value), "interval": [_plain(low), _plain(high)] if is_interval else None}


def _plain(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _chart(view: View, result: Result) -> dict[str, Any]:
    try:
        figure = Figure("chart", result.plot(), view.words, view.words)
        return {"chart": str(figure.data), "title": figure.title, "notes": figure.notes}
    except InputError as error:
        return {"chart": None, "title": view.words, "notes": [f"There is no chart: {error}"]}
