"""Output that is differentiated in the place of y_n: a logit, or the difference of two; and the
beginnings of a prompt.

A logit is a linear function of y_n, t = w^T y_n + b, before a soft-cap (Gemma 2). w is the row of
the output layer, or the difference of two rows. So d t / d v_i = w^T J_i, one row, whose length is
at most ||w||_2 ||J_i||_2. The y of an earlier token is the last one of the prompt's beginning: what
a causal model does there knows of no later token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground import InputError, TransformerBridge, original_model, short_repr
from ostools.hooks.sites import is_closed
from ostools.measure.passes.contexts import require_no_edits, true_arithmetic
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
    def account(self) -> dict[str, object]:
        """What a provenance says of it: the tokens, their ids, and ||w||."""
        norm = float(self.row.double().norm())
        return {"logit": self.tokens, "logit_ids": self.ids, "logit_norm": norm}

    @classmethod
    def of(cls, model: TransformerBridge, logit: str | int | Sequence[str | int]) -> "Output":
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
    targets = [logit] if isinstance(logit, str | int) else logit
    if not isinstance(targets, Sequence) or len(targets) not in (1, 2):
        raise InputError(
            f"logit: expected one token or a pair such as (' A', ' B'), found {short_repr(logit)}"
        )
    return list(targets)


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


def require_beginning(model: TransformerBridge, prompt: Prompt, end: int) -> None:
    """Refuse a prompt whose first `end` tokens are not computed alone as within the whole: where
    the logits of the last of them differ, and under an edit that may read later tokens, as equal
    logits do not prove equal derivatives there.
    """
    reason = "it may read later tokens: give the beginning of the prompt itself"
    require_no_edits("beginning of a prompt", model, reason, but=_OF_A_QUERY)
    ids = prompt.ids[None].to(next(model.parameters()).device)
    with torch.no_grad(), true_arithmetic(model):
        whole_logits, part = model(ids)[0, end - 1], model(ids[:, :end], logits_to_keep=1)[0, -1]
    error = float((whole_logits - part).abs().max() / whole_logits.abs().max())
    if not error <= _ROUNDING[whole_logits.dtype]:
        raise InputError(
            f"expected the logits at position {end - 1} to be those of the first {end} tokens "
            f"alone, found {error:.2g} of their size between them: the model or an edit reads "
            "later tokens, so that a beginning says nothing of the whole"
        )


def beginning(prompt: Prompt, end: int) -> Prompt:
    """Return the first `end` tokens of a prompt."""
    origins = None if prompt.origins is None else prompt.origins[:end]
    return replace(prompt, ids=prompt.ids[:end], tokens=prompt.tokens[:end], origins=origins)
