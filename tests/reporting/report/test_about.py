"""What a page says of the model that its numbers are of."""

from __future__ import annotations

from ostools.reporting.sections.about import origin_terms
from ostools.results import Provenance
from tests.checkpoints import tiny_model


def test_a_bos_that_the_tokenizer_does_not_add_is_said() -> None:
    said = {
        family: dict(origin_terms(Provenance.collect(tiny_model(family))))
        for family in ("gpt2", "llama")
    }
    assert (
        said["gpt2"]["special tokens"]
        == "the tokenizer has a BOS and by itself puts none before a text"
    )
    assert "special tokens" not in said["llama"]
