"""A class or factory out of a file of the user's own: `./mine.py:AskAgain:times=2`. To load it runs
that file.

Only the command line asks for it, with what was typed there. A sweep file, a page or a table that
names a file is refused (`mitigations.mitigation`), as what it holds would run as code.
"""

from __future__ import annotations

import hashlib
import re
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from typing import NamedTuple

_SPEC = re.compile(r"(?P<path>.+\.py):(?P<name>[^\W\d]\w*)(?::(?P<options>.*))?", re.DOTALL)
LOADED: dict[str, str] = {}
"""The files that ran in this process, each with the SHA-256 of what ran: a provenance names them.
"""


class FileSpec(NamedTuple):
    """The parts of a text that names something in a file."""

    path: str
    name: str
    options: str


def file_spec(spec: str) -> FileSpec | None:
    """The parts of PATH.py:NAME or PATH.py:NAME:OPTIONS; None of a text of another form."""
    match = _SPEC.fullmatch(spec.lstrip())
    return None if match is None else FileSpec(match["path"], match["name"], match["options"] or "")


def loaded_from(path: str, name: str) -> object:
    """What the file calls `name`, once it has run. Raises whatever the file raises; `OSError` where
    it cannot be read, and `AttributeError` where it has no such name.

    The module is called by the path as it was typed, and so is what it defines (`Registry.label`).
    """
    loader = SourceFileLoader(path, path)
    module = module_from_spec(ModuleSpec(path, loader, origin=path))
    sys.modules[path] = module  # where dataclasses look up what annotations name
    loader.exec_module(module)
    LOADED[path] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return getattr(module, name)
