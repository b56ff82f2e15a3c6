"""Typesets the site's mathematics when it is built, as MathML: browsers draw that by themselves, without a script or a network.

pymdownx.arithmatex finds `$...$` and `$$...$$` and leaves them as TeX in elements of the class "arithmatex".
"""

from __future__ import annotations

import html
import re
from xml.etree import ElementTree

from latex2mathml.converter import convert

_FOUND = re.compile(r'<(span|div) class="arithmatex">(?:\\\((.*?)\\\)|\\\[(.*?)\\\])</\1>', re.DOTALL)


def typeset(page: str) -> str:
    """The page with every formula as MathML, its TeX kept as the text that is read aloud and copied."""
    return _FOUND.sub(_formula, page)


def _formula(found: re.Match[str]) -> str:
    inline, display = found.group(2), found.group(3)
    tex = html.unescape(inline if display is None else display).strip()
    if r"\begin" in tex or "&" in tex:
        raise ValueError(f"latex2mathml aligns nothing: write one formula a line, found {tex!r}")
    mathml = convert(tex, display="inline" if display is None else "block")
    ElementTree.fromstring(mathml)  # Well-formed, or the build ends here.
    mathml = mathml.replace("<math ", f'<math aria-label="{html.escape(tex, quote=True)}" ', 1)
    return mathml if display is None else f'<div class="formula" tabindex="0">{mathml}</div>'
