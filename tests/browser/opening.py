"""A page as a real browser has it: what it asked for, what it complained of, what is drawn, what
can be read.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
"""A function of the page: the least contrasts of text and of marks to what is too faint."""
_DRAWN = """() => [...document.querySelectorAll('figure[data-chart]')]
    .every((figure) => figure.dataset.drawn || !figure.querySelector('.plot').clientWidth)"""


@dataclass
class Opened:
    """An open page and everything that it did."""

    page: Any
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Requests that the page's own policy stopped before they went out; they are among `requests`.
    """

    def unfold(self) -> None:
        """Everything that is folded away, opened and drawn."""
        self.page.evaluate(
            "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
        )
        self.page.wait_for_function(
            "() => [...document.querySelectorAll('figure[data-chart]')].every((one) => one.dataset.drawn)"
        )

    def resize(self, width: int) -> None:
        """Another width of the window, and every chart drawn for it."""
        if self.page.viewport_size["width"] == width:
            return
        self.page.evaluate(
            "document.querySelectorAll('figure[data-chart]').forEach((figure) => { delete figure.dataset.drawn; })"
        )
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.wait_for_function(_DRAWN)

    @property
    def drawn(self) -> int:
        """How many charts are there as pictures with marks in them."""
        return int(
            self.page.evaluate(
                "[...document.querySelectorAll('figure[data-drawn=yes] .plot svg')]"
                ".filter((svg) => svg.querySelector('.mark-symbol path, .mark-line path, .mark-rect path, .mark-rule line'))"
                ".length"
            )
        )

    @property
    def asked(self) -> int:
        """How many charts the page holds the data of."""
        return int(
            self.page.evaluate(
                "document.querySelectorAll('script[type=\"application/json\"]').length"
            )
        )

    @property
    def scripts(self) -> list[str]:
        """The types of all scripts that the page has now, but for inert data."""
        found = self.page.evaluate(
            "[...document.scripts].map((script) => script.type + '|' + script.src)"
        )
        return [one for one in found if one != "application/json|"]

    @property
    def width(self) -> int:
        """How wide the page is; more than the window means that it scrolls sideways."""
        return int(self.page.evaluate("document.documentElement.scrollWidth"))


def open_page(context: Any, path: Path | str, wait: str = _DRAWN) -> Opened:
    page = context.new_page()
    page.set_default_timeout(90_000)  # machines are busy
    found = Opened(page)
    page.on("request", lambda request: found.requests.append(request.url))
    page.on(
        "requestfailed",
        lambda request: found.refused.extend([request.url] * (request.failure == "csp")),
    )
    page.on("console", lambda message: found.complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: found.complaints.append(str(error)))
    page.on("dialog", lambda dialog: (found.dialogs.append(dialog.message), dialog.dismiss()))
    page.goto(path if isinstance(path, str) else path.as_uri())
    page.wait_for_function(wait)
    return found
