"""The tokenizer of a GGUF file is what its header says, and llama.cpp's table where that says
nothing.
"""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gguf")
pytest.importorskip("sentencepiece")

from ostools.ground.errors import InputError
from ostools.models.files.checkpoint import Checkpoint
from ostools.models.files.config import read_tokenizer
from ostools.models.files.gguf_tokenizer import read_gguf_tokenizer, read_header
from scripts.gguf_types import (
    BEGIN,
    END,
    PAGE,
    TYPES,
    GgufType,
    listing,
    model_of,
    outcomes,
    verdict_of,
)
from scripts.gguf_writing import TEXTS, Vocabulary, of_bytes, of_pieces, write
from tests.checkpoints import refused


def _written(file: Path, vocabulary: Vocabulary, architecture: str = "llama") -> Path:
    kind = GgufType("", architecture, architecture, lambda: vocabulary)
    return write(file, model_of(kind, vocabulary), architecture, vocabulary)


def _tokenizer(folder: Path, vocabulary: Vocabulary, architecture: str = "llama") -> Any:
    return read_gguf_tokenizer(
        read_header(_written(folder / "tiny.gguf", vocabulary, architecture)), "tiny.gguf"
    )


@pytest.mark.parametrize(
    ("pre", "said", "tokens"),
    [
        ("llama-bpe", {}, ["<s>", "hello"]),
        ("llama-bpe", {"add_bos_token": False}, ["hello"]),
        ("tekken", {"add_eos_token": True}, ["<s>", "hello", "</s>"]),
        ("qwen2", {}, ["he", "ll", "o"]),
        ("qwen2", {"add_bos_token": True, "add_eos_token": True}, ["<s>", "he", "ll", "o", "</s>"]),
    ],
)
def test_bos_eos_and_whole_words(
    pre: str, said: dict[str, Any], tokens: list[str], tmp_path: Path
) -> None:
    """ "hello" is a token that no merge makes: found whole where merges are ignored, else in
    pieces.
    """
    tokenizer = _tokenizer(tmp_path, of_bytes(pre, said=said))
    assert tokenizer.convert_ids_to_tokens(tokenizer("hello").input_ids) == tokens


def test_letters_and_accents_are_composed_where_the_model_does_so(tmp_path: Path) -> None:
    for pre, composes in (
        ("qwen2", True),
        ("command-r", True),
        ("gpt-2", False),
        ("llama-bpe", False),
    ):
        tokenizer = _tokenizer(tmp_path, of_bytes(pre))
        assert (tokenizer("e\u0301").input_ids == tokenizer("é").input_ids) == composes, pre


@pytest.mark.parametrize("prefix", [True, False])
def test_pieces_are_cut_as_sentencepiece_cuts_them(prefix: bool, tmp_path: Path) -> None:
    """With a blank in front of each stretch of text, or none; and what comes back is the text."""
    vocabulary = of_pieces(prefix=prefix)
    tokenizer = _tokenizer(tmp_path, vocabulary)
    assert [tokenizer(text).input_ids for text in TEXTS] == [
        vocabulary.published(text) for text in TEXTS
    ]
    plain = [text for text in TEXTS if "<" not in text]
    assert [
        tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) for text in plain
    ] == plain


def test_special_tokens_are_those_of_the_header(tmp_path: Path) -> None:
    tokenizer = _tokenizer(
        tmp_path, of_bytes("qwen2", said={"eos_token_id": 5, "padding_token_id": 2})
    )
    assert [tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.unk_token] == [
        *("<s>", "<|im_end|>", "</s>", "<unk>")
    ]
    ids = tokenizer("a<|im_start|><think>b").input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == ["a", "<|im_start|>", "<think>", "b"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a<think>b"


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma2"])
def test_what_is_saved_is_read_as_the_same(architecture: str, tmp_path: Path) -> None:
    """transformers reads the tokenizer of some types by a class of its own, whatever the folder
    says: Qwen's.
    """
    kinds = ["qwen2"] if architecture == "qwen2" else list(_PUBLISHED)
    vocabularies = (
        [of_pieces(prefix=True)] if architecture == "gemma2" else [of_bytes(pre) for pre in kinds]
    )
    for vocabulary in vocabularies:
        file = _written(tmp_path / "tiny.gguf", vocabulary, architecture)
        tokenizer = read_gguf_tokenizer(read_header(file), "tiny.gguf")
        tokenizer.save_pretrained(tmp_path)
        (tmp_path / "config.json").write_text(
            f'{{"model_type": "{architecture}"}}', encoding="utf-8"
        )
        saved: Any = read_tokenizer(Checkpoint("tiny", tmp_path))
        assert saved.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


_PUBLISHED = ("llama-bpe", "tekken", "qwen2", "gpt-2", "command-r", "smollm")


@pytest.mark.parametrize(
    ("said", "match"),
    [
        (
            {"eos_token_id": 9999},
            r"tokenizer.ggml.eos_token_id in tiny.gguf to be one of \d+ tokens, found 9999: correct it",
        ),
        ({"tokens": ["a", "b", "a"]}, r"an id for each token of tiny.gguf, found 'a' twice"),
        ({"merges": ["q z"]}, r"merges, scores and types .* in tiny.gguf: .*out of vocabulary"),
        ({"token_type": [1, 1]}, r"types of tokens that fit each other in tiny.gguf: .*zip"),
        ({"model": "t5"}, r"tokenizer.ggml.model gpt2 or llama in tiny.gguf, found 't5'"),
        (
            {"pre": "default"},
            r"tokenizer.ggml.pre in tiny.gguf, .* found default: add it with `gguf-new-metadata",
        ),
    ],
)
def test_a_header_that_contradicts_itself(said: dict[str, Any], match: str, tmp_path: Path) -> None:
    refused(match, _tokenizer, tmp_path, of_bytes("gpt-2", said=said))


def test_scores_that_are_not_the_tokens_own(tmp_path: Path) -> None:
    """One of another number would move all behind it to the next token."""
    header = read_header(_written(tmp_path / "tiny.gguf", of_pieces(prefix=True)))
    scores = header.settings["tokenizer.ggml.scores"]
    for written, match in (
        ([0.0, *scores], "scores and types .* zip.*longer"),
        (scores[1:], "scores and types .* zip.*shorter"),
        ([*scores[:-1], math.nan], "finite numbers in tokenizer.ggml.scores of tiny.gguf"),
        ([*scores[:-1], math.inf], "finite numbers in tokenizer.ggml.scores of tiny.gguf"),
    ):
        settings = {**header.settings, "tokenizer.ggml.scores": written}
        with pytest.raises(InputError, match=match):
            read_gguf_tokenizer(dataclasses.replace(header, settings=settings), "tiny.gguf")


# ---- every type of file: tokens and logits are those of the model that was written

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
    verdict = verdict_of(_BY_TITLE[title], tmp_path)
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
    refusals = {
        title.rpartition(", ")[0]
        for words, titles in found.items()
        for title in titles
        if words.startswith("refused")
    }
    assert refusals == REFUSED
    loaded = [words for words in found if not words.startswith("refused")]
    assert loaded == ["tokens and logits equal"]
    assert PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0].strip() == listing(found)
