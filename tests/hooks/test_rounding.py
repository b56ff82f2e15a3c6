"""Rounding to a format against every number that the format has, and rounded passes against Hugging
Face's own.
"""

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache

from ostools import hooks
from ostools.hooks.rounding import FLOATS, FORMATS, INTEGERS, integer_scale, stored
from tests.checkpoints import TEXT_FAMILIES, Family, make_model, tiny_model
from tests.sets import quick

Tokens = Int[Tensor, "batch pos"]
# (bits of the exponent, bits of the mantissa, largest finite number)
LAYOUT = {
    "bfloat16": (8, 7, 2.0**127 * (2 - 2.0**-7)),
    "float16": (5, 10, 65504.0),
    "float8_e4m3fn": (4, 3, 448.0),
    "float8_e5m2": (5, 2, 57344.0),
}


def every_number(format: str) -> Float[np.ndarray, " code"]:
    """Every finite number >= 0 of the format, ascending, decoded from its bits by hand: code k is
    entry k.
    """
    exponent_bits, mantissa_bits, largest = LAYOUT[format]
    bias = 2 ** (exponent_bits - 1) - 1
    code = np.arange(2 ** (exponent_bits + mantissa_bits))
    exponent, fraction = code >> mantissa_bits, (code & (2**mantissa_bits - 1)) / 2**mantissa_bits
    values = np.where(
        exponent > 0, np.ldexp(1 + fraction, exponent - bias), np.ldexp(fraction, 1 - bias)
    )
    return values[values <= largest]


def nearest_even(x: Float[np.ndarray, " row"], format: str) -> Float[np.ndarray, " row"]:
    """The nearest number of the format, the even code on a tie: by search among all of them,
    float64 exact.
    """
    numbers = every_number(format)
    size = np.abs(x)
    above = np.searchsorted(numbers, size).clip(1, len(numbers) - 1)
    below = above - 1
    # Sterbenz: both differences are exact, or far from a tie.
    down, up = size - numbers[below], numbers[above] - size
    code = np.where(
        down < up, below, np.where(up < down, above, np.where(below % 2 == 0, below, above))
    )
    return np.copysign(numbers[code], x)


def hard_numbers(format: str) -> Float[np.ndarray, " row"]:
    """Every number, every midpoint of two, the float64 and float32 neighbours of those, and random
    ones.
    """
    numbers = every_number(format)
    ties = (numbers[1:] + numbers[:-1]) / 2
    exact = np.concatenate([numbers, ties])
    random = np.exp(
        np.random.default_rng(0).uniform(np.log(numbers[1] / 8), np.log(numbers[-1]), 4000)
    )
    parts = [exact, random]
    for logit in (-np.inf, np.inf):
        parts += [
            np.nextafter(exact, logit),
            np.nextafter(exact.astype(np.float32), np.float32(logit)),
        ]
        parts += [exact * (1 + np.sign(logit) * 2.0**-30)]
    values = np.concatenate([part.astype(np.float64) for part in parts])
    return np.concatenate([values, -values])[
        np.abs(np.concatenate([values, values])) <= numbers[-1]
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("format", FLOATS)
def test_floats_are_the_nearest_of_all_numbers_of_the_format(
    format: str, dtype: torch.dtype
) -> None:
    x = torch.from_numpy(hard_numbers(format)).to(dtype)
    largest = float(every_number(format)[-1])
    assert torch.finfo(FLOATS[format]).max == largest
    x = x[x.abs() <= largest]
    found = stored(x, format)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found.double().numpy(), nearest_even(x.double().numpy(), format))
    assert torch.equal(stored(found, format), found)
    if dtype == torch.float32:
        assert torch.equal(found, x.to(FLOATS[format]).float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("format", INTEGERS)
def test_integers_are_the_nearest_on_their_grid(format: str, dtype: torch.dtype) -> None:
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0), dtype=dtype)
    x[:, 3], x[7, 1] = 0.0, 30.0  # a channel of nothing, and one whose scale an outlier sets
    largest = {"int8": 127, "int4": 7}[format]
    scale = integer_scale(x.abs().amax(0), format)
    torch.testing.assert_close(scale, x.abs().amax(0) / largest)
    found = stored(x, format, scale)
    for row, channel in [(i, j) for i in range(40) for j in range(5)]:
        step = Fraction(scale[channel].item())
        code = (
            0 if not step else round(Fraction(x[row, channel].item()) / step)
        )  # Python rounds half to even, exactly
        assert abs(code) <= largest
        assert found[row, channel].item() == code * scale[channel].item() or dtype == torch.float32
        assert found[row, channel].item() == pytest.approx(code * scale[channel].item(), rel=1e-6)
    assert torch.equal(stored(found, format, scale), found)
    assert float((found - x).abs().sub(scale / 2).max()) <= 1e-6
    assert torch.equal(found[:, 3], torch.zeros(40, dtype=dtype))
    assert found[7, 1].item() == pytest.approx(30.0)


@pytest.mark.parametrize("format", FLOATS)
def test_what_a_format_cannot_hold_is_refused(format: str) -> None:
    largest = LAYOUT[format][2]
    assert stored(torch.tensor([1.0, -largest], dtype=torch.float64), format)[1].item() == -largest
    refusal = rf"here: expected finite numbers up to .* to store as {format}, found"
    for wrong in (largest * 1.0001, float("inf"), float("nan")):
        with pytest.raises(hooks.HookError, match=refusal):
            stored(torch.tensor([1.0, -wrong], dtype=torch.float64), format, what="here")


# Rounded passes. The oracle is Hugging Face's own model without any bridge: a cache that rounds
# what it is given, and torch hooks around its blocks.


def calibration_for(format: str, tokens: Tokens) -> Tokens | None:
    return tokens if format in INTEGERS else None


def blocks_of(module: Any) -> tuple[Any, Any]:
    """The blocks of a Hugging Face model, and its final norm."""
    inner = getattr(module, "transformer", None) or module.model
    return getattr(inner, "h", None) or inner.layers, getattr(inner, "ln_f", None) or inner.norm


def rounded_by(x: Tensor, format: str, largest: Tensor | None) -> Tensor:
    """`stored`, which stands above against every number; of integers by the largest size of each
    channel.
    """
    return stored(
        x,
        format,
        integer_scale(largest, format) if format in INTEGERS and largest is not None else None,
    )


class RoundingCache(DynamicCache):
    """A key/value cache that stores in a format; `largest` by (layer, name), filled by a first pass
    with format None.
    """

    def __init__(self, format: str | None, largest: dict[tuple[int, str], Tensor]) -> None:
        super().__init__()
        self.format = format
        self.largest = largest

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Any:
        rounded = []
        for name, states in (
            ("key", key_states),
            ("value", value_states),
        ):  # [batch, kv_head, pos, d_head]
            if self.format is None:
                self.largest[layer_idx, name] = states.abs().amax((0, 2))[:, None]
                rounded.append(states)
            else:
                rounded.append(rounded_by(states, self.format, self.largest[layer_idx, name]))
        return super().update(*rounded, layer_idx, *args, **kwargs)


@pytest.mark.parametrize("family", quick(TEXT_FAMILIES, "gemma3", "gpt2"))
def test_rounded_keys_and_values_are_those_of_a_rounding_cache(
    family: Family, tokens: Tokens
) -> None:
    model = tiny_model(family, seed=1, dtype=torch.float64)
    module = make_model(family, seed=1, dtype=torch.float64)
    largest: dict[tuple[int, str], Tensor] = {}
    plain = module(tokens, past_key_values=RoundingCache(None, largest)).logits
    for format in FORMATS:
        expected = module(tokens, past_key_values=RoundingCache(format, largest)).logits
        with hooks.rounded(model, "kv", format, calibration=calibration_for(format, tokens)):
            found = model(tokens)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
        assert float((found - plain).abs().max()) > 1e-4


@pytest.mark.parametrize("family", quick(TEXT_FAMILIES, "gemma3", "gpt2"))
def test_a_rounded_residual_stream_is_that_of_rounded_blocks(
    family: Family, tokens: Tokens
) -> None:
    """Every block of Hugging Face's model reads rounded numbers, and so does its final norm."""
    model = tiny_model(family, seed=1, dtype=torch.float64)
    module = make_model(family, seed=1, dtype=torch.float64)
    blocks, norm = blocks_of(module)
    largest: dict[int, Tensor] = {}
    storing: list[str] = []

    def before(place: int) -> Any:
        def hook(_: Any, args: tuple[Tensor, ...]) -> Any:
            if not storing:
                largest[place] = args[0].abs().amax((0, 1))
                return None
            return (rounded_by(args[0], storing[0], largest[place]), *args[1:])

        return hook

    for place, part in enumerate([*blocks, norm]):
        part.register_forward_pre_hook(before(place))
    last = len(blocks) - 1
    plain = module(tokens).logits
    for format in FORMATS:
        storing[:] = [format]
        expected = module(tokens).logits
        with (
            hooks.rounded(model, "residual", format, calibration=calibration_for(format, tokens)),
            hooks.capture(model, "residual_pre", "residual_post") as record,
        ):
            found = model(tokens)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
        assert float((found - plain).abs().max()) > 1e-4
        for place, residual in {
            **record["residual_pre"],
            last + 1: record["residual_post"][last],
        }.items():
            torch.testing.assert_close(
                rounded_by(residual, format, largest[place]), residual, rtol=1e-12, atol=1e-12
            )


@pytest.mark.parametrize("family", quick(TEXT_FAMILIES, "gemma3", "gpt2"))
def test_a_prefix_is_computed_as_on_its_own(family: Family) -> None:
    """No number knows of a later token: what one pass for all lengths stands on.

    In float64: a number near a tie may fall either way between two passes in float32, and that is a
    step of the format.
    """
    model = tiny_model(family, seed=1, dtype=torch.float64)
    long = torch.randint(10, 200, (1, 14), generator=torch.Generator().manual_seed(4))
    for part, format in itertools.product(("residual", "kv"), ("float8_e4m3fn", "int4")):
        rounding = hooks.rounded(model, part, format, calibration=calibration_for(format, long))
        with hooks.exact_arithmetic(model), rounding:
            all_rows = model(long)
            for length in (1, 13):
                torch.testing.assert_close(
                    model(long[:, :length]), all_rows[:, :length], rtol=1e-9, atol=1e-9
                )


def test_an_overflow_in_the_pass_names_its_place(tokens: Tokens) -> None:
    model = tiny_model("llama", fresh=True)
    model.W_E.mul_(1e5)
    with (
        pytest.raises(
            hooks.HookError, match=r"residual_pre of layer 0: expected finite numbers up to 448"
        ),
        hooks.rounded(model, "residual", "float8_e4m3fn"),
    ):
        model(tokens)
    assert hooks.active_edits(model) == ()


def test_once_rounds_v0_or_of_a_token_whose_v0_the_format_holds_v1() -> None:
    """Against passes from rounded streams: nothing but that one rounding differs."""
    model = tiny_model("llama", seed=5, fresh=True)
    ids = torch.tensor([[3, 40, 50, 60]])
    model.W_E[[40, 60]] = stored(model.W_E[[40, 60]], "bfloat16")
    with (
        hooks.capture(model, "residual_pre", "final_norm") as record,
        hooks.rounded(model, "once", "bfloat16"),
    ):
        model(ids)
    streams, y = dict(record["residual_pre"]), record["final_norm"]
    embedded = model.W_E[ids[0]][None]
    start = stored(embedded, "bfloat16")
    assert torch.equal(streams[0], start)
    assert (streams[0] == embedded).all(-1)[0].tolist() == [False, True, False, True]
    with hooks.capture(model, "residual_pre") as record:
        model(start, start_at_layer=0)
    first = record["residual_pre"][1]
    expected = torch.where(
        (start == embedded).all(-1, keepdim=True), stored(first, "bfloat16"), first
    )
    assert torch.equal(streams[1], expected)
    with hooks.capture(model, "final_norm") as record:
        model(expected, start_at_layer=1)
    assert torch.equal(record["final_norm"], y)
