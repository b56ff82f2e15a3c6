"""Tokenizer of a checkpoint: transformers' own, or for a forecast the file's alone."""

from __future__ import annotations

from tokenizers import Tokenizer

from ostools.ground import PreTrainedTokenizerBase, refusal
from ostools.ground.memory import collector_at_rest
from ostools.models.files.checkpoint import TEMPLATES, Checkpoint
from ostools.models.files.checks import check_declared_ids, read_json
from ostools.models.files.config import saved_config
from ostools.models.tokenizer_calls import TextTokenizer, decoded, token_ids

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


def read_text_tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase | TextTokenizer | None:
    """Tokenizer for plain texts: `TextTokenizer` where tokenizer.json alone says what transformers
    would do, else transformers' own.
    """
    directory = checkpoint.directory
    file, config = directory / "tokenizer.json", directory / "tokenizer_config.json"
    has_more = any((directory / name).exists() for name in _MORE_SETTINGS)
    settings = read_json(config) if file.is_file() and config.is_file() else {}
    is_plain = settings.get("tokenizer_class") == "TokenizersBackend" and not has_more
    if not is_plain or settings.keys() - _PLAIN_SETTINGS:
        return read_tokenizer(checkpoint)
    special = {name: str(token) for name, token in settings.items() if name.endswith("_token")}
    backend = Tokenizer.from_file(str(file))
    if None in map(backend.token_to_id, special.values()):  # transformers adds such a token
        return read_tokenizer(checkpoint)
    backend.no_truncation()  # transformers encodes without either, whatever the file says
    backend.no_padding()
    template = directory / "chat_template.jinja"
    text = template.read_text(encoding="utf-8") if template.is_file() else None
    return TextTokenizer(backend, special, text)
