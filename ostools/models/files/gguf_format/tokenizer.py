"""The tokenizer that a GGUF file describes, built from its header alone.

llama.cpp reads the same header (src/llama-vocab.cpp), and decides what it leaves open. Two kinds of
vocabulary are read: "gpt2" (bytes, merged in pairs by a list) and "llama" (SentencePiece: pieces
with scores, bytes where no piece fits). Special tokens are found in a text, as Hugging Face's
tokenizers find them (llama.cpp: `parse_special`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from ostools.ground.errors import InputError, short_repr
from ostools.models.files.gguf_format.header import GgufHeader
from ostools.models.files.gguf_format.splits import SPLITTINGS, Splitting

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
"""Types of tokens that stand for themselves in a text, by the numbers of the format
(gguf.TokenType).
"""
_BLANK = "▁"
_IDS = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unk": "unknown_token_id",
    "pad": "padding_token_id",
}
_IDS_OF_LLAMA = {"bos": 1, "eos": 2, "unk": 0}
"""What llama.cpp takes of a SentencePiece vocabulary whose header does not say."""
_GEMMAS = ("gemma2", "gemma3")


def read_gguf_tokenizer(header: GgufHeader, name: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a GGUF file, by its header; `name` is what errors call the file.

    Raises `InputError` for a kind of vocabulary, or a way of cutting text, that is not known, and
    for a header that contradicts itself.
    """
    settings = header.settings_of("tokenizer.ggml")
    kind = settings.get("model")
    if kind not in ("gpt2", "llama"):
        raise InputError(
            f"expected tokenizer.ggml.model gpt2 or llama in {name}, found {short_repr(kind)}: its texts would become other "
            "tokens; use the checkpoint that the file was made of"
        )
    tokens: list[str] = settings.get("tokens", [])
    for token, count in Counter(tokens).most_common(1):
        if count > 1:
            raise InputError(
                f"expected an id for each token of {name}, found {short_repr(token)} twice: convert "
                "the checkpoint anew"
            )
    if kind == "gpt2":
        splitting = _splitting(settings, name)
        backend, add_bos = _of_bytes(tokens, settings, splitting, name), splitting.add_bos
    else:
        settings = {
            setting: _IDS_OF_LLAMA[key] for key, setting in _IDS.items() if key in _IDS_OF_LLAMA
        } | settings
        backend, add_bos = _of_pieces(tokens, settings, header.architecture, name), True
    _add_tokens(backend, tokens, settings)
    named = {
        f"{key}_token": _token(tokens, settings, key, name) for key in _IDS if _IDS[key] in settings
    }
    flags = {
        "add_bos_token": bool(settings.get("add_bos_token", add_bos)),
        "add_eos_token": bool(settings.get("add_eos_token", False)),
    }
    for flag, added in flags.items():
        token = flag.removeprefix("add_")
        if added and token not in named:
            raise InputError(
                f"expected tokenizer.ggml.{token}_id in {name}, which puts that token to every text, found none: add it with "
                f"`gguf-new-metadata --special-token {token.removesuffix('_token')} TOKEN old.gguf new.gguf`"
            )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, clean_up_tokenization_spaces=False, **named, **flags
    )
    tokenizer.chat_template = header.settings.get("tokenizer.chat_template")
    return tokenizer


def _token(tokens: list[str], settings: Mapping[str, Any], key: str, name: str) -> str:
    """The token that is the file's "bos", "eos", "unk" or "pad"."""
    index = settings[_IDS[key]]
    if not 0 <= index < len(tokens):
        raise InputError(
            f"expected tokenizer.ggml.{_IDS[key]} in {name} to be one of {len(tokens)} tokens, found {index}: correct it with "
            f"`gguf-set-metadata {name} tokenizer.ggml.{_IDS[key]} ID`"
        )
    return tokens[index]


# ---- bytes merged in pairs


def _splitting(settings: Mapping[str, Any], name: str) -> Splitting:
    """How the file says that its texts are cut."""
    pre = settings.get("pre")
    if pre in (None, "default"):
        raise InputError(
            f"expected tokenizer.ggml.pre in {name}, which says how text is cut into tokens, found "
            f"{'none' if pre is None else 'default'}: add it with `gguf-new-metadata --pre-tokenizer NAME {name} new.gguf` "
            "(llama-bpe for a Llama 3, qwen2 for a Qwen, falcon, gpt-2)"
        )
    if pre not in SPLITTINGS:
        raise InputError(
            f"expected a known way of cutting text into tokens, found tokenizer.ggml.pre = {short_repr(pre)} in {name}: texts "
            "would become other tokens; use the checkpoint that the file was made of"
        )
    return SPLITTINGS[pre]


def _of_bytes(
    tokens: Sequence[str], settings: Mapping[str, Any], splitting: Splitting, name: str
) -> Tokenizer:
    if "merges" not in settings:
        raise InputError(
            f"expected tokenizer.ggml.merges in {name}, found none: convert the checkpoint anew"
        )
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = [_pair(merge) for merge in settings["merges"]]
    lost = next((pair for pair in merges if not {*pair, "".join(pair)} <= vocabulary.keys()), None)
    if lost is not None:
        raise InputError(
            f"expected merges of tokens in {name}, found {short_repr(' '.join(lost))}, which is of none: convert the "
            "checkpoint anew"
        )
    # transformers writes empty affixes when it reads a Qwen's tokenizer: they say the same as none.
    affixes = {"continuing_subword_prefix": "", "end_of_word_suffix": ""}
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary, merges=merges, ignore_merges=splitting.ignore_merges, **affixes
        )
    )
    tokenizer.normalizer = normalizers.NFC() if splitting.nfc else None  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.pre_tokenizer = splitting.pre_tokenizer  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    return tokenizer


def _pair(merge: str) -> tuple[str, str]:
    """The two tokens of a merge, between which stands one blank; no token but a first one begins
    with it.
    """
    first, _, second = (merge[:1] + merge[1:].replace(" ", "\0", 1)).partition("\0")
    return first, second


# ---- pieces with scores


def _of_pieces(
    tokens: list[str], settings: Mapping[str, Any], architecture: str, name: str
) -> Tokenizer:
    """SentencePiece: two neighbours that make a piece are joined, the piece with the best score
    first.
    """
    if architecture in _GEMMAS:
        # Its blanks stand there as blanks, and its scores are not in the order of its merges: its
        # places are (transformers).
        tokens = [_BLANK * len(token) if token.strip(" ") == "" else token for token in tokens]
        scores: Sequence[float] = [-float(index) for index in range(len(tokens))]
    else:
        scores = settings.get("scores", [])
        if len(scores) != len(tokens):
            raise InputError(
                f"expected a score for each of {len(tokens)} tokens in {name}, found {len(scores)}: convert the checkpoint anew"
            )
    vocabulary = {token: index for index, token in enumerate(tokens)}
    unknown = _token(tokens, settings, "unk", name)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=_merges(vocabulary, scores),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    has_prefix = bool(settings.get("add_space_prefix", True))
    prefix = [normalizers.Prepend(_BLANK)] if has_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _BLANK)])  # pyright: ignore[reportAttributeAccessIssue]
    steps = [decoders.Replace(_BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(
        [*steps, *([decoders.Strip(" ", 1, 0)] if has_prefix else [])]
    )  # pyright: ignore[reportAttributeAccessIssue]
    return tokenizer


def _merges(vocabulary: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every pair of pieces that makes a piece, the best score first."""
    pairs = [
        (piece[:cut], piece[cut:])
        for piece in vocabulary
        for cut in range(len(piece) - 1, 0, -1)
        if piece[:cut] in vocabulary and piece[cut:] in vocabulary
    ]
    return sorted(pairs, key=lambda pair: -scores[vocabulary["".join(pair)]])


# ---- tokens that stand for themselves


def _add_tokens(tokenizer: Tokenizer, tokens: Sequence[str], settings: Mapping[str, Any]) -> None:
    """Control and unknown tokens are special; those of the model's makers (`<think>`) are tokens
    like others, but found whole.
    """
    types: Sequence[int] = settings.get("token_type", [])
    if len(types) != len(tokens):  # control tokens would be read as text
        raise InputError(
            f"expected a type for each of {len(tokens)} tokens in tokenizer.ggml.token_type, found {len(types)}: convert the "
            "checkpoint again with llama.cpp's convert_hf_to_gguf.py"
        )
    known = tokenizer.get_vocab()
    added = [
        AddedToken(token, normalized=False, special=kind != _USER_DEFINED)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED) and token in known
    ]
    tokenizer.add_tokens(added)
