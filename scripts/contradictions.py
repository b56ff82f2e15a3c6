"""Plant a contradiction to every row of docs/fidelity.md in a copy of the tree, and run the tests
of the row.

`python -m scripts.contradictions [ROW ...]` tries all rows, or these, and prints which were caught:
one test of the row has to fail. What is planted stands in `contradictions.toml`, by the row's
anchor; of a claim the judge says the opposite. A contradiction in a function is tried in a fork of
a pytest that has collected all these tests; one in a constant or a default has a pytest of its own.
At the end, the tests that failed pass where nothing is planted. Cost: 195 s of the processor.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripts.fidelity import Row, rows
from scripts.mutant_bench import CAUGHT, Bench, Collected, forked, outcome, preload
from scripts.mutants import copied_tree

PLANTED = Path(__file__).with_suffix(".toml")
_OPTIONS = (
    "-x",
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


@dataclass(frozen=True)
class _Failing:
    """A plugin of pytest that writes the names of the tests that fail into `file`."""

    file: Path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            with self.file.open("a", encoding="utf-8") as lines:
                lines.write(f"{report.nodeid}\n")


class _Session(Collected[Contradiction]):
    """A plugin of pytest that runs each row's tests in a fork with the contradiction in its
    functions, where it is in one.

    `outcomes`: the file that gets a line for each, its number and what came out.
    """

    def __init__(self, bench: Bench, planted: Sequence[Contradiction], outcomes: Path) -> None:
        super().__init__(bench, planted, lambda planted, outcome: None)
        self.outcomes = outcomes

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.find_functions()
        by_id = {row.id: row for row in rows()}
        for number, planted in enumerate(self.mutants):
            with self.bench.planted(planted) as (before, after):
                swaps = self.swaps(planted.path, before, after)
                items = [item for item in session.items if is_of(by_id[planted.row], item.nodeid)]
                status = forked(lambda: self.run_swapped(swaps, items), _SECONDS) if swaps else 0  # noqa: B023
            if swaps:
                with self.outcomes.open("a", encoding="utf-8") as file:
                    file.write(f"{number} {outcome(status)}\n")
        return True


def tried(folder: Path, planted: Sequence[Contradiction]) -> dict[int, str]:
    """What came out of each, by its number in `planted`. Raises `ValueError` where a test that
    failed does so by itself.
    """
    preload()
    bench, outcomes = Bench(copied_tree(folder), folder / "called.jsonl"), folder / "outcomes.txt"
    seen = _Failing(folder / "seen.txt")
    by_id = {row.id: row for row in rows()}
    tests = {
        contradiction.row: [f"tests/{test}" for test in by_id[contradiction.row].tests]
        for contradiction in planted
    }

    def collected() -> int:
        sys.dont_write_bytecode = False  # all that come after it read what it compiled
        names = sorted({test for row_tests in tests.values() for test in row_tests})
        return int(
            pytest.main([*_OPTIONS, *names], plugins=[_Session(bench, planted, outcomes), seen])
        )

    status = forked(lambda: bench.in_the_tree(collected), None)
    if status != 0:
        raise ValueError(f"expected a pytest that collects every test, found exit status {status}")
    outcome_by_number = {
        int(number): result
        for number, result in (line.split(" ", 1) for line in outcomes.read_text().splitlines())
    }
    for number, contradiction in enumerate(planted):
        if number not in outcome_by_number:

            def alone(contradiction: Contradiction = contradiction) -> int:
                bench.aside()
                return int(pytest.main([*_OPTIONS, *tests[contradiction.row]], plugins=[seen]))

            with bench.planted(contradiction):
                outcome_by_number[number] = outcome(
                    forked(lambda: bench.in_the_tree(alone), _SECONDS)
                )

    def by_themselves() -> int:
        bench.aside()
        return int(
            pytest.main([*_OPTIONS, *sorted(set(seen.file.read_text("utf-8").splitlines()))])
        )

    if seen.file.exists() and forked(lambda: bench.in_the_tree(by_themselves), None) != 0:
        raise ValueError("expected tests that pass where nothing is planted; one fails")
    return outcome_by_number


def main(names: Sequence[str]) -> int:
    started = time.monotonic()
    planted = [plant for plant in contradictions() if not names or plant.row in names]
    with tempfile.TemporaryDirectory(prefix="contradictions-") as folder:
        outcome_by_number = tried(Path(folder), planted)
    for number, contradiction in enumerate(planted):
        print(f"{outcome_by_number[number]:>12}  {contradiction.row}: {contradiction.says}")
    caught = sum(outcome_by_number[number] == CAUGHT for number in range(len(planted)))
    print(f"{caught} of {len(planted)} caught in {time.monotonic() - started:.0f} s")
    return int(caught < len(planted))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
