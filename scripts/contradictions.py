"""Plant a contradiction to a row of docs/fidelity.md in a copy of the tree, and run the test that the row names: it must fail.

`python -m scripts.contradictions` tries all and prints which were caught. A quarter of a minute for each.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from scripts.mutants import copied_tree


@dataclass(frozen=True)
class Contradiction:
    """`before` stands once in the file `path`; with `after` in its place the row that names `test` is false."""

    name: str
    path: str
    before: str
    after: str
    test: str


_STATEMENTS, _PAIRS = "ostools/experiments/reproduce/statements.py", "ostools/tasks/figure5.py"
_LEMMA_TEST = "experiments/test_reproduce.py::test_every_lemma_is_judged_by_its_own_checks"
_SEQUENCE_TEST = "tasks/test_pairs.py::test_figure_5_ends_in_the_sequences_of_its_captions"
_COPY_C = 'Figure5Task("figure-5c", AppendixTask("copy"'
CONTRADICTIONS = (
    *(
        Contradiction(
            f"the judge of {name} always says that it does not agree",
            _STATEMENTS,
            "decide(passed == len(stated), sentence, **numbers)",
            f'decide(name != "{name}" and passed == len(stated), sentence, **numbers)',
            _LEMMA_TEST,
        )
        for name in ("B.4", "B.6", "B.7", "B.8", "B.9", "B.10")
    ),
    Contradiction(
        "copy-first asks for the last digit",
        "ostools/tasks/appendix_c.py",
        'place="first"',
        'place="last"',
        "tasks/test_appendix_c.py::test_copy_first_asks_for_the_first_digit",
    ),
    Contradiction(
        "Figure 5 (c) draws its digits",
        _PAIRS,
        _COPY_C,
        _COPY_C.replace('"copy"', '"copy", uniform=True'),
        _SEQUENCE_TEST,
    ),
    Contradiction(
        "a comma after every fifth digit", _PAIRS, "Separator(every=3)", "Separator(every=5)", _SEQUENCE_TEST
    ),
)


def is_caught(contradiction: Contradiction, tree: Path) -> bool:
    """Whether the named test fails with the contradiction in that copy, which is as before afterwards.

    Raises `ValueError` where the text to be replaced does not stand there once, or pytest ends in another way.
    """
    file = tree / contradiction.path
    text = file.read_text("utf-8")
    if text.count(contradiction.before) != 1:
        raise ValueError(f"{contradiction.name}: expected one {contradiction.before!r} in {contradiction.path}")
    file.write_text(text.replace(contradiction.before, contradiction.after), encoding="utf-8")
    try:
        code = run_test(contradiction.test, tree)
    finally:
        file.write_text(text, encoding="utf-8")
    if code not in (0, 1):
        raise ValueError(f"{contradiction.name}: expected a pytest that runs, found exit status {code}")
    return code == 1


def run_test(test: str, tree: Path) -> int:
    """The exit status of pytest on that test of the copy: 0 it passed, 1 it failed."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-x", "-q", f"tests/{test}"]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, check=False).returncode


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="contradictions-") as folder:
        tree = copied_tree(Path(folder))
        caught = {one.name: is_caught(one, tree) for one in CONTRADICTIONS}
    for name, failed in caught.items():
        print(f"{'caught' if failed else 'SURVIVED':>8}  {name}")
    return int(not all(caught.values()))


if __name__ == "__main__":
    sys.exit(main())
