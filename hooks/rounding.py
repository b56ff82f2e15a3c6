"""Store a part of the forward pass in few bits while the arithmetic stays the model's own.

Low precision is two things at once: numbers are stored in few bits, and they are computed with in
few bits. Casting a model does both; `rounded` does the first alone, for the residual stream or for
what a key/value cache holds.

Cost: an elementwise operation at each place; for integers one more forward pass, which finds their
scales.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ostools.ground import HookPoint, TransformerBridge
from ostools.hooks.capture import capture
from ostools.hooks.precision import SIXTEEN_BITS
from ostools.hooks.register import FormatError, HookError, Order, attached, model_block
from ostools.hooks.sites import available_sites, points

FLOATS: Mapping[str, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
}
"""Floating formats by name."""

INTEGERS: Mapping[str, int] = {"int8": 127, "int4": 7}
"""Integer formats by name, with their largest code: symmetric, so that 0 is stored as 0 and the
lowest code is not used.
"""

Format = Literal["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8", "int4"]
FORMATS: tuple[Format, ...] = get_args(Format)


@model_block
def rounded(
    model: TransformerBridge,
    part: Literal["residual", "once", "kv"],
    format: Format,
    *,
    calibration: Int[Tensor, "batch pos"] | None = None,
) -> Iterator[None]:
    """Round a part of the forward pass to what `format` can hold, inside the block. The arithmetic
    stays as it was.

    Args:
        part: "residual" rounds v^(0), ..., v^(L), which are stored between blocks (z, between
            attention and MLP, is not stored). "once" rounds v^(0) of each token alone, or its v^(1)
            where the format holds v^(0) already, as that of an embedding which is stored in it:
            what the later layers make of one rounding. "kv" rounds keys after RoPE, and values, as
            a cache stores them.
        format: bfloat16, float16, float8_e4m3fn, float8_e5m2: the nearest representable number,
            ties to even. int8, int4: scale * k with a whole number |k| <= 127 or 7 (`stored`). Each
            channel (a coordinate of the residual stream or of a head) has a scale, which is the
            same for every token.
        calibration: token ids, for integers only. On entry, a forward pass over them finds the
            scales: the largest magnitude of each channel / 127 or 7. Larger numbers in a later pass
            saturate. Scales are static, because a scale found in the pass itself would depend on
            later tokens, and a prefix would not be computed as it is on its own.

    Gradients pass as if nothing were rounded: the derivative of a staircase is 0 almost everywhere,
    and says nothing.

    Raises `HookError` for an unknown part or format; for a calibration that is missing, not needed,
    or not a batch of ids; for a model in 16 bits (its numbers are rounded already); and for numbers
    that a floating format cannot hold, with their place.
    """
    dtypes = {parameter.dtype for parameter in model.parameters()}
    if dtypes & set(SIXTEEN_BITS):
        raise HookError(
            f"rounded: expected a model in float32 or float64, found {sorted(map(str, dtypes))}: "
            "its arithmetic would round too; cast a copy to float32"
        )
    if (calibration is None) != (format in FLOATS):
        need = (
            "takes no calibration"
            if format in FLOATS
            else "needs a calibration, a batch of token ids"
        )
        raise HookError(f"rounded: format {format!r} {need}")
    places = _places(model, part, format)
    scales = {} if calibration is None else _scales(model, places, calibration, format)
    bodies = {place: _body(format, scales.get(place), place) for place in places}
    if part == "once":
        bodies = _first_that_changes(bodies)
    placements = [(point, bodies[place], Order.EDIT) for place, point in places.items()]
    with attached(placements, kind="rounded"):
        yield


def stored(
    x: Float[Tensor, "*shape"],
    format: str,
    scale: Float[Tensor, "..."] | None = None,
    what: str = "numbers",
) -> Float[Tensor, "*shape"]:
    """The nearest numbers to x that `format` holds, in x's own dtype; ties to even.

    Floating formats: the cast and back. Integers: scale * round(x / scale), the code clamped to
    +-127 (int8) or +-7 (int4); `scale` broadcasts against x (`integer_scale`), and 0 stores 0.

    Raises `HookError` for a number that is not finite and one beyond the largest of a floating
    format (`what` says whose): what becomes of such a number (infinity, NaN, the largest) differs
    between devices.
    """
    if format in INTEGERS:
        if scale is None:
            raise HookError(f"format {format!r} needs a scale")
        _require_within(x, float("inf"), format, what)
        largest = INTEGERS[format]
        code = (x / torch.where(scale > 0, scale, 1.0)).round().clamp(-largest, largest)
        return code * scale
    dtype = FLOATS[format]
    _require_within(x, torch.finfo(dtype).max, format, what)
    narrow = _odd_float32(x) if x.dtype == torch.float64 else x
    return narrow.to(dtype).to(x.dtype)


def integer_scale(
    largest_magnitude: Float[Tensor, "*shape"], format: str
) -> Float[Tensor, "*shape"]:
    """The scale of a channel with that largest magnitude, which is stored as the largest code."""
    return largest_magnitude / INTEGERS[format]


def _odd_float32(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """float64 to float32, where inexact to the neighbour whose last bit is 1.

    Torch narrows float64 by way of float32, and two roundings to nearest are not one: 1 + 2^-8 +
    2^-40 would become 1 in bfloat16. An odd last bit keeps the number on its side of every tie of a
    narrower format.
    """
    near = x.float()
    towards_x = torch.where(x > near, torch.inf, -torch.inf).to(near)
    even = near.view(torch.int32) & 1 == 0
    return torch.where(even & (near.double() != x), torch.nextafter(near, towards_x), near)


def _require_within(x: Tensor, largest: float, format: str, what: str) -> None:
    # Written so that NaN fails too.
    size = x.detach().abs().amax() if x.numel() else torch.zeros(())
    if not bool(size <= largest) or not bool(size.isfinite()):
        raise FormatError(
            f"{what}: expected finite numbers up to {largest:.5g} to store as {format}, found "
            f"{float(size):.5g}; use a format with a wider range"
        )


Place = tuple[str, int]  # a site and a layer
Rounding = Callable[[Tensor], Tensor]


def _places(model: TransformerBridge, part: str, format: str) -> dict[Place, HookPoint]:
    """The hook points of a part, by site and layer."""
    last = int(model.cfg.n_layers) - 1
    if part == "once":
        layers_by_site = {"residual_pre": [0], "residual_post": [0]}
    elif part == "residual":
        layers_by_site = {
            "residual_pre": None,
            "residual_post": [last],
        }  # a block's output is the next one's input
    else:
        sites = available_sites(model)
        keys = "rotary_k" if "rotary_k" in sites else "key"
        if keys == "key" and "rotary_cos" in sites:
            raise HookError(
                f"rounded: {format}-{part} rounds keys behind their rotation, where "
                f"{model.cfg.architecture} has no hook: leave that part out"
            )
        layers_by_site = {keys: None, "value": None}
    return {
        (name, layer): point
        for name, layers in layers_by_site.items()
        for layer, point in points(model, name, layers).items()
        if layer is not None
    }


def _scales(
    model: TransformerBridge,
    places: Mapping[Place, HookPoint],
    ids: Int[Tensor, "batch pos"],
    format: str,
) -> dict[Place, Tensor]:
    """The scale of each channel at each place, over the tokens of one forward pass."""
    if ids.ndim != 2 or ids.is_floating_point() or not ids.numel():
        raise HookError(
            f"rounded: expected a calibration of token ids [batch, pos], found {tuple(ids.shape)} "
            f"{ids.dtype}"
        )

    names = dict.fromkeys(name for name, _ in places)
    of_channels = capture(model, *names, reduce=lambda tensor, layer: tensor.abs().amax((0, 1)))
    with torch.no_grad(), of_channels as record:
        model(ids.to(next(model.parameters()).device), use_cache=False)
    scales = {(name, layer): integer_scale(record[name][layer], format) for name, layer in places}
    for (name, layer), scale in scales.items():
        if not bool(scale.isfinite().all()):
            raise HookError(f"rounded: the calibration is not finite at {name} of layer {layer}")
    return scales


def _first_that_changes(bodies: Mapping[Place, Rounding]) -> dict[Place, Rounding]:
    """Of two places, in the order of the pass, the second rounds the tokens of which the first
    changed nothing.
    """
    (first, round_first), (second, round_second) = bodies.items()
    changed: list[Tensor] = []

    def at_first(tensor: Tensor) -> Tensor:
        rounded_tensor = round_first(tensor)
        changed[:] = [(rounded_tensor != tensor).any(-1, keepdim=True)]
        return rounded_tensor

    return {
        first: at_first,
        second: lambda tensor: torch.where(changed[0], tensor, round_second(tensor)),
    }


def _body(format: str, scale: Tensor | None, place: Place) -> Rounding:
    where = f"{place[0]} of layer {place[1]}"

    def body(tensor: Tensor) -> Tensor:
        # x - stop(x) is exactly 0: the value is the rounded one, the gradient that of x.
        return stored(tensor.detach(), format, scale, where) + (tensor - tensor.detach())

    return body
