"""What a command holds on Gemma 3 270M is at least forecast, and at least half of what is forecast."""

import sys

import pytest

from benchmarks.commands import ran
from ostools.models.files.sources import is_installed

pytestmark = pytest.mark.slow
NAME = "gemma-3-270m"
TEXT = "--prompt 'The old lighthouse keeper walked down to the harbour every morning'"
COMMANDS = {
    "exact": "sensitivity --prompt 'Once upon a time' --method exact --linearisations frozen",
    "sketch": f"sensitivity {TEXT}",
    "bounds": f"bounds {TEXT}",
    "collapse": "collapse --lengths 1:64 --dtypes bfloat16",
    "evaluate": "evaluate --task count-ones --lengths 1:16",
    "probe": "probe --task count-ones-bernoulli --lengths 4,8,12,16,24",
}


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
@pytest.mark.skipif(not is_installed(NAME), reason=f"needs {NAME}: make real")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_peak_is_at_most_what_was_forecast_and_at_least_half(command: str) -> None:
    found = ran(f"{COMMANDS[command]} --model {NAME}")
    assert not found.refused
    assert found.peak <= found.forecast_bytes <= 2 * found.peak
