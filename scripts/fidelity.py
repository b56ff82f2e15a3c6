"""The rows of docs/fidelity.md, for its tests and for `scripts.contradictions`. Nothing of the
package is imported here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[1] / "docs" / "fidelity.md"
VERDICTS = ("deviates", "two-readings", "silent", "same")
"""Anchors of the sections whose rows say what runs here."""
CLAIM_TEST = "paper/test_reproduce.py::test_a_planted_result_is_judged_as_the_rule_says"
LEMMA_TEST = "paper/test_reproduce.py::test_every_lemma_is_judged_by_its_own_checks"


class Row(NamedTuple):
    """One line of a table: its anchor, its section, and its cells. A claim's `why` is "yes" where
    it holds by construction.
    """

    id: str
    section: str
    paper: str
    here: str
    why: str
    test: str

    @property
    def tests(self) -> list[str]:
        """The tests that the row names, from the tests' folder on."""
        return re.findall(r"`([\w/]+\.py::\w+)`", self.test)


def cells(section: str) -> list[list[str]]:
    """The rows of the table in a section of the page, without its header."""
    text = PAGE.read_text(encoding="utf-8").partition(f"{{ #{section} }}")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip()[1:-1].split("|")] for line in lines[1:]]


def rows() -> list[Row]:
    """Every row of the page that names tests: statements by verdict, then the claims about models."""
    found = []
    for section in VERDICTS:
        for first, *others in cells(section):
            anchor, _, paper = first.partition("</a>")
            found.append(
                Row(anchor.removeprefix('<a id="').removesuffix('">'), section, paper, *others)
            )
    for first, paper, constructed in cells("claims"):
        anchor, name = re.findall(r'<a id="([\w.-]+)"></a>`([\w.-]+)`', first)[0]
        assert anchor == f"claim-{name.lower()}"
        test = LEMMA_TEST if name.startswith("lemma-") else CLAIM_TEST
        found.append(
            Row(anchor, "claims", paper, "`ost.paper.reproduce`", constructed, f"`{test}`")
        )
    return found
