"""What a call of a measurement holds in memory beside the model, forecast from shapes: refused over
`--max-memory` before anything is loaded.

A measurement's record names what it holds most of, as data:

- "rows": rows of Jacobians, with the graph that they go back through;
- "patterns": one pass whose patterns are kept; "blocks": the formulas of one block in float64;
- "logits": pairs of prompts, in float64, and logits of all of them;
- "answers", "probes": a batch of prompts; "probes" also keeps of each its last token at every
  layer.

The sizes are the call's own arguments, by their names. A forecast is at least what was measured and
at most twice that, the libraries and the weights among them (tests/real/test_forecasts.py); it
follows no computation step by step.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from ostools import tasks
from ostools.ground import InputError, chunk, defaults_of
from ostools.measure.answers.probability import spare
from ostools.measure.jacobian.linearisation_run import memory_plan
from ostools.measure.jacobian.norms import COTANGENTS
from ostools.measure.measurement import RECORDS, Kind
from ostools.measure.passes.batches import TOKENS
from ostools.measure.passes.precisions import Precision
from ostools.measure.task_prompt import FEW_SHOT, Elicitation
from ostools.measure.unloaded import LongestPrompt, Unloaded
from ostools.mitigations import Mitigation
from ostools.models import EncodingOptions
from ostools.models.shape import Shape
from ostools.models.untrained import bytes_with_untrained

# Squares of scores that attention holds at once: scores, mask, softmax, pattern, and what hooks
# keep. Scores are float32 in 16 bits too (`models.precision.scores`).
_SQUARES, _SCORE = 4.5, 4
_TERMS = 1 << 26
"""Bytes of a block's matrices, one a token, that are made at a time (`theory.path_sum`)."""
_ENCODING = tuple(EncodingOptions.__annotations__)
_COMPARED = 1 << 24
"""Logits of pairs that are made together (`collapse.distances`)."""


def in_full(shape: Shape) -> Shape:
    """The model that is differentiated: a 16-bit one is read as float32, number by number."""
    return shape if shape.element >= 4 else replace(shape, element=4, cast=True)


def pass_bytes(
    shape: Shape, rows: int, pos: int, logits: int = 1, element: int | None = None
) -> int:
    """Bytes that `rows` prompts of `pos` tokens hold: scores, a block's vectors, keys and values of
    every layer, and logits at some positions. `element`: bytes of a number, where the weights are
    not read as they are stored."""
    size = shape.element if element is None else element
    squares = _SQUARES * shape.n_heads * pos**2 * max(size, _SCORE)
    vectors = pos * (3 * shape.d_mlp + 8 * shape.d_model)
    cache = 2 * shape.n_layers * pos * shape.n_key_value_heads * shape.d_head
    cast = shape.view_bytes(size) if shape.cast or size != shape.element else 0
    return cast + int(rows * (squares + size * (vectors + cache + 3 * logits * shape.d_vocab)))


def patterns_bytes(shape: Shape, pos: int) -> int:
    """Bytes of one pass in float32 whose patterns are kept, and what each layer makes of each
    token."""
    element = max(shape.element, _SCORE)
    of_token = shape.n_heads * pos + 3 * shape.d_mlp + 8 * shape.d_model
    return pass_bytes(shape, 1, pos, element=element) + shape.n_layers * pos * of_token * element


def blocks_bytes(shape: Shape, pos: int, variants: Iterable[str]) -> int:
    """Bytes of the formulas of a block in float64, its weights among them; of `windowed(k)` the
    Jacobian of every token in k blocks; beside a form of the paper a sketch, at its time."""
    names = list(variants)
    full, element = in_full(shape), 8
    squares, square = shape.n_heads * pos**2, element * shape.d_model**2
    read = pass_bytes(full, 1, pos) + 2 * squares * full.element + 5 * pos**2 * element
    read += pos * (6 * shape.d_mlp + 20 * shape.d_model) * element
    of_token = element * shape.d_mlp * shape.d_model + square
    terms = min(pos * of_token, max(of_token, chunk(_TERMS))) + 8 * square
    total = read + 2 * element * shape.block_parameters + terms
    for window in map(int, re.findall(r"windowed\((\d+)\)", " ".join(names))):
        blocks = min(window, shape.n_layers)
        total += element * blocks * squares + (blocks + 8) * pos * square
    has_form = any(not name.startswith(("local", "windowed")) for name in names)
    return max(total, memory_plan(full, pos, method="sketch").peak if has_form else 0)


def logits_bytes(shape: Shape, pos: int, pairs: int, dtypes: int, layers: int = 1) -> int:
    """Bytes of a pass in float64 and of the chunks in which so many pairs are compared, in so many
    dtypes, at so many layers."""
    logits = min(pairs * shape.d_vocab, max(_COMPARED, shape.d_vocab)) * 8
    streams = 4 * 8 * pairs * layers * shape.d_model
    return pass_bytes(shape, 1, pos, element=8) + (10 + 2 * dtypes) * logits + streams


def batch_bytes(
    shape: Shape,
    prompts: int,
    longest: LongestPrompt,
    *,
    new_tokens: int = 0,
    element: int | None = None,
) -> int:
    """Bytes of as many of the prompts as go through together, each with room for an answer."""
    rows = min(prompts, max(1, TOKENS // longest.tokens))
    pos = longest.tokens + max(new_tokens, longest.answer)
    return pass_bytes(shape, rows, pos, longest.answer + 2, element)


@dataclass(frozen=True)
class _SizedCall:
    """Arguments of a call, those that are None left out, with one task and one mitigation of them;
    `pos`: tokens of the longest prompt, where the call has no task."""

    model: Unloaded
    arguments: Mapping[str, Any]
    task: Any
    mitigation: Mitigation | str | None
    pos: int | None

    def listed(self, name: str, default: object) -> list[Any]:
        """An argument as a list."""
        return _listed(self.arguments.get(name, default))

    @property
    def lengths(self) -> list[int]:
        if not (lengths := self.listed("lengths", self.listed("length", ()))):
            raise InputError("expected a prompt, or a task and its length, found neither")
        return lengths

    def longest(self, elicitation: Elicitation | None = None) -> LongestPrompt:
        if self.pos is not None:
            return LongestPrompt(self.pos)
        if self.task is None:  # texts, cut to so many tokens
            return LongestPrompt(max(self.lengths))
        seed = self.listed("seeds", self.arguments.get("seed", 0))[0]
        how: dict[str, Any] = {"elicitation": elicitation, "mitigation": self.mitigation}
        how |= {name: self.arguments[name] for name in _ENCODING if name in self.arguments}
        return self.model.longest(self.task, self.lengths, seed=seed, **how)


def bytes_of(
    measurement: Callable[..., Any], model: Unloaded, pos: int | None = None, **arguments: Any
) -> int:
    """Bytes that a call of a measurement would hold beside a model that is not loaded yet, at its
    largest step.

    pos: tokens of its longest prompt, where it is no task's. A list of tasks or mitigations counts
    as the one that holds the most. Raises `InsufficientMemoryError` where rows of Jacobians do not
    fit into the model's limit even one at a time.
    """
    record = RECORDS[measurement.__name__]
    values = {**defaults_of(measurement), **arguments, **record.sizes}
    values = {name: value for name, value in values.items() if value is not None}
    acting = [None, *_listed(values.get("mitigations", values.get("mitigation", [])))]
    most = 0
    for task, mitigation in product(_listed(values.get("task")), acting):
        call = _SizedCall(model, values, task, mitigation, pos)
        most = max(most, *(_BYTES[kind](call) for kind in record.memory))
        if mitigation is not None and pos is not None:
            # The proof that it acts compares the logits of all tokens.
            logits = 2 * pos * model.shape.d_vocab * max(model.shape.element, 4)
            most = max(most, patterns_bytes(model.shape, pos) + logits)
    return bytes_with_untrained(most, model.shape) if values.get(record.untrained_by) else most


def _listed(value: Any) -> list[Any]:
    is_one = isinstance(value, str) or not isinstance(value, Iterable)
    return [value] if is_one else list(value)


def _rows(call: _SizedCall) -> int:
    get = call.arguments.get
    if "sensitivity" not in get("measures", ["sensitivity"]):
        return 0
    longest, layers = call.longest(), get("layers", [0])
    pos = longest.tokens + max(longest.answer, get("max_new_tokens", 0))
    cotangents, rows = get("cotangents", COTANGENTS), None
    if "most" in call.arguments:  # tracks of hops
        rows = (call.arguments["most"] + 2) * cotangents
    return memory_plan(
        in_full(call.model.shape),
        pos,
        layers=call.model.shape.n_layers + 1 if isinstance(layers, str) else len(layers),
        method="estimate" if "accuracy" in call.arguments else get("method", "auto"),
        cotangents=cotangents,
        rows=1 if "logit" in call.arguments else rows,
        max_memory=call.model.limit,
    ).peak


def _patterns(call: _SizedCall) -> int:
    shape, longest = call.model.shape, call.longest()
    rows = call.arguments.get("rows_together", 1)
    batch = batch_bytes(shape, rows, longest, element=max(shape.element, 4))
    return max(batch, patterns_bytes(shape, longest.tokens + longest.answer))


def _blocks(call: _SizedCall) -> int:
    return blocks_bytes(call.model.shape, call.longest().tokens, call.listed("variants", "local"))


def _logits(call: _SizedCall) -> int:
    layers, longest = call.arguments.get("layers", ()), call.longest()
    return logits_bytes(
        call.model.shape,
        longest.tokens + longest.answer,
        len(call.lengths) * len(call.listed("seeds", 0)),
        len(call.listed("dtypes", ())),
        call.model.shape.n_layers + 1 if isinstance(layers, str) else 1 + len(layers),
    )


def _answers(call: _SizedCall) -> int:
    form, get = tasks.task(call.task), call.arguments.get
    elicitation = call.model.elicitation(form, get("elicitation"), get("chat"))
    longest = call.longest(elicitation=elicitation)
    reasons = get("thinking", False) or form.reasons or longest.counts > 0
    limit = longest.answer + spare(reasons, elicitation == FEW_SHOT, longest.counts)
    prompts = len(call.listed("seeds", 0))
    if call.model.shape.element >= 4:  # 16 bits share no padded batch (`padding`)
        prompts *= len(call.lengths)
    prompts = min(prompts, get("batch_size", prompts))
    new_tokens = get("max_new_tokens", limit)
    return batch_bytes(call.model.shape, prompts, longest, new_tokens=new_tokens)


def _probes(call: _SizedCall) -> int:
    shape, longest = call.model.shape, call.longest()
    # Where none are given, as `probes.probe.seeds_asked` draws them.
    seeds = len(call.listed("seeds", range(24)))
    sizes = [Precision.of_name(name).dtype.itemsize for name in call.listed("dtypes", ["float32"])]
    of_prompt = (2 * shape.n_layers + 3) * shape.d_model + 2 * shape.d_vocab
    states = 8 * seeds * len(call.lengths) * of_prompt
    return states + max(batch_bytes(shape, seeds, longest, element=size) for size in sizes)


_BYTES: Mapping[Kind, Callable[[_SizedCall], int]] = {
    "rows": _rows,
    "patterns": _patterns,
    "blocks": _blocks,
    "logits": _logits,
    "answers": _answers,
    "probes": _probes,
}
