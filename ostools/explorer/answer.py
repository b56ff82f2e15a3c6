"""What the page shows of a result: a number a token with its kind, the chart of reporting/, and how to have it again."""

from __future__ import annotations

import math
from typing import Any

from ostools.explorer import collapse
from ostools.explorer.question import Question
from ostools.explorer.recipe import Found, code, command
from ostools.ground.errors import InputError
from ostools.measure import (
    Attention,
    AttentionDifference,
    Change,
    Collapse,
    Contributions,
    Flow,
    Looseness,
    PathSum,
    Sensitivity,
)
from ostools.reporting.look.theme import KINDS, METHODS, display_token
from ostools.reporting.page.page import Figure
from ostools.results import Frame, Result

_NORMS = {
    "operator norm": ("operator_norm", "operator_lower", "operator_upper"),
    "Frobenius norm": ("frobenius_norm", "frobenius_lower", "frobenius_upper"),
}


def answer(question: Question, found: Found, draws: bool = True) -> dict[str, Any]:
    """Plain values, as the page takes them: kind, tokens, those of a second side, chart (None, with the reason, where there is
    none), what the view has beside these (heads, lengths), code, command.

    `draws`: with the chart, which takes longer than a prediction itself.
    """
    words, result = question.of_view.words, found.result
    sides = [_tokens(question, side) for side in found.sides]
    if len(sides) == 2:
        _hold_together(question, result, *sides)
    drawn = _chart(words, result) if draws else {"chart": None, "title": "", "notes": []}
    drawn["notes"] = [*_said(question, found, sides), *drawn["notes"]]
    return {
        "view": question.view,
        "words": words,
        "kind": " against ".join(dict.fromkeys(_kind(side) for side in found.sides)),
        "tokens": sides[0],
        "second": sides[1] if len(sides) == 2 else None,
        "heads": _heads(question, found),
        "lengths": collapse.lengths(result) if isinstance(result, Collapse) else None,
        **drawn,
        "code": code(question, found),
        "command": command(question, found),
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


def _tokens(question: Question, result: Result) -> list[dict[str, Any]]:
    """One entry a token: position, token (as charts write it), value (what colours it, or None), numbers (name, value, lower
    and upper limit)."""
    if isinstance(result, Looseness):
        groups = result.frame.groupby("position", sort=True)
        return [_entry(rows.iloc[0], None, _parts(rows)) for _, rows in groups]
    if isinstance(result, Sensitivity):
        return [_entry(row, row["frobenius_norm"], _norms(row)) for _, row in result.frame.iterrows()]
    if isinstance(result, PathSum):
        name = "{norm} norm, {linearisation}"
        return [_named(row, name.format(**row).capitalize(), row["value"]) for _, row in result.frame.iterrows()]
    if isinstance(result, Contributions):
        name = f"part of the logit of {display_token(str(result.provenance.parameters['token']))}"
        return [_named(row, name, row["contribution"]) for _, row in result.of_tokens.iterrows()]
    if isinstance(result, Flow):
        nodes: Frame = result.nodes
        name = f"Frobenius norm at layer {question.layer}, frozen"
        rows = nodes[nodes["layer"] == question.layer]
        return [_named(row, name, row["frobenius_norm"]) for _, row in rows.iterrows()]
    return _weights(question, result) if isinstance(result, Attention) else []


def _entry(row: Any, value: Any, numbers: list[dict[str, Any]]) -> dict[str, Any]:
    token = display_token(str(row["token"]))
    shown = None if value is None else _plain(value)
    return {"position": int(row["position"]), "token": token, "value": shown, "numbers": numbers}


def _named(row: Any, name: str, value: Any) -> dict[str, Any]:
    return _entry(row, value, [_number(name, value)])


def _norms(row: Any) -> list[dict[str, Any]]:
    return [_number(name, *(row[column] for column in columns)) for name, columns in _NORMS.items()]


def _parts(rows: Frame) -> list[dict[str, Any]]:
    names = zip(rows["part"], rows["larger"], rows["smaller"], rows["log10"], strict=True)
    return [_number(f"{part} ({larger} / {smaller}), decades", value) for part, larger, smaller, value in names]


def _number(name: str, value: Any, low: Any = None, high: Any = None) -> dict[str, Any]:
    """An exact number has its limits equal to itself, and is shown without them."""
    is_interval = low is not None and not low == value == high
    return {"name": name, "value": _plain(value), "interval": [_plain(low), _plain(high)] if is_interval else None}


def _plain(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _weights(question: Question, result: Attention) -> list[dict[str, Any]]:
    """The last token's weights in the layer and head that are looked at, or their mean over all."""
    chosen = _looked_at(question, result.last)
    rows: Frame = result.frame.iloc[: len(result.tokens)]
    return [_named(row, _where(question), weight) for (_, row), weight in zip(rows.iterrows(), chosen, strict=True)]


def _where(question: Question) -> str:
    layer = "all layers" if question.layer < 0 else f"layer {question.layer}"
    head = "all heads" if question.head < 0 else f"head {question.head}"
    return f"weight, {'mean over ' if 'all' in layer + head else ''}{layer}, {head}"


def _looked_at(question: Question, last: Any) -> list[float]:
    """Of [layer, head, token] the chosen ones, and the mean over what is not chosen."""
    every = slice(None)
    chosen = [every if place < 0 else place for place in (question.layer, question.head)]
    found = last[chosen[0], chosen[1]]
    over = tuple(range(found.ndim - 1))
    return (found.mean(over) if over else found).tolist()


def _heads(question: Question, found: Found) -> dict[str, Any] | None:
    """The weight of one token in every head, layer by layer: the grid that a click opens."""
    side = found.sides[0]
    if not isinstance(side, Attention):
        return None
    place = min(question.token, len(side.tokens) - 1)
    return {"token": place, "word": display_token(side.tokens[place]), "weights": side.last[..., place].tolist()}


def _hold_together(
    question: Question, result: Result, first: list[dict[str, Any]], second: list[dict[str, Any]]
) -> None:
    """Gives the tokens that correspond each other's position, and what the result says of the two."""
    partners = _of_change(result) if isinstance(result, Change) else _of_difference(question, result)
    for place, (other, numbers) in partners.items():
        for entry, partner in ((first[place], other), (second[other], place)):
            entry["partner"], entry["against"] = partner, numbers
    for entry in (*first, *second):
        entry.setdefault("partner", None)
        entry.setdefault("against", [])


def _of_change(result: Change) -> dict[int, tuple[int, list[dict[str, Any]]]]:
    """By position of the first: that of the second, and the ratios."""
    frame: Frame = result.frame
    paired = frame[frame["second_position"].notna()]
    found: dict[int, tuple[int, list[dict[str, Any]]]] = {}
    for position, rows in paired.groupby("position"):
        numbers = [
            _number(f"{str(row['norm']).capitalize()} norm, second / first", row["ratio"], row["lower"], row["upper"])
            for _, row in rows.iterrows()
        ]
        found[int(str(position))] = (int(rows["second_position"].iloc[0]), numbers)
    return found


def _of_difference(question: Question, result: Result) -> dict[int, tuple[int, list[dict[str, Any]]]]:
    """By position of the first: that of the second, and the difference of the weights that are looked at."""
    if not isinstance(result, AttentionDifference):
        raise TypeError(f"two sides were compared to a {type(result).__name__}")
    one, other = (_looked_at(question, side.last) for side in (result.first, result.second))
    name = f"{_where(question)}: second less first"
    return {a: (b, [_number(name, other[b] - one[a])]) for a, b in result.pairs}


def _said(question: Question, found: Found, sides: list[list[dict[str, Any]]]) -> list[str]:
    """What the page has to say before the chart's own notes."""
    said = []
    if question.beside:
        alone = [sum(entry["partner"] is None for entry in side) for side in sides]
        said.append(
            f"{len(sides[0]) - alone[0]} tokens correspond: those with which both begin, and those with which both end. "
            f"Without a partner are {alone[0]} of the first and {alone[1]} of the second; these have no difference."
        )
    if found.inactive:
        said.append("The mitigation is inactive here: it changes neither the text nor a logit of it.")
    if isinstance(found.result, Collapse):
        said += collapse.said(found.result)
    return said


def _chart(words: str, result: Result) -> dict[str, Any]:
    try:
        figure = Figure("chart", result.plot(), words, words)
        return {"chart": str(figure.data), "title": figure.title, "notes": figure.notes}
    except InputError as error:
        return {"chart": None, "title": words, "notes": [f"There is no chart: {error}"]}
