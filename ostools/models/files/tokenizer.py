"""Tokenizer of a checkpoint, and the settings that name tokens: each id stands for one token, as
its file says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer

from ostools.ground.errors import InputError, short_repr
from ostools.ground.memory import collector_at_rest
from ostools.models.files.checkpoint import TEMPLATES, Checkpoint
from ostools.models.files.checks import one_line, read_json
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
    try:
        declared_ids = checkpoint.declared_ids
        options = (
            {"config": saved_config(checkpoint.config)}
            if (directory / "config.json").exists()
            else {}
        )
        tokenizer = AutoTokenizer.from_pretrained(
            directory, trust_remote_code=False, local_files_only=True, **options
        )
        decoded(tokenizer, [*token_ids(tokenizer, "a"), *tokenizer.all_special_ids])
        _check_declared_ids(tokenizer, declared_ids, directory)
        for copy in (
            "_vocab",
            "_merges",
        ):  # Python's own, which nothing reads any more: 140 MB of Gemma's vocabulary
            vars(tokenizer).pop(copy, None)
        return tokenizer
    except InputError:
        raise
    except (
        Exception
    ) as error:  # bare ones for a broken file, any where a setting of a wrong type is first needed
        raise InputError(
            f"expected a tokenizer that transformers can read in {directory}: {one_line(error)}"
        ) from None


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


class Encoded(NamedTuple):
    """Ids of a text."""

    input_ids: list[int]


def read_text_tokenizer(checkpoint: Checkpoint) -> Any:
    """Tokenizer for plain texts: `TextTokenizer` where tokenizer.json alone says what transformers
    would do, else its own.
    """
    directory = checkpoint.directory
    files = {file: directory / file for file in ("tokenizer.json", "tokenizer_config.json")}
    if not all(path.is_file() for path in files.values()) or any(
        (directory / file).exists() for file in _MORE_SETTINGS
    ):
        return read_tokenizer(checkpoint)
    settings = read_json(files["tokenizer_config.json"])
    named = {name: token for name, token in settings.items() if name.endswith("_token")}
    if settings.keys() - _PLAIN_SETTINGS or settings.get("tokenizer_class") != "TokenizersBackend":
        return read_tokenizer(checkpoint)
    backend = Tokenizer.from_file(str(files["tokenizer.json"]))
    backend.no_truncation()  # transformers encodes without either, whatever the file says
    backend.no_padding()
    if not all(
        isinstance(token, str) and backend.token_to_id(token) is not None
        for token in named.values()
    ):
        return read_tokenizer(checkpoint)
    template = directory / "chat_template.jinja"
    return TextTokenizer(
        backend, named, template.read_text(encoding="utf-8") if template.is_file() else None
    )


def check_tokenizer(tokenizer: Any, d_vocab: int, directory: Path) -> None:
    """Check that each id stands for one token, the ids are rows of the embedding, and the tokenizer
    adds at most one BOS.

    An embedding may have more rows than there are tokens (it is padded to a round number), and a
    token that text cannot produce (a multimodal placeholder) may lie outside; `encode` refuses such
    an id if it ever appears.
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


def _check_declared_ids(
    tokenizer: Any, declared_ids: Mapping[tuple[str, str], Any], directory: Path
) -> None:
    """Every added token has the id that tokenizer.json or tokenizer_config.json says; the library
    gives it another without a word where that id is taken."""
    for (token, file), declared_id in declared_ids.items():
        token_id = tokenizer.convert_tokens_to_ids(token)
        if token_id != declared_id:
            raise InputError(
                f"expected the token {short_repr(token)} with id {short_repr(declared_id)} as {directory / file} says, found "
                f"it with id {token_id} in the tokenizer that it makes: copy the model's own tokenizer there"
            )


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

    A negative id means none, as it does in transformers' `generate`, which never ends at it. Raises
    `InputError` for anything that is no whole number.
    """
    values = value if isinstance(value, list | tuple) else [value]
    for index in values:
        if index is not None and type(index) is not int:
            raise InputError(
                f"expected {name} to be a token id, a list of ids or null, found {short_repr(value)}"
            )
    return tuple(index for index in values if index is not None and index >= 0)


def without_negative_ids(settings: Any) -> None:
    """Put None, or the ids that are left, in the place of negative ids of a generation
    configuration.
    """
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = getattr(settings, name, None)
        ids = ids_of_setting(value, name)
        if isinstance(value, int) and not ids:
            setattr(settings, name, None)
        elif isinstance(value, list):
            setattr(settings, name, list(ids) or None)
