"""The README's notebook example runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

README = Path(__file__).parents[1] / "README.md"


def test_the_notebook_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code, str(README), "exec"), names)
    assert {"profile", "paths", "curve", "without", "helped"} <= names.keys()
