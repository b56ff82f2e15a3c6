"""The recipes of the documentation run as they stand, each by itself and in an empty folder."""

import re
from pathlib import Path

import pytest

from ostools.models.files.sources import EMBEDDED_DIRECTORIES, is_installed

PAGE = (Path(__file__).parents[1] / "docs" / "recipes.md").read_text(encoding="utf-8")
RECIPES = dict(
    re.findall(r"^## (.+?)\n.*?```python\n(.*?)```", PAGE, flags=re.DOTALL | re.MULTILINE)
)
MODEL = "smollm2-135m-instruct"


def test_there_are_ten_of_at_most_six_calls() -> None:
    assert len(RECIPES) == 10 == PAGE.count("\n## ") == PAGE.count("```") // 2
    for name, code in RECIPES.items():
        assert len(re.findall(r"\bost\.(?:\w+\.)*\w+\(", code)) <= 6, name


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_runs_as_it_stands(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the embedded model where SmolLM2 is not installed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-model").symlink_to(EMBEDDED_DIRECTORIES["embedded"])
    code = RECIPES[name] if is_installed(MODEL) else RECIPES[name].replace(MODEL, "embedded")
    exec(compile(code, name, "exec"), {"__name__": "recipe"})
    for file in re.findall(r'save\("(.+?)"|out="(.+?)"', code):
        assert (tmp_path / next(filter(None, file))).stat().st_size > 0
