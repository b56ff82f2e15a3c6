"""How a decoder is told where its tokens stand: sinusoidal, rotary, ALiBi, learned, or not at all.

Two are added to the embeddings (`sinusoidal`, `learned`), one turns queries and keys (`rotated`),
one is added to the scores (`alibi`). Theorem 4.2 assumes that what they say "decays to 0 with the
distance, e.g. as in RoPE"; which of them do is for `studies.laboratory` to measure. Tables are
computed in float64: cast them to the dtype that they are used in.

Sources: Vaswani et al. 2017 (arXiv 1706.03762, section 3.5); Su et al. 2021 (RoFormer, arXiv
2104.09864), in Llama's layout; Press, Smith, Lewis 2022 (ALiBi, arXiv 2108.12409) and its published
code for head counts that are no power of two.
"""

import math

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

ENCODINGS = ("sinusoidal", "rope", "alibi", "learned", "none")
"""The encodings by name."""


def sinusoidal(n: int, d_model: int) -> Float[Tensor, "pos d_model"]:
    """p_(i, 2k) = sin(i / 10000^(2k / d)), p_(i, 2k + 1) = cos of the same, for positions i = 0,
    ..., n - 1; d_model even.
    """
    angles = _angles(n, d_model, 10_000.0)
    return rearrange([angles.sin(), angles.cos()], "part pos pair -> pos (pair part)")


def learned(n: int, d_model: int, seed: int) -> Float[Tensor, "pos d_model"]:
    """A table of independent standard normals, as before training. A longer one begins with a
    shorter one's rows.
    """
    return normal_rows(n, d_model, torch.Generator().manual_seed(seed))


def normal_rows(n: int, width: int, generator: torch.Generator) -> Float[Tensor, "pos width"]:
    """Standard normals, a row a token. A longer table begins with a shorter one's rows: torch draws
    in whole chunks of 16.
    """
    rows = math.ceil(n / 16) * 16
    return torch.randn(rows, width, generator=generator, dtype=torch.float64)[:n]


def rotated(
    x: Float[Tensor, "*batch pos d_head"], base: float
) -> Float[Tensor, "*batch pos d_head"]:
    """R_i x_i: coordinates k and k + d_head / 2 of position i turned by the angle i base^(-2k /
    d_head); d_head even.

    The score of R_i q with R_j k depends on i - j only.
    """
    angles = _angles(x.shape[-2], x.shape[-1], base)
    cos, sin = (table.repeat(1, 2).to(x) for table in (angles.cos(), angles.sin()))
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def _angles(n: int, width: int, base: float) -> Float[Tensor, "pos pair"]:
    frequencies = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.arange(n, dtype=torch.float64)[:, None] * frequencies


def alibi_slopes(n_heads: int) -> Float[Tensor, " head"]:
    """2^(-8 h / H) for h = 1, ..., H, H a power of two.

    Else the slopes of the largest power of two below H, then every other slope of the next power of
    two, as published.
    """
    power = 2 ** int(math.log2(n_heads))
    exact = _geometric(power)
    return torch.cat([exact, _geometric(2 * power)[::2][: n_heads - power]])


def _geometric(n_heads: int) -> Float[Tensor, " head"]:
    return 2.0 ** (-8.0 / n_heads * torch.arange(1, n_heads + 1, dtype=torch.float64))


def alibi(n: int, n_heads: int) -> Float[Tensor, "head query key"]:
    """-m_h |i - j|, what head h adds to the score of query i with key j."""
    places = torch.arange(n, dtype=torch.float64)
    distance = (places[:, None] - places[None, :]).abs()
    return -alibi_slopes(n_heads)[:, None, None] * distance


def visible(n: int, causal: bool, window: int | None) -> Bool[Tensor, "query key"]:
    """Which keys a query sees: those up to itself if `causal`, and of these the last `window`
    (itself counts) if given.
    """
    back = torch.arange(n)[:, None] - torch.arange(n)[None, :]
    mask = torch.ones(n, n, dtype=torch.bool)
    if causal:
        mask = back >= 0
    return mask if window is None else mask & (back.abs() < window)
