"""A mitigation in a file of the user's own: what the command line makes of it, one line for what is
wrong, and nowhere else.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ostools as ost
from ostools.mitigations import Composed, Hint, MitigationError, Separator, label, mitigation
from ostools.mitigations.named import typed
from ostools.mitigations.registry import LOADED
from tests.cli.asking import assert_refused

MINE = '''
from __future__ import annotations
from dataclasses import dataclass
from ostools.mitigations import Hint, Mitigation


@dataclass(frozen=True)
class AskAgain(Mitigation):
    """The question twice."""

    times: int = 2
    between: str = " "

    def prompt(self, text: str) -> str:
        return self.between.join([text] * self.times)


class Plain(Mitigation):
    def prompt(self, text: str) -> str:
        return f"Please. {text}"


def asked(times: int = 3) -> Mitigation:
    return AskAgain(times)


def hint(words: str) -> Mitigation:
    return Hint(words)


NUMBER = 7
'''


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    monkeypatch.chdir(tmp_path)
    LOADED.clear()
    yield path
    LOADED.clear()


@pytest.mark.parametrize(
    ("spec", "text", "named"),
    [
        ("./mine.py:AskAgain", "a a", "./mine.py:AskAgain"),
        (
            "./mine.py:AskAgain:times=3,between=, ",
            "a, a, a",
            "./mine.py:AskAgain:times=3,between=, ",
        ),
        ("mine.py:Plain", "Please. a", "mine.py:Plain"),
        ("mine.py:asked", "a a a", "mine.py:AskAgain:times=3"),
        ("mine.py:asked:times=2", "a a", "mine.py:AskAgain"),
        ("mine.py:hint:words=Look.", "a\nLook.", "hint:text=Look."),
    ],
)
def test_a_class_or_a_function_of_a_file_with_its_options(
    mine: Path, spec: str, text: str, named: str
) -> None:
    found = typed(spec)
    assert found.prompt("a").split() == text.split()
    assert label(found) == named
    assert typed(label(found)).prompt("a") == found.prompt("a")
    assert set(LOADED.values()) == {hashlib.sha256(MINE.encode()).hexdigest()}


def test_what_the_file_imports_is_named_and_refused_once_it_has_changed(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another module imports it, or a function; not what is installed."""
    mine.write_text(
        MINE.replace("from dataclasses", "import pandas\nimport words\nfrom dataclasses")
    )
    folder = mine.with_name("words")
    folder.mkdir()
    files = [mine.with_name("deep.py"), folder / "__init__.py"]
    files[0].write_text("WORD = 'a'\n")
    files[1].write_text("def word():\n    import deep\n    return deep.WORD\n")
    mine.with_name("other.py").write_text("WORD = 'b'\n")
    monkeypatch.syspath_prepend(mine.parent)
    try:
        typed("./mine.py:Plain")
        assert {*LOADED} == {"./mine.py", *map(str, files)}
        typed("./mine.py:Plain")
        files[0].write_text("WORD = 'c'\n")
        with pytest.raises(MitigationError, match=r"deep\.py has changed since it was imported"):
            typed("./mine.py:Plain")
    finally:
        sys.modules.pop("words")


def test_it_composes_with_named_ones_and_named_ones_stay_themselves(mine: Path) -> None:
    both = typed("separator:every=2 + mine.py:Plain")
    assert isinstance(both, Composed)
    assert (both.parts[0], label(both)) == (Separator(2), "separator:every=2 + mine.py:Plain")
    assert typed("hint") == Hint()


WRONG = [
    (
        "none.py:AskAgain",
        "mitigation 'none.py:AskAgain' of none.py: cannot be loaded: FileNotFoundError",
    ),
    (
        "mine.py:AskAgian",
        "cannot be loaded: AttributeError: module 'mine.py' has no attribute 'AskAgian'",
    ),
    (
        "mine.py:NUMBER",
        "expected a subclass of Mitigation, or a function that returns one's object, found 7",
    ),
    ("mine.py:AskAgain:time=3", "'mine.py:AskAgain' has no option 'time': did you mean 'times'?"),
    ("mine.py:AskAgain:times=two", "times: Input should be a valid integer"),
    (
        "mine.py:hint",
        "'mine.py:hint' of mine.py: TypeError: hint() missing 1 required positional argument",
    ),
    ("raises.py:A", "cannot be loaded: ValueError: not today"),
    ("broken.py:A", "cannot be loaded: SyntaxError"),
    ("inside.py:A", "'inside.py:A' of inside.py: ZeroDivisionError: division by zero"),
]


@pytest.fixture
def wrong_files(mine: Path) -> None:
    for name, text in {
        "raises.py": "raise ValueError('not\\ntoday')",
        "broken.py": "def (",
        "inside.py": "def A():\n    return 1 / 0",
    }.items():
        mine.with_name(name).write_text(text)


@pytest.mark.parametrize(("spec", "message"), WRONG)
def test_what_is_wrong_is_one_line_and_code_2(
    wrong_files: None, run: Any, spec: str, message: str
) -> None:
    assert_refused(run("mitigate", "--task", "count-ones", "--mitigations", spec), message)


@pytest.mark.slow
def test_the_result_names_the_mitigation_and_what_ran(mine: Path, run: Any) -> None:
    out = mine.with_name("answers.json")
    line = "evaluate --task count-ones --lengths 3,5 --mitigation ./mine.py:Plain"
    assert run(*line.split(), "--out", str(out))[0] == 0
    stored = json.loads(out.read_text())["provenance"]["parameters"]
    assert stored["mitigation"] == "./mine.py:Plain"
    assert stored["own_files"] == {"./mine.py": hashlib.sha256(MINE.encode()).hexdigest()}


def test_nothing_but_the_command_line_runs_a_file(mine: Path, tmp_path: Path) -> None:
    """Not Python's names, not a sweep file, not a measurement that is given the text, not a stored
    label.
    """
    trap = tmp_path / "trap.py"
    trap.write_text(f"{MINE}\nopen({str(tmp_path / 'ran')!r}, 'w').close()\n")
    message = "is code in a file: only --mitigation on the command line runs it"
    for spec in ("./trap.py:Plain", f"{trap}:Plain:x=1", "hint + trap.py:Plain", " trap.py:Plain"):
        with pytest.raises(MitigationError, match=message):
            mitigation(spec)
    with pytest.raises(MitigationError, match=message):
        ost.tasks.questions("count-ones", lengths=[3], mitigation="./trap.py:Plain")
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(
        "tasks: count-ones\nlengths: 3\nmeasurements: evaluate\nmitigations: ['./trap.py:Plain']\n"
    )
    with pytest.raises(ost.InputError, match=message):
        ost.sweep.read_sweep(sweep)
    assert not (tmp_path / "ran").exists()
    typed("trap.py:Plain")
    assert (tmp_path / "ran").exists()
