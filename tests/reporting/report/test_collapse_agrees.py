"""Every sentence on a pair says the same of it: headline, strip, findings, sections, tables,
charts, and the command's lines.

One place decides (`measure.collapse.verdicts`). Here its verdict is read again out of each text.
"""

import re
from collections.abc import Callable

import pytest

from ostools.measure import Collapse
from ostools.measure.collapse.verdicts import (
    IN_A_RANGE,
    OVERFLOWS,
    TO_THE_END,
    TOLD_APART,
    UNDECIDED,
)
from ostools.reporting.charts.collapse import collapse_chart
from ostools.reporting.findings.collapse import collapse_findings, pair_verdict, verdicts_at_y
from ostools.reporting.report.rendering import first_screen
from ostools.reporting.sections.collapse import COLLAPSE
from ostools.reporting.sections.records import Measurements
from tests.reporting.made import made_collapse, words_of
from tests.sets import quick

SHAPES: dict[str, tuple[str, Callable[[int], bool]]] = {
    "hidden at the end": (TO_THE_END, lambda n: n >= 60),
    "hidden in the middle": (IN_A_RANGE, lambda n: 40 <= n <= 90),
    "hidden twice": (TO_THE_END, lambda n: 30 <= n <= 50 or n >= 80),
    "always": (TO_THE_END, lambda n: True),
    "never": (TOLD_APART, lambda n: False),
    "single lengths": (TOLD_APART, lambda n: n % 5 == 0),
    "the last few": (UNDECIDED, lambda n: n > 124),
}
STRIP = {
    TO_THE_END: "found",
    IN_A_RANGE: "found",
    UNDECIDED: "not decided",
    TOLD_APART: "not found",
    OVERFLOWS: "not tested",
}


def shaped(name: str, overflow: tuple[str, ...] = ()) -> Collapse:
    _, hidden = SHAPES[name]
    return made_collapse(
        lambda n: 0.1 if hidden(n) else 3.0, noise={"bfloat16": 0.5}, overflow=overflow
    )


def spans_in(text: str) -> set[tuple[int, int]]:
    """Every range that a text tells of: "60 on, up to 128", "40 to 90", "from n = 40 to 90",
    "1, the shortest tried, on, up to 128".
    """
    text = text.replace("n = ", "").replace(", the shortest tried,", "")
    found = re.findall(r"(\d+) on, up to (\d+)|(?<!n)(?:from |; |, |^|>|\| )(\d+) to (\d+)", text)
    return {(int(a or c), int(b or d)) for a, b, c, d in found}


def told(result: Collapse) -> dict[str, str]:
    """Every text on the pair at y, by where it stands."""
    section = COLLAPSE.section(Measurements(result.provenance, "", {"collapse": [result]}))
    assert section is not None
    rows = section.parts[0].tables[0].rows
    return {
        "headline": pair_verdict([result]),
        "findings": " ".join(result.findings()),
        "table": " | ".join(cell for row in rows for cell in row),
    }


@pytest.mark.parametrize(
    ("name", "overflow"),
    quick(
        [(name, overflow) for name in SHAPES for overflow in ((), ("float16",))],
        ("hidden twice", ()),
        ("never", ("float16",)),
    ),
)
def test_every_sentence_says_what_the_verdict_says(name: str, overflow: tuple[str, ...]) -> None:
    result, (kind, _) = shaped(name, overflow), SHAPES[name]
    verdict = verdicts_at_y(result)["bfloat16"]
    spans = {(span.first, span.last) for span in verdict.ranges}
    assert (verdict.kind, bool(spans)) == (kind, kind in (TO_THE_END, IN_A_RANGE))
    measured = Measurements(result.provenance, "", {"collapse": [result]})
    assert first_screen(measured, {}).strip[0].state == STRIP[kind]
    for place, text in told(result).items():
        assert spans_in(text) == spans, place
        assert ("not decided" in text) == (kind == UNDECIDED), place
        assert not (
            spans and re.search(r"not hidden|no range|do not collapse|not collapse", text)
        ), place
        in_table = place == "table"
        words = (
            "float16 | not finite" if in_table else "float16 overflows on this model: not measured"
        )
        assert (words in text) == bool(overflow), place
    drawn = words_of(collapse_chart(result))
    assert ("float16 overflows on this model: not measured" in drawn) == bool(overflow)
    for first, last in spans:
        assert f"hidden from n = {first}" + ("" if last == 128 else f" to {last}") in drawn
    assert ("hidden from n" in drawn) == bool(spans)
    assert ("float16 overflows" in drawn) == bool(overflow)


def test_where_nothing_was_measured_nothing_is_claimed() -> None:
    result = made_collapse(lambda n: 1.0, overflow=["float16"], noise={})
    untested = "Whether a precision hides the pair was not tested. float16 overflows on this model: not measured."
    assert pair_verdict([result]) == untested
    measured = Measurements(result.provenance, "", {"collapse": [result]})
    assert first_screen(measured, {}).strip[0].state == STRIP[OVERFLOWS]
    assert not any(map(spans_in, collapse_findings(result)))
