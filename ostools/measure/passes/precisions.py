"""Precisions by name: a model cast whole, or one part of it stored in few bits and computed with in
float32.

Casting ("bfloat16") rounds what is stored and how it is computed. "bfloat16-weights", "-residual"
and "-kv" round what is stored alone, one part at a time: which of them hides a pair is then a
measurement (Section 4, "Quantisation"). "bfloat16-once" is one rounding at the start: its noise
after every layer is what the model makes of it."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ostools import hooks
from ostools.ground import TransformerBridge, checked_name, distinct
from ostools.hooks.rounding import FLOATS, FORMATS, Format, integer_scale
from ostools.models import view_in
from ostools.models.describe import made_once
from ostools.models.precision.casting import holds, view_rounded
from ostools.models.precision.scores import ARITHMETICS, is_eager
from ostools.theory.distances import spacing, steps_between

Vectors = Float[Tensor, "*batch d"]

PARTS: tuple[Literal["weights", "residual", "once", "kv"], ...] = (
    "weights",
    "residual",
    "once",
    "kv",
)
AS_GIVEN = "given"


@dataclass(frozen=True)
class Precision:
    """Precision in which a model is run: `dtype` is the arithmetic's; `part` is stored in `format`,
    both None for a cast.

    `name`: "float32", "bfloat16", "float16" or "float64" (the whole model is cast;
    "bfloat16-eager": with attention's scores rounded too, `models.precision.scores`), or
    "<format>-<part>" (float32 arithmetic, that part alone is stored in the format).
    """

    name: str
    dtype: torch.dtype
    format: Format | None = None
    part: Literal["weights", "residual", "once", "kv"] | None = None
    eager: bool = False

    @classmethod
    def of_name(cls, name: str) -> "Precision":
        """The precision of that name; an unknown one raises `InputError` with the nearest."""
        return PRECISIONS[checked_name("dtype", name, PRECISIONS)]

    @property
    def narrow(self) -> bool:
        """Whether it holds fewer powers of two than float32 and bfloat16, so that it can overflow
        where these do not.
        """
        return torch.finfo(FLOATS.get(self.format or "", self.dtype)).max < 2.0**127

    def prepared(self, model: TransformerBridge) -> TransformerBridge:
        """The model whose forward pass is run, inside `running`: a cast or rounded view, or the
        model where nothing changes.

        Memory: that of a view (`models.view_in`). Raises `InputError` for a weight that the format
        cannot hold.
        """
        if self.format is not None and self.part == "weights":
            return view_rounded(model, self.format)
        dtypes = {parameter.dtype for parameter in model.parameters()}
        same = dtypes == {self.dtype} and (
            self.dtype not in hooks.SIXTEEN_BITS or is_eager(model) == self.eager
        )
        if same:
            return model
        make = partial(view_in, model, self.dtype, eager=self.eager)
        return made_once(model, ("view", self.dtype, self.eager), make)

    def running(
        self, prepared: TransformerBridge, calibration: Sequence[int]
    ) -> AbstractContextManager[None]:
        """The rounding of the residual stream or of keys and values while a forward pass runs;
        nothing for the others.

        `calibration`: the ids of the longest prompt. Integer scales come from one forward pass over
        it (`hooks.rounded`). Raises `hooks.HookError` where a number does not fit the format.
        """
        if self.format is None or self.part is None or self.part == "weights":
            return nullcontext()
        ids = None if self.format in FLOATS else torch.tensor([list(calibration)])
        return hooks.rounded(prepared, self.part, self.format, calibration=ids)

    def weights_key(self, model: TransformerBridge) -> str:
        """Precisions with the same key have the same stored weights, and share their exact passes.

        "given" where the model's weights are numbers of the format already, as those of a
        checkpoint in bfloat16 are, whatever dtype it was loaded in; else the dtype or the integer
        format that they were rounded to. Cost: reads every weight.
        """
        if self.part == "weights" and self.format not in FLOATS:
            return f"{self.format}-weights"
        storage_dtype = (
            FLOATS[self.format]
            if self.part == "weights" and self.format is not None
            else self.dtype
        )
        is_held = made_once(model, ("holds", storage_dtype), partial(holds, model, storage_dtype))
        return AS_GIVEN if is_held else str(storage_dtype).removeprefix("torch.")

    def steps(self, y: Vectors, y_star: Vectors) -> Vectors:
        """u_k, one representable step at each coordinate, for the machine line; in float64.

        Floating formats: the spacing at max(|y_k|, |y*_k|), with exponents beyond the format's
        largest where y, which is not itself stored, goes beyond it. Integers: max_k max(|y_k|,
        |y*_k|) / 127 (int8) or / 7 (int4), the step of a symmetric grid over the vectors' own
        range.
        """
        if self.format is None:
            return steps_between(y, y_star, self.dtype)
        size = torch.maximum(y.double().abs(), y_star.double().abs())
        if self.format not in FLOATS:
            return integer_scale(size.amax(-1, keepdim=True), self.format).expand_as(size)
        dtype = FLOATS[self.format]
        # Steps scale with powers of two: beyond the largest number, that of a number within.
        beyond = torch.frexp(size / torch.finfo(dtype).max).exponent.clamp_min(0)
        return torch.ldexp(spacing(torch.ldexp(size, -beyond), dtype), beyond)


PRECISIONS: dict[str, Precision] = {
    name: Precision(name, dtype, eager=eager) for name, (dtype, eager) in ARITHMETICS.items()
} | {
    f"{format}-{part}": Precision(f"{format}-{part}", torch.float32, format, part)
    for part in PARTS
    for format in FORMATS
}
"""Every precision by name."""


def checked_precisions(dtypes: str | Iterable[str]) -> list[Precision]:
    """The precisions of those names in order, each once; one that there is not, or none at all, is
    an `InputError`.
    """
    return [Precision.of_name(name) for name in distinct("dtypes", dtypes)]
