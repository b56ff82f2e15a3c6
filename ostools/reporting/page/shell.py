"""The words of a command line that load a provenance's model again."""

from __future__ import annotations

from collections.abc import Mapping


def stored_at(model: Mapping[str, object]) -> str:
    """The word after `--model`; for an adopted model, the place where its user has to save it
    first.
    """
    return "DIRECTORY-WHERE-IT-IS-SAVED" if model.get("origin") == "adopted" else str(model["name"])


def loading(model: Mapping[str, object]) -> list[str]:
    """The options that load the model of a provenance again."""
    return ["--load-dtype", str(model["dtype"]), "--device", str(model["device"])]
