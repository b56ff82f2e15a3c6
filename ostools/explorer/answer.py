"""What the page shows of a result: numbers of each token, charts, and how to have them again."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any, TypeAlias

import pandas as pd

from ostools.explorer.views import ViewRequest
from ostools.ground.names import METHOD_KINDS
from ostools.measure import Attention, Attribution, Bounds, Sensitivity
from ostools.reporting.findings.sensitivity import certificate_words
from ostools.reporting.page.page import stored_at
from ostools.reporting.page.section import block
from ostools.reporting.style.theme import KINDS, display_token
from ostools.results import Result

Values: TypeAlias = dict[str, object]
"""Plain data that a page gets as JSON."""
_NORMS = {
    "operator norm": ("operator_norm", "operator_lower", "operator_upper"),
    "Frobenius norm": ("frobenius_norm", "frobenius_lower", "frobenius_upper"),
}


def answer(request: ViewRequest, result: Result, *, draws: bool = True) -> Values:
    """The page's values, as plain data.

    draws: with the chart, which takes longer than a first look.
    """
    tokens = _tokens(request, result)
    return {
        "view": request.view,
        "words": request.of_view.words,
        "kind": _kind(result),
        "tokens": tokens,
        "code": code(request, result),
        "charts": [_chart(request, result, bool(tokens))] if draws else [],
    }


def code(request: ViewRequest, result: Result) -> str:
    """Python lines that give the same result."""
    model = result.provenance.model
    words = f"{stored_at(model)!r}, dtype={model['dtype']!r}, device={model['device']!r}"
    lines = ["import ostools as ost", "", f"model = ost.load_model({words})"]
    return "\n".join([*lines, f"prompt = {request.prompt!r}", request.line, "print(result)"]) + "\n"


def _kind(result: Result) -> str:
    """The kind of its numbers, in the words of every legend."""
    if isinstance(result, Sensitivity):
        return KINDS[METHOD_KINDS[str(result.frame["method"].iloc[0])]]
    if isinstance(result, Bounds):
        return ", ".join(KINDS[kind] for kind in result.frame["kind"].unique())
    return "attention weights" if isinstance(result, Attention) else KINDS["measured"]


def _tokens(request: ViewRequest, result: Result) -> list[Values]:
    """Each token with its numbers, the one that colours it first in `value`; none of a result that
    is a chart alone.
    """
    if isinstance(result, Sensitivity):
        rows = result.frame.to_dict("records")
        return [_token(row, row["frobenius_norm"], _norms(row)) for row in rows]
    if isinstance(result, Attribution):
        rows = result.of_tokens.to_dict("records")
        name = f"part of the logit of {display_token(str(result.provenance.parameters['token']))}"
        values = [row["contribution"] for row in rows]
    elif isinstance(result, Attention):
        rows = result.frame.iloc[: len(result.tokens)].to_dict("records")
        name, values = _weights(request, result)
    else:
        return []
    pairs = zip(rows, values, strict=True)
    return [_token(row, value, [_number(name, value)]) for row, value in pairs]


def _token(row: Mapping[Hashable, object], value: float, numbers: list[Values]) -> Values:
    token = display_token(str(row["token"]))
    values = {"value": _plain(value), "numbers": numbers}
    return {"position": int(str(row["position"])), "token": token, **values}


def _norms(row: Mapping[Hashable, Any]) -> list[Values]:
    """Both norms with their intervals; of a sketch's operator norm the limits alone are known."""
    return [
        _number(name, *(row[column] for column in columns))
        for name, columns in _NORMS.items()
        if pd.notna(row[columns[0]])
    ]


def _weights(request: ViewRequest, result: Attention) -> tuple[str, list[float]]:
    """The last token's weights in the chosen layer and head, or their mean over all, by name."""
    weights = result.last if request.layer < 0 else result.last[[request.layer]]
    weights = weights if request.head < 0 else weights[:, [request.head]]
    layer = "all layers" if request.layer < 0 else f"layer {request.layer}"
    head = "all heads" if request.head < 0 else f"head {request.head}"
    return f"mean weight, {layer}, {head}", weights.mean((0, 1)).tolist()


def _number(name: str, value: float, low: float | None = None, high: float | None = None) -> Values:
    """A number; an exact one has its limits equal to itself, and is shown without them."""
    interval = None
    if low is not None and high is not None and not low == value == high:
        interval = [_plain(low), _plain(high)]
    return {"name": name, "value": _plain(value), "interval": interval}


def _plain(value: float) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _chart(request: ViewRequest, result: Result, has_tokens: bool) -> Values:
    """The chart with its title and notes (of a sensitivity the certificate), or why there is none."""
    words, sentences = request.of_view.words, [] if has_tokens else result.findings()
    if isinstance(result, Sensitivity):
        sentences = [certificate_words(result)]
    part = block(result, "chart", words, sentences, in_detail=False)
    figure = part.figure
    return {
        "chart": figure and str(figure.data),
        "title": figure.title if figure else words,
        "notes": [*sentences, *(figure.notes if figure else part.notes)],
    }
