"""Docstrings are plain text with mathematics in it (`||y - y*||_p`, `j < i`): Markdown must read no
emphasis or tags there.

A griffe extension: it escapes what stands outside `code`, examples and indented blocks, before
mkdocstrings renders it, and leads from "docs/theory.md 3.2" to that section of the page on the
theory.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_CODE = re.compile(r"(`+[^`]+`+)")
_SPECIAL = re.compile(r"([\\*_<|\[\]$~])")
_THEORY = re.compile(r"docs/theory\.md (\d(?:\.\d)?)")
_ARGUMENT = re.compile(r" {4}[\w, ]+: ")


class PlainDocstrings(griffe.Extension):
    """Escapes every docstring once, as it is read."""

    def on_instance(self, *, obj: Any, **found: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = escaped(obj.docstring.value)


def escaped(text: str) -> str:
    """The docstring, of which nothing but code is Markdown. Indented displays after a blank line
    are code already.
    """
    lines: list[str] = []
    display = False
    for line in text.splitlines():
        blank = not lines or not lines[-1].strip()
        indented = line.startswith("    ")
        display = indented and (display or (blank and bool(lines)))
        name = _ARGUMENT.match(line)
        head = name.group() if name else ""  # Names of arguments are looked up, and set as code.
        lines.append(line if display else head + _outside_code(line[len(head) :]))
    return "\n".join(lines)


def _outside_code(line: str) -> str:
    parts = _CODE.split(line)
    return "".join(
        part if at % 2 else _linked(_SPECIAL.sub(r"\\\1", part)) for at, part in enumerate(parts)
    )


def _linked(text: str) -> str:
    return _THEORY.sub(
        lambda found: f"[Theory {found[1]}][section-{found[1].replace('.', '-')}]", text
    )
