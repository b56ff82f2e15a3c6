"""The prompts that an ablation is judged on, and the measures m on each with their first-order
effects d m / d g, a gate g on each part.

Three numbers m of a forward pass: the log probability of the right answer (of a contrast the
difference of two logits), the distance of a pair, and the norm of the Jacobian of the last token
with respect to the tokens that carry the answer. For the last, d m / d g is a second derivative:

    J_C = d y_n / d v_C^(0)
    d ||J_C||_F / d g = <J_C, d J_C / d g> / ||J_C||_F
    d ||J_C||_2 / d g = a^T (d J_C / d g) b

with a, b the leading singular vectors; rows of J_C come from a backward pass that is differentiated
once more.

Cost: of a value one forward pass (a pair: two; a Jacobian: d_model backward passes); of all slopes
together two to four times that, however many parts carry a gate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, TypeAlias, Unpack, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ostools import hooks
from ostools.ground import InputError, TransformerBridge
from ostools.measure.answers.probability import line_ends
from ostools.measure.jacobian.linearise import Linearised
from ostools.measure.passes.output import logit_ids
from ostools.measure.position import answer_text, line_ids, read_at
from ostools.measure.task_prompt import TaskPrompt, carrier_positions, render_prompt
from ostools.models import EncodingOptions, Prompt
from ostools.models.tokens import fitted
from ostools.tasks import Task, label

Ids: TypeAlias = Int[Tensor, " _"]
"""Token ids, on the model's device."""
Numbers: TypeAlias = dict[str, float]
Slopes: TypeAlias = dict[str, Float[Tensor, " gate"]]
Logit: TypeAlias = str | int | Sequence[str | int]
Gated: TypeAlias = Callable[[Tensor], AbstractContextManager[None]]
"""From gates to the context that puts them on a model."""


MeasureName = Literal["sensitivity", "collapse", "answers"]
MEASURES: tuple[MeasureName, ...] = get_args(MeasureName)
_TOKENS = 1024
"""Tokens times cotangents that go back together."""
_ROUNDINGS = 16
"""A distance up to this many steps of the dtype, relative to ||y||, is rounding."""


@dataclass(frozen=True)
class ScalarMeasure:
    """A number that a forward pass gives as it is, with its graph."""

    quantity: str
    number: Callable[[TransformerBridge], Float[Tensor, ""]]

    def values(self, model: TransformerBridge) -> Numbers:
        with torch.no_grad():
            return {self.quantity: float(self.number(model))}

    def slopes(
        self, model: TransformerBridge, gated: Gated, gates: Float[Tensor, " gate"]
    ) -> Slopes:
        """d m / d g at the values of `gates`, which require a gradient and which `gated` puts on
        the model.
        """
        with torch.enable_grad(), gated(gates):
            number = self.number(model)
        return {self.quantity: _gradient(number, gates)}


def log_probability(prompt: Ids, answer: Ids, ends: Ids | None) -> ScalarMeasure:
    """log p(answer | prompt) in nats: the sum over the answer's tokens, each after the right ones
    before it.

    With `ends`, the probability that one of them follows is in it: what
    `measure.answers.probability` scores.
    """

    def number(model: TransformerBridge) -> Float[Tensor, ""]:
        logits = model(torch.cat([prompt, answer])[None], logits_to_keep=len(answer) + 1)[0]
        scores = logits.log_softmax(-1).double()
        right = scores[:-1].gather(-1, answer[:, None]).sum()
        return right if ends is None else right + scores[-1, ends].logsumexp(0)

    return ScalarMeasure("log_probability", number)


def token_score(model: TransformerBridge, prompt: Ids, logit: Logit) -> ScalarMeasure:
    """log p of the next token; of two tokens the difference of their logits."""
    ids = logit_ids(model, logit)
    if len(ids) == 1:
        return log_probability(prompt, _tensor(model, ids), None)
    first, second = ids

    def number(model: TransformerBridge) -> Float[Tensor, ""]:
        last = model(prompt[None], logits_to_keep=1)[0, -1].double()
        return last[first] - last[second]

    return ScalarMeasure("logit_difference", number)


def pair_distance(prompt: Ids, extended: Ids) -> ScalarMeasure:
    """||y - y*||_2 of the last tokens of two prompts, after the final norm (Theorem 4.2's distance,
    in L2).
    """
    return ScalarMeasure(
        "pair_distance",
        lambda model: (_last_token(model, prompt) - _last_token(model, extended)).norm(),
    )


def require_apart(model: TransformerBridge, prompt: Ids, distance: float) -> None:
    """Raises `InputError` for a pair that rounding alone keeps apart: there is no distance to take
    anything from.
    """
    with torch.no_grad():
        size = float(_last_token(model, prompt).norm())
    dtype = next(model.parameters()).dtype
    if not distance > _ROUNDINGS * torch.finfo(dtype).eps * size:
        raise InputError(
            f"ablation: expected a pair that is apart, found ||y - y*|| = {distance:.2g} at ||y|| "
            f"= {size:.3g}, which is "
            f"rounding in {str(dtype).removeprefix('torch.')}: use a shorter length, or "
            "dtype='float64'"
        )


@dataclass(frozen=True)
class JacobianNorm:
    """||J_C||_F and ||J_C||_2 of J_C = d y_n / d v_C^(0), the tokens C at `carriers` side by side;
    the real derivative.
    """

    prompt: Ids
    carriers: tuple[int, ...]

    def values(self, model: TransformerBridge) -> Numbers:
        linear = self._linearised(model)
        rows = [linear.pull(part)[:, list(self.carriers)].double() for part in _basis(linear)]
        jacobian = torch.cat(rows).flatten(1)
        return {
            "frobenius_norm": float(jacobian.norm()),
            "operator_norm": float(torch.linalg.matrix_norm(jacobian, 2)),
        }

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
                "ablation: the Jacobian is 0: the tokens that carry the answer do not reach the "
                "last one"
            )
        leading = torch.linalg.eigh(jacobian @ jacobian.mT).eigenvectors[:, -1]
        # At fixed a, d ||a^T J|| = a^T dJ b: the leading singular value to first order.
        at_leading = linear.pull_with_graph(leading[None])[:, list(self.carriers)]
        return {
            "frobenius_norm": frobenius / (2 * float(jacobian.norm())),
            "operator_norm": _gradient(at_leading.norm(), gates),
        }

    def _linearised(self, model: TransformerBridge) -> Linearised:
        with torch.no_grad():
            embedded = model.input_to_embed(self.prompt[None])[0][0]
        return Linearised(model, embedded)


Measures: TypeAlias = Mapping[str, ScalarMeasure | JacobianNorm]


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


@dataclass(frozen=True)
class AblatedPrompt:
    """A prompt with the measures on it. `prompt`: the tokens whose last one is read."""

    task: str
    length: int | None
    seed: int | None
    prompt: Ids
    measures: Measures


def of_task(
    model: TransformerBridge,
    task: Task,
    length: int,
    seed: int,
    names: Sequence[MeasureName],
    logit: Logit | None = None,
    prefilled: bool = False,
    **encoding: Unpack[EncodingOptions],
) -> AblatedPrompt:
    """A task's question; `prefilled`: with the right line begun, so that the last token is the one
    the answer is read from. `logit`: what is scored in the place of the right answer's line.
    """
    task_prompt = render_prompt(model, task, length, seed=seed, **encoding)
    if task_prompt.thinks:
        raise InputError(
            "ablation: expected a chat template with which the answer stands right after the "
            "prompt, found one with which the "
            "model thinks first: ask without it, chat=False"
        )
    prompt, answer = _split(model, task_prompt, prefilled)
    measures: dict[str, ScalarMeasure | JacobianNorm] = {}
    for name in names:
        if name == "sensitivity":
            measures[name] = JacobianNorm(prompt, carrier_positions(model, task_prompt))
        elif name == "collapse":
            longer = render_prompt(model, task, length + 1, seed=seed, **encoding)
            measures[name] = pair_distance(prompt, _split(model, longer, prefilled)[0])
        elif logit is not None:
            measures[name] = token_score(model, prompt, logit)
        else:
            ends = _tensor(model, sorted(line_ends(model)))
            measures[name] = log_probability(prompt, answer, ends)
    return AblatedPrompt(label(task), length, seed, prompt, measures)


def of_prompt(
    model: TransformerBridge, prompt: Prompt, names: Sequence[MeasureName], logit: Logit | None
) -> AblatedPrompt:
    """Any prompt, with "collapse" and, where there is a logit, "answers". Its pair is the
    theorem's: the last token once more.
    """
    ids = fitted(model, prompt).ids.tolist()
    tokens, measures = _tensor(model, ids), {}
    if "collapse" in names:
        extended = Prompt.from_ids(model, [*ids, ids[-1]]).ids.tolist()
        measures["collapse"] = pair_distance(tokens, _tensor(model, extended))
    if logit is not None:
        measures["answers"] = token_score(model, tokens, logit)
    return AblatedPrompt("prompt", None, None, tokens, {name: measures[name] for name in names})


def _split(model: TransformerBridge, task_prompt: TaskPrompt, prefilled: bool) -> tuple[Ids, Ids]:
    """The tokens that are read, and those of the right answer after them."""
    if prefilled:
        read = read_at(model, task_prompt)
        ids, answer = read.ids, read.answer
    else:
        ids = tuple(task_prompt.prompt.ids.tolist())
        answer = line_ids(model, task_prompt.prompt, answer_text(task_prompt))
    Prompt.from_ids(model, (*ids, *answer))  # refused here where it is longer than the context
    return _tensor(model, ids), _tensor(model, answer)


def _tensor(model: TransformerBridge, ids: Sequence[int]) -> Ids:
    return torch.tensor(ids, device=next(model.parameters()).device)
