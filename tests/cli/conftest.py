"""Every test leaves the manners of a fresh process; and a model that has no chat template."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    from ostools.cli.kit.manners import MANNERS, Manners

    yield
    vars(MANNERS).update(vars(Manners()))


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Llama on disk, without a chat template."""
    # Inside: what is imported before pytest is configured escapes the check of its annotations.
    from tests.checkpoints import write_checkpoint

    sizes: dict[str, Any] = {"d_model": 16, "n_heads": 2, "n_key_value_heads": 1, "d_mlp": 16, "context": 256}
    return str(write_checkpoint(tmp_path_factory.mktemp("bare") / "tiny", "llama", chat_template=None, **sizes))
