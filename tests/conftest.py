"""One thread a worker (two torch threads on two busy cores are slower than one), and no deadlines: nothing is timed here."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("project", deadline=None, derandomize=True)
settings.load_profile("project")


@pytest.fixture(scope="session", autouse=True)
def _signals_are_heard() -> None:
    """Those that tests send, and that under nohup or in the background of a script are ignored, by what is started here too."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Gemma on disk."""
    # Inside, here and below: what is imported before pytest is configured escapes the check of its annotations.
    from tests.checkpoints import write_checkpoint

    return str(write_checkpoint(tmp_path_factory.mktemp("cli") / "tiny", "gemma"))


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused has to be refused before a model is loaded."""

    def never(*found: object, **options: object) -> None:
        raise AssertionError("loaded a model first")

    monkeypatch.setattr("ostools.models.load_model", never)


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """Runs `ostools` with these arguments in an empty directory: exit code, stdout, stderr."""
    from ostools import cli

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_quieten_libraries", lambda: None)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ostools", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        out, err = capfd.readouterr()
        return int(stopped.value.code or 0), out, err

    return call
