"""What is attacked, made once for the tests of this directory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hostile.targets import Ground, prepared


@pytest.fixture(scope="package")
def ground() -> Iterator[Ground]:
    with prepared() as found:
        yield found
