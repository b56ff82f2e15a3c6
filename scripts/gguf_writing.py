"""Tiny GGUF files of many architectures, written as llama.cpp's convert_hf_to_gguf.py writes them;
nothing of ostools is used.

A file holds a random Hugging Face model in float32 and a vocabulary. `Vocabulary.published` cuts
text by another route: the model's own tokenizer class of transformers, its tokenizer.json written
out, or sentencepiece.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import CohereTokenizer, GPT2Tokenizer, PreTrainedModel, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter, bytes_to_unicode

SPECIAL = ("<unk>", "<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>")
"""Control tokens of every vocabulary; unk, bos, eos and pad are the first four."""
_OWN = ("<think>",)  # of the makers: a token like others, but found whole
_PAIRS = (
    *("  ", " t", "th", "he", "the", " the", "in", "er", " a", "an", "ll", "'t", "'s", "n'", "12", "123", "23", "11", "1111"),
    *("    ", "\n\n", "!!", "..", " 1", "é", "\u0301", "好", "世界", "\t\t", "ab", "abc", " (", "):", "A", "AB", "ñ", " 好"),
)  # fmt: skip
"""Texts that are a token each, made of two tokens that stand before them or of bytes."""
_WHOLE = ("hello", " hello")  # tokens that no merge makes: found by `ignore_merges` alone
TEXTS = (
    *("the tin 12 cat", "  two  blanks ", "1234567 11111 3.14", "don't it's AB'T", "hello hello", "a\n\n b\t\tc  ", "x!!..??"),
    *("café cafe\u0301 n\u0303ñ", "你好，世界", "日本語 テスト 한국어", "🙂👍🏽"),
    *("<|im_start|>user\nhi<|im_end|>", "a <s> b</s>c", "<think> so"),
    *("def f(x):\n    return x", "½ ² Ⅻ ٣", "tab\tand nbsp", "", " ", "ÀÉ SCREAM camelCase", "a  <|im_end|>  b"),
)  # fmt: skip


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary as a GGUF's header holds it (`settings`: key -> value), and the ids of a text by
    another route.
    """

    size: int
    settings: dict[str, Any]
    published: Callable[[str], list[int]]


def _bytes(text: str) -> str:
    return "".join(bytes_to_unicode()[byte] for byte in text.encode())


def of_bytes(pre: str | None, *, said: dict[str, Any] | None = None) -> Vocabulary:
    """A byte-level vocabulary whose text is cut as `pre` says; `said`: more of its header."""
    tokens = [*SPECIAL, *_OWN, *bytes_to_unicode().values()]
    merges: list[tuple[str, str]] = []
    for text in _PAIRS:
        left, *rest = _bytes(text)
        while rest:  # the longest token that the text begins with, and the longest that follows it
            while rest and left + rest[0] in tokens:
                left += rest.pop(0)
            if rest:
                right = next(
                    "".join(rest[:end])
                    for end in range(len(rest), 0, -1)
                    if "".join(rest[:end]) in tokens
                )
                merges.append((left, right))
                tokens.append(left + right)
                left, rest = left + right, rest[len(right) :]
    merges = list(dict.fromkeys(merges))
    tokens = list(dict.fromkeys([*tokens, *map(_bytes, _WHOLE)]))
    special, own = len(SPECIAL), len(SPECIAL) + len(_OWN)
    types = [3 if index < special else 4 if index < own else 1 for index in range(len(tokens))]
    settings = {
        "model": "gpt2",
        "tokens": tokens,
        "token_type": types,
        "merges": [" ".join(pair) for pair in merges],
    }
    settings |= {} if pre is None else {"pre": pre}
    settings |= dict(zip(_ID_KEYS, range(4), strict=True)) | (said or {})
    return Vocabulary(
        len(tokens), settings, _published(pre or "llama-bpe", tokens, merges, settings)
    )


_ID_KEYS = ("unknown_token_id", "bos_token_id", "eos_token_id", "padding_token_id")
_TEKKEN = (  # tokenizer.json of mistralai/Mistral-Nemo-Base-2407
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _published(
    pre: str, tokens: Sequence[str], merges: list[tuple[str, str]], said: dict[str, Any]
) -> Callable[[str], list[int]]:
    """Cuts a text as the models with that `pre` do, by what transformers or their tokenizer.json
    says.
    """
    vocabulary = {token: index for index, token in enumerate(tokens)}
    options: Any = {"vocab": vocabulary, "merges": merges}
    names = dict(zip(("unk_token", "bos_token", "eos_token", "pad_token"), SPECIAL, strict=False))
    classes: dict[str, Any] = {
        "qwen2": Qwen2Tokenizer,
        "gpt-2": GPT2Tokenizer,
        "command-r": CohereTokenizer,
    }
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    with_words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre in classes:
        tokenizer = classes[pre](**options, **names).backend_tokenizer
    else:
        tokenizer = Tokenizer(models.BPE(**options, ignore_merges=pre in ("llama-bpe", "tekken")))
        steps: dict[str, list[Any]] = {
            "llama-bpe": [
                pre_tokenizers.Split(Regex(TikTokenConverter().pattern), "isolated"),
                byte_level,
            ],
            "tekken": [pre_tokenizers.Split(Regex(_TEKKEN), "isolated"), byte_level],
            "smollm": [pre_tokenizers.Digits(individual_digits=True), with_words],
        }
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps[pre])
    tokenizer.post_processor = None
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL]
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in _OWN])
    first = [1] if said.get("add_bos_token", pre in ("llama-bpe", "tekken")) else []
    last = [2] if said.get("add_eos_token", False) else []
    return lambda text: [*first, *tokenizer.encode(text, add_special_tokens=False).ids, *last]


def of_pieces(*, prefix: bool, said: dict[str, Any] | None = None) -> Vocabulary:
    """A SentencePiece vocabulary, trained on the texts; `prefix`: a blank is put in front of each
    text.
    """
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text for text in TEXTS if "<" not in text] * 40),
        model_writer=model,
        model_type="bpe",
        vocab_size=400,
        byte_fallback=True,
        character_coverage=0.99,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=prefix,
        split_digits=True,
        hard_vocab_limit=False,
        control_symbols=list(SPECIAL[4:]),
        pad_id=3,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    size = processor.get_piece_size()
    kinds = [
        2
        if processor.is_unknown(index)
        else 3
        if processor.is_control(index)
        else 6
        if processor.is_byte(index)
        else 1
        for index in range(size)
    ]
    tokens = [processor.id_to_piece(index) for index in range(size)]
    scores = [processor.get_score(index) for index in range(size)]
    settings = {
        "model": "llama",
        "pre": "default",
        "tokens": tokens,
        "scores": scores,
        "token_type": kinds,
    }
    settings |= dict(zip(_ID_KEYS, range(4), strict=True))
    settings |= ({} if prefix else {"add_space_prefix": False}) | (said or {})

    def encode(text: str) -> list[int]:
        """Each stretch between special tokens is a text of its own."""
        ids, rest = [1], text
        while rest:
            places = [
                (rest.find(token), index) for index, token in enumerate(SPECIAL) if token in rest
            ]
            place, index = min(places, default=(len(rest), -1))
            ids += processor.encode(rest[:place]) if place else []
            ids += [index] if index >= 0 else []
            rest = rest[place + len(SPECIAL[index]) :] if index >= 0 else ""
        return ids

    return Vocabulary(size, settings, encode)


# ---- models

_ROPE_BASE = (
    "llama",
    "qwen2",
    "qwen3",
    "gemma3",
    "olmo2",
    "command-r",
    "gemma",
)
_HEADS_SAID = ("qwen3", "gemma", "gemma2", "gemma3", "llama")


def settings_of(config: Any, architecture: str) -> dict[str, Any]:
    """What the converter writes of a configuration, without the architecture in front."""
    heads = config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // heads
    said: dict[str, Any] = {
        "context_length": getattr(config, "max_position_embeddings", 256),
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": heads,
        "attention.head_count_kv": getattr(config, "num_key_value_heads", heads),
    }
    rms = getattr(config, "rms_norm_eps", None)
    said |= (
        {"attention.layer_norm_rms_epsilon": rms}
        if rms
        else {"attention.layer_norm_epsilon": config.layer_norm_eps}
    )
    rope = getattr(config, "rope_parameters", None) or {}
    if architecture in _ROPE_BASE:
        said["rope.freq_base"] = float(rope.get("full_attention", rope)["rope_theta"])
    if architecture == "llama":
        said["rope.dimension_count"] = head
    if architecture in _HEADS_SAID:
        said |= {"attention.key_length": head, "attention.value_length": head}
    if architecture in ("gemma2", "gemma3"):
        said["attention.sliding_window"] = config.sliding_window or 0
    if architecture == "gemma2":
        said |= {
            name: getattr(config, name)
            for name in ("attn_logit_softcapping", "final_logit_softcapping")
        }
    if architecture == "llama" and (experts := getattr(config, "num_local_experts", 0)):
        said |= {"expert_count": experts, "expert_used_count": config.num_experts_per_tok}
    if architecture == "command-r":
        said["logit_scale"] = config.logit_scale
    return said


def _interleaved(weight: Tensor, heads: int) -> Tensor:
    """Rows of q and k as llama.cpp's rotation wants them: the halves of each head by turns."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def as_converted(architecture: str, config: Any, path: str, weight: Tensor) -> Tensor:
    """A weight as the converter stores it."""
    if architecture == "llama" and "q_proj" in path:
        return _interleaved(weight, config.num_attention_heads)
    if architecture == "llama" and "k_proj" in path:
        return _interleaved(weight, config.num_key_value_heads)
    if architecture in ("gemma", "gemma2", "gemma3") and path.endswith("norm.weight"):
        return weight + 1
    return weight


def _separate(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """The weights by the names that the converter's table knows; gates and values of experts one by
    one.
    """
    for path, weight in model.state_dict().items():
        if path.endswith("experts.gate_up_proj"):
            for name, half in zip(("gate_proj", "up_proj"), weight.chunk(2, 1), strict=True):
                yield path.replace("gate_up_proj", f"{name}.weight"), half
        elif path.endswith("experts.down_proj"):
            yield f"{path}.weight", weight
        else:
            yield path, weight


def write(
    file: Path,
    model: PreTrainedModel,
    architecture: str,
    vocabulary: Vocabulary,
    *,
    said: dict[str, Any] | None = None,
    unsaid: Sequence[str] = (),
    tensors: dict[str, Tensor] | None = None,
    name: str = "tiny",
    quantised: bool = False,
) -> Path:
    """The model as a GGUF file. `said` and `tensors` stand beside the model's own, `unsaid`
    settings and tensors are left out; `quantised`: matrices in Q8_0.
    """
    config: Any = model.config
    number = next(
        number for number, named in gguf.MODEL_ARCH_NAMES.items() if named == architecture
    )
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_name(name)
    settings = {
        f"{architecture}.{key}": value for key, value in settings_of(config, architecture).items()
    }
    settings |= {f"tokenizer.ggml.{key}": value for key, value in vocabulary.settings.items()} | (
        said or {}
    )
    for key, value in settings.items():
        if key.removeprefix(f"{architecture}.") in unsaid or key in unsaid:
            continue
        kinds = {
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
        }
        kinds[list] = writer.add_array
        kinds[type(value)](key, value)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    for path, weight in _separate(model):
        if path == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stored = names.get_name(path, try_suffixes=(".weight", ".bias"))
        if stored is None:
            raise ValueError(f"no name for {path} in {architecture}")
        if stored in unsaid:
            continue
        kind = gguf.GGMLQuantizationType.Q8_0 if quantised and weight.ndim == 2 else None
        numbers = as_converted(architecture, config, path, weight).contiguous().numpy()
        packed = numbers if kind is None else gguf.quants.quantize(numbers, kind)
        writer.add_tensor(stored, packed, raw_dtype=kind)
    for stored, weight in (tensors or {}).items():
        writer.add_tensor(stored, weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
