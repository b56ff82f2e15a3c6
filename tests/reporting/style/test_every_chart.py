"""One look: what must hold of the chart of every result, read from its specification."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from ostools.reporting.findings import MOST
from ostools.reporting.style import theme
from tests.reporting import every
from tests.reporting.every import EVERY
from tests.sets import quick

COLOUR = re.compile(r"#[0-9a-fA-F]{6}")
KNOWN = {
    *theme.COLOURS.values(),
    *theme._SPARE,
    *theme._ORDERED,
    theme.INK,
    theme.LIGHT_GROUND,
    "#000000",
    "#f2f2f2",
}
"""The theme's, black on cells, and the middle of a scale with two ends."""

DEAR = {
    "Decodability", "FailureStage", "Figure3", "Figure4", "Figure5", "Study",
    "PositionEffect",
}  # fmt: skip
"""Measured or drawn in seconds."""


def spec(name: str) -> dict[str, Any]:
    return {
        key: part for key, part in every.spec(name).items() if key not in ("config", "datasets")
    }


def nodes(node: Any) -> Iterator[dict[str, Any]]:
    """Every object of a specification but its rows."""
    if isinstance(node, dict):
        yield node
        node = [part for key, part in node.items() if key != "values"]
    if isinstance(node, list):
        for part in node:
            yield from nodes(part)


def encoded(node: dict[str, Any], *channels: str) -> list[dict[str, Any]]:
    encodings = [part["encoding"] for part in nodes(node) if "encoding" in part]
    return [
        encoding[channel] for encoding in encodings for channel in channels if channel in encoding
    ]


def every_colour_is_the_themes(name: str) -> None:
    for node in nodes(spec(name)):
        for value in node.values():
            words = value if isinstance(value, list) else [value]
            colours = {word for word in words if isinstance(word, str) and COLOUR.fullmatch(word)}
            assert colours <= KNOWN


def no_two_names_of_a_legend_look_alike(name: str) -> None:
    """By colour alone, or with the dash or the shape that the same names have."""
    for panel in panels(spec(name)):
        looks: dict[str, dict[str, dict[str, Any]]] = {}
        for channel in ("color", "strokeDash", "shape"):
            for encoding in encoded(panel, channel):
                scale = encoding.get("scale") or {}
                if (
                    isinstance(scale.get("range"), list)
                    and "domain" in scale
                    and encoding.get("type") == "nominal"
                ):
                    for word, look in zip(scale["domain"], scale["range"], strict=True):
                        looks.setdefault(encoding["field"], {}).setdefault(word, {})[channel] = look
        for field, by_word in looks.items():
            assert len({str(sorted(look.items())) for look in by_word.values()}) == len(by_word), (
                field,
                by_word,
            )


def panels(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The single views and layers of a concatenation."""
    parts = node.get("vconcat") or node.get("hconcat") or node.get("concat")
    if parts is None:
        yield node
    else:
        for part in parts:
            yield from panels(part)


def ticks_of_a_log_axis_are_round_and_chosen(name: str) -> None:
    for axis in encoded(spec(name), "x", "y"):
        if (
            (axis.get("scale") or {}).get("type") == "log"
            and "axis" in axis
            and axis["axis"] is not None
        ):
            values = axis["axis"]["values"]
            assert values == sorted(values)
            assert all(
                value == int(value) or float(f"{value:e}".partition("e")[0]) in (1, 1.5, 2, 3, 5, 7)
                for value in values
            )


def every_chart_has_a_title_and_the_themes_config(name: str) -> None:
    whole = every.spec(name)
    assert whole["title"]["text"] if isinstance(whole["title"], dict) else whole["title"]
    assert whole["config"]["axis"] == theme.config()["axis"]


@pytest.mark.parametrize("name", quick(EVERY, *EVERY.keys() - DEAR))
def test_the_chart_and_the_sentences_of_every_result(name: str) -> None:
    """One test a result: whichever worker runs it, measuring and drawing are done once."""
    sentences = EVERY[name]().findings()
    assert 1 <= len(sentences) <= MOST
    assert all(sentence == sentence.strip() and len(sentence) > 10 for sentence in sentences)
    every_colour_is_the_themes(name)
    no_two_names_of_a_legend_look_alike(name)
    ticks_of_a_log_axis_are_round_and_chosen(name)
    every_chart_has_a_title_and_the_themes_config(name)
