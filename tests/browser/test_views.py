"""The interactive attention view and what a notebook shows, in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import ostools as ost
from tests.browser.opening import Opened
from tests.reporting.every import model, prompt

pytestmark = pytest.mark.slow

DRAWN = "() => document.querySelector('canvas, .heads img')"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_view_of_attention_is_drawn_and_asks_for_nothing(
    scheme: str, tmp_path: Path, opened: Callable[..., Opened]
) -> None:
    path = ost.attention(model(), prompt()).view().save(tmp_path / "x.html")
    found = opened(path, 1200, scheme, wait=DRAWN)
    for width in (1200, 400):
        found.page.set_viewport_size({"width": width, "height": 900})
        assert found.width <= width
    assert found.requests == [path.as_uri()]
    assert (found.complaints, found.dialogs) == ([], [])


def test_in_a_notebook_the_view_runs_in_its_frame_and_nowhere_else(
    tmp_path: Path, opened: Callable[..., Opened]
) -> None:
    """A page that holds the output as a notebook's would: the frame draws, and has no hold of the
    page around it.
    """
    bundle = ost.attention(model(), prompt()).view()._repr_mimebundle_()
    path = tmp_path / "notebook.html"
    path.write_text(
        f"<!doctype html><title>mine</title><body>{bundle['text/html']}</body>", encoding="utf-8"
    )
    found = opened(path, 1200, wait="() => document.querySelector('iframe')")
    frame = found.page.frame_locator("iframe")
    frame.locator("canvas, .heads img").first.wait_for(state="attached")
    assert found.page.locator("iframe").get_attribute("sandbox") == "allow-scripts"
    assert [url for url in found.requests if url.startswith("http")] == []
    assert (found.complaints, found.dialogs) == ([], [])
