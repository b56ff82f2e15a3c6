"""The header of a GGUF file, and the tokenizer that it describes, built from it alone.

llama.cpp reads the same header (src/llama-vocab.cpp), and decides what it leaves open. Two kinds of
vocabulary are read: "gpt2" (bytes, merged in pairs by a list) and "llama" (SentencePiece: pieces
with scores, bytes where no piece fits). Special tokens are found in a text, as Hugging Face's
tokenizers find them (llama.cpp: `parse_special`).
"""

import importlib.util
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer
from transformers import PreTrainedTokenizerFast

from ostools.ground import InputError, refusal, short_repr

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


@dataclass(frozen=True)
class GgufHeader:
    """Header of a GGUF file: `settings` by key; `tensors` by name, as the package gguf knows one
    (`n_elements`, `shape`, `data`).

    `quantisation` is in llama.cpp's words ("Q4_K_M"), by `general.file_type`; where the file has
    none, the type that holds most of the weights.
    """

    architecture: str
    settings: Mapping[str, Any]
    tensors: Mapping[str, Any]
    quantisation: str

    def settings_of(self, prefix: str) -> dict[str, Any]:
        """The settings whose names begin with `prefix` and a dot, without it."""
        return {
            key.removeprefix(f"{prefix}."): value
            for key, value in self.settings.items()
            if key.startswith(f"{prefix}.")
        }


def read_header(file: Path) -> GgufHeader:
    """Read the header of a GGUF file whose tensors all lie inside the file.

    Cost: 8 s and 740 MB for the 262,144 tokens of Gemma 3. Raises `InputError` for what is no GGUF
    file, is truncated, or says of itself what cannot be, and where the package gguf is missing.
    """
    if importlib.util.find_spec("gguf") is None:
        raise InputError(
            "expected the package gguf, which reads GGUF files, found none: pip install "
            "'oversquashing-tools[gguf]' (or pip install gguf)"
        )
    from gguf import GGUFReader
    from gguf.constants import LlamaFileType

    remedy = "; fetch it again (of a Git LFS pointer: `git lfs pull`)"
    with refusal(f"a whole GGUF file, found {file} truncated or corrupt", remedy):
        reader = GGUFReader(file)
        settings = {name: field.contents() for name, field in reader.fields.items()}
        architecture = str(settings["general.architecture"])
    kinds: Counter[str] = Counter()
    for tensor in reader.tensors:
        kinds[tensor.tensor_type.name] += tensor.n_elements
    quantisation = kinds.most_common(1)[0][0] if kinds else "empty"
    file_type = settings.get("general.file_type")
    if file_type in set(LlamaFileType) - {LlamaFileType.GUESSED}:
        name = LlamaFileType(file_type).name
        quantisation = name.removeprefix("MOSTLY_").removeprefix("ALL_")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    return GgufHeader(architecture, settings, tensors, quantisation)


# ---- the tokenizer


def read_gguf_tokenizer(header: GgufHeader, name: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a GGUF file, by its header; `name` is what errors call the file.

    Raises `InputError` for a kind of vocabulary, or a way of cutting text, that is not known, and
    for a header that contradicts itself.
    """
    settings: dict[str, Any] = header.settings_of("tokenizer.ggml")
    kind = settings.get("model")
    if kind not in ("gpt2", "llama"):
        raise InputError(
            f"expected tokenizer.ggml.model gpt2 or llama in {name}, found {short_repr(kind)}: its "
            "texts would become other tokens; use the checkpoint that the file was made of"
        )
    tokens: list[str] = settings.get("tokens", [])
    if len({*tokens}) < len(tokens):
        ((token, _),) = Counter(tokens).most_common(1)
        raise InputError(
            f"expected an id for each token of {name}, found {short_repr(token)} twice: "
            "convert the checkpoint anew"
        )
    splitting = _splitting(settings.get("pre"), name) if kind == "gpt2" else None
    if splitting is None:
        settings = {_IDS[key]: index for key, index in _IDS_OF_LLAMA.items()} | settings
    with refusal(f"merges, scores and types of tokens that fit each other in {name}"):
        if splitting is None:
            backend = _of_pieces(tokens, settings, header.architecture, name)
        else:
            backend = _of_bytes(tokens, settings["merges"], splitting)
        _add_tokens(backend, tokens, settings["token_type"])
    add_bos = splitting is None or splitting.add_bos
    token_by_role = {
        f"{key}_token": _token(tokens, settings, key, name) for key in _IDS if _IDS[key] in settings
    }
    flags = {
        "add_bos_token": bool(settings.get("add_bos_token", add_bos)),
        "add_eos_token": bool(settings.get("add_eos_token", False)),
    }
    for flag, added in flags.items():
        token = flag.removeprefix("add_")
        if added and token not in token_by_role:
            raise InputError(
                f"expected tokenizer.ggml.{token}_id in {name}, which puts that token to every "
                "text, found none: add it with `gguf-new-metadata --special-token "
                f"{token.removesuffix('_token')} TOKEN old.gguf new.gguf`"
            )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, clean_up_tokenization_spaces=False, **token_by_role, **flags
    )
    tokenizer.chat_template = header.settings.get("tokenizer.chat_template")
    return tokenizer


def _token(tokens: list[str], settings: Mapping[str, Any], key: str, name: str) -> str:
    """The token that is the file's "bos", "eos", "unk" or "pad"."""
    index = settings[_IDS[key]]
    if not 0 <= index < len(tokens):
        raise InputError(
            f"expected tokenizer.ggml.{_IDS[key]} in {name} to be one of {len(tokens)} tokens, "
            f"found {index}: correct it with `gguf-set-metadata {name} tokenizer.ggml.{_IDS[key]} "
            "ID`"
        )
    return tokens[index]


# ---- how text is cut before its bytes are merged
#
# What each name in `tokenizer.ggml.pre` stands for. The names, and which of them look a piece up
# whole before they merge (`ignore_merges`) or put BOS in front where the file does not say, are
# llama.cpp's (src/llama-vocab.cpp). The expressions are those of the models' own tokenizer.json,
# which llama.cpp quotes where its own engine needs others. So is the normalizer, which llama.cpp
# leaves out: Qwen, GPT-NeoX (OLMo, MPT) and Cohere compose letters and accents first (NFC;
# transformers' Qwen2Tokenizer, GPTNeoXTokenizer, CohereTokenizer). A name that is not here is
# refused: other tokens are another prompt.

_SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SYMBOLS_AND_BLANKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA_3 = rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_SYMBOLS_AND_BLANKS}"
_QWEN_2 = rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_SYMBOLS_AND_BLANKS}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN = (
    rf"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Splitting:
    """What a name in `tokenizer.ggml.pre` stands for."""

    pre_tokenizer: PreTokenizer
    ignore_merges: bool = False
    add_bos: bool = False
    nfc: bool = False


def _by(*steps: str | PreTokenizer) -> PreTokenizer:
    """Cut by each expression in turn, then bytes for letters."""
    cuts = [
        pre_tokenizers.Split(Regex(step), "isolated") if isinstance(step, str) else step
        for step in steps
    ]
    return pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


_GPT_2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
_DIGITS = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _GPT_2])

SPLITTINGS: dict[str, Splitting] = {
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3"), Splitting(_by(_LLAMA_3), True, add_bos=True)
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe"), Splitting(_by(_LLAMA_3))),
    "tekken": Splitting(_by(_TEKKEN), True, add_bos=True),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), Splitting(_by(_QWEN_2), nfc=True)),
    **dict.fromkeys(("gpt-2", "trillion"), Splitting(_GPT_2)),
    **dict.fromkeys(("mpt", "olmo"), Splitting(_GPT_2, nfc=True)),
    **dict.fromkeys(("starcoder", "refact", "smollm"), Splitting(_DIGITS)),
    "command-r": Splitting(_DIGITS, nfc=True),
}
"""By the names that converters write into files of the architectures that are read."""


# ---- bytes merged in pairs


def _splitting(pre: str | None, name: str) -> Splitting:
    """How the file says that its texts are cut."""
    if pre in (None, "default"):
        raise InputError(
            f"expected tokenizer.ggml.pre in {name}, which says how text is cut into tokens, found "
            f"{'none' if pre is None else 'default'}: add it with `gguf-new-metadata "
            f"--pre-tokenizer NAME {name} new.gguf` (llama-bpe for a Llama 3, qwen2 for a Qwen, "
            "falcon, gpt-2)"
        )
    if pre not in SPLITTINGS:
        raise InputError(
            "expected a known way of cutting text into tokens, found tokenizer.ggml.pre = "
            f"{short_repr(pre)} in {name}: texts would become other tokens; use the checkpoint "
            "that the file was made of"
        )
    return SPLITTINGS[pre]


def _of_bytes(tokens: Sequence[str], lines: Sequence[str], splitting: Splitting) -> Tokenizer:
    """Tokenizer that merges bytes by pairs; `lines`: those of the pairs, in their order."""
    vocabulary = {token: index for index, token in enumerate(tokens)}
    # transformers writes empty affixes when it reads a Qwen's tokenizer: they say the same as none.
    affixes = {"continuing_subword_prefix": "", "end_of_word_suffix": ""}
    merges = [_pair(line) for line in lines]
    bpe = models.BPE(vocabulary, merges, ignore_merges=splitting.ignore_merges, **affixes)
    tokenizer: Any = Tokenizer(bpe)
    tokenizer.normalizer = normalizers.NFC() if splitting.nfc else None
    tokenizer.pre_tokenizer, tokenizer.decoder = splitting.pre_tokenizer, decoders.ByteLevel()
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
        scores = settings["scores"]
    if not all(map(math.isfinite, scores)):
        raise InputError(
            f"expected finite numbers in tokenizer.ggml.scores of {name}, found NaN or infinity: "
            "convert the checkpoint anew"
        )
    tokenizer: Any = Tokenizer(
        models.BPE(
            {token: index for index, token in enumerate(tokens)},
            _merges(dict(zip(tokens, scores, strict=True))),
            unk_token=_token(tokens, settings, "unk", name),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    steps = [decoders.Replace(_BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.normalizer = normalizers.Replace(" ", _BLANK)
    if settings.get("add_space_prefix", True):
        prefix = [normalizers.Prepend(_BLANK), tokenizer.normalizer]
        tokenizer.normalizer = normalizers.Sequence(prefix)
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _merges(score_of: Mapping[str, float]) -> list[tuple[str, str]]:
    """Every pair of pieces that makes a piece, the best score first."""
    pairs = [
        (piece[:cut], piece[cut:])
        for piece in score_of
        for cut in range(len(piece) - 1, 0, -1)
        if piece[:cut] in score_of and piece[cut:] in score_of
    ]
    return sorted(pairs, key=lambda pair: -score_of["".join(pair)])


# ---- tokens that stand for themselves


def _add_tokens(tokenizer: Tokenizer, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Control and unknown tokens are special; those of the model's makers (`<think>`) are tokens
    like others, but found whole.
    """
    # A type for each: without one a control token would be read as text.
    tokenizer.add_tokens(
        [
            AddedToken(token, normalized=False, special=kind != _USER_DEFINED)
            for token, kind in zip(tokens, types, strict=True)
            if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
            and tokenizer.token_to_id(token) is not None
        ]
    )
