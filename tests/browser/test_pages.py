"""The saved page of every result in a real browser: nothing is asked for or complained of, all is
drawn and readable.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.browser.opening import CONTRAST, Opened
from tests.reporting.every import EVERY

pytestmark = pytest.mark.slow

PALE = {
    "HeadScores": "mark-rect role-mark",  # cells of a colour scale, with their numbers in them
    "Ablation": "mark-rect role-mark",
    "Attention": "mark-rect role-mark",
    "Patching": "mark-rect role-mark",
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
    assert (found.complaints, found.dialogs) == ([], [])
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
    found.resize(400)
    assert_whole(found, path, 400)
    found.page.emulate_media(color_scheme="light")
    assert too_faint(name, found) == []
