"""Decorator of every measurement: checked arguments, the model's lock, torch at its defaults,
progress of a long call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from ostools import hooks
from ostools.ground import (
    InputError,
    TransformerBridge,
    checked_arguments,
    defaults_of,
    full_signature,
    in_smaller_chunks,
    outermost,
    read_argument,
    watched,
)
from ostools.hooks.torch_state import default_torch_state, enough_threads
from ostools.measure.position import require_question
from ostools.measure.prompts import OfPrompt, OfPrompts, OneOrSeveral, encoded, layers_up_to
from ostools.measure.task_prompt import require_seeds
from ostools.models import EncodingOptions, Prompt

if TYPE_CHECKING:
    from ostools.measure.swept import Swept

Arguments = ParamSpec("Arguments")
Measured = TypeVar("Measured")


Kind = Literal["rows", "patterns", "blocks", "logits", "answers", "probes"]
"""What a measurement holds most of in memory: `measure.memory`."""
_NOT_THINKING = ("thinking", False)  # as if it were not given
_PROMPTS = ("prompt", "prompts")


@dataclass(frozen=True, eq=False, kw_only=True)
class MeasurementRecord:
    """What a measurement's signature and docstring do not say, for its command, its sweep and its
    page.

    function: the measurement itself.
    command: its words on the command line, "" for none.
    examples: options of its examples, a text each.
    defaults: values, as they would be written, of parameters that Python requires.
    python_only: parameters that are no options, each with the reason.
    lines_of: functions whose docstrings have the lines of parameters handed on to them.
    hosted: "questions" where a model that runs elsewhere may answer.
    of_questions: the parameters that such a model leaves to choose.
    memory: what it holds most of beside a model, each at its time (`measure.memory`). sizes: what
        its arguments do not say of that. untrained_by: the parameter that has an untrained model
        stand beside the other.
    sweep: `lambda: SWEPT`, what a sweep does with it; None where no sweep can ask it.
    checks: functions that it calls itself of its own arguments, by their names, and that need no
        model: `refuse_arguments` calls them before one is loaded.
    """

    function: Callable[..., object]
    command: str = ""
    examples: tuple[str, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)
    python_only: Mapping[str, str] = field(default_factory=dict)
    lines_of: tuple[Callable[..., object], ...] = ()
    hosted: str | None = None
    of_questions: tuple[str, ...] = ()
    memory: Sequence[Kind] = ()
    sizes: Mapping[str, object] = field(default_factory=dict)
    untrained_by: str = ""
    sweep: Callable[[], Swept] | None = None
    checks: Sequence[Callable[..., object]] = ()

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.__name__


RECORDS: dict[str, MeasurementRecord] = {}
"""By the function's name: the measurements of every module that is imported."""


def refuse_arguments(
    function: Callable[..., object],
    arguments: Mapping[str, object],
    prompts: Sequence[object] = (),
    **of_the_model: object,
) -> None:
    """Refuse what a call would refuse before it looks at its model: arguments that the annotations
    do not allow, and those that do not go together. Those that are left out are at their defaults,
    and the names that the function has not are passed over.

    prompts: of the call, each a text, a task's question, or anything else of which no text is
    known. of_the_model: what is known of the model before it is loaded, such as `n_layers`, for the
    checks that ask for it.
    """
    values: dict[str, Any] = defaults_of(function) | {
        name: read_argument(function, name, arguments[name], InputError)
        for name in full_signature(function).parameters
        if name in arguments
    }
    values |= {name: list(prompts) for name in ("prompt", "prompts") if prompts} | of_the_model
    record = RECORDS.get(function.__name__)
    for check in (
        require_question,
        require_seeds,
        layers_up_to,
        *(record.checks if record else ()),
    ):
        names = inspect.signature(check).parameters.keys()
        if names <= values.keys():
            check(**{name: values[name] for name in names})


@overload
def measurement(
    *,
    of_prompt: type[OfPrompt],
    of_prompts: type[OfPrompts],
    in_chunks: bool = False,
    **record: Any,
) -> Callable[
    [
        Callable[
            Concatenate[TransformerBridge, str | Prompt | Sequence[str | Prompt], Arguments],
            OfPrompt | OfPrompts,
        ]
    ],
    OneOrSeveral[Arguments, OfPrompt, OfPrompts],
]: ...
@overload
def measurement(
    *, in_chunks: bool = False, **record: Any
) -> Callable[[Callable[Arguments, Measured]], Callable[Arguments, Measured]]: ...
def measurement(
    *,
    of_prompt: type[object] | None = None,
    of_prompts: type[object] | None = None,
    in_chunks: bool = False,
    **record: Any,
) -> object:
    """Make a measurement of a function; `record` holds the other fields of its `MeasurementRecord`.

    - `of_prompt` and `of_prompts` tell a type checker what it returns of one prompt, and of a list.
    - With `in_chunks` it is tried again in smaller chunks where memory runs out
      (`in_smaller_chunks`).
    - An argument of another type is refused with `InputError` before anything is computed.
    - It holds the lock of every model it is given (`hooks.locked`): another thread that wants the
      model waits.
    - Torch is at its defaults (`default_torch_state`), so autocast, a default dtype or inference
      mode around the call changes no number. Torch has as many threads as the model is worth
      (`enough_threads`).
    - Where it takes `**encoding: Unpack[EncodingOptions]` and a prompt, the prompt's texts and
      questions are encoded here by those options. Without a prompt the options are the function's
      own to use, for what it asks of a task.
    - A call that takes long says so if the function takes `progress`: a bar in a terminal or a
      notebook, else lines by `logging`. `progress=False` silences both.
    """

    def decorated(function: Callable[Arguments, Measured]) -> Callable[Arguments, Measured]:
        measured = _measured(in_smaller_chunks(function) if in_chunks else function)
        RECORDS[function.__name__] = MeasurementRecord(function=measured, **record)
        return measured

    return decorated


def _measured(function: Callable[Arguments, Measured]) -> Callable[Arguments, Measured]:
    signature = inspect.signature(function)

    @checked_arguments(InputError)
    @functools.wraps(function)
    def measured(*args: Arguments.args, **options: Arguments.kwargs) -> Measured:
        call = signature.bind(*args, **options)
        values = call.arguments.values()
        models = {id(value): value for value in values if isinstance(value, TransformerBridge)}
        with ExitStack() as stack:
            # In one order: two threads with two models do not wait for each other.
            for key in sorted(models):
                stack.enter_context(hooks.locked(models[key]))
            stack.enter_context(default_torch_state())
            stack.enter_context(enough_threads(models.values()))
            if "encoding" in call.arguments:
                _encode_prompts(call)
            is_told = stack.enter_context(outermost()) and "progress" in signature.parameters
            if is_told and call.arguments.get("progress") in (None, True):
                call.arguments["progress"] = stack.enter_context(watched(function.__name__))
            return function(*call.args, **call.kwargs)

    return measured


def _encode_prompts(call: inspect.BoundArguments) -> None:
    """Put the texts of a call's prompt into tokens by its encoding options, which are then used up;
    without a prompt the options stay.
    """
    encoding = EncodingOptions(
        **{
            name: value
            for name, value in call.arguments.pop("encoding").items()
            if value is not None and (name, value) != _NOT_THINKING
        }
    )
    name = next((name for name in _PROMPTS if call.arguments.get(name) is not None), None)
    if name is None:
        call.arguments["encoding"] = encoding
    elif encoding:
        call.arguments[name] = encoded(call.arguments["model"], call.arguments[name], encoding)
