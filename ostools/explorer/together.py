"""Two sides of a question: which token of one is which of the other, and what is different there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ostools.explorer.question import Question
from ostools.explorer.recipe import RecipeResult
from ostools.measure import Attention, AttentionDifference, Attribution, Change, Collapse
from ostools.measure.prompts import partners
from ostools.results import Frame, Result

Partners = dict[int, tuple[int, list[dict[str, Any]]]]
"""By a position of the first side: the partner's position in the second, and the numbers that compare the two."""


def of_tokens(question: Question, result: Result) -> Frame:
    """One row a token of what is shown; empty where no token is."""
    if isinstance(result, Attribution):
        return result.of_tokens
    frame: Frame = result.frame
    if isinstance(result, Attention):
        return frame.iloc[: len(result.tokens)]
    return frame.iloc[:0] if isinstance(result, Collapse) else frame


def number(name: str, value: Any, low: Any = None, high: Any = None) -> dict[str, Any]:
    """An exact number has its limits equal to itself, and is shown without them."""
    is_interval = low is not None and not low == value == high
    return {"name": name, "value": plain(value), "interval": [plain(low), plain(high)] if is_interval else None}


def plain(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def where(question: Question) -> str:
    layer = "all layers" if question.layer < 0 else f"layer {question.layer}"
    head = "all heads" if question.head < 0 else f"head {question.head}"
    return f"weight, {'mean over ' if 'all' in layer + head else ''}{layer}, {head}"


def looked_at(question: Question, last: Any) -> list[float]:
    """Of [layer, head, token] the chosen ones, and the mean over what is not chosen."""
    every = slice(None)
    places = [every if place < 0 else place for place in (question.layer, question.head)]
    weights = last[places[0], places[1]]
    over = tuple(range(weights.ndim - 1))
    return (weights.mean(over) if over else weights).tolist()


def hold_together(
    question: Question, recipe_result: RecipeResult, first: list[dict[str, Any]], second: list[dict[str, Any]]
) -> None:
    """Gives the tokens that correspond each other's position, and what the result says of the two."""
    if isinstance(recipe_result.compared, Change):
        partner_by_place = _of_change(recipe_result.compared)
    elif isinstance(recipe_result.compared, AttentionDifference):
        partner_by_place = _of_difference(question, recipe_result.compared)
    else:
        partner_by_place = _number_differences(question, recipe_result.sides, first, second)
    for place, (second_place, numbers) in partner_by_place.items():
        for entry, partner in ((first[place], second_place), (second[second_place], place)):
            entry["partner"], entry["against"] = partner, numbers
    for entry in (*first, *second):
        entry.setdefault("partner", None)
        entry.setdefault("against", [])


def of_partners(question: Question, sides: Sequence[Sequence[dict[str, Any]]]) -> list[str]:
    """How many tokens correspond, and whether some of these have no difference for another reason."""
    alone = [sum(entry["partner"] is None for entry in side) for side in sides]
    words = [
        f"{len(sides[0]) - alone[0]} tokens correspond: those with which both begin, and those with which both end. "
        f"{alone[0]} tokens of the first and {alone[1]} of the second have no partner, and so no difference is shown for them."
    ]
    if question.view == "attribution" and not any(entry["against"] for entry in sides[0]):
        words.append(
            "The two sides are parts of the logits of two different tokens, so no difference is shown. To see one, choose one "
            "token under Towards the next token."
        )
    return words


def unchanged(recipe_result: RecipeResult) -> bool:
    """Whether the second side is the first again: of attention its status says so, of collapse its numbers."""
    if len(recipe_result.sides) < 2:
        return False
    first, second = recipe_result.sides
    if isinstance(second, Attention):
        return second.provenance.parameters["status"] == "inactive"
    return isinstance(second, Collapse) and first.frame.equals(second.frame)


def _number_differences(
    question: Question, sides: Sequence[Result], first: list[dict[str, Any]], second: list[dict[str, Any]]
) -> Partners:
    """Numbers of one name are of one quantity, and have a difference; of the logits of two tokens they are not."""
    tokens = [_identities(of_tokens(question, side)) for side in sides]
    return {a: (b, _against(first[a], second[b])) for a, b in partners(*tokens)}


def _identities(rows: Frame) -> list[tuple[int, str]]:
    """Every token by its id and its text: two tokenizers may have one id for two texts."""
    return list(zip(rows["token_id"].tolist(), rows["token"].tolist(), strict=True)) if len(rows) else []


def _against(first_token: dict[str, Any], second_token: dict[str, Any]) -> list[dict[str, Any]]:
    differences = []
    theirs = {entry["name"]: entry["value"] for entry in second_token["numbers"]}
    for entry in first_token["numbers"]:
        a, b = entry["value"], theirs.get(entry["name"])
        if a is None or b is None:
            continue
        differences.append(number(f"{entry['name']}: second minus first", b - a))
    return differences


def _of_change(result: Change) -> Partners:
    """By position of the first: that of the second, and the ratios."""
    frame: Frame = result.frame
    paired = frame[frame["second_position"].notna()]
    partner_by_position: Partners = {}
    for position, rows in paired.groupby("position"):
        numbers = [
            number(f"{str(row['norm']).capitalize()} norm, second / first", row["ratio"], row["lower"], row["upper"])
            for _, row in rows.iterrows()
        ]
        partner_by_position[int(str(position))] = (int(rows["second_position"].iloc[0]), numbers)
    return partner_by_position


def _of_difference(question: Question, result: Result) -> Partners:
    """By position of the first: that of the second, and the difference of the weights that are looked at."""
    if not isinstance(result, AttentionDifference):
        raise TypeError(f"two sides were compared to a {type(result).__name__}")
    first, second = (looked_at(question, side.last) for side in (result.first, result.second))
    name = f"{where(question)}: second minus first"
    return {a: (b, [number(name, second[b] - first[a])]) for a, b in result.pairs}
