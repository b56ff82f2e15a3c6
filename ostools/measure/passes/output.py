"""A logit, or the difference of two, as a linear function of y_n: t = w^T y_n + b, before a soft-cap (Gemma 2).

w is the row of the output layer, or the difference of two rows. So d t / d v_i = w^T J_i, one row, whose length is at most
||w||_2 ||J_i||_2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import hooks
from ostools.ground.errors import InputError
from ostools.models import Prompt
from ostools.models.tokens import one_token, token_text

_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


@dataclass(frozen=True)
class Output:
    """The logit of `ids[0]`; of two ids that of the first minus that of the second. `row`: w; `tokens`: their texts."""

    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    row: Float[Tensor, " d_model"]

    @property
    def norm(self) -> float:
        """||w||_2, in float64."""
        return float(self.row.double().norm())

    @classmethod
    def of(cls, model: TransformerBridge, towards: str | int | Sequence[str | int]) -> Output:
        """Raises `InputError` for a text of several tokens, an id that there is not, more than two, and two that are one."""
        given = [towards] if isinstance(towards, str | int) else list(towards)
        if len(given) not in (1, 2):
            raise InputError(f"towards: expected one token or a pair such as (' A', ' B'), found {len(given)}")
        ids = tuple(one_token(model, each) for each in given)
        if len(set(ids)) < len(ids):
            raise InputError(
                f"towards: expected two different tokens, found {given[0]!r} and {given[1]!r}, which are one token"
            )
        like = next(model.parameters())
        rows = [output_row(model, index, torch.zeros(int(model.cfg.d_model)).to(like))[0] for index in ids]
        row = rows[0] if len(rows) == 1 else rows[0] - rows[1]
        if not bool(torch.isfinite(row).all()) or not bool(row.any()):
            raise InputError(
                f"towards: expected a row of the output layer that is finite and not 0 for {given!r}, found none"
            )
        return cls(ids, tuple(token_text(model.tokenizer, index) for index in ids), row)

    def check(self, model: TransformerBridge, prompt: Prompt) -> None:
        """w^T y_n + b is the model's own logit before its soft-cap, of each token; else `InputError`. One forward pass."""
        with torch.no_grad(), hooks.capture(model, "final_norm") as record:
            logits = model(prompt.ids[None].to(self.row.device), logits_to_keep=1)[0, -1]
        y, cap = record["final_norm"][0, -1].double(), soft_cap(model)
        for index, token in zip(self.ids, self.tokens, strict=True):
            row, bias = output_row(model, index, record["final_norm"][0, -1])
            value = float(row.double() @ y) + bias
            capped = value if cap is None else cap * float(torch.tensor(value / cap, dtype=torch.float64).tanh())
            size = float(row.double().norm() * y.norm()) + abs(bias)
            error = abs(capped - float(logits[index])) / size if size else float("nan")
            if not error <= _TOLERANCE[self.row.dtype]:
                raise InputError(
                    f"towards {token!r}: its row of the output layer times y_n differs from the model's own logit by "
                    f"{error:.2g} of the sizes of the two; the derivative of this logit is not known here"
                )


def output_row(
    model: TransformerBridge, token: int, like: Float[Tensor, " d_model"]
) -> tuple[Float[Tensor, " d_model"], float]:
    """w_t and the output layer's bias of one token, whatever the layer's module stores."""
    with torch.enable_grad():
        origin = torch.zeros_like(like, requires_grad=True)
        value = model.unembed(origin[None, None])[0, 0, token]
        (row,) = torch.autograd.grad(value, origin)
    return row, float(value.detach())


def soft_cap(model: TransformerBridge) -> float | None:
    """What the model bounds its logits by; None where it does not."""
    return getattr(model.original_model.config, "final_logit_softcapping", None)
