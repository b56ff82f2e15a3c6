"""Proposition 6.1 / B.9, Corollary 6.2 / B.10 and exact collapse under windows, on random decoders of several depths."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ostools.experiments.lemmas.check import LENGTHS, STATED, Check, Checked, curves, points
from ostools.theory.decoder import Decoder
from ostools.theory.lemmas import counting, windows
from ostools.theory.positions import ENCODINGS

Tokens = Int[Tensor, " pos"]

_SIZES: dict[str, Any] = {"d_model": 32, "n_heads": 2, "d_mlp": 64, "vocabulary": 8}
_BOS, _ZERO, _ONE, _OTHER = 0, 1, 2, 3
_SHARP = 4.0
"""How much larger queries and keys are in the decoders that attend sharply: scores grow by its square."""


def sharpened(decoder: Decoder, factor: float) -> Decoder:
    """The same decoder with queries and keys `factor` times as large."""
    blocks = (dataclasses.replace(b, W_Q=factor * b.W_Q, W_K=factor * b.W_K) for b in decoder.blocks)
    return dataclasses.replace(decoder, blocks=tuple(blocks))


def _ids(text: str) -> Tokens:
    return torch.tensor([{"B": _BOS, "0": _ZERO, "1": _ONE, "x": _OTHER}[letter] for letter in text])


SAME_RATIO = (("10", "1100"), ("10", "0011"), ("10", "10" * 20), ("110", "011101"), ("01x", "xx0011"), ("1", "1111"))
"""Sequences of zeros, ones and a third token x, that hold the same ratio of them."""


AVERAGING: dict[str, Any] = {"positions": "none", "causal": False}
"""Proposition 6.1's hypotheses on the decoder."""
_BROKEN: dict[str, dict[str, Any]] = {
    "with the causal mask": {"causal": True},
    **{f"with {name} positions": {"positions": name} for name in ENCODINGS if name != "none"},
    "with a BOS token": {"pair": ("B10", "B1100")},
    "with another ratio": {"pair": ("10", "110")},
}
"""Each hypothesis taken away, one at a time."""


def same_ratio(
    seed: int, pairs: Sequence[tuple[str, str]] = SAME_RATIO, options: Mapping[str, Any] = AVERAGING, layers: int = 8
) -> Checked:
    """Proposition 6.1 / B.9: sequences with the same ratio of types have one representation per type, in every layer."""
    decoder = Decoder.random(seed, n_layers=layers, **_SIZES, **options)
    decoders = (decoder, sharpened(decoder, _SHARP))
    stated = [max(layer) for layer in zip(*(_spreads(d, pair) for d in decoders for pair in pairs), strict=True)]
    broken = {name: _broken(seed, layers, **change) for name, change in _BROKEN.items()}
    unequal = sum(not counting.same_ratio(_ids(one), _ids(other)) for one, other in pairs)
    checks = [
        Check("pairs of sequences that do not hold the same ratio of types", float(unequal), "=", 0.0),
        Check(
            f"greatest spread within a type, {len(pairs)} pairs, after 1 to {layers} layers, ordinary and sharp attention",
            max(stated),
            *("<=", 1e-10),
        ),
        *(
            Check("least spread within a type over layers, of one pair", min(found), ">=", 1e-6, hypotheses=name)
            for name, found in broken.items()
        ),
    ]
    depths = range(1, layers + 1)
    parts = [points(name, depths, values) for name, values in ({STATED: stated} | broken).items()]
    return Checked(checks, curves(*parts))


def _broken(seed: int, layers: int, pair: tuple[str, str] = ("10", "1100"), **change: Any) -> list[float]:
    return _spreads(Decoder.random(seed, n_layers=layers, **(_SIZES | AVERAGING | change)), pair)


def _spreads(decoder: Decoder, pair: tuple[str, str]) -> list[float]:
    """The spread within a type after 1, 2, ... blocks, after the final norm, as in a decoder of that many blocks."""
    tokens = [_ids(text) for text in pair]
    passes = [decoder.forward(ids[None]).residuals[1:] for ids in tokens]
    return [
        counting.type_spread([decoder.normed(v, decoder.gain3)[0] for v in both], tokens)
        for both in zip(*passes, strict=True)
    ]


Answer = Callable[[Decoder, Float[Tensor, "pos d_model"], int], Tensor]


def of_the_last(decoder: Decoder, y: Float[Tensor, "pos d_model"], n: int) -> Float[Tensor, " token"]:
    """The logits after n counted tokens, of the last representation alone. Each is a product of its own, as a kernel may depend
    on the size."""
    return decoder.logits(y[n - 1][None, None])[0, 0]


def of_all(decoder: Decoder, y: Float[Tensor, "pos d_model"], n: int) -> Float[Tensor, " token"]:
    """What a readout that sees every position would say: the logits of the sum over the prompt."""
    return y[:n].double().sum(0) @ decoder.W_U.double()


def answers(seed: int, longest: int = 1024, answer: Answer = of_the_last) -> Checked:
    """Corollary 6.2 / B.10: counts whose prompts have one representation in a dtype get one answer.

    The prompt: a BOS, another token, then n copies of the one to count, without positions; one causal pass holds every n.
    """
    exact = Decoder.random(seed, n_layers=2, positions="none", **_SIZES)
    tokens = torch.tensor([_BOS, _ZERO, *[_ONE] * longest])[None]
    y, cast = exact.forward(tokens).y[0, 2:], exact.to(torch.bfloat16)
    cases = {
        "y in bfloat16": (cast, y.to(torch.bfloat16)),
        "y in float16": (exact.to(torch.float16), y.to(torch.float16)),
        "all in bfloat16": (cast, cast.forward(tokens).y[0, 2:]),
    }
    checks = [_one_answer(name, decoder, seen, answer) for name, (decoder, seen) in cases.items()]
    rounded = cases["y in bfloat16"][1]
    everywhere = torch.stack([of_all(cast, rounded, n) for n in range(1, longest + 1)])
    pairs = {name: float(counting.identical_next(seen).sum()) for name, seen in (("bfloat16", rounded), ("float64", y))}
    checks += [
        Check(f"pairs n, n + 1 to {longest:,} with one representation, y in bfloat16", pairs["bfloat16"], ">", 0.0),
        Check("the same in float64", pairs["float64"], "=", 0.0, hypotheses="without low precision"),
        Check(
            f"answers beyond one for each representation, {longest:,} counts, y in bfloat16",
            float(counting.second_answers(rounded, everywhere)),
            *(">", 0.0),
            hypotheses="with a readout of every position",
        ),
    ]
    seen_by = {name: seen for name, (_, seen) in cases.items()} | {"float64": y}
    shown = [n for n in LENGTHS if n <= longest]
    parts = [
        points(name, shown, counting.runs(seen)[torch.tensor(shown) - 1].tolist()) for name, seen in seen_by.items()
    ]
    return Checked(checks, curves(*parts))


def _one_answer(name: str, decoder: Decoder, seen: Float[Tensor, "pos d_model"], answer: Answer) -> Check:
    n = len(seen)
    said = torch.stack([answer(decoder, seen, count) for count in range(1, n + 1)])
    return Check(
        f"answers beyond one for each representation, {n:,} counts with {counting.distinct(seen):,} representations and "
        f"{counting.distinct(said):,} answers, {name}",
        float(counting.second_answers(seen, said)),
        *("=", 0.0),
    )


Claim = Callable[[int, int], int]

WINDOWED = [(layers, window) for layers in (1, 2, 4) for window in (2, 3, 6)]
_PROMPT = 5


def windowed(
    seed: int, exact_from: Claim = windows.exact_from, shapes: Sequence[tuple[int, int]] = WINDOWED
) -> Checked:
    """Exact collapse: with a window w in every layer, v^(l) has stopped changing from l (w - 1) + 1 copies on."""
    reached, before, in_y = 0.0, torch.inf, 0.0
    for positions in windows.RELATIVE:
        for layers, window in shapes:
            steps, y_steps = _steps(seed, layers, positions, window, copies=layers * (window - 1) + 8)
            for layer, found in enumerate(steps):
                start = exact_from(layer, window)
                reached = max(reached, float(found[start - 1 :].amax()))
                before = min(before, float(found[start - 2])) if start > 1 else before
            in_y = max(in_y, float(y_steps[exact_from(layers, window) - 1 :].amax()))
    checks = [
        Check(
            "greatest ||v_(c+1) - v_c|| / ||v_c|| at every layer l, from l (w - 1) + 1 copies on", reached, "<=", 1e-12
        ),
        Check("greatest such step of y, from L (w - 1) + 1 copies on", in_y, "<=", 1e-12),
        Check("least such step of v^(l) at one copy fewer", before, ">=", 1e-9, hypotheses="with one copy fewer"),
        *(
            Check(
                "greatest such step at the last layer, from L (w - 1) + 1 copies on",
                float(_steps(seed, 4, positions, window, copies=40)[0][-1][exact_from(4, 3) - 1 :].amax()),
                *(">=", 1e-6),
                hypotheses=hypotheses,
            )
            for hypotheses, positions, window in _UNWINDOWED
        ),
    ]
    steps, _ = _steps(seed, 4, "rope", 3, copies=20)
    open_steps, _ = _steps(seed, 4, "rope", None, copies=20)
    layers = {f"layer {layer}": (layer, found) for layer, found in enumerate(steps) if layer}
    parts = [points(name, range(1, 20), found.tolist()) for name, (_, found) in layers.items()]
    starts = {name: windows.exact_from(layer, 3) for name, (layer, _) in layers.items()}
    parts += [points(name, [start], [float(layers[name][1][start - 1])], "predicted") for name, start in starts.items()]
    parts.append(points("layer 4 without a window", range(1, 20), open_steps[-1].tolist()))
    return Checked(checks, curves(*parts))


_UNWINDOWED = (
    ("without a window", "rope", None),
    ("with sinusoidal positions", "sinusoidal", 3),
    ("with learned positions", "learned", 3),
)


def _steps(
    seed: int, layers: int, positions: str, window: int | None, copies: int
) -> tuple[list[Float[Tensor, " copy"]], Float[Tensor, " copy"]]:
    """Relative steps between neighbouring copies after 0, 1, ..., `layers` blocks, and of y; a random prompt before them."""
    decoder = Decoder.random(seed, n_layers=layers, positions=positions, window=window, **_SIZES)
    prompt = torch.randint(4, 8, (_PROMPT,), generator=torch.Generator().manual_seed(seed))
    found = decoder.forward(torch.cat([prompt, torch.full((copies,), _ONE)])[None])
    return [windows.steps(residual[0], copies) for residual in found.residuals], windows.steps(found.y[0], copies)
