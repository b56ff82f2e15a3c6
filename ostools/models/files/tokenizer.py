"""Tokenizer of a checkpoint: transformers' own, or for a forecast the file's alone."""

from __future__ import annotations

from ostools.ground import PreTrainedTokenizerBase, refusal
from ostools.ground.memory import collector_at_rest
from ostools.models.files.checkpoint import TEMPLATES, Checkpoint
from ostools.models.files.checks import check_declared_ids
from ostools.models.files.config import saved_config
from ostools.models.tokenizer_calls import decoded, token_ids

_PLAIN_SETTINGS = frozenset(
    (
        "backend",
        "bos_token",
        "clean_up_tokenization_spaces",
        "eos_token",
        "model_max_length",
        "pad_token",
        "tokenizer_class",
        "unk_token",
    )
)
"""Settings of tokenizer_config.json that change no id of a text: transformers reads the rest from
tokenizer.json.
"""
_MORE_SETTINGS = ("special_tokens_map.json", "added_tokens.json", TEMPLATES)


@collector_at_rest()
def read_tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a checkpoint, which has shown that it can be used; None for a checkpoint
    without one.
    """
    if not checkpoint.has_tokenizer:
        return None
    from transformers import AutoTokenizer

    directory = checkpoint.directory
    has_config = (directory / "config.json").exists()
    options = {"config": saved_config(checkpoint.config)} if has_config else {}
    with refusal(f"a tokenizer that transformers can read in {directory}"):
        declared_tokens = checkpoint.declared_tokens
        tokenizer = AutoTokenizer.from_pretrained(
            directory, trust_remote_code=False, local_files_only=True, **options
        )
        decoded(tokenizer, [*token_ids(tokenizer, "a"), *tokenizer.all_special_ids])
        check_declared_ids(tokenizer, declared_tokens)
    # Python's own copies, which nothing reads any more: 140 MB of Gemma's vocabulary.
    for copy in ("_vocab", "_merges"):
        vars(tokenizer).pop(copy, None)
    return tokenizer
