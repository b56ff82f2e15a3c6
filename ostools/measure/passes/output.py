"""Output that is differentiated in the place of y_n: another position's y, a logit, or the
difference of two.

A logit is a linear function of y_n, t = w^T y_n + b, before a soft-cap (Gemma 2). w is the row of
the output layer, or the difference of two rows. So d t / d v_i = w^T J_i, one row, whose length is
at most ||w||_2 ||J_i||_2. Another position is the last one of the prompt's beginning: what a causal
model does there knows of no later token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ostools import hooks
from ostools.ground.errors import OF_A_LEFT_HOOK, InputError, short_repr
from ostools.ground.lens import TransformerBridge, original_model
from ostools.ground.whole_numbers import is_whole
from ostools.hooks.sites import is_closed
from ostools.models import Prompt
from ostools.models.shape import soft_cap_of
from ostools.models.tokens import one_token, token_text

_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
_ROUNDING = {torch.float32: 2e-5, torch.float64: 1e-10}
_OF_A_QUERY = ("exact-arithmetic", "ablate_heads", "ablate_layers", "scale_scores")
"""Edits that do the same to a query whatever comes after it."""


@dataclass(frozen=True)
class Output:
    """The logit of `ids[0]`; of two ids that of the first minus that of the second. `row`: w;
    `bias`: b; `tokens`: their texts."""

    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    row: Float[Tensor, " d_model"]
    bias: float

    @property
    def norm(self) -> float:
        return float(self.row.double().norm())

    @classmethod
    def of(cls, model: TransformerBridge, logit: str | int | Sequence[str | int]) -> Output:
        """Raises `InputError` for a text of several tokens, an id that there is not, more than two,
        and two that are one.
        """
        ids = logit_ids(model, logit)
        like = next(model.parameters())
        (row, bias), *subtracted = (
            output_row(model, index, torch.zeros(int(model.cfg.d_model)).to(like)) for index in ids
        )
        for other_row, other_bias in subtracted:
            row, bias = row - other_row, bias - other_bias
        if not bool(torch.isfinite(row).all()) or not bool(row.any()):
            raise InputError(
                "logit: expected a row of the output layer that is finite and not 0 for "
                f"{logit!r}, found none"
            )
        return cls(ids, tuple(token_text(model.tokenizer, index) for index in ids), row, bias)

    def value(self, logits: Float[Tensor, " d_vocab"]) -> float:
        """The logit, or the difference, of a model's own logits: after a soft-cap."""
        first, *subtracted = (float(logits[index]) for index in self.ids)
        return first - sum(subtracted)

    def before_cap(self, y: Float[Tensor, " d_model"]) -> float:
        """w^T y + b, before a soft-cap."""
        return float(self.row.double() @ y.double()) + self.bias

    def check(
        self,
        model: TransformerBridge,
        logits: Float[Tensor, " d_vocab"],
        y: Float[Tensor, " d_model"],
    ) -> None:
        """w^T y_n + b is the model's own logit before its soft-cap, of each token; else
        `InputError`.
        """
        cap = soft_cap(model)
        for index, token in zip(self.ids, self.tokens, strict=True):
            row, bias = output_row(model, index, y)
            value = float(row.double() @ y.double()) + bias
            capped = (
                value
                if cap is None
                else cap * float(torch.tensor(value / cap, dtype=torch.float64).tanh())
            )
            size = float(row.double().norm() * y.double().norm()) + abs(bias)
            error = abs(capped - float(logits[index])) / size if size else float("nan")
            if not error <= _TOLERANCE[self.row.dtype]:
                raise InputError(
                    f"logit of {token!r}: its row of the output layer times y_n differs from the "
                    f"model's own logit by {error:.2g} of the sizes of the two; the derivative of "
                    "this logit is not known here"
                )


def one_or_two(logit: str | int | Sequence[str | int]) -> list[str | int]:
    """The token of a logit, or the two of a difference. Raises `InputError` for what is neither."""
    if not isinstance(logit, str | int | Sequence):
        raise InputError(
            f"logit: expected a token or a pair such as (' A', ' B'), found {short_repr(logit)}"
        )
    targets = [logit] if isinstance(logit, str | int) else list(logit)
    if len(targets) not in (1, 2):
        raise InputError(
            f"logit: expected one token or a pair such as (' A', ' B'), found {len(targets)}"
        )
    return targets


def logit_ids(model: TransformerBridge, logit: str | int | Sequence[str | int]) -> tuple[int, ...]:
    """The id of a logit's token, or the two of a difference. Raises `InputError` for a text of
    several tokens, an id that there is not, more than two, and two that are one."""
    targets = one_or_two(logit)
    ids = tuple(one_token(model, target) for target in targets)
    if len(set(ids)) < len(ids):
        raise InputError(
            f"logit: expected two different tokens, found {targets[0]!r} and {targets[1]!r}, which "
            "are one token"
        )
    return ids


def output_row(
    model: TransformerBridge, token: int, like: Float[Tensor, " d_model"]
) -> tuple[Float[Tensor, " d_model"], float]:
    """w_t and the output layer's bias of one token, whatever the layer's module stores."""
    with torch.enable_grad():
        origin = torch.zeros_like(like, requires_grad=True)
        value = logit_scale(model) * model.unembed(origin[None, None])[0, 0, token]
        (row,) = torch.autograd.grad(value, origin)
    return row, float(value.detach())


def soft_cap(model: TransformerBridge) -> float | None:
    return soft_cap_of(original_model(model).config)


def logit_scale(model: TransformerBridge) -> float:
    """Factor from W_U y to the logits: 1, but for Granite, which divides by its `logits_scaling`.
    Where blocks are closed the head of the generic route has found the factor, and multiplies by
    it."""
    return (
        1.0
        if is_closed(model)
        else 1.0 / float(getattr(model.original_model.config, "logits_scaling", 1.0))
    )


def read_up_to(position: int | None, pos: int) -> int:
    """How many of `pos` tokens are read where `position` is meant, from the end where negative;
    None: all.
    """
    return pos if position is None else position % pos + 1


def require_position(position: int, pos: int) -> None:
    """Refuse a position that a prompt of `pos` tokens has not."""
    if not is_whole(position) or not -pos <= position < pos:
        raise InputError(
            f"position: expected a position from 0 to {pos - 1}, or from the end down to {-pos}, "
            f"found {position!r}"
        )


def up_to_position(model: TransformerBridge, prompt: Prompt, position: int) -> Prompt:
    """Cut the prompt after `position`, from the end where negative; its last token has the logits
    that it has in the whole.

    Raises `InputError` for a position that the prompt lacks, where the logits differ, and under an
    edit that may read later
    tokens: equal logits do not prove equal derivatives there.
    """
    pos = len(prompt.ids)
    require_position(position, pos)
    end = read_up_to(position, pos)
    if end == pos:
        return prompt
    foreign_edits = [edit for edit in hooks.active_edits(model) if edit.kind not in _OF_A_QUERY]
    if foreign_edits:
        raise InputError(
            "position: expected no edit that may read later tokens, found "
            f"{foreign_edits[0].kind!r} at {foreign_edits[0].where}: give the beginning of the "
            f"prompt itself, or leave the edit's block{OF_A_LEFT_HOOK}"
        )
    ids = prompt.ids[None].to(next(model.parameters()).device)
    with torch.no_grad():
        whole_logits, part = model(ids)[0, end - 1], model(ids[:, :end], logits_to_keep=1)[0, -1]
    error = float((whole_logits - part).abs().max() / whole_logits.abs().max())
    if not error <= _ROUNDING[whole_logits.dtype]:
        raise InputError(
            f"position: expected the logits at position {end - 1} to be those of the first {end} "
            f"tokens alone, found {error:.2g} of their size between them: the model or an edit "
            "reads later tokens, so that a beginning says nothing of the whole"
        )
    return beginning(prompt, end)


def beginning(prompt: Prompt, end: int) -> Prompt:
    """Return the first `end` tokens of a prompt."""
    origins = None if prompt.origins is None else prompt.origins[:end]
    return replace(prompt, ids=prompt.ids[:end], tokens=prompt.tokens[:end], origins=origins)
