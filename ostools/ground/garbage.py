"""Python's collector of circular garbage, at rest while a great many objects are made that all stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Run the block without the collector, which would walk through the 800,000 parts of a large vocabulary again and again.

    What is in no circle is let go at once all the same. Blocks nest, also across threads.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
