"""Tiny tokenizers of the kinds that published models have, by how they cut a text and what they put
around it.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import PreTrainedTokenizerFast

_BYTES = tuple(pre_tokenizers.ByteLevel.alphabet())


def _byte_level(special: Sequence[str]) -> Tokenizer:
    """Byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM2)."""
    vocabulary = {
        token: index for index, token in enumerate([*special, *sorted(_BYTES), "Ġt", "he", "Ġthe"])
    }
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=[("Ġ", "t"), ("h", "e"), ("Ġt", "he")])
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def _metaspace(special: Sequence[str], prefix: bool = True) -> Tokenizer:
    """SentencePiece's BPE with bytes for what it does not know (Llama 1 and 2, Mistral; without a
    prefix Gemma).
    """
    pieces = [
        *special,
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "t",
        "h",
        "e",
        "▁t",
        "he",
        "▁the",
    ]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he")]
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True
        )
    )
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in special]
    )
    before = [normalizers.Prepend("▁")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", "▁")])
    after = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *after]
    )
    return tokenizer


def _around(tokenizer: Tokenizer, single: str) -> Tokenizer:
    """The tokenizer with these special tokens around `$A`."""
    names = [(word, tokenizer.token_to_id(word)) for word in single.split() if word != "$A"]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=names)
    return tokenizer


def _fast(tokenizer: Tokenizer, **tokens: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **tokens
    )


_SENTENCEPIECE = ("<unk>", "<s>", "</s>")
_NAMES: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_ENDS: dict[str, Any] = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
_TURNS: dict[str, Any] = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}

TOKENIZERS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "gpt2": lambda: _fast(
        _byte_level(["<|endoftext|>"]),
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
        unk_token="<|endoftext|>",
    ),
    "llama2": lambda: _fast(_around(_metaspace(_SENTENCEPIECE), "<s> $A"), **_NAMES),
    "llama3": lambda: _fast(
        _around(_byte_level(["<|begin|>", "<|end|>"]), "<|begin|> $A"), **_ENDS
    ),
    "gemma": lambda: _fast(
        _around(_metaspace(["<pad>", *_SENTENCEPIECE], prefix=False), "<s> $A"),
        pad_token="<pad>",
        **_NAMES,
    ),
    "smollm2": lambda: _fast(
        _byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]),
        pad_token="<|im_end|>",
        **_TURNS,
    ),
    "qwen": lambda: _fast(
        _byte_level(["<|endoftext|>", "<|im_end|>"]),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    ),
    "appends EOS": lambda: _fast(_around(_metaspace(_SENTENCEPIECE), "<s> $A </s>"), **_NAMES),
    "appends EOS and pads": lambda: _fast(
        _around(_metaspace(["<pad>", *_SENTENCEPIECE]), "<s> $A </s>"), pad_token="<pad>", **_NAMES
    ),
    "appends EOS alone": lambda: _fast(
        _around(_byte_level(["<|begin|>", "<|end|>"]), "$A <|end|>"), **_ENDS
    ),
    "EOS before": lambda: _fast(_around(_metaspace(_SENTENCEPIECE), "</s> $A"), **_NAMES),
    "no EOS": lambda: _fast(
        _around(_metaspace(["<unk>", "<s>"]), "<s> $A"), bos_token="<s>", unk_token="<unk>"
    ),
    "BOS is EOS": lambda: _fast(
        _around(_byte_level(["<|endoftext|>"]), "<|endoftext|> $A"),
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
    ),
}
"""By the model, or by what the tokenizer does. Only `gemma`, `smollm2`, `qwen` and `appends EOS and
pads` have a pad token.
"""
