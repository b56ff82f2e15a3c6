"""The gallery: every chart is in it, and every picture was made by the code that stands above it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ostools
import ostools.measure
import ostools.paper
import ostools.sweep
from ostools.results import Result
from scripts import gallery
from tests.checkpoints import tiny_model
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


LEFT_OUT = {"study", "windows", "retrieval", "counting", "figure-2", "figure-3", "figure-4"}
LEFT_OUT |= {"claims"}
"""What takes seconds of a tiny model too, or follows from that; and words that its tokenizer cuts.
"""


@pytest.mark.slow
def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a tiny random model in place of the embedded one: every block still gives the result that
    its picture draws.
    """
    model = tiny_model("gemma", context=1024)
    monkeypatch.setattr(ostools, "load_model", lambda: model)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(BLOCKS[0][0], "gallery.md", "exec"), names)
    for name, code in PICTURES.items():
        if name not in LEFT_OUT:
            _, made = gallery.drawn(code, names)
            assert made.result == gallery.made_by(gallery.picture_path(name)).result, name
