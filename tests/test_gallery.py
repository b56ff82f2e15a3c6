"""The gallery: every picture was made by the code that stands above it."""

from pathlib import Path

import pytest

from ostools.models.files.sources import is_installed
from ostools.results import Result
from scripts import gallery
from tests.reporting.charts.test_every_result import results_of

PAGE = gallery.PAGE.read_text(encoding="utf-8")
BLOCKS = gallery.blocks(PAGE)
PICTURES = {name: code for code, name in BLOCKS if name is not None}


def test_every_block_but_the_first_has_one_picture_of_a_result_made_by_its_code() -> None:
    """`make gallery` draws anew what has changed."""
    assert [name for _, name in BLOCKS[:1]] == [None]
    assert (
        len(PICTURES)
        == len(BLOCKS) - 1
        == PAGE.count("](gallery/")
        == PAGE.count("```python\n") - 1
    )
    assert {path.stem for path in gallery.picture_path("x").parent.iterdir()} == set(PICTURES)
    results = {kind.__name__ for kind in results_of(Result)}
    for name, code in PICTURES.items():
        made = gallery.made_by(gallery.picture_path(name))
        assert (made.code, made.result in results) == (code, True), name


MODELS = {"gemma-3-270m", "smollm2-135m-instruct"}
QUICK = {"collapse", "attribution", "patching", "heads", "change", "figure-8"}
"""What takes seconds of a core."""


@pytest.mark.slow
def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of seconds still give the result that their pictures draw."""
    if missing := [name for name in sorted(MODELS) if not is_installed(name)]:
        pytest.skip(f"needs {', '.join(missing)}: make real")
    monkeypatch.chdir(tmp_path)
    for name, _, made in gallery.pictures(PAGE, sorted(QUICK)):
        assert made.result == gallery.made_by(gallery.picture_path(name)).result, name
