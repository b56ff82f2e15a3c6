"""A model that has no chat template, and a command line whose commands are another function."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def write_llama(folder: Path, chat_template: str | None) -> str:
    """The directory of a tiny Llama with this chat template."""
    # Inside: what is imported before pytest is configured escapes the check of its annotations.
    from tests.checkpoints import write_checkpoint

    sizes: dict[str, Any] = {"d_model": 16, "n_heads": 2, "n_key_value_heads": 1, "d_mlp": 16}
    sizes |= {"context": 512, "chat_template": chat_template}
    return str(write_checkpoint(folder / "tiny", "llama", **sizes))


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Llama on disk, without a chat template."""
    return write_llama(tmp_path_factory.mktemp("bare"), None)


@pytest.fixture
def main(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Any], tuple[int, str]]:
    """Runs the command line with this in place of its commands: the exit code and stderr; nothing
    on stdout.
    """
    from ostools import cli

    def call(app: Any) -> tuple[int, str]:
        monkeypatch.setattr(cli, "_quieten_libraries", lambda: None)
        monkeypatch.setattr(cli, "app", app)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        assert out == ""
        return int(str(ended.value.code)), err

    return call
