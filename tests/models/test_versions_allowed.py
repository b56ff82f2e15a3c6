"""A version of a library whose numbers were not tried is refused."""

from __future__ import annotations

import pytest

from ostools.ground.errors import InputError
from ostools.models import load_model
from ostools.models.files import checks


def test_a_version_that_was_not_tried_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers 5.24, which pip installs where it is told to, computes other answers."""
    checks.check_versions.cache_clear()
    checks.check_versions()
    installed = checks.version
    monkeypatch.setattr(
        checks,
        "version",
        lambda name: "5.24.0" if name == "transformers" else installed(name),
    )
    checks.check_versions.cache_clear()
    with pytest.raises(InputError, match=r"expected transformers<5.24.*, found 5.24.0, in which"):
        load_model()
