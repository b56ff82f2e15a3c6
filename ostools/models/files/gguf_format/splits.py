"""How text is cut before its bytes are merged: what each name in `tokenizer.ggml.pre` stands for.

The names, and which of them look a piece up whole before they merge (`ignore_merges`) or put BOS in
front where the file does not say, are llama.cpp's (src/llama-vocab.cpp). The expressions are those
of the models' own tokenizer.json, which llama.cpp quotes where its own engine needs others. So is
the normalizer, which llama.cpp leaves out: Qwen, GPT-NeoX (OLMo, MPT) and Cohere compose letters
and accents first (NFC; transformers' Qwen2Tokenizer, GPTNeoXTokenizer, CohereTokenizer).

A name that is not here is refused: other tokens are another prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

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
