"""Words of a command line, written so that a shell reads back exactly what they were."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any


def quoted(word: str) -> str:
    """The word for a POSIX shell; with characters that no one can see or copy, byte by byte in
    bash's and zsh's $'...'.

    A line end, a control or a direction mark in a page may be lost on the way through a clipboard,
    and some hide what a command does. NUL is written like the others, though no command line can
    hold one.
    """
    if word.isprintable():
        return shlex.quote(word)
    # Three octal digits, so that a digit after it is not taken for a fourth.
    escaped = (
        chr(byte) if 32 <= byte < 127 and byte not in b"\\'" else f"\\{byte:03o}"
        for byte in word.encode("utf-8", "surrogatepass")
    )
    return f"$'{''.join(escaped)}'"


def stored_at(model: Mapping[str, Any]) -> str:
    """The word after `--model`; for an adopted model, the place where its user has to save it
    first.
    """
    return "DIRECTORY-WHERE-IT-IS-SAVED" if model.get("origin") == "adopted" else str(model["name"])


def loading(model: Mapping[str, Any]) -> list[str]:
    """The options that load the model of a provenance again."""
    return ["--load-dtype", str(model["dtype"]), "--device", str(model["device"])]
