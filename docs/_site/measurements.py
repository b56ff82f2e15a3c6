"""The reference of the measurements, written from their records: every function, and the results that it returns."""

from __future__ import annotations

import importlib
import inspect
import re
from itertools import groupby

from ostools.ground.records import records

MARKER = "<!-- every measurement of this room -->"


def reference(room: str) -> str:
    """Markdown: the measurements of "measure", "experiments" or "sweep", by the folder or module in which they stand."""
    targets = [target for target in records() if target.startswith(f"{room}.")]
    return "\n\n".join(
        f"## {folder.replace('_', ' ').capitalize()}\n\n" + "\n".join(line for part in parts for line in _lines(part))
        for folder, parts in groupby(targets, key=lambda target: re.split("[.:]", target)[1])
    )


def _lines(target: str) -> list[str]:
    """The function, and each class of ostools that its annotation returns."""
    module_name, _, name = target.partition(":")
    module = importlib.import_module(f"ostools.{module_name}")
    returned = re.findall(r"\w+", str(inspect.signature(getattr(module, name)).return_annotation))
    results = [getattr(module, word, None) for word in returned]
    paths = [f"{result.__module__}.{result.__qualname__}" for result in results if isinstance(result, type)]
    ours = dict.fromkeys(path for path in paths if path.startswith("ostools."))
    return [f"::: {path}" for path in (f"ostools.{module_name}.{name}", *ours)]
