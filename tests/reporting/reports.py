"""A report for all tests that read or look at one, since each measures everything that it shows."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock

from ostools.reporting.report.report import report
from tests.checkpoints import tiny_model
from tests.reporting.made import HOSTILE

LENGTHS = range(1, 13)
JUDGED = (4, 5, 6, 7, 8)
"""What fits the context of a tiny model."""


def hostile_report(factory: pytest.TempPathFactory) -> Path:
    """A report of a tiny Gemma with a hostile prompt, measured once for all workers of this run."""
    asked, base = sys.modules["ostools.reporting.sections.extent"], factory.getbasetemp()
    path = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "hostile-report.html"
    with FileLock(f"{path}.lock"), pytest.MonkeyPatch.context() as patch:
        if not path.is_file():
            patch.setattr(
                asked, "FULL", replace(asked.FULL, answer_lengths=(4, 6), answer_seeds=(0, 1))
            )
            patch.setattr(asked, "FAILURE_STAGE_LENGTHS", JUDGED)
            report(
                tiny_model("gemma"),
                prompt="".join(HOSTILE[:6]) + " 1110?",
                out=path,
                lengths=LENGTHS,
            )
    return path
