"""How the command line is asked, and what every refusal looks like."""

from __future__ import annotations

import re
import subprocess
import sys

COMMANDS = (
    "sensitivity", "profile", "contributions", "faithfulness", "nulls", "path-sum", "spectra",
    "attention", "attention-variation", "collapse", "repeats", "counting", "behaviour", "decodable", "readout", "fate",
    "ablate", "retrieval", "chain-of-thought",
    "reproduce", "figure",
    "study", "windows",
    "corpus", "run", "results",
    "report", "explore", "prompts", "tasks", "mitigations", "models", "doctor",
)  # fmt: skip


def in_a_process(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    code = "import sys; from ostools.cli import main; sys.argv[0] = 'ostools'; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, **options
    )


def assert_refused(found: tuple[int, str, str], *words: str) -> None:
    """Code 2, nothing on stdout, one line on stderr beside the forecast, with these words in it."""
    code, out, err = found
    assert code == 2
    assert out == ""
    assert err.endswith("\n")
    (refusal,) = (line for line in err.splitlines() if not line.startswith(("forecast: ", "plan: ")))
    assert refusal.startswith("ostools: ")
    assert "Traceback" not in err
    for word in words:
        assert word in err


def is_forecast(line: str) -> bool:
    """Memory, on one line."""
    size = r"\S+ [GM]iB"
    told = f"forecast: {size} of memory, {size} of it beside the model; its first steps measure the time"
    return bool(re.fullmatch(told, line))


def assert_one_forecast(err: str) -> None:
    """One line of memory, and nothing else."""
    assert err.count("\n") == 1
    assert is_forecast(err.rstrip())


def assert_forecasts(err: str) -> None:
    """That line, one a linearisation of how it goes, and nothing else."""
    whole, full, frozen = err.splitlines()
    assert is_forecast(whole)
    assert full.startswith("plan: full, exact: ")
    assert frozen.startswith("plan: frozen, exact: ")
