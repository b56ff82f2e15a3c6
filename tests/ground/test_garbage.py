"""The collector rests within a block, and is afterwards as it was before."""

from __future__ import annotations

import gc

import pytest

from ostools.ground.memory import collector_at_rest


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_afterwards_as_it_was(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    try:
        with collector_at_rest():
            with collector_at_rest():
                pass
            assert not gc.isenabled()
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
