"""Tiny random models of every supported family, in memory or as a Hugging Face directory on disk.

Norm gains and biases are random (neither zero nor one), so that a formula that forgets `1 + w`, a
gain or a post-norm fails; `scale` multiplies gains and projections, which makes attention sharp and
residuals large.

Models and tokenizers are shared between tests: whoever changes one asks for its own, with
`fresh=True`. After every test `traces.py` looks whether somebody changed a shared one.
"""

import json
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformer_lens.model_bridge import TransformerBridge
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from ostools.ground.errors import InputError
from ostools.models.describe import Metadata, remember
from ostools.models.load import recorded_bridge
from ostools.models.precision.scores import put_scores
from tests import traces
from tests.families import FIRST, OTHERS, REFUSED, architecture, named_config

Family = Literal["gemma", "gemma2", "gemma3", "gemma3-multimodal", "llama", "gpt2"] | str

TEXT_FAMILIES: tuple[Family, ...] = tuple(FIRST)
FAMILIES: tuple[Family, ...] = (*TEXT_FAMILIES, "gemma3-multimodal")
EVERY_FAMILY: tuple[Family, ...] = (*FAMILIES, *OTHERS)
EVERY_TEXT_FAMILY: tuple[Family, ...] = (*TEXT_FAMILIES, *OTHERS)
TWO_FAMILIES: tuple[Family, ...] = ("gemma3", "gpt2")
"""The two that differ most, for what no formula of a family decides: norms before and behind each
part, windows, grouped heads and rotations; and layer norms, biases, learned positions and one
projection that q, k and v are views of."""

_SHARED_FILES = Path(__file__).resolve().parents[2] / "shared"
STORIES = _SHARED_FILES / "models" / "stories260K"
"""A real pretrained model that is not the project's to ship: tests skip where it is absent. So is
the paper's text.
"""
PAPER = _SHARED_FILES / "paper" / "paper.md"


def paper_text() -> str:
    """The paper's words; skips the test where they are absent."""
    if not PAPER.is_file():
        pytest.skip("needs the text of arXiv 2406.04267, which is not the project's to ship")
    return PAPER.read_text(encoding="utf-8")


def refused(words: str, call: Callable[..., object], /, *given: Any, **options: Any) -> None:
    """Hold that a call is refused, in one line that `words` match."""
    with pytest.raises(InputError, match=words) as caught:
        call(*given, **options)
    assert "\n" not in str(caught.value)


SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>")
CONTROL = ("<start_of_turn>", "<end_of_turn>")
_MERGES = ((" ", "t"), ("h", "e"), (" t", "he"), ("i", "n"), ("e", "r"), (" ", "a"))

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>{{ message['role'] }}\n"
    "{{ message['content'] }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def write_tokenizer(
    path: Path, *, bos: bool = True, chat_template: str | None = CHAT_TEMPLATE
) -> Path:
    """Save a byte-level BPE tokenizer (any text encodes, digits one by one); `bos`: it prepends
    `<bos>`.
    """
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *CONTROL))}
    symbol = bytes_to_unicode()  # what byte-level BPE writes for a byte: GPT-2's table
    for byte in range(256):
        vocabulary[symbol[byte]] = len(vocabulary)
    merges = [
        tuple("".join(symbol[byte] for byte in part.encode()) for part in pair) for pair in _MERGES
    ]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))  # pyright: ignore[reportArgumentType]
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True) for token in (*SPECIAL, *CONTROL)]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<bos> $A",
            pair="<bos> $A <bos> $B",
            special_tokens=[("<bos>", vocabulary["<bos>"])],
        )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
        extra_special_tokens=list(CONTROL),
    )
    fast.chat_template = chat_template
    fast.save_pretrained(path)
    return path


D_VOCAB = len(SPECIAL) + len(CONTROL) + 256 + len(_MERGES)


def make_config(
    family: Family,
    *,
    d_model: int = 32,
    n_layers: int = 2,
    n_heads: int = 4,
    n_key_value_heads: int = 2,
    d_head: int = 8,
    d_mlp: int = 48,
    d_vocab: int = D_VOCAB,
    context: int = 256,
    window: int = 5,
    **overrides: Any,
) -> PreTrainedConfig:
    """The Hugging Face configuration of a tiny model; `overrides` are the family's own
    configuration keys.

    Gemma 2 and 3 alternate sliding (`window` keys) and full layers. GPT-2 has neither grouped heads
    nor a free `d_head`.
    """
    settings: dict[str, Any] = {
        "hidden_size": d_model,
        "num_hidden_layers": n_layers,
        "num_attention_heads": n_heads,
        "num_key_value_heads": n_key_value_heads,
        "head_dim": d_head,
        "intermediate_size": d_mlp,
        "vocab_size": d_vocab,
        "max_position_embeddings": context,
        "window": window,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": 2,
    }
    if family != "gemma3-multimodal":
        return named_config(family, settings, overrides)
    vision: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    return Gemma3Config(
        text_config=named_config("gemma3", settings, overrides).to_dict(), vision_config=vision, mm_tokens_per_image=4,
        boi_token_index=10, eoi_token_index=11, image_token_index=12,
    )  # fmt: skip


def _fill(model: PreTrainedModel, seed: int, scale: float) -> None:
    """Random weights, the same values whatever the dtype: drawn in float32, then cast."""
    generator = torch.Generator().manual_seed(seed)
    gemma = "gemma" in model.config.model_type
    d_model = model.get_input_embeddings().weight.shape[1]  # pyright: ignore[reportCallIssue, reportIndexIssue, reportAttributeAccessIssue, reportOptionalSubscript]
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("bias"):
            value = 0.3 * noise
        elif parameter.ndim == 1:  # a norm's gain: 1 + w in Gemma
            value = scale * (0.4 * noise).exp() - (1.0 if gemma else 0.0)
        elif "embed" in name or "wte" in name or "wpe" in name:
            value = noise / d_model**0.5 if gemma else noise
        else:  # a projection; GPT-2's are stored [in, out], the others [out, in]
            fan_in = parameter.shape[0 if model.config.model_type == "gpt2" else -1]
            value = scale * noise / fan_in**0.5
        parameter.data.copy_(value)
    model.eval().requires_grad_(False)


def make_model(
    family: Family,
    *,
    seed: int = 0,
    scale: float = 1.0,
    dtype: torch.dtype = torch.float32,
    **config: Any,
) -> PreTrainedModel:
    """A tiny random Hugging Face model (eager attention), before any bridge."""
    settings = make_config(family, **config)
    if family == "gemma3-multimodal":
        model = Gemma3ForConditionalGeneration._from_config(
            settings, dtype=dtype, attn_implementation="eager"
        )
    else:
        settings._experts_implementation = "eager"  # read by families with experts only
        model = AutoModelForCausalLM.from_config(settings, dtype=dtype, attn_implementation="eager")
    _fill(model, seed, scale)
    return model


@cache
def _tokenizer_folder(bos: bool) -> Path:
    """A saved tokenizer: written once, because every model of a test session needs it."""
    return write_tokenizer(Path(_HOME.name) / f"tokenizer-{bos}", bos=bos)


@lru_cache(maxsize=2)
def _shared_tokenizer(bos: bool) -> PreTrainedTokenizerFast:
    return traces.watched(
        make_tokenizer(bos=bos, fresh=True), f"the tokenizer {'with' if bos else 'without'} <bos>"
    )


def make_tokenizer(*, bos: bool = True, fresh: bool = False) -> PreTrainedTokenizerFast:
    """The byte-level tokenizer, loaded from a directory as a user's would be; `fresh`: nobody else
    has it.
    """
    if not fresh:
        return _shared_tokenizer(bos)
    return PreTrainedTokenizerFast.from_pretrained(_tokenizer_folder(bos))


ARCHITECTURE: dict[str, str] = {
    family: architecture(family) for family in (*FIRST, *OTHERS, *REFUSED)
}


def tiny_model(
    family: Family,
    *,
    seed: int = 0,
    scale: float = 1.0,
    dtype: torch.dtype = torch.float32,
    fresh: bool = False,
    **config: Any,
) -> TransformerBridge:
    """A tiny random bridge in memory: raw, eval, no gradients for parameters, with a byte-level
    tokenizer.

    The same model again for the same arguments, which no test may change; `fresh`: one of its own,
    tokenizer included.
    """
    if fresh:
        return _build(
            family, seed, scale, dtype, config, make_tokenizer(bos=family != "gpt2", fresh=True)
        )
    key = repr((family, seed, scale, dtype, sorted(config.items())))
    if key not in _SHARED:
        model = _build(family, seed, scale, dtype, config, make_tokenizer(bos=family != "gpt2"))
        _SHARED[key] = traces.watched(model, f"tiny_model{key}")
    _SHARED.move_to_end(key)
    while len(_SHARED) > MOST_SHARED:
        _SHARED.popitem(last=False)
    return _SHARED[key]


MOST_SHARED = 16
_SHARED: OrderedDict[str, TransformerBridge] = OrderedDict()
"""The models by their arguments, the last used last: few enough that a worker's memory stays small.
"""


def _build(
    family: Family,
    seed: int,
    scale: float,
    dtype: torch.dtype,
    config: dict[str, Any],
    tokenizer: Any,
) -> TransformerBridge:
    model = make_model(family, seed=seed, scale=scale, dtype=dtype, **config)
    bridge = recorded_bridge(model, ARCHITECTURE[family], f"tiny-{family}-{seed}")
    bridge.tokenizer = tokenizer
    put_scores(bridge, eager=False)
    remember(bridge, Metadata(name=bridge.cfg.model_name))
    return bridge


@cache
def trained(name: str) -> TransformerBridge:
    """The model that a process loads once for all its tests: "embedded", or "stories", where tests
    skip if it is absent.

    No test may change it.
    """
    if name != "embedded" and not STORIES.is_dir():
        pytest.skip(f"needs {STORIES.name}, which is not the project's to ship")
    from ostools.models import load_model

    model = load_model("embedded" if name == "embedded" else str(STORIES), device="cpu")
    return traces.watched(model, f"the model {name!r}")


def forget_changed(model: object) -> None:
    """The next test that asks for this model gets another, made anew."""
    for key in [key for key, shared in _SHARED.items() if shared is model]:
        del _SHARED[key]
    if not isinstance(model, PreTrainedTokenizerFast):
        trained.cache_clear()
    if any(model is _shared_tokenizer(bos) for bos in (True, False)):
        _shared_tokenizer.cache_clear()
        _SHARED.clear()


def write_checkpoint(
    path: Path | str,
    family: Family,
    *,
    seed: int = 0,
    scale: float = 1.0,
    chat_template: str | None = CHAT_TEMPLATE,
    **config: Any,
) -> Path:
    """Write a tiny random model and its tokenizer as a Hugging Face directory and return that
    directory.

    Made once a process for the same arguments, and copied: whoever asks may spoil what he got.
    """
    key = repr((family, seed, scale, chat_template, sorted(config.items())))
    if key not in _WRITTEN:
        made = Path(_HOME.name) / str(len(_WRITTEN))
        make_model(family, seed=seed, scale=scale, **config).save_pretrained(made)
        _WRITTEN[key] = write_tokenizer(made, bos=family != "gpt2", chat_template=chat_template)
    return Path(shutil.copytree(_WRITTEN[key], path, dirs_exist_ok=True))


_HOME = tempfile.TemporaryDirectory(prefix="ostools-checkpoints-", ignore_cleanup_errors=True)
_WRITTEN: dict[str, Path] = {}


def edit_config(path: Path, **changes: Any) -> None:
    """Change keys of a written directory's config.json; a key set to None is removed."""
    file = path / "config.json"
    settings = json.loads(file.read_text(encoding="utf-8")) | changes
    file.write_text(
        json.dumps({key: value for key, value in settings.items() if value is not None})
    )
