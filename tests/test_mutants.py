"""`make mutants`: places that are left alone, tests that reach a file, outcomes of a trial."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripts import mutant_bench, mutants


def test_the_table_of_survivors_is_of_lines_that_stand_in_the_files() -> None:
    for (path, was, _), why in mutants.triaged().items():
        assert why.startswith(("equivalent: ", "law: ")), (path, was)
        lines = [line.strip() for line in (mutants.ROOT / path).read_text("utf-8").splitlines()]
        assert was in lines or why.startswith("law: "), (path, was)


@dataclass(frozen=True)
class Replaced:
    was: str
    became: str
    path: str = "thing/of.py"

    def planted(self, text: str) -> str:
        assert self.was in text
        return text.replace(self.was, self.became)


@pytest.fixture
def tried(tmp_path: Path) -> mutant_bench.Bench:
    """A tree with a function that is tested, one that a fixture calls, one that nobody calls, and a
    table.
    """
    tree = tmp_path / "tree"
    (tree / "thing").mkdir(parents=True)
    (tree / "tests").mkdir()
    (tree / "thing" / "__init__.py").touch()
    (tree / "thing" / "of.py").write_text(
        "TABLE = (3,)\ndef half(x): return x / 2\ndef made(): return 7\ndef lonely(x): return x\n"
    )
    (tree / "tests" / "test_of.py").write_text(
        "import pytest\nfrom thing.of import TABLE, half, made\n"
        "def test_half(): assert half(4) == 2 and TABLE == (3,)\n"
        "@pytest.fixture(scope='module')\ndef once(): return made()\n"
        "def test_first(once): assert once > 0\n"
        "def test_second(once): assert once == 7\n"
    )
    return mutant_bench.Bench(tree, tmp_path / "called.jsonl")


@pytest.mark.slow
def test_what_a_trial_finds(tried: mutant_bench.Bench) -> None:
    """The second test of a fixture is asked too; what shows at import, or is called by nobody, is
    left.
    """
    assert "thing" not in sys.modules
    caught, fixture = Replaced("x / 2", "x * 2"), Replaced("return 7", "return 8")
    unseen = Replaced("x / 2", "x // 2")
    asked: Sequence[Replaced] = [
        caught,
        fixture,
        unseen,
        Replaced("(3,)", "(4,)"),
        Replaced("return x\n", "return -x\n"),
    ]
    text = (tried.tree / "thing" / "of.py").read_text()
    record = tried.tree.parent / "outcomes"

    def tell(mutant: Replaced, outcome: str) -> None:
        with record.open("a") as file:
            file.write(f"{mutant.was} -> {mutant.became}: {outcome}\n")

    tried.collected(["tests"], asked, tell)
    assert record.read_text().splitlines() == [
        "x / 2 -> x * 2: caught",
        "return 7 -> return 8: caught",
        "x / 2 -> x // 2: survived",
    ]
    assert tried.alone(asked[3], ["tests/test_of.py"]) == mutant_bench.CAUGHT
    assert tried.alone(asked[4], ["tests/test_of.py"]) == mutant_bench.SURVIVED
    assert (tried.tree / "thing" / "of.py").read_text() == text
