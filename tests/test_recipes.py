"""The recipes of the documentation run as they stand, each by itself and in an empty folder."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.asking import in_a_process

PAGE = (Path(__file__).parents[1] / "docs" / "recipes.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"^## (.+?)\n.*?```(?:python|sh)\n(.*?)```", PAGE, flags=re.DOTALL | re.MULTILINE))


def test_there_are_ten_of_at_most_six_calls() -> None:
    assert len(RECIPES) == 10 == PAGE.count("\n## ") == PAGE.count("```") // 2
    for name, code in RECIPES.items():
        assert len(re.findall(r"\bost\.(?:\w+\.)*\w+\(|^ostools ", code, flags=re.MULTILINE)) <= 6, name


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_runs_as_it_stands(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = RECIPES[name]
    if "import ostools" in code:
        exec(compile(code, name, "exec"), {"__name__": "recipe"})
    else:
        for line in code.splitlines():
            done = in_a_process(*shlex.split(line)[1:])
            assert done.returncode == 0, done.stderr
            assert "forecast: " in done.stderr
    for file in re.findall(r'save\("(.+?)"\)|out="(.+?)"', code):
        assert (tmp_path / next(filter(None, file))).stat().st_size > 0
