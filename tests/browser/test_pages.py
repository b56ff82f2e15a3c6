"""The saved page of every result in a real browser: nothing is asked for or complained of, all is
drawn and readable.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ostools.reporting.page import page
from tests.browser.opening import CONTRAST, Opened
from tests.reporting.every import EVERY
from tests.reporting.made import made_sensitivity

pytestmark = pytest.mark.slow

WIDTHS = (400, 800, 1600)
PALE = {
    "Flow": "mark-rule role-mark layer_0",  # ink is the quantity: what is pale is little
    "HeadScores": "mark-rect role-mark",  # cells of a colour scale, with their numbers in them
    "Ablation": "mark-rect role-mark",
    "Attention": "mark-rect role-mark",
    "AttentionDifference": "mark-rect role-mark",
    "Patching": "mark-rect role-mark",
    "LinearRange": "mark-rect role-mark",  # bands around a level that is drawn in full
    "UntrainedBaselines": "mark-rect role-mark",
    "Retrieval": "mark-line role-mark",  # seeds, whose mean is drawn in full
}
"""Marks that may be paler than 3:1, by the beginning of their class."""


@cache
def written(name: str, folder: Path) -> Path:
    return EVERY[name]().save(folder / f"{name}.html")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


def assert_whole(found: Opened, path: Path, width: int, scripts: int = 2) -> None:
    """One request, for the file; no complaint, dialog, or script but those written; charts drawn;
    no sideways scroll.
    """
    assert found.requests == [path.as_uri()]
    assert found.complaints == []
    assert found.dialogs == []
    assert len(found.scripts) == scripts
    assert found.asked >= 1
    assert found.drawn == found.asked
    assert found.width <= width


def too_faint(name: str, found: Opened) -> list[Any]:
    told = found.page.evaluate(CONTRAST, [4.5, 3])
    return [
        *told["texts"],
        *(mark for mark in told["marks"] if name not in PALE or not mark.startswith(PALE[name])),
    ]


@pytest.mark.parametrize("name", EVERY)
def test_the_page_of_every_result(name: str, folder: Path, opened: Callable[..., Opened]) -> None:
    path = written(name, folder)
    found = opened(path, 1600, "dark")
    assert_whole(found, path, 1600)
    assert too_faint(name, found) == []
    found.look(f"{name.lower()}-1600-dark")
    for width in WIDTHS[:2]:
        found.resize(width)
        assert_whole(found, path, width)
        if width == 400:
            found.look(f"{name.lower()}-400-dark")
    found.page.emulate_media(color_scheme="light")
    assert too_faint(name, found) == []
    found.look(f"{name.lower()}-800-light")


def test_the_words_of_tokens_do_not_lie_on_each_other(
    tmp_path: Path, opened: Callable[..., Opened]
) -> None:
    """40 tokens: all named where there is room, fewer on a telephone, and the last one always."""
    result = made_sensitivity({"full": [1.0 + place for place in range(40)]})
    found = opened(result.save(tmp_path / "x.html"), 1000)
    named = {}
    for width in (1000, 400):
        found.resize(width)
        boxes = found.page.evaluate(
            "[...document.querySelectorAll('.role-axis-label text')].filter((one) => /^t[0-9]+ /.test(one.textContent))"
            ".map((one) => [one.getBoundingClientRect().left, one.getBoundingClientRect().right, one.textContent])"
        )
        assert all(one[1] <= other[0] + 1 for one, other in pairwise(boxes))
        assert boxes[-1][2] == "t39 39"
        named[width] = len(boxes)
    assert named[1000] == 40
    assert 10 <= named[400] < 40


def test_a_power_is_copied_with_its_sign(tmp_path: Path, opened: Callable[..., Opened]) -> None:
    path = tmp_path / "power.html"
    style = (page.TEMPLATES / "style.css").read_text(encoding="utf-8")
    path.write_text(
        f"<style>{style}</style><p>{page.sentence('10^5.1 times, as n^-1.08')}</p>",
        encoding="utf-8",
    )
    found = opened(path)
    found.page.evaluate("getSelection().selectAllChildren(document.querySelector('p'))")
    assert found.page.evaluate("getSelection().toString()") == "10^5.1 times, as n^-1.08"
    assert (
        found.page.evaluate("document.querySelector('.raised').getBoundingClientRect().width") == 0
    )
