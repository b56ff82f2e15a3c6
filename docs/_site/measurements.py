"""The reference of the measurements, written from their records: every function, and the results
that it returns.
"""

from __future__ import annotations

import importlib
import inspect
import re
from itertools import groupby

import ostools.measure
import ostools.paper
import ostools.sweep  # noqa: F401 -- the measurements of these rooms put themselves into RECORDS
from ostools.measure.measurement import RECORDS, MeasurementRecord

MARKER = "<!-- every measurement of this room -->"


def reference(room: str) -> str:
    """Markdown: the measurements of "measure", "paper" or "sweep", by the folder or module in which
    they stand.
    """
    records = [
        record
        for record in RECORDS.values()
        if record.function.__module__.startswith(f"ostools.{room}.")
    ]
    return "\n\n".join(
        f"## {folder.replace('_', ' ').capitalize()}\n\n"
        + "\n".join(line for part in parts for line in _lines(part))
        for folder, parts in groupby(
            sorted(records, key=_path), key=lambda record: _path(record).split(".")[2]
        )
    )


def _path(record: MeasurementRecord) -> str:
    return f"{record.function.__module__}.{record.name}"


def _lines(record: MeasurementRecord) -> list[str]:
    """The function, and each class of ostools that its annotation returns."""
    module = importlib.import_module(record.function.__module__)
    returned = re.findall(r"\w+", str(inspect.signature(record.function).return_annotation))
    results = [getattr(module, word, None) for word in returned]
    paths = [
        f"{result.__module__}.{result.__qualname__}"
        for result in results
        if isinstance(result, type)
    ]
    ours = dict.fromkeys(path for path in paths if path.startswith("ostools."))
    return [f"::: {path}" for path in (_path(record), *ours)]
