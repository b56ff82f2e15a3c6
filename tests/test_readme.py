"""The README's example runs as it stands, and after the change of one word on Gemma, and prints what stands below it."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from ostools.models.files.gguf_cache import PACKAGED_MODELS, in_cache, is_installed

README = Path(__file__).parents[1] / "README.md"
MODELS = ("embedded", "gemma-3-270m")


def test_the_readme_takes_two_minutes() -> None:
    text = README.read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(re.findall(r"\w+", text)) < 900
    assert len(code.splitlines()) <= 12


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_example_prints_what_stands_below_it(name: str) -> None:
    """The words to the letter; the numbers but for the last digit, which another CPU adds otherwise."""
    if name != "embedded" and in_cache(PACKAGED_MODELS[name].sha256) is None and not is_installed(name):
        pytest.skip(f"needs {name}: {PACKAGED_MODELS[name].install}, or make real")
    text = README.read_text(encoding="utf-8")
    ((code, *said),) = re.findall(r"```python\n(.*?)```.*?```\n(.*?)```.*?```\n(.*?)```", text, flags=re.DOTALL)
    assert code.count('"embedded"') == 1
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code.replace('"embedded"', f'"{name}"'), str(README), "exec"), {})
    number = r"\d+\.\d+|\d+"
    found, expected = printed.getvalue(), said[MODELS.index(name)]
    assert re.sub(number, "#", found) == re.sub(number, "#", expected)
    values = [[float(value) for value in re.findall(number, words)] for words in (found, expected)]
    assert values[0] == pytest.approx(values[1], rel=0.03)
