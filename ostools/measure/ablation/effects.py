"""Measures m of an ablation, and the first-order effect of every part on them: d m / d g, a gate g
on each part.

Three numbers m of a forward pass: the log probability of the right answer, the distance of a pair,
and the norm of the Jacobian of the last token with respect to the tokens that carry the answer. For
the last, d m / d g is a second derivative:

    J_C = d y_n / d v_C^(0)     d ||J_C||_F / d g = <J_C, d J_C / d g> / ||J_C||_F     d ||J_C||_2 / d g = a^T (d J_C / d g) b

with a, b the leading singular vectors; rows of J_C come from a backward pass that is differentiated
once more.

Cost: of a value one forward pass (a pair: two; a Jacobian: d_model backward passes); of all slopes
together two to four times that, however many parts carry a gate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ostools import hooks
from ostools.ground.errors import InputError
from ostools.ground.lens import TransformerBridge
from ostools.measure.jacobian.linearise import Linearised

Numbers: TypeAlias = dict[str, float]
Slopes: TypeAlias = dict[str, Float[Tensor, " gate"]]
Ids: TypeAlias = Int[Tensor, " _"]
"""Token ids, on the model's device."""
Gated: TypeAlias = Callable[[Tensor], AbstractContextManager[None]]
"""From gates to the context that puts them on a model."""

_TOKENS = 1024
"""Tokens times cotangents that go back together."""
_ROUNDINGS = 16
"""A distance up to this many steps of the dtype, relative to ||y||, is rounding."""


class Measure(ABC):
    """Numbers of a model's forward pass, by name, and their slopes with respect to gates on its
    parts.
    """

    name: str

    @abstractmethod
    def values(self, model: TransformerBridge) -> Numbers:
        """The numbers, under the edits that are active."""

    @abstractmethod
    def slopes(
        self, model: TransformerBridge, gated: Gated, gates: Float[Tensor, " gate"]
    ) -> Slopes:
        """d m / d g at the values of `gates`, which require a gradient and which `gated` puts on
        the model.
        """


class Scalar(Measure):
    """One number that a forward pass gives as it is."""

    quantity: str

    @abstractmethod
    def number(self, model: TransformerBridge) -> Float[Tensor, ""]:
        """m, with its graph."""

    def values(self, model: TransformerBridge) -> Numbers:
        with torch.no_grad():
            return {self.quantity: float(self.number(model))}

    def slopes(
        self, model: TransformerBridge, gated: Gated, gates: Float[Tensor, " gate"]
    ) -> Slopes:
        with torch.enable_grad(), gated(gates):
            number = self.number(model)
        return {self.quantity: _gradient(number, gates)}


@dataclass(frozen=True)
class LogProbability(Scalar):
    """log p(answer | prompt) in nats: the sum over the answer's tokens, each after the right ones
    before it.

    With `ends`, the probability that one of them follows is in it: what
    `measure.answers.probability` scores.
    """

    prompt: Ids
    answer: Ids
    ends: Ids | None
    name = "answers"
    quantity = "log_probability"

    def number(self, model: TransformerBridge) -> Float[Tensor, ""]:
        logits = model(
            torch.cat([self.prompt, self.answer])[None], logits_to_keep=len(self.answer) + 1
        )[0]
        scores = logits.log_softmax(-1).double()
        right = scores[:-1].gather(-1, self.answer[:, None]).sum()
        return right if self.ends is None else right + scores[-1, self.ends].logsumexp(0)


@dataclass(frozen=True)
class PairDistance(Scalar):
    """||y - y*||_2 of the last tokens of two prompts, after the final norm (Theorem 4.2's distance,
    in L2).
    """

    prompt: Ids
    extended: Ids
    name = "collapse"
    quantity = "pair_distance"

    def number(self, model: TransformerBridge) -> Float[Tensor, ""]:
        return (_last_token(model, self.prompt) - _last_token(model, self.extended)).norm()

    def slopes(
        self, model: TransformerBridge, gated: Gated, gates: Float[Tensor, " gate"]
    ) -> Slopes:
        """Raises `InputError` for a pair that rounding alone keeps apart: there is no distance to
        take anything from.
        """
        with torch.no_grad():
            size, separation = (
                float(_last_token(model, self.prompt).norm()),
                float(self.number(model)),
            )
        if not separation > _ROUNDINGS * torch.finfo(gates.dtype).eps * size:
            raise InputError(
                f"ablation: expected a pair that is apart, found ||y - y*|| = {separation:.2g} at ||y|| = {size:.3g}, which is "
                f"rounding in {str(gates.dtype).removeprefix('torch.')}: use a shorter length, or dtype='float64'"
            )
        return super().slopes(model, gated, gates)


@dataclass(frozen=True)
class JacobianNorm(Measure):
    """||J_C||_F and ||J_C||_2 of J_C = d y_n / d v_C^(0), the tokens C at `carriers` side by side;
    the real derivative.
    """

    prompt: Ids
    carriers: tuple[int, ...]
    name = "sensitivity"

    def values(self, model: TransformerBridge) -> Numbers:
        jacobian = self.jacobian(model)
        return {
            "frobenius_norm": float(jacobian.norm()),
            "operator_norm": float(torch.linalg.matrix_norm(jacobian, 2)),
        }

    def jacobian(self, model: TransformerBridge) -> Float[Tensor, "d_out carrier_d_model"]:
        """J_C in float64, row k the gradient of component k of y_n."""
        linear = self._linearised(model)
        return torch.cat(
            [linear.pull(part)[:, list(self.carriers)].double() for part in _basis(linear)]
        ).flatten(1)

    def slopes(
        self, model: TransformerBridge, gated: Gated, gates: Float[Tensor, " gate"]
    ) -> Slopes:
        with gated(gates):
            linear = self._linearised(model)
        parts, frobenius = [], torch.zeros_like(gates)
        for part in _basis(linear):
            rows = linear.pull_with_graph(part)[:, list(self.carriers)]
            frobenius += _gradient(rows.square().sum(), gates)
            parts.append(rows.detach().double())
        jacobian = torch.cat(parts).flatten(1)
        if not bool((jacobian != 0).any()):
            raise InputError(
                "ablation: the Jacobian is 0: the tokens that carry the answer do not reach the last one"
            )
        leading = torch.linalg.eigh(jacobian @ jacobian.mT).eigenvectors[:, -1]
        # At fixed a, d ||a^T J|| = a^T dJ b: the leading singular value to first order.
        at_leading = linear.pull_with_graph(leading[None])[:, list(self.carriers)]
        operator = _gradient(at_leading.norm(), gates)
        return {
            "frobenius_norm": frobenius / (2 * float(jacobian.norm())),
            "operator_norm": operator,
        }

    def _linearised(self, model: TransformerBridge) -> Linearised:
        with torch.no_grad():
            embedded = model.input_to_embed(self.prompt[None])[0][0]
        return Linearised(model, embedded)


def _basis(linear: Linearised) -> tuple[Float[Tensor, "row d_model"], ...]:
    """The cotangents whose pulls are the rows of J, as many at a time as go back together."""
    y = linear.base.y
    return torch.eye(len(y), dtype=y.dtype, device=y.device).split(max(1, _TOKENS // linear.pos))


def _last_token(model: TransformerBridge, ids: Ids) -> Float[Tensor, " d_model"]:
    """y_n in float64, with its graph."""
    with hooks.capture(model, "final_norm", detach=False) as record:
        model(ids[None], logits_to_keep=1)
    return record["final_norm"][0, -1].double()


def _gradient(number: Float[Tensor, ""], gates: Float[Tensor, " gate"]) -> Float[Tensor, " gate"]:
    if not number.requires_grad:  # an active edit cuts every gate off
        return torch.zeros_like(gates)
    (slope,) = torch.autograd.grad(number, gates, retain_graph=True, allow_unused=True)
    return torch.zeros_like(gates) if slope is None else slope


def require_finite(numbers: Numbers, where: str) -> Numbers:
    """The numbers, if they are; the message names the one that is not."""
    for name, value in numbers.items():
        if not abs(value) < float("inf"):
            raise InputError(
                f"ablation: the {name} {where} is not finite; the model's weights or its dtype are broken"
            )
    return numbers
