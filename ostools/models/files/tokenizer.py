"""Tokenizer of a checkpoint, and the settings that name tokens: each id stands for one token, as its file says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from ostools.ground.errors import InputError, short_repr
from ostools.ground.memory import collector_at_rest
from ostools.models.files.checks import has_tokenizer, one_line, read_json
from ostools.models.files.config import saved_config
from ostools.models.tokenizer_calls import decoded, token_ids


@collector_at_rest()
def read_tokenizer(directory: Path) -> Any:
    """The tokenizer of a checkpoint, which has shown that it can be used; None for a checkpoint without one."""
    if not has_tokenizer(directory):
        return None
    try:
        declared = read_declared(directory)
        file = directory / "config.json"  # a folder of gguf_cache has none yet
        options = {"config": saved_config(read_json(file))} if file.exists() else {}
        tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=False, local_files_only=True, **options)
        decoded(tokenizer, [*token_ids(tokenizer, "a"), *tokenizer.all_special_ids])
        check_declared_ids(tokenizer, declared, directory)
        for copy in ("_vocab", "_merges"):  # Python's own, which nothing reads any more: 140 MB of Gemma's vocabulary
            vars(tokenizer).pop(copy, None)
        return tokenizer
    except InputError:
        raise
    except Exception as error:  # bare ones for a broken file, any where a setting of a wrong type is first needed
        raise InputError(f"expected a tokenizer that transformers can read in {directory}: {one_line(error)}") from None


def check_tokenizer(tokenizer: Any, d_vocab: int, directory: Path) -> None:
    """Check that each id stands for one token, the ids are rows of the embedding, and the tokenizer adds at most one BOS.

    An embedding may have more rows than there are tokens (it is padded to a round number), and a token that
    text cannot produce (a multimodal placeholder) may lie outside; `encode` refuses such an id if it ever appears.
    """
    vocabulary = tokenizer.get_vocab()
    _require_one_token_each(vocabulary, directory)
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    outside = {index for index in vocabulary.values() if index >= d_vocab} - special
    size = len(tokenizer)
    if outside or d_vocab - size > max(d_vocab // 10, 128):
        raise InputError(
            f"expected a tokenizer that fits an embedding of {d_vocab} rows, found one of {size} tokens in "
            f"{directory}: it belongs to another model; copy the model's own there"
        )
    start = token_ids(tokenizer, "a")[:2]
    if tokenizer.bos_token_id is not None and start == [tokenizer.bos_token_id] * 2:
        raise InputError(
            f"expected one leading {tokenizer.bos_token!r}, found two: the tokenizer in {directory} adds it twice; "
            "mend its post-processor"
        )


def read_declared(directory: Path) -> dict[str, Any]:
    """The settings in tokenizer.json and tokenizer_config.json, by the name of the file."""
    files = ("tokenizer.json", "tokenizer_config.json")
    return {file: read_json(directory / file) for file in files if (directory / file).exists()}


def check_declared_ids(tokenizer: Any, declared: Mapping[str, Any], directory: Path) -> None:
    """Every added token has the id that tokenizer.json or tokenizer_config.json says; the library gives it another without a
    word where that id is taken."""
    for (token, file), where in _declared_ids(declared).items():
        token_id = tokenizer.convert_tokens_to_ids(token)
        if token_id != where:
            raise InputError(
                f"expected the token {short_repr(token)} with id {short_repr(where)} as {directory / file} says, found it "
                f"with id {token_id} in the tokenizer that it makes: copy the model's own tokenizer there"
            )


def _declared_ids(declared: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """The id of each added token, by its text and the file that says so."""
    ids: dict[tuple[str, str], Any] = {}
    for file, settings in declared.items():
        listed = settings.get("added_tokens") or []
        by_id = settings.get("added_tokens_decoder") or {}
        ids |= {(token["content"], file): token.get("id") for token in listed if "content" in token}
        ids |= {(token["content"], file): int(index) for index, token in by_id.items() if "content" in token}
    return ids


def _require_one_token_each(vocabulary: Mapping[str, int], directory: Path) -> None:
    if len(set(vocabulary.values())) == len(vocabulary):
        return
    tokens: dict[int, str] = {}
    for token, index in vocabulary.items():
        if index in tokens:
            raise InputError(
                f"expected an id for each token of {directory}, found id {index} for {short_repr(min(tokens[index], token))} "
                f"and for {short_repr(max(tokens[index], token))}: copy the model's own tokenizer there"
            )
        tokens[index] = token


def ids_of_setting(value: Any, name: str) -> tuple[int, ...]:
    """The token ids that a setting such as `eos_token_id` names: one, a list, or none.

    A negative id means none, as it does in transformers' `generate`, which never ends at it. Raises `InputError` for anything
    that is no whole number.
    """
    values = value if isinstance(value, list | tuple) else [value]
    for index in values:
        if index is not None and type(index) is not int:
            raise InputError(f"expected {name} to be a token id, a list of ids or null, found {short_repr(value)}")
    return tuple(index for index in values if index is not None and index >= 0)


def without_negative_ids(settings: Any) -> None:
    """Put None, or the ids that are left, in the place of negative ids of a generation configuration."""
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = getattr(settings, name, None)
        ids = ids_of_setting(value, name)
        if isinstance(value, int) and not ids:
            setattr(settings, name, None)
        elif isinstance(value, list):
            setattr(settings, name, list(ids) or None)
