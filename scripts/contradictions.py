"""Plant a contradiction to every row of docs/fidelity.md in a copy of the tree, and run the tests
of the row.

`python -m scripts.contradictions [ROW ...]` tries all rows, or these, and prints which were caught:
one test of the row has to fail. What is planted stands in `contradictions.toml`, by the row's
anchor; of a claim the judge says the opposite. A contradiction in a function is tried in a fork of
a pytest that has collected all these tests. Those in a constant or a default have a pytest of their
own, several together where their rows name no test in common. At the end, the tests that failed
pass where nothing is planted.
"""

from __future__ import annotations

import hashlib
import re
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scripts.fidelity import Row, rows
from scripts.mutant_bench import Bench, Collected, forked, preload
from scripts.mutants import copied_tree

PLANTED = Path(__file__).with_suffix(".toml")
_OPTIONS = (
    "-q",
    "-s",
    "-p",
    "no:cacheprovider",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
)
_SECONDS = 120.0
"""Of the processor, that the tests of a row may take."""
_JUDGE = "            verdict = self.judge(results)\n"
_OPPOSITE = (
    _JUDGE[:-1]
    + "; said = {AGREES: DISAGREES, DISAGREES: AGREES}.get(verdict.outcome, verdict.outcome)"
    + "; verdict = Verdict(said, verdict.sentence)\n"
)
"""In one line: the lines of what follows stay, so only this function differs and a fork can swap
it.
"""


@dataclass(frozen=True)
class Contradiction:
    """With `after` in the place of `before`, which stands once in the file `path`, the row `row` is
    false, as `says` says.
    """

    row: str
    says: str
    path: str
    before: str
    after: str

    def planted(self, text: str) -> str:
        """The file's text with the contradiction, however the formatter breaks the lines of `before`.

        Raises `ValueError` where `before` does not stand there once.
        """
        letters = (",?\\s*" * (c in ")]") + re.escape(c) for c in self.before if not c.isspace())
        before = re.compile(r"\s*".join(letters))
        if (count := len(before.findall(text))) != 1:
            raise ValueError(
                f"{self.row}: expected {self.before!r} once in {self.path}, found it {count} times"
            )
        return before.sub(lambda _: self.after.strip(), text)

    def note(self, folder: Path) -> Path:
        """The file for the tests that fail with it: one for all rows that it makes false."""
        text = f"{self.path}\0{self.before}\0{self.after}"
        return folder / hashlib.sha256(text.encode()).hexdigest()


def contradictions() -> list[Contradiction]:
    """All: those of `contradictions.toml`, one or more a row, and one for each claim."""
    tables = tomllib.loads(PLANTED.read_text("utf-8"))
    claim, says = "ostools/paper/claims/claim.py", "its judge says the opposite"
    return [
        *(Contradiction(row, **planted) for row, several in tables.items() for planted in several),
        *(
            Contradiction(row.id, says, claim, _JUDGE, _OPPOSITE)
            for row in rows()
            if row.section == "claims"
        ),
    ]


def is_of(row: Row, test: str) -> bool:
    """Whether the row names the test of that name; of a claim, the case that is named after it."""
    name, _, case = test.partition("[")
    if name.removeprefix("tests/") not in row.tests:
        return False
    claim = row.id.removeprefix("claim-")
    cases = (f"{claim} ", f"{claim.removeprefix('lemma-')}]")
    return row.section != "claims" or case.lower().startswith(cases)


@dataclass
class _Failing:
    """A plugin of pytest that writes the names of the tests that fail into `file`."""

    file: Path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            with self.file.open("a", encoding="utf-8") as lines:
                lines.write(f"{report.nodeid}\n")

    def names(self) -> list[str]:
        return self.file.read_text("utf-8").splitlines() if self.file.is_file() else []


class _Session(Collected[Contradiction]):
    """A plugin of pytest that runs the tests of each contradiction in a fork with it in its
    functions, where it is in one; rows that it makes false together are tried together.

    `failing`: notes the tests that fail, in a file a contradiction, whose name is its text's hash.
    """

    def __init__(self, bench: Bench, planted: Sequence[Contradiction], failing: _Failing) -> None:
        super().__init__(bench, planted, lambda planted, outcome: None)
        self.failing = failing

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A failing test does not end the others: each row has its own."""

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.find_functions()
        by_id = {row.id: row for row in rows()}
        together: dict[Path, list[Contradiction]] = {}
        for planted in self.mutants:
            together.setdefault(planted.note(self.failing.file.parent), []).append(planted)
        for note, (planted, *others) in together.items():
            self.failing.file = note
            with self.bench.planted(planted) as (before, after):
                if swaps := self.swaps(planted.path, before, after):
                    of = [by_id[one.row] for one in (planted, *others)]
                    items = [
                        item for item in session.items if any(is_of(row, item.nodeid) for row in of)
                    ]
                    note.touch()
                    forked(lambda: self.run_swapped(swaps, items), _SECONDS)  # noqa: B023
        return True


def failing_tests(folder: Path, planted: Sequence[Contradiction]) -> dict[Contradiction, list[str]]:
    """Of each contradiction the tests of its row that fail with it. Raises `ValueError` where one
    of them fails by itself.
    """
    preload()
    bench, failing = Bench(copied_tree(folder), folder / "called.jsonl"), _Failing(folder / "x")
    by_id = {row.id: row for row in rows()}

    def ran(names: Iterable[str], *plugins: Any) -> int | None:
        def run() -> int:
            bench.aside()
            sys.dont_write_bytecode = not plugins  # all that come after it read what it compiled
            return int(pytest.main([*_OPTIONS, *sorted(set(names))], plugins=[failing, *plugins]))

        return forked(lambda: bench.in_the_tree(run), None)

    tests = {
        one: [f"tests/{test}" for test in by_id[one.row].tests] for one in dict.fromkeys(planted)
    }
    every = [test for names in tests.values() for test in names]
    if status := ran(every, _Session(bench, planted, failing)):
        raise ValueError(f"expected a pytest that collects every test, found exit status {status}")
    found = {one: _Failing(one.note(folder)).names() for one in planted}
    left = [one for one in planted if not one.note(folder).exists()]
    while left:  # what shows at import has a pytest of its own, with others that share no test
        group: list[Contradiction] = []
        for one in left:
            if not {*tests[one]} & {test for other in group for test in tests[other]}:
                group.append(one)
        failing.file = folder / f"{len(left)}-left"
        with ExitStack() as stack:
            for one in group:
                stack.enter_context(bench.planted(one))
            ran(test for one in group for test in tests[one])
        found |= dict.fromkeys(group, failing.names())
        left = [one for one in left if one not in group]
    found = {
        one: [test for test in names if is_of(by_id[one.row], test)] for one, names in found.items()
    }
    if ran(test for names in found.values() for test in names) != 0:
        raise ValueError("expected tests that pass where nothing is planted; one fails")
    return found


def main(names: Sequence[str]) -> int:
    started = time.monotonic()
    planted = [plant for plant in contradictions() if not names or plant.row in names]
    with tempfile.TemporaryDirectory(prefix="contradictions-") as folder:
        found = failing_tests(Path(folder), planted)
    for one, tests in found.items():
        print(f"{'caught' if tests else 'survived':>12}  {one.row}: {one.says}")
    caught = sum(map(bool, found.values()))
    print(f"{caught} of {len(planted)} caught in {time.monotonic() - started:.0f} s")
    return int(caught < len(planted))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
