"""Every type of GGUF file: tokens and logits are those of the model that was written, or it is
refused.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gguf")
pytest.importorskip("sentencepiece")

from scripts.gguf_types import (
    BEGIN,
    END,
    PAGE,
    TYPES,
    listing,
    outcomes,
    verdict_of,
)

_BY_TITLE = {kind.title: kind for kind in TYPES}
QUICK = ("Llama 3.1, 3.2 (`rope_freqs`)", "Qwen 2, 2.5")
REFUSED = {
    "Llama 3 of April 2024 (no `pre`)",
    "Mixtral",
    "Gemma 1",
    "Command R",
    "OLMo 2",
}


@pytest.mark.parametrize("title", QUICK)
def test_tokens_and_logits_are_those_of_the_model_that_was_written(
    title: str, tmp_path: Path
) -> None:
    kind = _BY_TITLE[title]
    verdict = verdict_of(kind, tmp_path)
    assert (verdict.refused, verdict.tokens, verdict.difference) == ("", True, 0.0)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"said": {"llama.attention.value_length": 4}}, "llama.attention.value_length = 4"),
        (
            {"unsaid": ["attention.layer_norm_rms_epsilon"]},
            "expected llama.attention.layer_norm_rms_epsilon in tiny.gguf",
        ),
        (
            {"said": {"llama.attention.head_count_kv": [2, 1]}},
            "transformers has, found llama.attention.head_count_kv = [2, 1]",
        ),
    ],
)
def test_a_header_of_no_model_is_refused(
    changed: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """Heads whose keys and values differ in width, no epsilon, another number of heads in each
    layer.
    """
    assert (
        words in verdict_of(dataclasses.replace(_BY_TITLE["SmolLM2"], **changed), tmp_path).refused
    )


@pytest.mark.slow
def test_the_list_in_the_docs_is_what_runs() -> None:
    """What loads has equal tokens, and logits to the bit."""
    found = outcomes()
    refused = {
        title.rpartition(", ")[0]
        for words, titles in found.items()
        for title in titles
        if words.startswith("refused")
    }
    assert refused == REFUSED
    loaded = [words for words in found if not words.startswith("refused")]
    assert loaded == ["tokens and logits equal"]
    assert PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0].strip() == listing(found)
