"""A Llama and a Gemma 1, 2, 3 in plain torch and float64, from the papers' equations: an oracle
that shares no code with us.

It reads a checkpoint's files alone: the tensors by their published names, and `config.json`. It
uses no transformers, no TransformerLens, and nothing of ostools, hooks or mitigations.

    x~       = g x / r(x),  r(x) = sqrt(mean(x^2) + eps),  g = w (Llama) or 1 + w (Gemma)          Zhang and Sennrich 2019
    s_ij     = (R_i q_i) . (R_j k_j) scale, in Gemma 2 c tanh(s / c); alpha = softmax over the keys that i sees
    R_i      : pairs (x_m, x_{m + d/2}) turned by the angle i theta^(-2m/d)                                Su et al. 2021
    z_i      = v_i + P( W_O concat_h sum_j alpha_ij^h v_j^h ),  heads h of one group share keys and values  Ainslie et al. 2023
    v'_i     = z_i + P( W_down ( act(W_gate z~_i) * (W_up z~_i) ) )                                         Shazeer 2020
    y_n      = final norm of v_n^(L);   logits = E y_n,  in Gemma 2 c tanh(. / c)

P is the norm after a sublayer in Gemma 2 and 3, and nothing elsewhere. Gemma multiplies embeddings
by sqrt(d_model), and its act is the tanh form of GELU; Llama's is SiLU. Gemma 3 norms
q and k before R. Sources: Touvron et al. 2023 (Llama), Gemma Team 2024a, 2024b, 2025. Angles, their
cosines and sines are rounded to float32, as the trained models have them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Config = Mapping[str, Any]
Weights = Mapping[str, Tensor]

WINDOWED = ("gemma2", "gemma3_text")


@dataclass(frozen=True)
class Norm:
    """x -> g x / r(x); `held`: r is a constant, with no derivative. `gain` is all of g."""

    gain: Tensor
    eps: float

    def scale(self, x: Tensor) -> Tensor:
        return (x.square().mean(-1, keepdim=True) + self.eps).sqrt()

    def __call__(self, x: Tensor, held: bool) -> Tensor:
        r = self.scale(x)
        return self.gain * x / (r.detach() if held else r)


@dataclass
class Block:
    """One block, and what its last call saw: `seen` holds "pattern", and the scales "r1", "r2",
    "rp1", "rp2".
    """

    q: Tensor  # [head, d_head, d_model]
    k: Tensor  # [head, d_head, d_model], a group's copy for each of its heads
    v: Tensor
    o: Tensor  # [head, d_model, d_head]
    gate: Tensor
    up: Tensor
    down: Tensor
    norm1: Norm
    norm2: Norm
    post1: Norm | None
    post2: Norm | None
    q_norm: Norm | None
    k_norm: Norm | None
    scale: float
    cap: float | None
    theta: float
    stretch: float
    window: int | None
    gemma: bool
    seen: dict[str, Tensor] = field(default_factory=dict)

    def attention(self, stream: Tensor, held: bool) -> Tensor:
        """What attention adds to v, [pos, d_model]."""
        n = len(stream)
        read = self.norm1(stream, held).mT
        q, k, v = ((w @ read).mT for w in (self.q, self.k, self.v))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q, held), self.k_norm(k, held)
        scores = self.turned(q) @ self.turned(k).mT * self.scale
        if self.cap:
            scores = self.cap * torch.tanh(scores / self.cap)
        back = torch.arange(n)[:, None] - torch.arange(n)
        sees = (back >= 0) & (back < (self.window or n))
        pattern = scores.masked_fill(~sees, -math.inf).softmax(-1)
        pattern = pattern.detach() if held else pattern
        self.seen |= {"pattern": pattern.detach(), "r1": self.norm1.scale(stream).detach()[:, 0]}
        return self.after(torch.einsum("hde,hne->nd", self.o, pattern @ v), self.post1, "rp1", held)

    def mlp(self, mid: Tensor, held: bool) -> Tensor:
        """What the MLP adds to z."""
        return self.after(self.psi(self.norm2(mid, held)), self.post2, "rp2", held)

    def psi(self, x: Tensor) -> Tensor:
        """The MLP without its norms."""
        a = x @ self.gate.T
        # GELU, as Gemma approximates it; SiLU.
        act = (
            a * (1 + torch.tanh((2 / math.pi) ** 0.5 * (a + 0.044715 * a**3))) / 2
            if self.gemma
            else a / (1 + (-a).exp())
        )
        return (act * (x @ self.up.T)) @ self.down.T

    def after(self, x: Tensor, norm: Norm | None, name: str, held: bool) -> Tensor:
        """P of a sublayer's output."""
        self.seen[name] = (
            torch.ones(len(x), dtype=x.dtype) if norm is None else norm.scale(x).detach()[:, 0]
        )
        return x if norm is None else norm(x, held)

    def turned(self, x: Tensor) -> Tensor:
        """R_i x_i at every position."""
        half = x.shape[-1] // 2
        slow = 1.0 / self.theta ** (torch.arange(half).float() / half) / self.stretch
        angles = torch.outer(torch.arange(x.shape[-2]).float(), slow)
        cos, sin = angles.cos().double(), angles.sin().double()
        first, second = x[..., :half], x[..., half:]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def __call__(self, stream: Tensor, held: bool) -> Tensor:
        mid = stream + self.attention(stream, held)
        return mid + self.mlp(mid, held)


@dataclass
class Decoder:
    embedding: Tensor
    blocks: list[Block]
    norm: Norm
    unembedding: Tensor
    factor: float
    cap: float | None

    def embedded(self, ids: list[int]) -> Tensor:
        """v^(0), [pos, d_model]."""
        return self.embedding[ids] * self.factor

    def last(self, embedded: Tensor, held: bool = False) -> tuple[Tensor, Tensor]:
        """v_n^(L) and y_n."""
        stream = embedded
        for block in self.blocks:
            stream = block(stream, held)
        return stream[-1], self.norm(stream, held)[-1]

    def logits(self, y: Tensor) -> Tensor:
        found = self.unembedding @ y
        return self.cap * torch.tanh(found / self.cap) if self.cap else found


def decoder(config: Config, weights: Weights) -> Decoder:
    """The model of a checkpoint: `config` as in config.json, `weights` by their names in
    model.safetensors.
    """
    kind = config["model_type"]
    gemma = kind.startswith("gemma")
    assert kind in ("llama", "gemma", *WINDOWED), kind
    w = {name: tensor.double() for name, tensor in weights.items()}

    def norm(name: str) -> Norm | None:
        if f"{name}.weight" not in w:
            return None
        return Norm(w[f"{name}.weight"] + (1.0 if gemma else 0.0), config["rms_norm_eps"])

    blocks = [
        _block(config, w, norm, f"model.layers.{layer}", layer)
        for layer in range(config["num_hidden_layers"])
    ]
    final = norm("model.norm")
    assert final is not None
    embedding = w["model.embed_tokens.weight"]
    factor = config["hidden_size"] ** 0.5 if gemma else 1.0
    return Decoder(
        embedding,
        blocks,
        final,
        w.get("lm_head.weight", embedding),
        factor,
        config.get("final_logit_softcapping"),
    )


def _block(config: Config, w: Weights, norm: Any, at: str, layer: int) -> Block:
    kind = config["model_type"]
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    post = kind in ("gemma2", "gemma3_text")
    # Names of the norms: with one before each sublayer, "post_attention" is the one before the MLP.
    before_mlp = "pre_feedforward_layernorm" if post else "post_attention_layernorm"

    def head_rows(name: str, count: int) -> Tensor:
        rows = w[f"{at}.self_attn.{name}.weight"].reshape(count, width, -1)
        return rows.repeat_interleave(heads // count, 0)

    norms = (norm(f"{at}.input_layernorm"), norm(f"{at}.{before_mlp}"))
    assert None not in norms
    layer_kind = (config.get("layer_types") or ["sliding_attention"] * (layer + 1))[layer]
    rope = config["rope_parameters"]
    rope = rope.get(layer_kind, rope)
    assert rope["rope_type"] in ("default", "linear"), rope
    own_scale = config.get("query_pre_attn_scalar") if post else None
    return Block(
        q=head_rows("q_proj", heads),
        k=head_rows("k_proj", groups),
        v=head_rows("v_proj", groups),
        o=w[f"{at}.self_attn.o_proj.weight"].reshape(-1, heads, width).transpose(0, 1),
        gate=w[f"{at}.mlp.gate_proj.weight"],
        up=w[f"{at}.mlp.up_proj.weight"],
        down=w[f"{at}.mlp.down_proj.weight"],
        norm1=norms[0],
        norm2=norms[1],
        post1=norm(f"{at}.post_attention_layernorm") if post else None,
        post2=norm(f"{at}.post_feedforward_layernorm") if post else None,
        q_norm=norm(f"{at}.self_attn.q_norm"),
        k_norm=norm(f"{at}.self_attn.k_norm"),
        scale=(own_scale or width) ** -0.5,
        cap=config.get("attn_logit_softcapping"),
        theta=rope["rope_theta"],
        stretch=rope.get("factor", 1.0),
        window=config["sliding_window"]
        if kind in WINDOWED and layer_kind == "sliding_attention"
        else None,
        gemma=kind.startswith("gemma"),
    )
