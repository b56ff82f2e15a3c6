"""Typesets the site's mathematics when it is built, as MathML: browsers draw that by themselves,
without a script or a network.

pymdownx.arithmatex finds `$...$` and `$$...$$` and leaves them as TeX in elements of the class
"arithmatex".
"""

from __future__ import annotations

import html
import re
from xml.etree import ElementTree

from latex2mathml.converter import convert

_FOUND = re.compile(
    r'<(span|div) class="arithmatex">(?:\\\((?P<inline>.*?)\\\)|\\\[(?P<display>.*?)\\\])</\1>',
    re.DOTALL,
)
_TEXT_CELL = re.compile(
    r'(<div class="[^"]*\bjp-MarkdownOutput\b[^"]*"[^>]*>)(.*?)(?=</div>)', re.DOTALL
)
_CODE = re.compile(r"(<code.*?</code>|<pre.*?</pre>)", re.DOTALL)
_DOLLARS = re.compile(r"\$\$(?P<display>[^$]+)\$\$|\$(?P<inline>[^$]+)\$")


def typeset(page: str) -> str:
    """The page with every formula as MathML, its TeX kept as the text that is read aloud and
    copied.
    """
    return _FOUND.sub(_formula, page)


def typeset_notebook(page: str) -> str:
    """A notebook's page, whose text cells still have their `$...$`; code has dollars of its own,
    and is left alone.
    """
    return _TEXT_CELL.sub(lambda cell: cell[1] + "".join(map(_text, _CODE.split(cell[2]))), page)


def _text(part: str) -> str:
    return part if part.startswith(("<code", "<pre")) else _DOLLARS.sub(_formula, part)


def _formula(found: re.Match[str]) -> str:
    inline, display = found["inline"], found["display"]
    tex = html.unescape(inline if display is None else display).strip()
    if r"\begin" in tex or "&" in tex:
        raise ValueError(f"latex2mathml aligns nothing: write one formula a line, found {tex!r}")
    mathml = convert(tex.replace(r"\|", "‖"), display="inline" if display is None else "block")
    unknown = "".join(ElementTree.fromstring(mathml).itertext())
    if "\\" in unknown:
        raise ValueError(f"latex2mathml does not know all of {tex!r}: found {unknown!r}")
    mathml = mathml.replace("<math ", f'<math aria-label="{html.escape(tex, quote=True)}" ', 1)
    return mathml if display is None else f'<span class="formula" tabindex="0">{mathml}</span>'
