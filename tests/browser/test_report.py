"""The report in a real browser: hostile prompt, keyboard, screen reader, paper."""

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.browser.opening import CONTRAST, Opened
from tests.browser.test_pages import assert_whole
from tests.reporting.reports import hostile_report

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_report(tmp_path_factory)


def scripts_of(path: Path) -> int:
    """How many scripts were written: the policy has their hashes."""
    return len(re.findall(r"'sha256-[^']+'|&#39;sha256-", path.read_text(encoding="utf-8")[:4000]))


def test_it_is_whole_at_every_width(written: Path, opened: Callable[..., Opened]) -> None:
    found = opened(written, 1600, "dark")
    found.unfold()
    for width in (1600, 400):
        found.resize(width)
        assert_whole(found, written, width, scripts_of(written))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_word_of_it_can_be_read(
    written: Path, scheme: str, opened: Callable[..., Opened]
) -> None:
    found = opened(written, 1000, scheme)
    found.unfold()
    assert found.page.evaluate(CONTRAST, [4.5, 3])["texts"] == []


def test_a_screen_reader_finds_its_way(written: Path, opened: Callable[..., Opened]) -> None:
    page = opened(written, 800).page
    for role in ("banner", "navigation", "main", "contentinfo"):
        assert page.get_by_role(role).count() == 1, role
    levels = page.evaluate(
        "[...document.querySelectorAll('h1, h2, h3, h4')].map((one) => Number(one.tagName[1]))"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(levels))
    pictures = page.locator(".plot[role=img]").all()
    assert len(pictures) == page.locator("figure[data-chart]").count() > 0
    labels = [picture.get_attribute("aria-label") or "" for picture in pictures]
    assert [label for label in labels if not re.search(r"\d", label)] == []
    targets = page.evaluate(
        "[...document.querySelectorAll('a[href^=\"#\"]')].map((a) => a.getAttribute('href').slice(1))"
    )
    assert all(page.locator(f"[id='{target}']").count() == 1 for target in targets)
