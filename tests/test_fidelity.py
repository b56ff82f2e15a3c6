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
from tests.checkpoints import paper_text
from tests.cli.asking import COMMANDS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "fidelity.md"
VERDICTS = ("same", "deviates", "silent", "two readings", "prose")
# Every numbered thing of the paper: what its text announces at the start of a line, or calls by this name.
NUMBERED = r"(?:Lemma|Theorem|Proposition|Corollary|Figure) (?:[BC]?\.?\d+(?:\.\d+)?)"


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
    text = plain(paper_text())
    quoted = [plain(words).strip() for words in re.findall("“(.*?)”(?!\\w)", row.paper + " " + row.verdict)]
    assert [words for words in quoted if words not in text] == []


def test_nothing_numbered_is_left_out() -> None:
    announced = set(re.findall(NUMBERED, paper_text()))
    page = " ".join(row.paper for row in rows())
    assert sorted(name for name in announced if not re.search(re.escape(name) + r"(?![\d])", page)) == []


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
        for command in re.findall(r"`ostools ([\w-]+)", row.here):
            assert command in COMMANDS, row


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
