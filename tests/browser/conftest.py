"""One Chromium for every test of this folder, and pages opened in it with everything that they
asked for or complained of.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.opening import Opened, open_page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """Chromium, by the path in OSTOOLS_CHROMIUM or as this machine has it; tests are skipped where
    there is none.

    For this folder only: while it lives, no other code of this process may start an event loop of
    its own.
    """
    found = os.environ.get("OSTOOLS_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(
            f"no Chromium here: none of {', '.join(NAMES)} on the path, and OSTOOLS_CHROMIUM is not set"
        )
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Opened]]:
    """Opens a file at a width and in a colour scheme, and waits until its charts are drawn; closed
    after the test.
    """
    contexts: list[Any] = []

    def open_it(path: Path, width: int = 800, scheme: str = "light", **options: Any) -> Opened:
        contexts.append(
            browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        )
        return open_page(contexts[-1], path, **options)

    yield open_it
    for context in contexts:
        context.close()
