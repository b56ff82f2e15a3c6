"""docs/fidelity.md: its quotations stand in the paper, its names in the code, its tests in the
suite; nothing is left out.
"""

import contextlib
import operator
import re
from collections import Counter
from functools import cache
from pathlib import Path

import ostools
from ostools.paper.reproduction.reproduce import CLAIMS as JUDGED
from scripts.fidelity import PAGE, cells, rows
from tests.checkpoints import paper_text
from tests.cli.asking import COMMANDS

ROOT = Path(__file__).parents[1]
# Every numbered thing of the paper: what its text announces at the start of a line, or calls by
# this name.
NUMBERED = r"(?:Lemma|Theorem|Proposition|Corollary|Figure) (?:[BC]?\.?\d+(?:\.\d+)?)"

HEADS = r"^(?:((?:Lemma|Theorem|Proposition) B?\.?\d+(?:\.\d+)?)[. (]|(\d|[ABC](?:\.\d)?) [A-Z])"


def plain(text: str) -> str:
    """Words without the marks of the transcription: emphasis, footnotes' and hyphens' accidents,
    line ends, curly quotes.
    """
    text = re.sub(r"\$([^$]*)\$", " ", text)
    text = text.replace("*", "").replace("“", '"').replace("”", '"').replace("’", "'")
    return re.sub(r"\s+", " ", text)


def test_every_row_is_whole_has_its_own_anchor_and_is_counted() -> None:
    for row in rows():
        assert all((row.paper, row.here, row.tests)), row
        assert re.fullmatch(r"[a-z0-9.-]+", row.id), row
        assert row.section not in ("deviates", "two-readings", "silent") or len(row.why) > 10, (
            f"no reason: {row}"
        )
    ids, reasons = (
        [row.id for row in rows()],
        [row.why for row in rows() if len(row.why) > len("yes")],
    )
    assert [
        twice for names in (ids, reasons) for twice, count in Counter(names).items() if count > 1
    ] == []
    text = PAGE.read_text(encoding="utf-8").partition("\n## ")[0]
    totals = {
        anchor: int(count)
        for anchor, count in re.findall(r"\(#([\w-]+)\).*\| (\d+) \|$", text, re.M)
    }
    assert totals == dict(Counter(row.section for row in rows()))


def test_quotations_stand_in_the_paper() -> None:
    text = plain(paper_text())
    for row in rows():
        quoted = [
            plain(words).strip()
            for words in re.findall("“(.*?)”(?!\\w)", row.paper + " " + row.why)
        ]
        assert [words for words in quoted if words not in text] == [], row.id


def test_nothing_numbered_is_left_out() -> None:
    page = " ".join(row.paper for row in rows())
    announced = set(re.findall(NUMBERED, paper_text()))
    assert [name for name in announced if not re.search(re.escape(name) + r"(?![\d])", page)] == []


def test_every_display_is_counted_by_the_statement_it_stands_in() -> None:
    """Numbered or not: a display more in the paper's text, or a row less here, is seen."""
    text = paper_text()
    heads = [
        (found.start(), found.group(1) or f"Section {found.group(2)}")
        for found in re.finditer(HEADS, text, re.M)
    ]
    there: dict[str, int] = {}
    for display in re.finditer(r"\$\$.*?\$\$", text, re.DOTALL):
        head = [name for place, name in heads if place < display.start()][-1]
        there[head] = there.get(head, 0) + 1
    told = [re.match(r"(.+?), displays (\d+)$", statement) for statement, _ in cells("displays")]
    assert {found[1]: int(found[2]) for found in told if found} == there


def test_every_judged_claim_has_its_row() -> None:
    """And says so where it holds by construction."""
    judged = {row.id: row for row in rows() if row.section == "claims"}
    assert list(judged) == [f"claim-{claim.id.lower()}" for claim in JUDGED]
    for claim in JUDGED:
        row = judged[f"claim-{claim.id.lower()}"]
        assert claim.words in row.paper
        assert claim.place in row.paper
        assert row.why == ("yes" if claim.construction else ""), claim.id


def test_every_test_and_every_name_is_there() -> None:
    text = cache(lambda path: (ROOT / "tests" / path).read_text(encoding="utf-8"))
    for row in rows():
        for path, name in (test.split("::") for test in row.tests):
            assert f"def {name}(" in text(path), row
        for name in re.findall(r"`([\w.]+)(?:\([^`]*\))?`", row.here):
            assert "." not in name or resolved(name), row
        for command in re.findall(r"`ostools ([\w-]+(?: [a-z][\w-]*)*)", row.here):
            assert command.removesuffix(" N") in COMMANDS or command.split()[0] in COMMANDS, row


def resolved(name: str) -> bool:
    """Whether a dotted name leads to something: `ost` is the package; a class of results is one of
    its names.
    """
    first, *rest = name.split(".")
    if first == "examples":
        return (ROOT / name.replace(".", "/", 1)).exists()
    package = {"ost": ostools, "ostools": ostools}.get(first, getattr(ostools, first, None))
    with contextlib.suppress(AttributeError):
        return operator.attrgetter(".".join(rest))(package) is not None
    return False
