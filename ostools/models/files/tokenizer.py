"""Tokenizer of a checkpoint: transformers' own, or for a forecast the file's alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer

from ostools.ground.errors import refusal
from ostools.ground.memory import collector_at_rest
from ostools.models.files.checkpoint import TEMPLATES, Checkpoint
from ostools.models.files.checks import check_declared_ids, read_json
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
def read_tokenizer(checkpoint: Checkpoint) -> Any:
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
        settings = checkpoint.tokenizer_settings
        tokenizer = AutoTokenizer.from_pretrained(
            directory, trust_remote_code=False, local_files_only=True, **options
        )
        decoded(tokenizer, [*token_ids(tokenizer, "a"), *tokenizer.all_special_ids])
        check_declared_ids(tokenizer, settings.items())
    # Python's own copies, which nothing reads any more: 140 MB of Gemma's vocabulary.
    for copy in ("_vocab", "_merges"):
        vars(tokenizer).pop(copy, None)
    return tokenizer


class Encoded(NamedTuple):
    """Ids of a text."""

    input_ids: list[int]


@dataclass(frozen=True, eq=False)
class TextTokenizer:
    """A tokenizer of plain texts with what `tokens.prompt_ids` asks of transformers' own, which
    takes twice as long to read.

    named: the token of each role ("bos_token", "eos_token", "pad_token", "unk_token").
    """

    backend: Tokenizer
    named: Mapping[str, str]
    chat_template: str | None

    def __call__(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        split_special_tokens: bool = False,
        **unused: Any,
    ) -> Encoded:
        self.backend.encode_special_tokens = split_special_tokens
        return Encoded(self.backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def __getattr__(self, name: str) -> int | None:
        """`bos_token_id`, `eos_token_id`, `unk_token_id`."""
        if not name.endswith("_token_id"):
            raise AttributeError(name)
        token = self.named.get(name.removesuffix("_id"))
        return None if token is None else self.backend.token_to_id(token)

    def __len__(self) -> int:
        return self.backend.get_vocab_size()

    @property
    def all_special_ids(self) -> list[int | None]:
        return [self.backend.token_to_id(token) for token in self.named.values()]

    @property
    def added_tokens_decoder(self) -> Mapping[int, AddedToken]:
        return self.backend.get_added_tokens_decoder()

    def convert_ids_to_tokens(self, index: int) -> str | None:
        return self.backend.id_to_token(index)


def read_text_tokenizer(checkpoint: Checkpoint) -> Any:
    """Tokenizer for plain texts: `TextTokenizer` where tokenizer.json alone says what transformers
    would do, else transformers' own.
    """
    directory = checkpoint.directory
    file, config = directory / "tokenizer.json", directory / "tokenizer_config.json"
    has_more = any((directory / name).exists() for name in _MORE_SETTINGS)
    settings = read_json(config) if file.is_file() and config.is_file() else {}
    is_plain = settings.get("tokenizer_class") == "TokenizersBackend" and not has_more
    named = {name: token for name, token in settings.items() if name.endswith("_token")}
    if not is_plain or settings.keys() - _PLAIN_SETTINGS:
        return read_tokenizer(checkpoint)
    backend = Tokenizer.from_file(str(file))
    if None in map(backend.token_to_id, named.values()):  # transformers adds such a token
        return read_tokenizer(checkpoint)
    backend.no_truncation()  # transformers encodes without either, whatever the file says
    backend.no_padding()
    template = directory / "chat_template.jinja"
    text = template.read_text(encoding="utf-8") if template.is_file() else None
    return TextTokenizer(backend, named, text)
