"""docs/fidelity.md: its quotations stand in the paper, its names in the code, its tests in the suite; nothing is left out."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import hooks
import mitigations
import ostools
from ostools.experiments.reproduce.claims import CLAIMS as JUDGED
from tests.checkpoints import paper_text
from tests.cli.asking import COMMANDS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "fidelity.md"
VERDICTS = ("same", "deviates", "silent", "two readings", "prose")
# Every numbered thing of the paper: what its text announces at the start of a line, or calls by this name.
NUMBERED = r"(?:Lemma|Theorem|Proposition|Corollary|Figure) (?:[BC]?\.?\d+(?:\.\d+)?)"

HEADS = r"^(?:((?:Lemma|Theorem|Proposition) B?\.?\d+(?:\.\d+)?)[. (]|(\d|[ABC](?:\.\d)?) [A-Z])"


class Row(NamedTuple):
    """One line of a table."""

    paper: str
    here: str
    verdict: str
    test: str


def rows() -> list[Row]:
    """Every row of every table of the page, without the headers."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip()[1:-1].split("|")] for line in lines]
    return [Row(*row) for row in cells if row[0] != "paper"]


def plain(text: str) -> str:
    """Words without the marks of the transcription: emphasis, footnotes' and hyphens' accidents, line ends, curly quotes."""
    text = re.sub(r"\$([^$]*)\$", " ", text)
    text = text.replace("*", "").replace("“", '"').replace("”", '"').replace("’", "'")
    return re.sub(r"\s+", " ", text)


@cache
def plain_paper() -> str:
    return plain(paper_text())


def test_every_row_is_whole() -> None:
    for row in rows():
        verdict = next((name for name in VERDICTS if re.match(rf"{name}\b", row.verdict)), None)
        assert verdict is not None, row
        assert (verdict == "prose") == (not row.test), row
        assert (verdict == "prose") == (not row.here), row
        if verdict in ("deviates", "silent", "two readings"):
            assert len(row.verdict) > len(verdict) + 10, f"no reason: {row}"


@pytest.mark.parametrize("row", rows(), ids=lambda row: re.sub(r"\W+", "-", row.paper)[:60])
def test_quotations_stand_in_the_paper(row: Row) -> None:
    text = plain_paper()
    quoted = [plain(words).strip() for words in re.findall("“(.*?)”(?!\\w)", row.paper + " " + row.verdict)]
    assert [words for words in quoted if words not in text] == []


def test_nothing_numbered_is_left_out() -> None:
    announced = set(re.findall(NUMBERED, paper_text()))
    page = " ".join(row.paper for row in rows())
    assert sorted(name for name in announced if not re.search(re.escape(name) + r"(?![\d])", page)) == []


def test_no_numbered_equation_is_left_out() -> None:
    displayed = re.findall(r"\$\$(?:(?!\$\$).)*\$\$\s*\((\d+)\)", paper_text(), re.DOTALL)
    page = " ".join(row.paper for row in rows())
    assert displayed == ["1", "2", "3", "4"]
    assert [number for number in displayed if not re.search(rf"[Ee]quation {number}\b", page)] == []


def test_every_display_is_counted_by_the_statement_it_stands_in() -> None:
    """Numbered or not: a display more in the paper's text, or a row less here, is seen."""
    text = paper_text()
    heads = [(found.start(), found.group(1) or f"Section {found.group(2)}") for found in re.finditer(HEADS, text, re.M)]
    there: dict[str, int] = {}
    for display in re.finditer(r"\$\$.*?\$\$", text, re.DOTALL):
        head = [name for place, name in heads if place < display.start()][-1]
        there[head] = there.get(head, 0) + 1
    told = [re.match(r"(.+?), displays (\d+):", row.paper) for row in rows()]
    assert {found[1]: int(found[2]) for found in told if found} == there


def test_every_judged_claim_has_its_row() -> None:
    """And says so where it holds by construction."""
    judged = {found[1]: row for row in rows() if (found := re.search(r"\(`([\w.-]+)`\)$", row.verdict))}
    assert set(judged) == {claim.id for claim in JUDGED}
    for claim in JUDGED:
        row = judged[claim.id]
        assert claim.words in row.paper
        assert claim.place in row.paper
        assert bool(claim.construction) == ("by construction" in row.verdict), claim.id


@cache
def functions_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_every_test_is_there() -> None:
    for row in rows():
        for path, name in re.findall(r"`([\w/]+\.py)::(\w+)`", row.test):
            assert name in functions_of(ROOT / "tests" / path), row
        assert not row.test or "::" in row.test, row


def test_every_name_is_there() -> None:
    for row in rows():
        for name in re.findall(r"`([\w.]+)(?:\([^`]*\))?`", row.here):
            if "." in name:
                assert resolved(name), row
        for command in re.findall(r"`ostools ([\w-]+(?: [a-z][\w-]*)*)", row.here):
            assert command.removesuffix(" N") in COMMANDS or command.split()[0] in COMMANDS, row


def resolved(name: str) -> bool:
    """Whether a dotted name leads to something: `ost` is the package; a class of results is one of its names."""
    first, *rest = name.split(".")
    if first == "examples":
        return (ROOT / name.replace(".", "/", 1)).exists()
    known = {"ost": ostools, "ostools": ostools, "hooks": hooks, "mitigations": mitigations, "tasks": ostools.tasks}
    found = known.get(first, getattr(ostools, first, None))
    for part in rest:
        found = getattr(found, part, None)
    return found is not None


CLAIMS = r"\b(?:word for word(?! in)|as printed|the paper says(?! of)|letter by letter)\b"
AROUND = 3  # lines in which the row is named


def sources() -> list[Path]:
    """What people read: pages, docstrings, tutorials."""
    found = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "tutorials").glob("*.py")]
    return found + [path for room in ("ostools", "hooks", "mitigations") for path in (ROOT / room).rglob("*.py")]


def test_who_claims_to_be_literal_names_this_page() -> None:
    bare = []
    for path in sources():
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            near = "\n".join(lines[max(0, number - AROUND) : number + AROUND + 1])
            if path != PAGE and re.search(CLAIMS, line, re.IGNORECASE) and "fidelity" not in near:
                bare.append(f"{path.relative_to(ROOT)}:{number + 1}: {line.strip()}")
    assert bare == []
