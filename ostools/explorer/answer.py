"""What the page shows of a result: numbers of each token, charts, and how to have them again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from ostools.explorer.recipe import SIDES, RecipeResult, code
from ostools.explorer.views import ViewRequest
from ostools.ground.names import METHOD_KINDS
from ostools.measure import Attention, AttentionDifference, Attribution, Bounds, Change, Sensitivity
from ostools.measure.prompts import partners
from ostools.reporting.page.section import block
from ostools.reporting.style.theme import KINDS, display_token
from ostools.results import Frame, Result

_NORMS = {
    "operator norm": ("operator_norm", "operator_lower", "operator_upper"),
    "Frobenius norm": ("frobenius_norm", "frobenius_lower", "frobenius_upper"),
}
_SIDES = {"": "the prompt", "prompt": "the second prompt", "model": "the second model"}
TokenEntry = dict[str, Any]
"""A token on the page: position, token, value (its colour), numbers; of two sides partner, against.
"""


def answer(request: ViewRequest, recipe_result: RecipeResult, draws: bool = True) -> dict[str, Any]:
    """The page's values, as plain data.

    draws: with the charts, which take longer than a first look.
    """
    request = replace(request, beside="", second_text="") if recipe_result.inactive else request
    sides = [_tokens(request, side) for side in recipe_result.sides]
    if len(sides) == 2:
        _add_partners(recipe_result, *sides)
    return {
        "view": request.view,
        "words": request.of_view.words,
        "kind": " against ".join(dict.fromkeys(_kind(side) for side in recipe_result.sides)),
        "names": [
            f"First: {_SIDES['']}",
            f"Second: {_SIDES.get(request.beside, request.second_text)}",
        ]
        if request.beside
        else [],
        "tokens": sides[0],
        "second": sides[1] if len(sides) == 2 else None,
        "notes": _notes(request, recipe_result, sides) if draws else [],
        "charts": [_chart(request, *item) for item in recipe_result.results.items()]
        if draws
        else [],
        "code": code(request, recipe_result),
    }


def _kind(result: Result) -> str:
    """The kind of its numbers, in the words of every legend."""
    if isinstance(result, Sensitivity):
        return KINDS[METHOD_KINDS[str(result.frame["method"].iloc[0])]]
    if isinstance(result, Bounds):
        return ", ".join(KINDS[kind] for kind in result.frame["kind"].unique())
    return "attention weights" if isinstance(result, Attention) else KINDS["measured"]


# --- tokens


def _rows(result: Result) -> Frame:
    """A row for each token that the page colours; none of a result that is a chart alone."""
    if isinstance(result, Attribution):
        return result.of_tokens
    frame: Frame = result.frame
    if isinstance(result, Attention):
        return frame.iloc[: len(result.tokens)]
    return frame if isinstance(result, Sensitivity) else frame.iloc[:0]


def _tokens(request: ViewRequest, result: Result) -> list[TokenEntry]:
    rows = _rows(result)
    if isinstance(result, Sensitivity):
        return [_entry(row, row["frobenius_norm"], _norms(row)) for _, row in rows.iterrows()]
    if isinstance(result, Attribution):
        name = f"part of the logit of {display_token(str(result.provenance.parameters['token']))}"
        weights = rows["contribution"].tolist()
    elif isinstance(result, Attention):
        name, weights = _weight_name(request), _weights(request, result)
    else:
        return []
    pairs = zip(rows.iterrows(), weights, strict=True)
    return [_entry(row, weight, [_number(name, weight)]) for (_, row), weight in pairs]


def _entry(row: Any, value: Any, numbers: list[dict[str, Any]]) -> TokenEntry:
    token = display_token(str(row["token"]))
    return {
        "position": int(row["position"]),
        "token": token,
        "value": _plain(value),
        "numbers": numbers,
    }


def _norms(row: Any) -> list[dict[str, Any]]:
    """The known norms with their limits; of a sketch's operator norm the limits alone are known."""
    return [
        _number(name, *(row[column] for column in columns))
        for name, columns in _NORMS.items()
        if pd.notna(row[columns[0]])
    ]


def _number(name: str, value: Any, low: Any = None, high: Any = None) -> dict[str, Any]:
    """A number; an exact one has its limits equal to itself, and is shown without them."""
    is_interval = low is not None and not low == value == high
    return {
        "name": name,
        "value": _plain(value),
        "interval": [_plain(low), _plain(high)] if is_interval else None,
    }


def _plain(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _weight_name(request: ViewRequest) -> str:
    layer = "all layers" if request.layer < 0 else f"layer {request.layer}"
    head = "all heads" if request.head < 0 else f"head {request.head}"
    mean = "mean over " if min(request.layer, request.head) < 0 else ""
    return f"weight, {mean}{layer}, {head}"


def _weights(request: ViewRequest, result: Attention) -> list[float]:
    """The last token's weights in the chosen layer and head, or their mean over all."""
    places = [slice(None) if place < 0 else place for place in (request.layer, request.head)]
    weights: Any = result.last[places[0], places[1]]
    over = tuple(range(weights.ndim - 1))
    return (weights.mean(over) if over else weights).tolist()


# --- two sides


def _add_partners(
    recipe_result: RecipeResult, first: list[TokenEntry], second: list[TokenEntry]
) -> None:
    """Give corresponding tokens each other's position, and the numbers that compare the two."""
    for entry in (*first, *second):
        entry |= {"partner": None, "against": []}
    compared = recipe_result.compared
    if isinstance(compared, Change):
        pairs = _ratios(compared)
    else:
        # Every token by id and text: two tokenizers may have one id for two texts.
        tokens = [
            list(zip(rows["token_id"].tolist(), rows["token"].tolist(), strict=True))
            if entries
            else []
            for rows, entries in zip(map(_rows, recipe_result.sides), (first, second), strict=True)
        ]
        places = compared.pairs if isinstance(compared, AttentionDifference) else partners(*tokens)
        pairs = [(a, b, _differences(first[a], second[b])) for a, b in places]
    for place, second_place, numbers in pairs:
        first[place] |= {"partner": second_place, "against": numbers}
        second[second_place] |= {"partner": place, "against": numbers}


def _ratios(result: Change) -> list[tuple[int, int, list[dict[str, Any]]]]:
    frame: Frame = result.frame
    return [
        (
            int(str(position)),
            int(rows["second_position"].iloc[0]),
            [
                _number(
                    f"{row['norm'].capitalize()} norm, second / first",
                    row["ratio"],
                    row["lower"],
                    row["upper"],
                )
                for row in rows.to_dict("records")
            ],
        )
        for position, rows in frame[frame["second_position"].notna()].groupby("position")
    ]


def _differences(first_token: TokenEntry, second_token: TokenEntry) -> list[dict[str, Any]]:
    """Second minus first of numbers of one name; those of the logits of two tokens have two names."""
    second_values = {number["name"]: number["value"] for number in second_token["numbers"]}
    return [
        _number(f"{number['name']}: second minus first", second_value - number["value"])
        for number in first_token["numbers"]
        if (second_value := second_values.get(number["name"])) is not None
        and number["value"] is not None
    ]


# --- notes and charts


def _notes(
    request: ViewRequest, recipe_result: RecipeResult, sides: Sequence[Sequence[TokenEntry]]
) -> list[str]:
    """What the page says before the charts' notes."""
    notes = []
    if recipe_result.inactive:
        notes.append(
            f"The mitigation is inactive, so the prompt is shown alone. {recipe_result.inactive}."
        )
    if request.beside and sides[0]:
        alone = [sum(entry["partner"] is None for entry in side) for side in sides]
        notes.append(
            f"{len(sides[0]) - alone[0]} tokens correspond: those with which both begin, and those with which both end. "
            f"{alone[0]} of the first and {alone[1]} of the second have no partner, and so no difference."
        )
        if not any(entry["against"] for entry in sides[0]):
            notes.append(
                "The two sides are parts of the logits of two different tokens, so no difference is shown."
            )
    if request.beside == "mitigation" and recipe_result.sides[0].frame.equals(
        recipe_result.sides[1].frame
    ):
        notes.append(
            "The mitigation is inactive here: it changes neither the text nor any number of the result."
        )
    return notes


def _chart(request: ViewRequest, name: str, result: Result) -> dict[str, Any]:
    """The chart with its title and notes, or the reason why there is none; `side`: of two, which."""
    words, sentences = request.of_view.words, [] if len(_rows(result)) else result.findings()
    part = block(result, "chart", words, sentences, in_detail=False)
    figure = part.figure
    return {
        "side": SIDES.index(name) if name in SIDES else None,
        "chart": figure and str(figure.data),
        "title": figure.title if figure else words,
        "notes": [*sentences, *(figure.notes if figure else part.notes)],
    }
