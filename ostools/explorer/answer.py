"""What the page shows of a result: a number a token with its kind, the chart of reporting/, and how to have it again."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ostools.explorer import collapse
from ostools.explorer.question import Question
from ostools.explorer.recipe import SIDES, RecipeResult, code, commands
from ostools.explorer.together import hold_together, looked_at, number, of_partners, of_tokens, plain, unchanged, where
from ostools.ground.errors import InputError
from ostools.ground.names import METHOD_KINDS
from ostools.measure import Attention, Attribution, Collapse, Sensitivity
from ostools.reporting.page.page import Figure
from ostools.reporting.style.theme import KINDS, display_token
from ostools.results import Frame, Result

_NORMS = {
    "operator norm": ("operator_norm", "operator_lower", "operator_upper"),
    "Frobenius norm": ("frobenius_norm", "frobenius_lower", "frobenius_upper"),
}


def answer(question: Question, recipe_result: RecipeResult, draws: bool = True) -> dict[str, Any]:
    """Plain values, as the page takes them: kind, the names of two sides, tokens, those of a second side, notes, charts, what
    the view has beside these (heads, lengths), code, command.

    `draws`: with the charts and the grid of heads, which take longer than a first look itself.
    """
    question = question.alone() if recipe_result.inactive else question
    sides = [_tokens(question, side) for side in recipe_result.sides]
    if len(sides) == 2:
        hold_together(question, recipe_result, *sides)
    lengths = [collapse.lengths(side) for side in recipe_result.sides if isinstance(side, Collapse)]
    return {
        "view": question.view,
        "words": question.of_view.words,
        "kind": " against ".join(dict.fromkeys(_kind(side) for side in recipe_result.sides)),
        "names": _names(question),
        "tokens": sides[0],
        "second": sides[1] if len(sides) == 2 else None,
        "heads": _heads(question, recipe_result) if draws else None,
        "lengths": lengths or None,
        "notes": _notes(question, recipe_result, sides) if draws else [],
        "charts": [_chart(question, name, result) for name, result in recipe_result.results.items()] if draws else [],
        "code": code(question, recipe_result),
        "command": commands(question, recipe_result),
    }


def _names(question: Question) -> list[str]:
    """How the page calls two sides; none where there is one."""
    second = {"prompt": "the second prompt", "mitigation": f"under {question.other}", "model": "the second model"}
    return ["First: the prompt", f"Second: {second[question.beside]}"] if question.beside else []


def _kind(result: Result) -> str:
    """What kind of statement its numbers are, in the words of every legend."""
    if isinstance(result, Sensitivity):
        return KINDS[METHOD_KINDS[str(result.frame["method"].iloc[0])]]
    if isinstance(result, Attention):
        return "attention weights"
    return KINDS["measured"]


def _tokens(question: Question, result: Result) -> list[dict[str, Any]]:
    """One entry a token: position, token (as charts write it), value (what colours it, or None), numbers (name, value, lower
    and upper limit)."""
    rows = of_tokens(question, result)
    if isinstance(result, Sensitivity):
        return [_entry(row, row["frobenius_norm"], _norms(row)) for _, row in rows.iterrows()]
    if isinstance(result, Attribution):
        name = f"part of the logit of {display_token(str(result.provenance.parameters['token']))}"
        return [_single_entry(row, name, row["contribution"]) for _, row in rows.iterrows()]
    return _weights(question, result, rows) if isinstance(result, Attention) else []


def _entry(row: Any, value: Any, numbers: list[dict[str, Any]]) -> dict[str, Any]:
    token = display_token(str(row["token"]))
    plain_value = plain(value)
    return {"position": int(row["position"]), "token": token, "value": plain_value, "numbers": numbers}


def _single_entry(row: Any, name: str, value: Any) -> dict[str, Any]:
    return _entry(row, value, [number(name, value)])


def _norms(row: Any) -> list[dict[str, Any]]:
    """The norms that are known, with their limits; of a sketch's operator norm its limits alone are."""
    return [
        number(name, *(row[column] for column in columns))
        for name, columns in _NORMS.items()
        if pd.notna(row[columns[0]])
    ]


def _weights(question: Question, result: Attention, rows: Frame) -> list[dict[str, Any]]:
    """The last token's weights in the layer and head that are looked at, or their mean over all."""
    weights = looked_at(question, result.last)
    return [
        _single_entry(row, where(question), weight) for (_, row), weight in zip(rows.iterrows(), weights, strict=True)
    ]


def _heads(question: Question, recipe_result: RecipeResult) -> dict[str, Any] | None:
    """The weight of one token in every head, layer by layer: the grid that a click opens."""
    side = recipe_result.sides[0]
    if not isinstance(side, Attention):
        return None
    place = min(question.token, len(side.tokens) - 1)
    return {"token": place, "word": display_token(side.tokens[place]), "weights": side.last[..., place].tolist()}


def _notes(question: Question, recipe_result: RecipeResult, sides: list[list[dict[str, Any]]]) -> list[str]:
    """What the page has to say before the charts' own notes."""
    notes = []
    if recipe_result.inactive:
        notes.append(f"The mitigation is inactive, so the prompt is shown alone. {recipe_result.inactive}.")
    if question.beside and sides[0]:
        notes += of_partners(question, sides)
    if len(recipe_result.results) > 1:
        notes.append("Each of the two charts has its own scale.")
    if question.beside == "mitigation" and unchanged(recipe_result):
        notes.append("The mitigation is inactive here: it changes neither the text nor any number of the result.")
    return notes


def _chart(question: Question, name: str, result: Result) -> dict[str, Any]:
    """The chart with its title and notes, None with the reason where there is none; `side`: which one it is of, where two
    stand beside each other."""
    words, side = question.of_view.words, SIDES.index(name) if name in SIDES else None
    findings = collapse.findings(result) if isinstance(result, Collapse) else []
    try:
        figure = Figure("chart", result.plot(), words, words)
        return {"side": side, "chart": str(figure.data), "title": figure.title, "notes": [*findings, *figure.notes]}
    except InputError as error:
        return {"side": side, "chart": None, "title": words, "notes": [*findings, f"There is no chart: {error}"]}
