"""Versions of the libraries whose numbers are measured: those that were tried, or none."""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from ostools.ground.errors import InputError

_DECIDE_NUMBERS = ("torch", "transformers", "transformer-lens")


@lru_cache
def check_versions() -> None:
    """Refuse a version of torch, transformers or TransformerLens that the package does not allow.

    pip can be overridden, and nothing else would say so: transformers 5.24 renames its cache, so
    that answers are other ones without a word.
    """
    try:
        requirements = [Requirement(line) for line in requires("oversquashing-tools") or ()]
    except PackageNotFoundError:  # a source tree that was not installed says nothing
        return
    for requirement in requirements:
        if requirement.name not in _DECIDE_NUMBERS:
            continue
        installed = version(requirement.name)
        if not requirement.specifier.contains(installed, prereleases=True):
            raise InputError(
                f"expected {requirement}, found {installed}, in which numbers may be other ones "
                f"without a word: pip install '{requirement}'"
            )
