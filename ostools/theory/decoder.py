"""One decoder in pure torch: any depth, any dtype, any positions, every number in the open.

Purpose: what the paper says of "a Transformer" can be tried on the block equation itself, with
positions, mask, window, norm and precision as the only things that change. A pre-norm decoder with
a gated MLP (Llama's block, and equal to it):

    z_i       = v_i + sum_h sum_{j<=i} alpha_ij^h W_O^h W_V^h norm1(v_j)
    v_i^(l+1) = z_i + psi(norm2(z_i)),         psi(x) = W_down (silu(W_gate x) * (W_up x))
    y_i       = norm3(v_i^(L))

Cost: O(L (n^2 d + n d^2)) for n tokens. With a causal mask ONE pass holds the last-token
representation of every prefix: row i of a long pass is the last row of a pass over i + 1 tokens, up
to the rounding of kernels whose order of summation depends on the length. Without the mask
(`causal=False`) each length needs its own pass. The blocks of `Decoder.random` do not depend on the
depth either: its residuals v^(l) are those of the decoder with l layers and the same seed.

Source: Barbero et al. 2024 (arXiv 2406.04267), section 2, whose block this is with the projections
put back; the paper prints norm1(v_i) inside the sum over j, read as norm1(v_j), since the weights
of a row sum to 1.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from ostools.ground import InputError, checked_name
from ostools.theory import positions as encodings

Residual = Float[Tensor, "batch pos d_model"]
Projected = Float[Tensor, "batch head pos d_head"]
Pattern = Float[Tensor, "batch head query key"]


@dataclass(frozen=True, eq=False)
class DecoderBlock:
    """The weights of one block; projections act from the right on rows: q = norm1(v) W_Q."""

    gain1: Float[Tensor, " d_model"]
    W_Q: Float[Tensor, "head d_model d_head"]
    W_K: Float[Tensor, "head d_model d_head"]
    W_V: Float[Tensor, "head d_model d_head"]
    W_O: Float[Tensor, "head d_head d_model"]
    gain2: Float[Tensor, " d_model"]
    W_gate: Float[Tensor, "d_model d_mlp"]
    W_up: Float[Tensor, "d_model d_mlp"]
    W_down: Float[Tensor, "d_mlp d_model"]

    @classmethod
    def random(
        cls, generator: torch.Generator, d_model: int, n_heads: int, d_mlp: int
    ) -> "DecoderBlock":
        """Projections Gaussian with variance 1 / fan-in, gains 1; float64."""
        d_head, gain = d_model // n_heads, torch.ones(d_model, dtype=torch.float64)
        W_Q, W_K, W_V = (
            _gaussian(generator, n_heads, d_model, d_head, fan_in=d_model) for _ in range(3)
        )
        W_O = _gaussian(generator, n_heads, d_head, d_model, fan_in=d_model)
        W_gate, W_up = (_gaussian(generator, d_model, d_mlp, fan_in=d_model) for _ in range(2))
        W_down = _gaussian(generator, d_mlp, d_model, fan_in=d_mlp)
        return cls(gain, W_Q, W_K, W_V, W_O, gain, W_gate, W_up, W_down)

    def to(self, dtype: torch.dtype) -> "DecoderBlock":
        return DecoderBlock(
            **{
                field.name: _cast(getattr(self, field.name), dtype)
                for field in dataclasses.fields(self)
            }
        )


@dataclass(frozen=True)
class DecoderPass:
    """`residuals`: v^(0), ..., v^(L). `patterns`: alpha^(0), ..., alpha^(L-1). `y`: after the final
    norm.
    """

    residuals: tuple[Residual, ...]
    patterns: tuple[Pattern, ...]
    y: Residual


@dataclass(frozen=True, eq=False)
class Decoder:
    """A decoder's weights and the choices that the studies vary. Make one with `random`, or from
    weights of one's own.

    Attributes:
        positions: a name of `ostools.theory.positions.ENCODINGS`; `rope_base` is read by "rope",
            `table_seed` by "learned".
        causal: whether query i sees keys j <= i only.
        window: how many keys a query sees, itself included, in EVERY layer; None for all.
    """

    embedding: Float[Tensor, "token d_model"]
    blocks: tuple[DecoderBlock, ...]
    gain3: Float[Tensor, " d_model"]
    W_U: Float[Tensor, "d_model token"]
    positions: str = "rope"
    rope_base: float = 10_000.0
    table_seed: int = 0
    causal: bool = True
    window: int | None = None
    eps: float = 1e-6

    def __post_init__(self) -> None:
        checked_name("positions", self.positions, encodings.ENCODINGS)
        if self.window is not None and self.window < 1:
            raise InputError(
                f"window: expected at least 1 key (the token itself), found {self.window}"
            )
        if not self.rope_base > 0:
            raise InputError(f"rope_base: expected a positive number, found {self.rope_base}")
        width = (
            self.blocks[0].W_Q.shape[-1]
            if self.blocks and self.positions == "rope"
            else self.embedding.shape[1]
        )
        if self.positions in ("rope", "sinusoidal") and width % 2:
            raise InputError(
                f"positions {self.positions!r} turn pairs of coordinates: expected an even width, "
                f"found {width}"
            )

    @classmethod
    def random(
        cls,
        seed: int,
        *,
        d_model: int = 64,
        n_heads: int = 4,
        n_layers: int = 1,
        d_mlp: int = 256,
        vocabulary: int = 16,
        positions: str = "rope",
        rope_base: float = 10_000.0,
        causal: bool = True,
        window: int | None = None,
    ) -> "Decoder":
        """A decoder as before training: projections Gaussian with variance 1 / fan-in, embeddings
        standard normal, gains 1.

        In float64. The same seed gives the same weights whatever the depth (the blocks of a shallow
        one are the first of a deep one) and the positions.

        Raises `InputError` for heads that do not divide d_model, and unknown names.
        """
        if d_model % n_heads:
            raise InputError(f"n_heads: expected a divisor of d_model = {d_model}, found {n_heads}")
        generator = torch.Generator().manual_seed(seed)

        # Of its own: drawn from `seed`, the learned table would begin with the embeddings.
        table_seed = int(torch.randint(2**62, (), generator=generator))
        return cls(
            embedding=_gaussian(generator, vocabulary, d_model),
            W_U=_gaussian(generator, d_model, vocabulary, fan_in=d_model),
            gain3=torch.ones(d_model, dtype=torch.float64),
            blocks=tuple(
                DecoderBlock.random(generator, d_model, n_heads, d_mlp) for _ in range(n_layers)
            ),
            positions=positions,
            rope_base=rope_base,
            table_seed=table_seed,
            causal=causal,
            window=window,
        )

    def to(self, dtype: torch.dtype) -> "Decoder":
        """All weights, and so all arithmetic, in `dtype`; norms, scores and softmax in float32 at
        least, as sdpa does it.

        Raises `InputError` for weights beyond the range of `dtype`.
        """
        return dataclasses.replace(
            self,
            embedding=_cast(self.embedding, dtype),
            W_U=_cast(self.W_U, dtype),
            gain3=_cast(self.gain3, dtype),
            blocks=tuple(block.to(dtype) for block in self.blocks),
        )

    def forward(self, inputs: Int[Tensor, "batch pos"] | Residual) -> DecoderPass:
        """Every residual stream, every pattern, and y. Patterns take L H n^2 numbers: walk `layers`
        where that is too much.

        Args:
            inputs: token ids, or embeddings, to which sinusoidal or learned positions are still
                added.
        """
        steps = list(self.layers(inputs))
        residuals = tuple(residual for residual, _ in steps)
        patterns = tuple(pattern for _, pattern in steps if pattern is not None)
        return DecoderPass(residuals, patterns, self.normed(residuals[-1], self.gain3))

    def layers(
        self, inputs: Int[Tensor, "batch pos"] | Residual
    ) -> Iterator[tuple[Residual, Pattern | None]]:
        """(v^(0), None), then (v^(l), alpha^(l-1)) for l = 1, ..., L: one layer's pattern in memory
        at a time.
        """
        v = self.embedded(inputs)
        yield v, None
        for block in self.blocks:
            attended, pattern = self.attention(block, self.normed(v, block.gain1))
            z = v + attended
            v = self.stored(z + self.mlp(block, self.normed(z, block.gain2)))
            yield v, pattern

    def stored(self, v: Residual) -> Residual:
        """v^(l) as it lies between blocks: as it is."""
        return v

    def embedded(self, inputs: Int[Tensor, "batch pos"] | Residual) -> Residual:
        """v^(0): the tokens' embeddings, with the positions that are added to them."""
        v = inputs.to(self.embedding) if inputs.is_floating_point() else self._looked_up(inputs)
        _, n, d_model = v.shape
        if self.positions == "sinusoidal":
            return v + encodings.sinusoidal(n, d_model).to(v)
        if self.positions == "learned":
            return v + encodings.learned(n, d_model, self.table_seed).to(v)
        return v

    def _looked_up(self, tokens: Int[Tensor, "batch pos"]) -> Residual:
        outside = (tokens < 0) | (tokens >= len(self.embedding))
        if bool(outside.any()):
            raise InputError(
                f"tokens: expected ids 0 to {len(self.embedding) - 1}, found "
                f"{int(tokens[outside][0])}"
            )
        return self.embedding[tokens]

    def normed(self, x: Residual, gain: Float[Tensor, " d_model"]) -> Residual:
        """norm(x) = g x / r(x), r(x) = sqrt(mean(x^2) + eps)."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return gain * (wide * scale).to(x.dtype)

    def attention(self, block: DecoderBlock, x: Residual) -> tuple[Residual, Pattern]:
        """sum_h sum_j alpha_ij^h W_O^h W_V^h x_j, and the pattern alpha."""
        q, k, v = self.projected(block, x)
        pattern = self.pattern(q, k)
        heads = einsum(
            pattern,
            v.to(pattern),
            "batch head query key, batch head key d_head -> batch head query d_head",
        )
        return einsum(
            heads.to(v),
            block.W_O,
            "batch head pos d_head, head d_head d_model -> batch pos d_model",
        ), pattern

    def projected(self, block: DecoderBlock, x: Residual) -> tuple[Projected, Projected, Projected]:
        """Queries, keys and values; queries and keys turned, where positions are rotary."""
        project = "batch pos d_model, head d_model d_head -> batch head pos d_head"
        q, k, v = (einsum(x, W, project) for W in (block.W_Q, block.W_K, block.W_V))
        if self.positions == "rope":
            q, k = encodings.rotated(q, self.rope_base), encodings.rotated(k, self.rope_base)
        return q, k, v

    def pattern(self, q: Projected, k: Projected) -> Pattern:
        """alpha_ij = softmax_j(q_i k_j / sqrt(d_head) + what ALiBi adds), over the keys that i
        sees, in float32 at least.
        """
        wide = torch.promote_types(q.dtype, torch.float32)
        scores = einsum(
            q.to(wide),
            k.to(wide),
            "batch head query d_head, batch head key d_head -> batch head query key",
        )
        scores = scores * q.shape[-1] ** -0.5
        n_heads, n = scores.shape[1:3]
        if self.positions == "alibi":
            scores = scores + encodings.alibi(n, n_heads).to(scores)
        hidden = ~encodings.visible(n, self.causal, self.window).to(scores.device)
        scores = scores.masked_fill(hidden, -torch.inf)
        return scores.softmax(-1)

    def mlp(self, block: DecoderBlock, x: Residual) -> Residual:
        """psi(x) = W_down (silu(W_gate x) * (W_up x))."""
        return (torch.nn.functional.silu(x @ block.W_gate) * (x @ block.W_up)) @ block.W_down

    def logits(self, y: Residual) -> Float[Tensor, "batch pos token"]:
        """y W_U."""
        return y @ self.W_U


def _gaussian(generator: torch.Generator, *shape: int, fan_in: int = 1) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64) / fan_in**0.5


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in `dtype`; refuses values beyond its range BEFORE the cast: float8 makes them its largest
    number, silently.
    """
    if not dtype.is_floating_point:
        raise InputError(f"expected a floating-point dtype such as torch.bfloat16, found {dtype}")
    size, largest = x.detach().double().abs(), torch.finfo(dtype).max
    if not bool((size <= largest).all()):
        raise InputError(
            f"{dtype} cannot hold values up to {float(size.amax()):.4g}: its largest is "
            f"{largest:.4g}"
        )
    return x.to(dtype)
