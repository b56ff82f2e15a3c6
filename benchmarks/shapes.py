"""Checkpoints of random weights with the shapes of models that people use: what a run takes,
nothing about what they know.

`python -m benchmarks.shapes gemma-7b DIR` writes one: 17 GB for gemma-7b, a block in memory at a
time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformers import Gemma3TextConfig, GemmaConfig, PreTrainedConfig, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

import ostools as ost
from ostools.models.files.sources import locate

_COMMON: dict[str, Any] = {
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "dtype": "bfloat16",
}
SHAPES: dict[str, PreTrainedConfig] = {
    "tiny": GemmaConfig(
        vocab_size=1024,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=8,
        **_COMMON,
    ),
    "33m": GemmaConfig(
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=7,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=64,
        **_COMMON,
    ),
    "gemma-3-270m": Gemma3TextConfig(
        vocab_size=262144,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=18,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        sliding_window=512,
        max_position_embeddings=32768,
        **_COMMON,
    ),
    **{
        name: GemmaConfig(
            vocab_size=32000,
            hidden_size=1024,
            intermediate_size=8192,
            num_hidden_layers=layers,
            num_attention_heads=8,
            num_key_value_heads=1,
            head_dim=128,
            **_COMMON,
        )
        for name, layers in (("200m", 6), ("half", 18))
    },
    "gemma-2b": GemmaConfig(
        vocab_size=256000,
        hidden_size=2048,
        intermediate_size=16384,
        num_hidden_layers=18,
        num_attention_heads=8,
        num_key_value_heads=1,
        head_dim=256,
        **_COMMON,
    ),
    "gemma-7b": GemmaConfig(
        vocab_size=256000,
        hidden_size=3072,
        intermediate_size=24576,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=16,
        head_dim=256,
        **_COMMON,
    ),
}
"""Configurations by name: "tiny" is for a look at what runs on it, "33m", "200m" and "half" have 33
M, 0.2 G and 0.53 G parameters, the others those of the model that they are called after."""


def write_shape(name: str, directory: Path) -> Path:
    """Write the checkpoint, in bfloat16, with a tokenizer that fits; what is there already is left
    as it is.

    Weights are normal with variance 1 / inputs, so that what a block adds is of the size of what it
    reads.
    """
    config = SHAPES[name]
    if (directory / "model.safetensors.index.json").exists():
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(directory, config.vocab_size)
    config.architectures = [
        f"{type(config).__name__.removesuffix('Config').removesuffix('Text')}ForCausalLM"
    ]
    config.save_pretrained(directory)
    generator = torch.Generator().manual_seed(0)
    where: dict[str, str] = {}
    size = 0
    for index, shard in enumerate(_shards(config, generator)):
        file = f"model-{index:05d}.safetensors"
        save_file(shard, directory / file, metadata={"format": "pt"})
        where |= dict.fromkeys(shard, file)
        size += sum(weight.nbytes for weight in shard.values())
    # Last, so that a directory with an index is whole.
    (directory / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": size}, "weight_map": where})
    )
    return directory


def random_model(name: str, device: torch.device) -> TransformerBridge:
    """The shape in memory, made on the device: weights as in `write_shape`, with the embedded
    model's tokenizer.

    Its tokens are the first ones of the vocabulary."""
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            SHAPES[name], dtype=torch.bfloat16, attn_implementation="eager"
        )
    for weight in model.parameters():
        weight.data.normal_(0.0, 0.1 if weight.ndim == 1 else weight.shape[-1] ** -0.5)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(locate(None, None).directory)
    return ost.adopt(model.eval().requires_grad_(False), tokenizer=tokenizer, name=name)


def _shards(config: PreTrainedConfig, generator: torch.Generator) -> Iterator[dict[str, Tensor]]:
    """The embedding with the final norm, then a block at a time."""
    three = isinstance(config, Gemma3TextConfig)
    d_model, d_head, d_mlp = config.hidden_size, config.head_dim, config.intermediate_size
    heads, own = config.num_attention_heads, config.num_key_value_heads

    def matrix(rows: int, columns: int) -> Tensor:
        made = torch.empty(rows, columns, dtype=torch.bfloat16)
        for part in made.split(8192):
            part.copy_(torch.randn(part.shape, generator=generator) / columns**0.5)
        return made

    def gain(width: int) -> Tensor:  # Gemma multiplies by 1 + gain
        return (0.1 * torch.randn(width, generator=generator)).bfloat16()

    yield {
        "model.embed_tokens.weight": matrix(config.vocab_size, d_model),
        "model.norm.weight": gain(d_model),
    }
    norms = ["input_layernorm", "post_attention_layernorm"]
    norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] if three else []
    for layer in range(config.num_hidden_layers):
        block = {f"{norm}.weight": gain(d_model) for norm in norms}
        block |= {f"self_attn.{part}_norm.weight": gain(d_head) for part in "qk" if three}
        block |= {
            "self_attn.q_proj.weight": matrix(heads * d_head, d_model),
            "self_attn.k_proj.weight": matrix(own * d_head, d_model),
            "self_attn.v_proj.weight": matrix(own * d_head, d_model),
            "self_attn.o_proj.weight": matrix(d_model, heads * d_head),
            "mlp.gate_proj.weight": matrix(d_mlp, d_model),
            "mlp.up_proj.weight": matrix(d_mlp, d_model),
            "mlp.down_proj.weight": matrix(d_model, d_mlp),
        }
        yield {f"model.layers.{layer}.{key}": weight for key, weight in block.items()}


def _write_tokenizer(directory: Path, d_vocab: int) -> None:
    """The embedded model's tokenizer, filled up with tokens that no text has."""
    source = locate(None, None).directory
    made = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = made["model"]["vocab"]
    taken = set(vocabulary.values())
    free = (index for index in range(d_vocab) if index not in taken)
    vocabulary |= {f"<unused{index}>": index for index in free}
    (directory / "tokenizer.json").write_text(json.dumps(made), encoding="utf-8")
    (directory / "tokenizer_config.json").write_bytes(
        (source / "tokenizer_config.json").read_bytes()
    )


if __name__ == "__main__":
    print(write_shape(sys.argv[1], Path(sys.argv[2])))
