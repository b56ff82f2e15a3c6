"""HTML pages that need no network: templates, the drawing library inlined once, and a
Content-Security-Policy.

The policy allows only the scripts that were written here, by their hashes, and no request to
anywhere; so even a text that escaped its escaping could run nothing. Chart data lie in
`application/json` blocks, which no browser executes.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from ostools.reporting.style import theme
from ostools.results import Looks

if TYPE_CHECKING:
    import altair as alt

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Script:
    """JavaScript that a page runs: `kind` is its type attribute, empty for a classic script."""

    source: str
    kind: str = ""

    @property
    def policy(self) -> str:
        """The hash by which a Content-Security-Policy knows it."""
        return (
            f"'sha256-{base64.b64encode(hashlib.sha256(self.source.encode()).digest()).decode()}'"
        )

    @property
    def html(self) -> Markup:
        """The element; the source must not end it early."""
        if "</script" in self.source.lower() or "<!--" in self.source or "\r" in self.source:
            raise RuntimeError(
                "a script holds text that would end its own element, or that a browser would change"
            )
        kind = f' type="{self.kind}"' if self.kind else ""
        return Markup(f"<script{kind}>{self.source}</script>")


@dataclass(frozen=True)
class Figure:
    """A chart on a page: an id, a caption, and its words for those who do not see it.

    sentences: those beside it; a note of the chart that they hold is not printed twice.
    """

    name: str
    chart: alt.TopLevelMixin
    caption: str
    alt_text: str
    sentences: str = ""

    @cached_property
    def spec(self) -> Looks:
        """The Vega-Lite specification; every part of it was checked when the chart was made."""
        return self.chart.to_dict(validate=False)

    @property
    def title(self) -> str:
        """The chart's own title, empty where it has none."""
        return self.spec.get("title", {}).get("text", "")

    @property
    def notes(self) -> list[str]:
        """The lines under the chart's title that no sentence beside it says, which a page sets as
        text.
        """
        lines = self.spec.get("title", {}).get("subtitle", ())
        return [line for line in lines if line not in self.sentences]

    @property
    def data(self) -> Markup:
        """The specification with the page's colours and without its title, as inert JSON."""
        spec = theme.on_page({name: part for name, part in self.spec.items() if name != "title"})
        return Markup(theme.safe_json(spec))


@lru_cache(maxsize=1)
def library() -> Script:
    """Vega, Vega-Lite and Vega-Embed out of vl-convert, one classic script."""
    import vl_convert

    bundle: Callable[..., str] = vl_convert.javascript_bundle
    return Script(bundle().replace("\r", ""))


@lru_cache(maxsize=1)
def drawing() -> Script:
    """The few lines that draw every figure of a page at the width it has."""
    return Script((TEMPLATES / "draw.js").read_text(encoding="utf-8"))


def render(template: str, values: Mapping[str, object], scripts: Sequence[Script] = ()) -> str:
    """A page out of a template, every value escaped; `scripts` run after the charts are drawn."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # no dry run needs them

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible_lines,
    )
    environment.filters["sentence"] = sentence
    all_scripts = (library(), drawing(), *scripts)
    hashes = " ".join(dict.fromkeys(script.policy for script in all_scripts))
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "font-src data:; base-uri 'none'; form-action 'none'"
    )
    return environment.get_template(template).render(**values, policy=policy, scripts=all_scripts)


def _visible_lines(value: object) -> object:
    """A text with control and direction characters and halves of characters spelled out, line by
    line; what is HTML already stays. Names and errors that were read from files may hold any.
    """
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "\n".join(map(theme.visible, value.split("\n")))


def sentence(text: str) -> Markup:
    """A finding as HTML: escaped, then `names` in code and powers raised, with a ^ that is not seen
    and is copied.
    """
    escaped = str(escape(_visible_lines(text)))
    raised = re.sub(r"\^(-?\d+(?:\.\d+)?)", r'<span class="raised">^</span><sup>\1</sup>', escaped)
    # Escaped before the tags were put in.
    return Markup(re.sub(r"`([^`<>]*)`", r"<code>\1</code>", raised))


def chart_page(chart: alt.TopLevelMixin, title: str) -> str:
    """One chart as a page of its own, with its own title and notes as text."""
    figure = Figure("chart", chart, title, title)
    words = ". ".join(line.rstrip(".") for line in (title, figure.title, *figure.notes) if line)
    figure = Figure("chart", chart, figure.title or title, f"{words}.")
    return render("chart.html.j2", {"title": title, "figure": figure})


def stored_at(model: Mapping[str, object]) -> str:
    """The word after `--model`; for an adopted model, the place where its user has to save it
    first.
    """
    return "DIRECTORY-WHERE-IT-IS-SAVED" if model.get("origin") == "adopted" else str(model["name"])


def loading(model: Mapping[str, object]) -> list[str]:
    """The options that load the model of a provenance again."""
    return ["--load-dtype", str(model["dtype"]), "--device", str(model["device"])]
