"""How a hosted model was asked, and what never came, in words for captions and notes."""

from __future__ import annotations

from typing import Any

from ostools.results import Result


def asked_elsewhere(result: Result) -> str:
    """Temperature and endpoint of the answers in words, as far as they are recorded."""
    how: Any = result.provenance.parameters
    temperature, endpoint = how.get("temperature"), how.get("endpoint")
    temperature_words = "a temperature that is not recorded" if temperature is None else f"temperature {temperature:g}"
    return f"made elsewhere at {temperature_words}" if endpoint is None else f"given over an API at {temperature_words}"


def unanswered(result: Result) -> list[str]:
    """One sentence where questions have no answer."""
    frame: Any = result.frame if "correct" in result.frame else getattr(result, "answers", result.frame)
    missing = int(frame["correct"].isna().sum())
    if not missing:
        return []
    return [f"{missing} of {len(frame)} prompts have no answer: the shares, errors and frequencies leave them out."]
