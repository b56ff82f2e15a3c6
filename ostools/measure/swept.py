"""What a sweep knows of a measurement beside its function (`Swept`), and what it measures with
it: a `Cell`, of a task or of a `Text`.

A window of a text begins with the special tokens that the tokenizer puts before any text, which
count; the rest is a piece of the text. Nothing is padded and nothing repeated. Which piece depends
on the seed, the text's id and the length alone, on no other text.
"""

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd

from ostools import mitigations, tasks
from ostools.ground import InputError, TransformerBridge
from ostools.measure.mitigated_prompts import ACTIVE, REFUSED, EffectStatus, MitigatedPrompts
from ostools.measure.passes.contexts import full_precision
from ostools.measure.position import (
    ANSWER,
    Position,
    read_at,
    reading,
    require_prompt_end,
)
from ostools.measure.prompts import parted
from ostools.measure.task_prompt import render_prompt
from ostools.mitigations import Mitigation, changes_pass, label
from ostools.mitigations.named import NONE, typed
from ostools.models import Prompt, describe
from ostools.models.tokenizer_calls import lead, text_ids
from ostools.models.tokens import tokenizer_of
from ostools.results import Frame, Provenance, Result
from ostools.tasks import PairsOfIds

Rows: TypeAlias = tuple[Frame, Provenance]
"""What a cell gave: its rows, each with its length, and what they come from."""
READ_POSITION: dict[str, object] = {"position": (Position | None, None)}
"""The option that says where a task's prompts are read."""


TOO_SHORT = "too_short_for"
"""The parameter of a provenance that lists the lengths of which a text has no window."""
BY_LENGTH = "by_length"
"""The parameter that holds, of a prompt a length, what is not the same of all of them."""
TEXT_TASK = "text"
"""The task's name of a cell whose prompts are windows of a text."""


@dataclass(frozen=True)
class Text:
    """A text of a sweep under its `id`; `number`: its place in the list, from 0."""

    id: str
    number: int
    text: str

    def window(
        self, model: TransformerBridge, length: int, seed: int
    ) -> tuple[int, tuple[int, ...]] | None:
        """Draw a window of `length` tokens: where its piece begins among the text's own tokens, and
        its ids. None where the text is too short for one."""
        before, ids = lead(tokenizer_of(model)), text_ids(tokenizer_of(model), self.text)
        size = length - len(before)
        if size < 1:
            raise InputError(
                f"lengths: expected room for text beside {len(before)} special tokens, "
                f"found {length}"
            )
        if size > len(ids):
            return None
        hashed = hashlib.sha256(self.id.encode()).digest()[:8]
        key = int(self.id) if self.id.isdecimal() else int.from_bytes(hashed)
        random = np.random.default_rng((seed, key, length))
        start = int(random.integers(0, len(ids) - size, endpoint=True))
        return start, (*before, *ids[start : start + size])


@dataclass(frozen=True)
class Cell:
    """One measurement on one model, task (or text), dtype, mitigation and seed, at several lengths;
    its own `options` as JSON, so that a cell is a value that can be compared. `typed`: the
    mitigation was typed on the command line, and may be one of a file of the user's own."""

    model: str
    task: str
    dtype: str
    mitigation: str
    seed: int
    measurement: str
    options: str
    lengths: tuple[int, ...]
    text: Text | None = None
    typed: bool = False

    @property
    def columns(self) -> dict[str, str | int]:
        names = ("model", "task", "dtype", "mitigation", "seed", "measurement")
        of_text = {} if self.text is None else {"text": self.text.id}
        return {name: getattr(self, name) for name in names} | of_text

    @property
    def arguments(self) -> dict[str, Any]:
        return json.loads(self.options)

    @property
    def mitigated(self) -> Mitigation | None:
        make = typed if self.typed else mitigations.mitigation
        return None if self.mitigation == NONE else make(self.mitigation)

    def __str__(self) -> str:
        mitigation_words = "" if self.mitigation == NONE else f" under {self.mitigation}"
        ends = dict.fromkeys((self.lengths[0], self.lengths[-1]))
        lengths = " to ".join(map(str, ends))
        where = f"{self.model}, {self.dtype}, seed {self.seed}, lengths {lengths}"
        task = self.task if self.text is None else f"{self.task} {self.text.id}"
        return f"{self.measurement} of {task}{mitigation_words} on {where}"


@dataclass(frozen=True)
class Swept:
    """What a sweep does with a measurement that names this in its record:
    `@measurement(sweep=lambda: NAME)`.

    read: the result of stored rows.
    options: the parameters that a sweep file may set. Their types and defaults are the function's
        where None stands here; else a constraint of pydantic on that type, or a type and a default
        of the sweep's own.
    check: raises `InputError` for options that do not go together.
    draws: what the numbers are drawn by, beside what the task draws by the seed: of the options.
    rows: the rows of a result, each with its length.
    measure: the rows of a cell, where one call of the function does not make them.
    casts: it casts a float32 model itself, to dtypes too (bfloat16-kv) that no model can be loaded
        in.
    of_texts: the one result of the results of several texts, whose provenance is the other one;
        None where a sweep cannot ask it of texts.
    """

    read: Callable[[Frame, Provenance], Result]
    options: Mapping[str, object] = field(default_factory=dict)
    check: Callable[[Any], None] = lambda options: None
    draws: Callable[[Any], Literal["by seed", "by sample"] | None] = lambda options: None
    rows: Callable[[Any, Cell], Frame] = lambda result, cell: result.frame
    measure: Callable[[TransformerBridge, Cell], Rows] | None = None
    casts: bool = False
    of_texts: Callable[[Sequence[Any], Provenance], Result] | None = None

    def measured(self, function: Callable[..., Any], model: TransformerBridge, cell: Cell) -> Rows:
        """The rows of a cell: of one call at all its lengths, or of one a length for what takes one
        prompt.
        """
        if self.measure is not None:
            return self.measure(model, cell)
        options, names = cell.arguments, inspect.signature(function).parameters
        if self.casts:
            options["dtypes"] = [cell.dtype]
        if "seed" in names:
            # An estimate draws directions of its own for each text, so that its errors are not the
            # same in all: an interval over texts would not see them.
            options["seed"] = cell.seed + (0 if cell.text is None else cell.text.number)
        if cell.text is not None:
            return self._of_text(function, model, cell, cell.text, options)
        if "lengths" in names:
            options |= {"lengths": cell.lengths, "seeds": [cell.seed]}
            result = function(model, cell.task, mitigation=cell.mitigated, **options)
            return self.rows(result, cell), result.provenance
        return _each_prompt(function, model, cell, options)

    def _of_text(
        self,
        function: Callable[..., Any],
        model: TransformerBridge,
        cell: Cell,
        text: Text,
        options: dict[str, Any],
    ) -> Rows:
        """The rows of a window of each length that the text has, with where it begins (`start`).
        The provenance's `too_short_for` names the lengths that it has no window of.

        Raises `InputError` where it has none, and for a mitigation that changes none of its logits.
        """
        windows = {n: text.window(model, n, cell.seed) for n in cell.lengths}
        too_short = [n for n, window in windows.items() if window is None]
        if len(too_short) == len(windows):
            raise InputError(f"expected a text of at least {cell.lengths[0]} tokens, found fewer")
        require_prompt_end(options.pop("position", None), "a text")
        options["mitigation"] = cell.mitigated
        of_pairs = "lengths" in inspect.signature(function).parameters
        results = {}
        for n, (start, ids) in ((n, window) for n, window in windows.items() if window is not None):
            prompt: Any = Prompt.from_ids(model, ids)
            if of_pairs:
                prompt, options["lengths"] = _pair(function.__name__, model, cell, ids), [n]
            result = function(model, prompt, **options)
            results[n] = self.rows(result, cell).assign(length=n, start=start), result.provenance
        table, provenance = _joined(results)
        provenance = _with(provenance, {TOO_SHORT: too_short} if too_short else {})
        return (table if "status" in table else table.assign(status=ACTIVE)), provenance


def _pair(what: str, model: TransformerBridge, cell: Cell, ids: tuple[int, ...]) -> PairsOfIds:
    """A window and the same with its last token once more. Raises `InputError` for a mitigation
    that changes no logit of the longer one."""
    extended = (*ids, ids[-1])
    if cell.mitigated is not None:
        prompts = [Prompt.from_ids(model, extended)]
        MitigatedPrompts.of(what, model, prompts, cell.mitigated).require_acting(model)
    return PairsOfIds({len(ids): (ids, extended)}, TEXT_TASK)


def _each_prompt(
    function: Callable[..., Any], model: TransformerBridge, cell: Cell, options: dict[str, Any]
) -> Rows:
    """The prompt of each length up to its position, under the mitigation; `status` says whether
    that changed its text or a logit."""
    mitigation, form = cell.mitigated, tasks.task(cell.task)
    # Where all of these compute: what acts there alone would be silent, or verified nowhere.
    work = full_precision(model, function.__name__) if changes_pass(mitigation) else model
    effect, results = EffectStatus(model, mitigation), {}
    position = options.pop("position", None) or ANSWER
    for length in cell.lengths:
        task_prompt = render_prompt(model, form, length, seed=cell.seed, mitigation=mitigation)
        read = read_at(model, task_prompt, position)
        status, reason = effect.status(task_prompt, read.ids, work)
        if status == REFUSED:
            raise InputError(f"{function.__name__}: {reason}, in which it is measured")
        with mitigations.running(work, mitigation):
            result = function(work, read.prompt(model), **options)
        about: dict[str, object] = {"read_at": reading(model, [read])}
        about |= {} if mitigation is None else {"mitigation": label(mitigation), "status": status}
        rows = result.frame.assign(length=length, status=status)
        results[length] = rows, _with(result.provenance, about)
    table, provenance = _joined(results)
    return table, replace(provenance, model=asdict(describe(model)))


def _joined(results: Mapping[int, Rows]) -> Rows:
    """The rows of all lengths, with what their provenances have alike; the rest of each in
    `BY_LENGTH`."""
    tables, provenances = zip(*results.values(), strict=True)
    shared, rests = parted([provenance.parameters for provenance in provenances])
    by_length = {BY_LENGTH: dict(zip(map(str, results), rests, strict=True))}
    provenance = replace(provenances[-1], parameters=shared | by_length)
    return pd.concat(tables, ignore_index=True), provenance


def _with(provenance: Provenance, parameters: Mapping[str, object]) -> Provenance:
    return replace(provenance, parameters={**provenance.parameters, **parameters})


def the_one(rows: Frame, name: str) -> str:
    """The value of a column in which all rows are alike. Raises `InputError` where they are not."""
    values = rows[name].unique()
    if len(values) != 1:
        raise InputError(
            f"expected rows of one {name}, found {len(values)}: read those of each by themselves"
        )
    return str(values[0])
