"""The README's notebook example runs as it stands."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

README = Path(__file__).parents[1] / "README.md"


def test_the_notebook_example_runs() -> None:
    """What it prints stands below it: the words to the letter, the numbers of its tables but for the last bits, which another
    CPU adds otherwise. There an answer may change as well, so that the numbers of the last sentence are not compared."""
    text = README.read_text(encoding="utf-8")
    ((code, said),) = re.findall(r"```python\n(.*?)```.*?```\n(.*?)```", text, flags=re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(README), "exec"), {})
    number = r"-?\d+\.\d+"
    assert re.sub(number, "#", printed.getvalue()).split() == re.sub(number, "#", said).split()
    tables = (words.partition("separator:")[0] for words in (printed.getvalue(), said))
    found, expected = (list(map(float, re.findall(number, table))) for table in tables)
    assert len(found) == 4
    assert found == pytest.approx(expected, rel=1e-3)
