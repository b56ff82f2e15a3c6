"""A checkpoint for sweeps, and packages with a plugin."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of its own: other tests may not share what a sweep hashes."""
    from tests.checkpoints import write_checkpoint

    return write_checkpoint(tmp_path_factory.mktemp("sweep") / "tiny", "gemma")


@pytest.fixture(scope="session")
def installed() -> Callable[[Path, str, str], None]:
    """Puts a package with a mitigation, named as its class in small letters, where an interpreter
    that looks there finds it.
    """

    def install(home: Path, kind: str, source: str) -> None:
        name = kind.lower()
        info = home / f"{name}-1.0.dist-info"
        info.mkdir()
        (home / f"{name}_plugin.py").write_text(source)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            f"[ostools.mitigations]\n{name} = {name}_plugin:{kind}\n"
        )

    return install
