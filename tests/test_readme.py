"""The README takes two minutes; its figures are those of the pages that measure them, and its
example runs.
"""

import contextlib
import io
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_readme_takes_two_minutes() -> None:
    assert len(README.split()) <= 700
    assert len(EXAMPLE.splitlines()) <= 12


BEHAVIOUR, REAL = (ROOT / "docs/findings" / page for page in ("behaviour.md", "real-models.md"))
FIGURES = [
    (
        r"at (\d+) of the (\d+) lengths",
        BEHAVIOUR,
        r"ones in a row .*\n\| \| where the right answers part \| (\d+) \| (\d+) \| no collapse",
        (1, 0),
    ),
    (
        r"from (\d+) to (\d+) ones, bfloat16 hides .* \(at (\d+) of (\d+) lengths\)",
        REAL,
        r"gemma-3-270m \| figure-5a \| (\d+) to (\d+), (\d+) of (\d+);",
        (0, 1, 2, 3),
    ),
    (
        r"last of 16 and 32 digits in (\d+) of (\d+) cases, and in (\d+) without",
        BEHAVIOUR,
        r"16 and 32 items \| none \| (\d+) of 24 .*\n\| \| `repeat-prompt` \| (\d+) of (\d+)",
        (1, 2, 0),
    ),
    (
        r'answers "(\d+)" to (\d+) ones, to 20 and to (\d+)',
        BEHAVIOUR,
        r"(11) \((12) to (48)\)",
        (0, 1, 2),
    ),
]
"""Each row: a figure of the README, the page that a command writes, and where the figure is there."""


@pytest.mark.parametrize(("said", "page", "measured", "order"), FIGURES)
def test_its_figures_are_those_of_the_findings(
    said: str, page: Path, measured: str, order: tuple[int, ...]
) -> None:
    ours, theirs = re.search(said, README), re.search(measured, page.read_text("utf-8"))
    assert ours is not None, said
    assert theirs is not None, measured
    assert ours.groups() == tuple(theirs.groups()[at] for at in order), said


def test_its_words_are_those_of_the_findings() -> None:
    """From states 3 to 25 times the noise away; separators hurt; a U on Gemma; the bound does not
    order the tokens.
    """
    behaviour, real = BEHAVIOUR.read_text("utf-8"), REAL.read_text("utf-8")
    away = r"\| 11 \| 12 to \d+ \(\d+\) \| [^|]+ \| ([\d.]+) to ([\d.]+) \|"
    (ours,) = re.findall(r"states (\d+) to (\d+) times the noise", README)
    (theirs,) = re.findall(away, behaviour)
    assert [*map(float, ours)] == pytest.approx([*map(float, theirs)], abs=0.5)
    assert re.search(r"\| `separator:every=3` \| 0 of 24 .* hurts \|", behaviour)
    assert re.search(r"gemma-3-270m \| model \|.*\| U-shape \|", real)
    assert real.count(": no.** Rank correlation with the real norms") == 3


def test_its_versions_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = {one.name: one.specifier for one in map(Requirement, project["dependencies"])}
    said = re.search(
        r"Python ([\d.]+) or later is needed, torch ([\d.]+) or ([\d.]+), transformers ([\d.]+) to ([\d.]+);",
        README,
    )
    assert said is not None
    assert project["requires-python"] == f">={said[1]}"
    for name, numbers in (("torch", said.group(2, 3)), ("transformers", said.group(4, 5))):
        assert all(f"{number}.9" in wanted[name] for number in numbers), name
        major, minor = map(int, numbers[1].split("."))
        assert f"{major}.{minor + 1}.0" not in wanted[name]


@pytest.mark.slow
def test_the_example_runs_and_says_something() -> None:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(EXAMPLE, "README.md", "exec"), {})
    assert len(output.getvalue().splitlines()) >= 2
