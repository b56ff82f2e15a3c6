"""The explorer in a real browser: typed into, hovered, clicked, copied from, and asked by keys
alone.
"""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools.explorer import Explorer
from tests.browser.opening import CONTRAST, open_page

pytestmark = pytest.mark.slow
STATES: dict[str, dict[str, Any]] = {
    "full": {"view": "full"},
    "heads": {"view": "attention", "layer": 1, "head": 2},
    "collapse": {"view": "collapse", "longest": 8},
    "parts": {"view": "attribution", "logit": "1"},
}
PROMPT = "Consider the following sequence: 11111110. What is the last digit?"
HOSTILE = "<img src=x onerror=alert(1)></script><b>1</b>"


NAMELESS = """() => [...document.querySelectorAll('button, input, select, textarea, [role=img], pre')]
    .filter((one) => one.checkVisibility())
    .filter((one) => !one.getAttribute('aria-label'))
    .filter((one) => one.matches('input, select, textarea') ? !one.labels.length : !one.textContent.trim())
    .map((one) => one.outerHTML.slice(0, 80))"""
"""What a screen reader could not name."""


def link(**state: Any) -> str:
    return "#" + urlencode(state)


@pytest.fixture(scope="module")
def explorer(embedded: TransformerBridge) -> Iterator[Explorer]:
    started = ost.explore(embedded)
    yield started
    started.stop()


class Page:
    """The explorer's page, with what it asked for and complained of."""

    def __init__(
        self,
        browser: Any,
        explorer: Explorer,
        width: int = 1000,
        scheme: str = "light",
        link: str = "",
    ) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        self.context.grant_permissions(["clipboard-read", "clipboard-write"])
        wait = "() => document.querySelectorAll('#view option').length > 0"
        self.opened, self.own = open_page(self.context, explorer.url + link, wait), explorer.url
        self.page = self.opened.page

    def until(self, kind: str) -> None:
        self.page.wait_for_function(
            f"() => document.getElementById('kind').textContent === {kind!r}"
        )

    def says(self, words: str, name: str) -> None:
        self.page.wait_for_function(
            f"() => document.getElementById({name!r}).textContent.includes({words!r})"
        )

    def ended(self) -> None:
        """Quicker views are shown first; a click while a measurement still runs is answered with
        that.
        """
        self.page.wait_for_function("() => document.getElementById('stop').hidden")

    def tab_to(self, name: str) -> None:
        """By the Tab key; a field that no number of them reaches fails the test."""
        for _ in range(40):
            if self.page.evaluate("() => document.activeElement.id") == name:
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"no Tab reaches {name}")

    def drawn(self) -> None:
        self.page.wait_for_selector("figure[data-drawn=yes] svg")

    def text(self, name: str) -> str:
        return str(self.page.text_content(f"#{name}"))

    def clean(self) -> None:
        ours = (self.own, f"blob:{self.own}", "data:")
        foreign = [url for url in self.opened.requests if not url.startswith(ours)]
        assert (self.opened.complaints, self.opened.dialogs, foreign) == ([], [], [])
        self.context.close()


def test_typed_hovered_clicked_and_copied(
    browser, explorer: Explorer, embedded, monkeypatch
) -> None:
    opened = Page(browser, explorer)
    opened.page.fill("#prompt", PROMPT)
    opened.until("measured")
    opened.drawn()
    opened.page.hover("#tokens button:nth-child(3)")
    assert opened.text("token").startswith("Token 2: ·the")
    opened.page.click("#tokens button:nth-child(4)")
    opened.page.click("#copy")
    opened.page.wait_for_function(
        "() => document.getElementById('said').textContent.includes('clipboard')"
    )
    known: dict[str, Any] = {}
    monkeypatch.setattr("ostools.load_model", lambda *given, **options: embedded)
    exec(opened.page.evaluate("() => navigator.clipboard.readText()"), known)
    row = known["result"].frame.iloc[3]
    assert f"operator norm{float(f'{row.operator_norm:.5g}')}" in opened.text("token")
    opened.clean()


def test_by_keys_alone(browser, explorer: Explorer) -> None:
    opened = Page(browser, explorer)
    keys = opened.page.keyboard
    keys.press("Tab")
    keys.type("The 11")
    opened.until("measured")
    opened.tab_to("view")
    keys.press("ArrowDown")  # the next view: frozen
    opened.says("linearisations=('frozen',)", "code")
    opened.tab_to("layer")
    keys.press("ArrowRight")
    opened.says("layers=(1,)", "code")
    keys.press("Tab")
    while opened.page.evaluate("() => document.activeElement.dataset.position") != "1":
        keys.press("Tab")
    opened.ended()
    keys.press("Enter")
    opened.says("Token 1", "token")
    opened.clean()


def test_a_link_reopens_the_state_and_a_hostile_text_stays_text(
    browser, explorer: Explorer
) -> None:
    first = Page(browser, explorer)
    first.page.select_option("#view", "frozen")
    first.page.fill("#prompt", HOSTILE)
    first.until("measured")
    link, code = first.page.evaluate("() => location.hash"), first.text("code")
    second = Page(browser, explorer, link=link)
    second.until("measured")
    assert (second.page.input_value("#prompt"), second.text("code")) == (HOSTILE, code)
    assert second.page.evaluate("() => document.querySelectorAll('img, b').length") == 0
    first.clean()
    second.clean()


def test_it_can_be_read_on_a_telephone_and_in_the_dark(browser, explorer: Explorer) -> None:
    for name, state in STATES.items():
        held = link(prompt="Once upon a time there was a cat", **state)
        opened = Page(browser, explorer, 400, "dark", held)
        opened.drawn()
        opened.ended()
        assert opened.page.evaluate("() => document.documentElement.scrollWidth") <= 400, name
        assert opened.page.evaluate(NAMELESS) == [], name
        for scheme in ("dark", "light"):
            opened.page.emulate_media(color_scheme=scheme)
            assert opened.page.evaluate(CONTRAST, [4.5, 3])["texts"] == [], (name, scheme)
        opened.clean()
