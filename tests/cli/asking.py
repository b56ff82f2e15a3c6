"""How the command line is asked, and what every refusal looks like."""

from __future__ import annotations

import subprocess
import sys

COMMANDS = (
    "report", "reproduce", "sensitivity", "path-sum", "looseness", "profile", "flow", "spectra", "attention",
    "attention-variation", "collapse",
    "repeats", "counting", "behaviour", "prompts", "study", "windows", "ablate", "theory", "lab", "figure", "retrieval",
    "chain-of-thought", "predict-errors", "run", "results", "tasks", "mitigations", "models", "doctor",
)  # fmt: skip


def in_a_process(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    code = "import sys; from ostools.cli import main; sys.argv[0] = 'ostools'; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, **options
    )


def assert_refused(found: tuple[int, str, str], *words: str) -> None:
    """Code 2, nothing on stdout, one line on stderr, with these words in it."""
    code, out, err = found
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("ostools: ")
    assert "Traceback" not in err
    for word in words:
        assert word in err


def assert_forecasts(err: str) -> None:
    """One line of memory a linearisation, and nothing else."""
    full, frozen = err.splitlines()
    assert full.startswith("forecast: full, exact: ")
    assert frozen.startswith("forecast: frozen, exact: ")
