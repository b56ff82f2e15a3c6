"""Pages that hostile text cannot break out of, and that can ask the network for nothing."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from ostools.reporting.charts.tokens import sensitivity_chart
from ostools.reporting.page import page
from ostools.reporting.style import theme
from tests.reporting.made import HOSTILE, made_sensitivity
from tests.sets import quick

EXECUTED = ("", "module", "text/javascript")


class Parsed(HTMLParser):
    """The elements, scripts and attributes of a page, as a browser would see them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[str, str]] = []
        self.words: list[str] = []
        self._kind: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self._kind = dict(attrs).get("type") or ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._kind = None

    def handle_data(self, data: str) -> None:
        if self._kind is not None:
            self.scripts.append((self._kind, data))
        else:
            self.words.append(data)

    @property
    def executed(self) -> list[str]:
        return [source for kind, source in self.scripts if kind in EXECUTED]

    @property
    def data(self) -> list[Any]:
        return [json.loads(source) for kind, source in self.scripts if kind == "application/json"]

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def attributes(self, name: str) -> list[str]:
        return [
            value or ""
            for _, attributes in self.elements
            for key, value in attributes.items()
            if key == name
        ]


def assert_nothing_gets_out_or_in(text: str, scripts: int) -> Parsed:
    """No request is possible, exactly `scripts` scripts run, each of them allowed by its hash, and
    no handler is inline.
    """
    found = Parsed(text)
    assert (len(found.executed), found.attributes("src")) == (scripts, [])
    assert all(link.startswith(("#", "data:")) for link in found.attributes("href"))
    assert not [
        key for _, attributes in found.elements for key in attributes if key.startswith("on")
    ]
    assert {tag for tag, _ in found.elements}.isdisjoint(
        {"img", "iframe", "object", "embed", "base", "form"}
    )
    (policy,) = [value for value in found.attributes("content") if "default-src" in value]
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy
    for word in ("unsafe-eval", "connect-src", "*"):
        assert word not in policy
    allowed = re.findall(r"'sha256-([^']+)'", policy)
    hashes = [
        base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        for source in found.executed
    ]
    assert sorted(allowed) == sorted(set(hashes))
    return found


def test_hostile_tokens_stay_data(tmp_path: Path) -> None:
    path = made_sensitivity({"full": [1.0] * len(HOSTILE)}, HOSTILE).save(tmp_path / "x.html")
    (spec,) = assert_nothing_gets_out_or_in(path.read_text(encoding="utf-8"), scripts=2).data
    assert len(spec["vconcat"]) == 2


@pytest.mark.parametrize("text", quick(HOSTILE, HOSTILE[0], HOSTILE[2], HOSTILE[8]))
def test_whatever_a_template_is_given_is_escaped(text: str) -> None:
    chart = sensitivity_chart(made_sensitivity({"full": [1.0]}))
    found = assert_nothing_gets_out_or_in(page.chart_page(chart, text), scripts=2)
    # The title, the caption and the text for those who do not see it, with control and direction
    # characters spelled out.
    shown = str(page._visible_lines(text))[:12].split("\n")[0]
    assert any(shown in label for label in found.attributes("aria-label"))
    assert shown in found.text


@pytest.mark.parametrize("value", [*HOSTILE, {"a": ["</script>", "<!--"]}])
def test_json_for_a_script_has_no_character_that_html_reads(value: Any) -> None:
    text = theme.safe_json(value)
    assert text.isascii()
    assert not set("<>&") & set(text)
    assert json.loads(text) == value


@pytest.mark.parametrize("source", ["'</script>'", "'</SCRIPT >'", "<!-- x", "a\rb"])
def test_a_script_that_would_end_itself_is_refused(source: str) -> None:
    with pytest.raises(RuntimeError, match="end its own element"):
        _ = page.Script(source).html


@pytest.mark.parametrize(
    ("text", "html"),
    [
        (
            "`local` is 10^6.1 times",
            '<code>local</code> is 10<span class="raised">^</span><sup>6.1</sup> times',
        ),
        ("about as n^-1.08", 'about as n<span class="raised">^</span><sup>-1.08</sup>'),
        ("`<b>` & <i>", "`&lt;b&gt;` &amp; &lt;i&gt;"),
        ("a `</script>` b", "a `&lt;/script&gt;` b"),
    ],
)
def test_findings_are_escaped_before_they_are_set(text: str, html: str) -> None:
    set_text = str(page.sentence(text))
    assert {tag for tag, _ in Parsed(set_text).elements} <= {"code", "span", "sup"}
    assert "".join(Parsed(set_text).words) == (
        text.replace("`", "") if "<code>" in set_text else text
    )  # what is copied
    if "<" not in text:
        assert set_text == html
