"""Hostile text in a real browser, and a policy that holds where text got out of its escaping."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ostools.reporting.page import page
from tests.browser.opening import Opened
from tests.browser.test_pages import assert_whole
from tests.reporting.made import HOSTILE, made_comparison, made_sensitivity

pytestmark = pytest.mark.slow

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
