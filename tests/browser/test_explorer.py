"""The explorer in a real browser: typed into, hovered, clicked, copied from, and asked by keys alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools.explorer import Explorer
from tests.browser.opening import CONTRAST, SCREENSHOTS

pytestmark = pytest.mark.slow
PROMPT = "Consider the following sequence: 11111110. What is the last digit?"
HOSTILE = "<img src=x onerror=alert(1)></script><b>1</b>"


@pytest.fixture(scope="module")
def explorer(embedded: TransformerBridge) -> Iterator[Explorer]:
    started = ost.explore(embedded)
    yield started
    started.stop()


class Page:
    """The explorer's page, with what it asked for and complained of."""

    def __init__(
        self, browser: Any, explorer: Explorer, width: int = 1000, scheme: str = "light", link: str = ""
    ) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.page = self.context.new_page()
        self.page.set_default_timeout(90_000)  # machines are busy
        self.complaints: list[str] = []
        self.foreign: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append("dialog"), dialog.dismiss()))
        self.page.on("request", lambda request: self._heard(request.url, explorer.url))
        self.page.goto(explorer.url + link)
        self.page.wait_for_function("() => document.querySelectorAll('#view option').length > 0")

    def _heard(self, url: str, own: str) -> None:
        if not url.startswith((own, "blob:" + own, "data:")):
            self.foreign.append(url)

    def until(self, kind: str) -> None:
        self.page.wait_for_function(f"() => document.getElementById('kind').textContent === {kind!r}")

    def drawn(self) -> None:
        self.page.wait_for_selector("figure[data-drawn=yes] svg")

    def text(self, name: str) -> str:
        return str(self.page.text_content(f"#{name}"))

    def clean(self) -> None:
        assert (self.complaints, self.foreign) == ([], [])
        self.context.close()


def test_typed_hovered_clicked_copied_and_saved(browser, explorer: Explorer, embedded, monkeypatch, tmp_path) -> None:
    opened = Page(browser, explorer)
    opened.page.fill("#prompt", PROMPT)
    opened.until("predicted")
    opened.until("measured")
    opened.drawn()
    opened.page.hover("#tokens button:nth-child(3)")
    assert opened.text("token").startswith("Token 2: ·the")
    opened.page.click("#tokens button:nth-child(4)")
    opened.page.wait_for_function("() => document.getElementById('token').textContent.includes('chaining')")
    opened.page.click("#copy")
    opened.page.wait_for_function("() => document.getElementById('said').textContent.includes('clipboard')")
    known: dict[str, Any] = {}
    monkeypatch.setattr("ostools.models.load_model", lambda *given, **options: embedded)
    exec(opened.page.evaluate("() => navigator.clipboard.readText()"), known)
    row = known["result"].frame.iloc[3]
    assert f"operator norm{float(f'{row.operator_norm:.5g}')}" in opened.text("token")
    opened.page.select_option("#ending", "csv")
    with opened.page.expect_download() as found:
        opened.page.click("#save")
    saved = tmp_path / found.value.suggested_filename
    found.value.save_as(saved)
    assert saved.name == "ostools-full.csv"
    known["result"].save(tmp_path / "own.csv")
    assert saved.read_text() == (tmp_path / "own.csv").read_text()
    opened.clean()


def test_by_keys_alone(browser, explorer: Explorer) -> None:
    opened = Page(browser, explorer)
    keys = opened.page.keyboard
    keys.press("Tab")
    keys.type("The 11")
    opened.until("measured")
    keys.press("Tab")
    keys.press("ArrowDown")  # the next view: frozen
    opened.page.wait_for_function(
        "() => document.getElementById('command').textContent.includes('--linearisation frozen')"
    )
    keys.press("Tab")
    keys.press("Tab")
    assert opened.page.evaluate("() => document.activeElement.dataset.position") == "1"
    keys.press("Enter")
    opened.page.wait_for_function("() => document.getElementById('token').textContent.includes('chaining')")
    opened.clean()


def test_a_link_reopens_the_state_and_a_hostile_text_stays_text(browser, explorer: Explorer) -> None:
    first = Page(browser, explorer)
    first.page.select_option("#view", "frozen")
    first.page.fill("#prompt", HOSTILE)
    first.until("measured")
    link, code = first.page.evaluate("() => location.hash"), first.text("code")
    second = Page(browser, explorer, link=link)
    second.until("measured")
    assert second.page.input_value("#prompt") == HOSTILE
    assert second.text("code") == code
    assert second.page.evaluate("() => document.querySelectorAll('img, b').length") == 0
    first.clean()
    second.clean()


def test_the_last_text_wins_and_two_pages_do_not_mix(browser, explorer: Explorer) -> None:
    one, other = Page(browser, explorer), Page(browser, explorer)
    for typed in ("a", "ab", "abc 1", "abc 12"):
        one.page.fill("#prompt", typed)
        other.page.fill("#prompt", typed + " other")
        one.page.wait_for_timeout(150)
    for opened, prompt in ((one, "abc 12"), (other, "abc 12 other")):
        opened.until("measured")
        assert f"prompt = {prompt!r}\n" in opened.text("code")
        opened.clean()


@pytest.mark.parametrize(("width", "scheme"), [(1000, "light"), (1000, "dark"), (400, "light"), (400, "dark")])
def test_it_can_be_read_at_every_width_and_in_the_dark(browser, explorer: Explorer, width: int, scheme: str) -> None:
    opened = Page(browser, explorer, width, scheme)
    opened.page.fill("#prompt", "Once upon a time there was a cat")
    opened.until("measured")
    opened.drawn()
    assert opened.page.evaluate("() => document.documentElement.scrollWidth") <= width
    assert opened.page.evaluate(CONTRAST, [4.5, 3])["texts"] == []
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    opened.page.screenshot(path=SCREENSHOTS / f"explorer-{width}-{scheme}.png", full_page=True)
    opened.clean()
