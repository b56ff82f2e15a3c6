"""A model that has no chat template."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Llama on disk, without a chat template."""
    # Inside: what is imported before pytest is configured escapes the check of its annotations.
    from tests.checkpoints import write_checkpoint

    sizes: dict[str, Any] = {"d_model": 16, "n_heads": 2, "n_key_value_heads": 1, "d_mlp": 16, "context": 256}
    return str(write_checkpoint(tmp_path_factory.mktemp("bare") / "tiny", "llama", chat_template=None, **sizes))
