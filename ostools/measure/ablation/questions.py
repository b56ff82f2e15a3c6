"""The prompts that an ablation is judged on, the measures m on each with their first-order effects
d m / d g, a gate g on each part, and the parts: heads, attention edges, and the attention or MLP of
a layer.

Two numbers m of a forward pass: the log probability of the right answer (of a contrast the
difference of two logits), and the distance of a pair.

Cost: of a value one forward pass (a pair: two); of all slopes together two to four times that,
however many parts carry a gate.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, Unpack, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ostools import hooks
from ostools.ground import InputError, TransformerBridge
from ostools.hooks import Edge, Head, Sublayer
from ostools.measure.answers.probability import line_ends, line_log_probability
from ostools.measure.passes.output import logit_ids
from ostools.measure.position import ANSWER, PROMPT_END, ReadPrompt, answer_text, line_ids, read_at
from ostools.measure.task_prompt import render_prompt
from ostools.models import EncodingOptions, Prompt
from ostools.models.tokens import fitted
from ostools.tasks import Task, label

Ids: TypeAlias = Int[Tensor, " _"]
"""Token ids, on the model's device."""
Logit: TypeAlias = str | int | Sequence[str | int]
Target = Head | Edge | Sublayer

MeasureName = Literal["collapse", "answers"]
MEASURES: tuple[MeasureName, ...] = get_args(MeasureName)
What = Literal["heads", "edges", "layers"]
TOP = 32
"""Number of edges where none are named."""
_KINDS: Mapping[str, tuple[type[Head] | type[Edge] | type[Sublayer], str]] = {
    "heads": (Head, "(layer, head)"),
    "edges": (Edge, "(layer, head, query, key)"),
    "layers": (Sublayer, "(layer, 'attention' or 'mlp')"),
}
_ROUNDINGS = 16
"""A distance up to this many steps of the dtype, relative to ||y||, is rounding."""


@dataclass(frozen=True)
class ScalarMeasure:
    """A number that a forward pass gives as it is, with its graph."""

    quantity: str
    number: Callable[[TransformerBridge], Float[Tensor, ""]]

    def value(self, model: TransformerBridge, where: str = "as the model is") -> float:
        """The number. Raises `InputError` for one that is not finite."""
        with torch.no_grad():
            value = float(self.number(model))
        if not math.isfinite(value):
            raise InputError(
                f"ablation: the {self.quantity} {where} is not finite; the model's weights or its "
                "dtype are broken"
            )
        return value

    def slopes(
        self, model: TransformerBridge, targets: Sequence[Target]
    ) -> Float[Tensor, " target"]:
        """d m / d g at g = 1, a gate on each target."""
        weight = next(model.parameters())
        gates = torch.ones(len(targets), dtype=weight.dtype, device=weight.device)
        with torch.enable_grad(), hooks.gated(model, targets, gates.requires_grad_()):
            number = self.number(model)
        if not number.requires_grad:  # an active edit cuts every gate off
            return torch.zeros_like(gates)
        return torch.autograd.grad(number, gates, materialize_grads=True)[0]


def log_probability(prompt: Ids, answer: Ids, ends: Ids | None) -> ScalarMeasure:
    """log p(answer | prompt) in nats; with `ends`, that one of them follows is in it."""

    def number(model: TransformerBridge) -> Float[Tensor, ""]:
        logits = model(torch.cat([prompt, answer])[None], logits_to_keep=len(answer) + 1)[0]
        return line_log_probability(logits, answer, ends)

    return ScalarMeasure("log_probability", number)


def logit_difference(prompt: Ids, first: int, second: int) -> ScalarMeasure:
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


def _last_token(model: TransformerBridge, ids: Ids) -> Float[Tensor, " d_model"]:
    """y_n in float64, with its graph."""
    with hooks.capture(model, "final_norm", detach=False) as record:
        model(ids[None], logits_to_keep=1)
    return record["final_norm"][0, -1].double()


@dataclass(frozen=True)
class AblatedPrompt:
    """A prompt with the measures on it. `prompt`: the tokens whose last one is read; `read`: of a
    task's question, where that is."""

    task: str
    length: int | None
    seed: int | None
    prompt: Ids
    measures: Mapping[str, ScalarMeasure]
    read: ReadPrompt | None = None


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
    read = read_at(model, task_prompt, ANSWER if prefilled else PROMPT_END)
    prompt, answer = _split(model, read)
    extended = prompt
    if "collapse" in names:
        longer = render_prompt(model, task, length + 1, seed=seed, **encoding)
        extended, _ = _split(model, read_at(model, longer, read.position))
    measures = {name: _measure(model, name, prompt, extended, answer, logit) for name in names}
    return AblatedPrompt(label(task), length, seed, prompt, measures, read)


def of_prompt(
    model: TransformerBridge, prompt: Prompt, names: Sequence[MeasureName], logit: Logit | None
) -> AblatedPrompt:
    """Any prompt, with "collapse" and, where there is a logit, "answers". Its pair is the
    theorem's: the last token once more.
    """
    ids = fitted(model, prompt).ids.tolist()
    tokens = extended = _tensor(model, ids)
    if "collapse" in names:
        extended = _tensor(model, Prompt.from_ids(model, [*ids, ids[-1]]).ids.tolist())
    measures = {name: _measure(model, name, tokens, extended, tokens[:0], logit) for name in names}
    return AblatedPrompt("prompt", None, None, tokens, measures)


def _measure(
    model: TransformerBridge,
    name: MeasureName,
    prompt: Ids,
    extended: Ids,
    answer: Ids,
    logit: Logit | None,
) -> ScalarMeasure:
    if name == "collapse":
        return pair_distance(prompt, extended)
    if logit is None:
        return log_probability(prompt, answer, _tensor(model, sorted(line_ends(model))))
    ids = logit_ids(model, logit)
    if len(ids) == 2:
        return logit_difference(prompt, *ids)
    return log_probability(prompt, _tensor(model, ids), None)


def _split(model: TransformerBridge, read: ReadPrompt) -> tuple[Ids, Ids]:
    """The tokens that are read, and those of the right answer after them."""
    form = read.task_prompt
    answer = read.answer or line_ids(model, form.prompt, answer_text(form))
    Prompt.from_ids(model, (*read.ids, *answer))  # refused here where it is beyond the context
    return _tensor(model, read.ids), _tensor(model, answer)


def _tensor(model: TransformerBridge, ids: Sequence[int]) -> Ids:
    return torch.tensor(ids, device=next(model.parameters()).device)


def checked_targets(what: str, targets: Iterable[Sequence[Any]]) -> tuple[Target, ...]:
    """The parts by name, without doubles; `InputError` for one that is no such part. One that the
    model does not have `hooks.gated` refuses.
    """
    (kind, fields), target_list = _KINDS[what], []
    for values in targets:
        if not isinstance(values, list | tuple) or len(values) != len(kind._fields):
            raise InputError(f"ablation of {what}: expected {fields}, found {values!r}")
        target_list.append(kind(*values))
    if not target_list:
        raise InputError(f"targets: expected at least one, found none; for example [{fields}]")
    return tuple(dict.fromkeys(target_list))


def all_targets(
    model: TransformerBridge, what: str, prompt: Int[Tensor, " pos"], top: int
) -> tuple[Target, ...]:
    """All heads; both sublayers of every block; or the last token's `top` edges with the most
    attention.
    """
    layers, n_heads = range(int(model.cfg.n_layers)), int(model.cfg.n_heads)
    if what == "heads":
        return tuple(Head(layer, head) for layer in layers for head in range(n_heads))
    if what == "layers":
        return tuple(Sublayer(layer, part) for layer in layers for part in ("attention", "mlp"))
    with (
        torch.no_grad(),
        hooks.capture(model, "pattern", reduce=lambda pattern, _: pattern[0, :, -1]) as record,
    ):
        model(prompt[None], logits_to_keep=1)
    weights = torch.stack([record["pattern"][layer] for layer in layers])
    greatest = weights.flatten().topk(min(top, weights.numel())).indices
    places = torch.stack(torch.unravel_index(greatest, weights.shape), dim=-1)
    return tuple(Edge(layer, head, len(prompt) - 1, key) for layer, head, key in places.tolist())


def columns_of(target: Target) -> dict[str, object]:
    """layer, head, query, key, part (None where it has none), and `target`, its name in tables and
    charts: L2H0, L2 mlp, L2H0: 9 → 4.
    """
    if isinstance(target, Sublayer):
        name = f"L{target.layer} {target.part}"
    else:
        edge = f": {target.query} → {target.key}" if isinstance(target, Edge) else ""
        name = f"L{target.layer}H{target.head}{edge}"
    columns = dict.fromkeys(("layer", "head", "query", "key", "part"))
    return {"target": name} | columns | target._asdict()
