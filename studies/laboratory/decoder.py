"""One decoder for the whole laboratory, in which positions, depth and windows are all that changes.

The module is Qwen 2's of transformers (norms before, gated MLP, a window in the layers that are
named), for every cell of the grid. What a cell changes is a setting of it, or one tensor:

    rope                    Qwen 2 as it is
    none                    Qwen 2 with rotary angles divided by infinity: cos 1, sin 0, to the bit
    learned, sinusoidal     a table is added to the embeddings before block 0, and there are no rotary angles
    alibi                   -m_h |i - j| is added to the scores with the mask, and there are no rotary angles
    sinks                   the mask of the window shows the first tokens too
    norm "post"             `PostNormLayer` in the place of Qwen 2's block

So a comparison of two positions is of nothing else, and a TransformerBridge shows the same hooks in
each. The first two are plain Qwen 2. The others go through the routes that need to know nothing of
a
family: automatic differentiation, one prompt after another.

The decoder of `ostools.theory.decoder` has the same five encodings, and no hooks: what is measured
on loaded models could not be measured on it. Weights before training are drawn as there.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2Model

from ostools.ground.errors import InputError
from ostools.theory import positions as encodings
from studies.laboratory.config import LabConfig
from studies.laboratory.prompts import BOS, EOS, IDS, PAD, VOCABULARY

NATIVE = ("rope", "none")
"""The positions that Qwen 2 has, or can be set to have."""
_NO_ANGLE = 1e300  # a float32 angle divided by it is 0


def lab_decoder(config: LabConfig, attention: str = "sdpa") -> Qwen2ForCausalLM:
    """The model of a config with the weights that its seed draws: embeddings standard normal,
    projections Gaussian with variance 1 / fan-in, gains 1, biases 0. Blocks of a shallow model are
    the first of a deep one of the same seed."""
    settings = _settings(config)
    model = Qwen2ForCausalLM._from_config(settings, attn_implementation=attention)
    if not is_qwen(config):
        model.model = PositionedModel(settings, config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.zero_()
            elif name.endswith("norm.weight"):
                weight.fill_(1.0)
            elif "position_table" not in name:
                fan_in = 1 if "embed_tokens" in name else weight.shape[1]
                draw = torch.Generator().manual_seed(_seed_of(config.seed, name))
                weight.copy_(
                    torch.randn(weight.shape, generator=draw, dtype=torch.float64) * fan_in**-0.5
                )
    return model


def is_qwen(config: LabConfig) -> bool:
    """True if the model is a plain Qwen 2."""
    return config.positions in NATIVE and config.norm == "pre" and not config.sinks


def _seed_of(seed: int, name: str) -> int:
    """A seed for each weight: its numbers are the same in every model that has a weight of that
    name.
    """
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:7], "big")


def _settings(config: LabConfig) -> Qwen2Config:
    rope: dict[str, Any] = {"rope_type": "linear", "factor": _NO_ANGLE, "rope_theta": 10_000.0}
    if config.positions == "rope":
        rope = {"rope_type": "default", "rope_theta": config.rope_base}
    slides = (
        config.window is not None and not config.sinks
    )  # a cache of sliding layers forgets the sinks: a mask hides instead
    settings = (Qwen2Config if is_qwen(config) else PositionedConfig)(
        vocab_size=len(VOCABULARY),
        hidden_size=config.d_model,
        intermediate_size=config.d_mlp,
        num_hidden_layers=config.n_layers,
        num_attention_heads=config.n_heads,
        num_key_value_heads=config.n_heads,
        max_position_embeddings=config.context,
        rope_parameters=rope,
        tie_word_embeddings=False,
        use_sliding_window=slides,
        sliding_window=config.window if slides else None,
        layer_types=["sliding_attention" if slides else "full_attention"] * config.n_layers,
        pad_token_id=IDS[PAD],
        bos_token_id=IDS[BOS],
        eos_token_id=IDS[EOS],
        dtype="float32",
    )
    settings.architectures = ["Qwen2ForCausalLM" if is_qwen(config) else "OstoolsLabDecoder"]
    return settings


class PositionedConfig(Qwen2Config):
    """The settings of a model with what Qwen 2 does not have: no record of a family is to describe
    it as Qwen 2.
    """

    model_type = "ostools-lab"


class PostNormLayer(Qwen2DecoderLayer):
    """Qwen 2's block with its two norms after the additions: v <- norm_1(v + attention(v)), then v
    <- norm_2(v + MLP(v)).
    """

    def forward(self, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        attended, _ = self.self_attn(hidden_states, *args, **kwargs)
        between = self.input_layernorm(hidden_states + attended)
        return self.post_attention_layernorm(between + self.mlp(between))


class PositionedModel(Qwen2Model):
    """Qwen 2's decoder with positions, sinks and places of the norms that it does not have."""

    def __init__(self, settings: Qwen2Config, config: LabConfig) -> None:
        super().__init__(settings)
        self.positions, self.window, self.sinks = config.positions, config.window, config.sinks
        if config.norm == "post":
            self.layers = nn.ModuleList(
                PostNormLayer(settings, layer) for layer in range(config.n_layers)
            )
        if config.positions == "learned":
            table = encodings.learned(
                config.context, config.d_model, _seed_of(config.seed, "position_table")
            )
            self.position_table = nn.Parameter(table.float())
        elif config.positions == "sinusoidal":
            table = encodings.sinusoidal(config.context, config.d_model)
            self.register_buffer("position_table", table.float(), persistent=False)

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        inputs_embeds: Any = None,
        use_cache: Any = None,
        **kwargs: Any,
    ) -> Any:
        if attention_mask is not None and not (
            attention_mask.ndim == 2 and bool(attention_mask.all())
        ):
            raise InputError(
                "a laboratory model takes prompts of one length, without padding and without a mask of its own"
            )
        embedded = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        start = 0 if past_key_values is None else past_key_values.get_seq_length()
        n = start + embedded.shape[1]
        if self.positions == "alibi" or self.sinks:
            attention_mask = self._masks(n, start, embedded)
        if self.positions in ("learned", "sinusoidal"):
            embedded = embedded + self.position_table[start:n].to(embedded)
        return super().forward(
            inputs_embeds=embedded,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            use_cache=use_cache,
            **kwargs,
        )

    def _masks(
        self, n: int, start: int, like: Tensor
    ) -> dict[str, Float[Tensor, "1 head query key"]]:
        """The masks of both kinds of layers: ALiBi's bias, or 0, where a key is seen; sinks: one
        for all layers.
        """
        heads = int(self.config.num_attention_heads)
        bias = (
            encodings.alibi(n, heads)
            if self.positions == "alibi"
            else torch.zeros(1, n, n, dtype=torch.float64)
        )
        hidden = torch.finfo(like.dtype).min
        windows = {
            "full_attention": self.window if self.sinks else None,
            "sliding_attention": self.window,
        }
        return {
            kind: torch.where(self._visible(n, window), bias, hidden)[None, :, start:].to(like)
            for kind, window in windows.items()
        }

    def _visible(self, n: int, window: int | None) -> Bool[Tensor, "query key"]:
        causal = encodings.visible(n, True, None)
        return encodings.visible(n, True, window) | (causal & (torch.arange(n) < self.sinks))
