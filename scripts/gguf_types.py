"""The list of GGUF types in docs/gguf.md: `python -m scripts.gguf_types` holds a tiny file of each
against its model.

Each is a random model of transformers, written as llama.cpp's converter writes it
(`scripts.gguf_writing`) and loaded through `load_model`. *tokens*: the ids of `TEXTS` equal those
of the published tokenizer; *logits*: equal those of the model that was written, to the bit or
within a share of the largest.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

import ostools as ost
from ostools.ground.errors import InputError
from scripts.gguf_writing import TEXTS, Vocabulary, of_bytes, of_pieces, write

PAGE = Path(__file__).parents[1] / "docs" / "gguf.md"
BEGIN, END = "<!-- types: python -m scripts.gguf_types -->", "<!-- end of types -->"


@dataclass(frozen=True)
class GgufType:
    """A kind of file: the type of its model in transformers with settings of its own, its
    architecture and vocabulary there.

    `said`, `unsaid`, `tensors`, `model_name`: as `write` takes them; `length`: of the prompt whose
        logits are compared.
    """

    title: str
    model_type: str
    architecture: str
    vocabulary: Callable[[], Vocabulary]
    config: dict[str, Any] = field(default_factory=dict)
    said: dict[str, Any] = field(default_factory=dict)
    unsaid: Sequence[str] = ()
    tensors: Callable[[], dict[str, Tensor]] = dict
    model_name: str = "tiny"
    length: int = 16


def llama_3_factors(head: int = 8, theta: float = 500000.0, factor: float = 8.0) -> Tensor:
    """What Llama 3.1 divides each frequency by: 1 where a turn is short, the factor where it is
    long (Meta's apply_scaling).
    """
    frequencies = 1.0 / theta ** (torch.arange(0, head, 2).float() / head)
    length = 8192
    factors = []
    for frequency in frequencies:
        turn = 2 * torch.pi / frequency
        smooth = (length / turn - 1) / (4 - 1)
        if turn < length / 4:
            factors.append(1.0)
        else:
            factors.append(factor if turn > length else float(1 / ((1 - smooth) / factor + smooth)))
    return torch.tensor(factors)


_LLAMA_3 = {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
_SCALED = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_LLAMA_31 = {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, **_SCALED}}
_TIED = ("gemma", "gemma2", "gemma3_text", "cohere")
_HEADS = {
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
_GEMMA_3 = {"num_hidden_layers": 6, "sliding_window": 5, "final_logit_softcapping": None}
_WITHOUT_BOS = {"add_bos_token": False}
_SPM = {"prefix": False, "said": {"add_bos_token": True}}


def _pieces(**options: Any) -> Callable[[], Vocabulary]:
    return lambda: of_pieces(**options)


def _cut(pre: str | None, **said: Any) -> Callable[[], Vocabulary]:
    return lambda: of_bytes(pre, said=said)


TYPES: tuple[GgufType, ...] = (
    GgufType("Llama 2 (SentencePiece)", "llama", "llama", _pieces(prefix=True)),
    GgufType("Llama, no blank in front (`add_space_prefix` false)", "llama", "llama", _pieces(prefix=False)),
    GgufType("Llama 3 of 2024 (no `add_bos_token`)", "llama", "llama", _cut("llama-bpe"), _LLAMA_3),
    GgufType("Llama 3 of April 2024 (no `pre`)", "llama", "llama", _cut(None), _LLAMA_3),
    GgufType(
        "Llama 3.1, 3.2 (`rope_freqs`)", "llama", "llama", _cut("llama-bpe", add_bos_token=True), _LLAMA_31,
        tensors=lambda: {"rope_freqs.weight": llama_3_factors()},
    ),
    GgufType(
        "Llama, positions scaled linearly", "llama", "llama", _pieces(prefix=True),
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
        said={"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
    ),
    GgufType("SmolLM2", "llama", "llama", _cut("smollm", **_WITHOUT_BOS), {"tie_word_embeddings": True}),
    GgufType("Mistral (`general.name` mistral)", "llama", "llama", _pieces(prefix=True), model_name="mistral"),
    GgufType("Mistral Nemo (tekken)", "llama", "llama", _cut("tekken")),
    GgufType("Mixtral", "mixtral", "llama", _pieces(prefix=True), {"num_local_experts": 4}),
    GgufType("Qwen 2, 2.5", "qwen2", "qwen2", _cut("qwen2", **_WITHOUT_BOS)),
    GgufType("Qwen 3", "qwen3", "qwen3", _cut("qwen2", **_WITHOUT_BOS), {"head_dim": 16}),
    GgufType("Gemma 1", "gemma", "gemma", _pieces(**_SPM), {"head_dim": 8}),
    GgufType("Gemma 2", "gemma2", "gemma2", _pieces(**_SPM), _HEADS | {"sliding_window": 5}),
    GgufType("Gemma 3", "gemma3_text", "gemma3", _pieces(**_SPM), _HEADS | _GEMMA_3),
    GgufType(
        "Gemma 3 from 4B on", "gemma3_text", "gemma3", _pieces(**_SPM),
        {
            **_HEADS,
            **_GEMMA_3,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
        said={"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0},
    ),
    GgufType("Command R", "cohere", "command-r", _cut("command-r")),
    GgufType("OLMo 2", "olmo2", "olmo2", _cut("gpt-2")),
)  # fmt: skip


def model_of(kind: GgufType, vocabulary: Vocabulary) -> PreTrainedModel:
    """A random model of that type, whose weights are no constants."""
    sizes = {
        **{
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        },
        **{"intermediate_size": 48, "max_position_embeddings": 256, "vocab_size": vocabulary.size},
        **{"unk_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3},
        **{"tie_word_embeddings": kind.model_type in _TIED},
    }
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind.model_type, **(sizes | kind.config))
    model = (
        AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        .eval()
        .requires_grad_(False)
    )
    for weight in model.parameters():
        weight.add_(torch.randn_like(weight) * (0.1 if weight.ndim == 1 else 0.2))
    return model


@dataclass(frozen=True)
class Verdict:
    """What came of a file: whether its tokens are equal, and by which share of the largest its
    logits differ; or why not.
    """

    tokens: bool = False
    difference: float = float("nan")
    refused: str = ""


def verdict_of(kind: GgufType, folder: Path) -> Verdict:
    """Write the file in `folder`, load it, and hold it against what was written. It is converted in
    a cache there.
    """
    vocabulary = kind.vocabulary()
    model = model_of(kind, vocabulary)
    options = {
        "said": kind.said,
        "unsaid": kind.unsaid,
        "tensors": kind.tensors(),
        "name": kind.model_name,
    }
    with _cache(folder / "cache"):
        try:
            file = write(folder / "tiny.gguf", model, kind.architecture, vocabulary, **options)
            loaded = ost.load_model(file, device="cpu", dtype="float32")
        except InputError as refusal:
            return Verdict(
                refused=str(refusal).replace(str(folder), "").replace("/tiny.gguf", "tiny.gguf")
            )
        tokens = all(
            loaded.tokenizer(text).input_ids == vocabulary.published(text) for text in TEXTS
        )
        ids = torch.arange(kind.length)[None] * 37 % 260 + 4
        logits = model(ids, use_cache=False).logits
        return Verdict(tokens, float((logits - loaded(ids)).abs().max() / logits.abs().max()))


@contextmanager
def _cache(folder: Path) -> Iterator[None]:
    before = os.environ.get("OSTOOLS_CACHE")
    os.environ["OSTOOLS_CACHE"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["OSTOOLS_CACHE"]
        else:
            os.environ["OSTOOLS_CACHE"] = before


def outcome(verdict: Verdict) -> str:
    """What came of a file, in words; what differs by the rounding of a machine is in steps of
    100.
    """
    if verdict.refused:
        # What was expected and found; the list of architectures stands once, above the list.
        return "refused: " + re.sub(r" \([^)]{50,}\)", "", verdict.refused.partition(": ")[0])
    if verdict.tokens and not verdict.difference:
        return "tokens and logits equal"
    steps = 2 * math.ceil(math.log10(verdict.difference or 1) / 2)
    logits = f"within {10.0**steps:.0e}" if verdict.difference else "equal"
    return f"tokens {'equal' if verdict.tokens else 'DIFFER'}, logits {logits}"


def outcomes() -> dict[str, list[str]]:
    """The titles of the types by what came of them, by running."""
    found: dict[str, list[str]] = {}
    for kind in TYPES:
        with tempfile.TemporaryDirectory() as folder:
            words = outcome(verdict_of(kind, Path(folder)))
            found.setdefault(words, []).append(f"{kind.title}, `{kind.architecture}`")
    return found


def listing(found: Mapping[str, Sequence[str]]) -> str:
    """A line an outcome."""
    return "\n".join(f"- *{words}*: {'; '.join(titles)}." for words, titles in found.items())


if __name__ == "__main__":
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{listing(outcomes())}\n\n{END}{after}", encoding="utf-8")
