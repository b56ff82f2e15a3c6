"""The README takes two minutes; its figures are those of the pages that measure them, and its
example runs.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_readme_takes_two_minutes() -> None:
    assert len(README.split()) <= 700
    assert len(EXAMPLE.splitlines()) <= 12


def test_its_figures_are_those_of_the_findings() -> None:
    """Each row: a figure of the README, and where the page that a command writes has it."""
    behaviour, real = (ROOT / "docs/findings" / page for page in ("behaviour.md", "real-models.md"))
    rows = [
        (
            r"at (\d+) of the (\d+) lengths",
            behaviour,
            r"\*ones in a row\*, where the .*of (\d+) lengths .* at (\d+)\.",
            (1, 0),
        ),
        (
            r"from (\d+) ones on, bfloat16 hides .* \(at (\d+) of (\d+) lengths\)",
            real,
            r"gemma-3-270m \| figure-5a \| (\d+) to \d+, (\d+) of (\d+);",
            (0, 1, 2),
        ),
        (
            r"last digit in (\d+) of (\d+) cases",
            behaviour,
            r"16 and 32 items \| `repeat-prompt` \| (\d+) of (\d+)",
            (0, 1),
        ),
        (r"cases, and in (\d+) without", behaviour, r"16 and 32 items \| none \| (3) of 24", (0,)),
        (
            r'answers "(\d+)" to (\d+) ones, to 20 and to (\d+)',
            behaviour,
            r"(11) \((12) to (48)\)",
            (0, 1, 2),
        ),
    ]
    for said, page, measured, order in rows:
        ours, theirs = re.search(said, README), re.search(measured, page.read_text("utf-8"))
        assert ours is not None, said
        assert theirs is not None, measured
        assert ours.groups() == tuple(theirs.groups()[at] for at in order), said


@pytest.mark.slow
def test_the_example_runs_and_says_something() -> None:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(EXAMPLE, "README.md", "exec"), {})
    assert len(output.getvalue().splitlines()) >= 2
