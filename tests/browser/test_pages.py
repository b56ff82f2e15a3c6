"""Saved pages in a real browser. Of every result: nothing is asked for or complained of, all is
drawn and readable. The report: keyboard, screen reader, paper. Hostile text, and a policy that holds
where text got out of its escaping.
"""

import re
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ostools.reporting.page import page
from tests.browser.opening import CONTRAST, Opened
from tests.reporting.every import EVERY
from tests.reporting.made import HOSTILE, made_comparison, made_sensitivity
from tests.reporting.reports import hostile_report

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


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_report(tmp_path_factory)


def scripts_of(path: Path) -> int:
    """How many scripts were report: the policy has their hashes."""
    return len(re.findall(r"'sha256-[^']+'|&#39;sha256-", path.read_text(encoding="utf-8")[:4000]))


def test_it_is_whole_at_every_width(report: Path, opened: Callable[..., Opened]) -> None:
    found = opened(report, 1600, "dark")
    found.unfold()
    for width in (1600, 400):
        found.resize(width)
        assert_whole(found, report, width, scripts_of(report))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_word_of_it_can_be_read(
    report: Path, scheme: str, opened: Callable[..., Opened]
) -> None:
    found = opened(report, 1000, scheme)
    found.unfold()
    assert found.page.evaluate(CONTRAST, [4.5, 3])["texts"] == []


def test_a_screen_reader_finds_its_way(report: Path, opened: Callable[..., Opened]) -> None:
    page = opened(report, 800).page
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


NASTY = (
    *HOSTILE,
    "]]>",
    "javascript:alert(3)",
    'datum["x"]',
    "' + alert(4) + '",
    "\\",
    "${alert(5)}",
    "\ufeff",
    "<svg/onload=alert(6)>",
    "</text><script>alert(7)</script>",
    "<style>*{display:none}</style>",
)
ATTACKS = {
    "a script": "<script>document.title = 'mine'</script>",
    "a script of another type": "<script type=module>document.title = 'mine'</script>",
    "a handler": "<img src=x onerror=\"document.title = 'mine'\">",
    "an address": "<iframe src=\"javascript:parent.document.title = 'mine'\"></iframe>",
    "a frame": "<iframe srcdoc=\"<script>parent.document.title = 'mine'</script>\"></iframe>",
    "a picture from elsewhere": "<img src=http://192.0.2.1/x.png>",
    "a style from elsewhere": "<link rel=stylesheet href=http://192.0.2.1/x.css>",
    "a base": "<base href=http://192.0.2.1/><a href=x id=link>x</a>",
}


def test_hostile_tokens_are_words_in_the_chart_and_under_the_mouse(
    tmp_path: Path, opened: Callable[..., Opened]
) -> None:
    """Every token of `NASTY` on the axis, and the one with a picture in its tooltip, as text."""
    values = [2.0**place for place in range(len(NASTY))]
    path = made_comparison(values, {"local": values, "proof": values}, NASTY).save(
        tmp_path / "x.html"
    )
    found = opened(path, 800)
    assert_whole(found, path, 800)
    words = found.page.evaluate(
        "[...document.querySelectorAll('.plot text')].map((text) => text.textContent)"
    )
    for shown in ("<∕script><scr…", "<img·src=x·on…", "{{·7*7·}}{%·r…", 'datum["x"] 12'):
        assert any(shown in word for word in words), shown
    marks = found.page.locator(".mark-symbol path, .mark-rect path, .mark-rule line")
    told = ""
    for place in range(marks.count()):
        marks.nth(place).hover(force=True)
        tooltip = found.page.locator("#vg-tooltip-element")
        told += tooltip.inner_text() if tooltip.count() else ""
        if "<img" in told:
            break
    assert "<img·src=x·on…" in told
    assert (found.page.locator("#vg-tooltip-element img").count(), found.dialogs) == (0, [])


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_policy_stops_what_gets_out_of_its_escaping(
    attack: str, tmp_path: Path, opened: Callable[..., Opened]
) -> None:
    """Planted in the page as it would be if escaping failed: it does not run, asks for nothing, and
    the charts are drawn.
    """
    text = page.chart_page(made_sensitivity({"full": [1.0, 2.0]}).plot(), "a title")
    path = tmp_path / "x.html"
    path.write_text(text.replace("<main>", f"<main>{ATTACKS[attack]}", 1), encoding="utf-8")
    found = opened(path)
    found.page.wait_for_timeout(150)
    assert found.page.title() == "a title"
    assert (found.drawn, found.dialogs) == (1, [])
    assert found.requests[1:] == found.refused
    assert found.complaints  # the browser says that it refused
    if attack == "a base":
        assert found.page.evaluate("document.getElementById('link').href").startswith("file:")
