"""Measurements that read another measurement: one step of a command line, and two of Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from ostools.ground.errors import InputError

if TYPE_CHECKING:
    from ostools.cli.prompts import Prompts
    from ostools.ground.lens import TransformerBridge
    from ostools.ground.names import Linearisation, Norm, Position
    from ostools.measure import Bounds, Collapse, Faithfulness, Profile, Sensitivity
    from ostools.measure.unloaded import Unloaded
    from ostools.mitigations import Mitigation
    from ostools.models import Prompt
    from ostools.tasks import CollapseTask, Task
    from ostools.tasks.questions import Question


def profile(
    model: TransformerBridge,
    prompt: str | Prompt | Question,
    *,
    norm: Norm | None = None,
    **options: Any,
) -> Profile:
    """Say which tokens matter, and test for a U-shape.

    The measured profile with and without the sink, its shape with intervals, and full against
    frozen. A sketch reads Frobenius norms off a few random cotangents, in seconds where exact norms
    take minutes.
    """
    from ostools import measure

    measured = measure.sensitivity(model, prompt, **options)
    return measure.profile(cast("Sensitivity", measured), norm=norm)


def faithfulness(
    model: TransformerBridge,
    prompt: str | Prompt | Question,
    *,
    position: Position | None = None,
    linearisations: Linearisation | Sequence[Linearisation] | None = None,
    variants: Sequence[str] = (),
    mitigation: Mitigation | str | None = None,
    max_memory: int | None = None,
    **options: Any,
) -> Faithfulness:
    """Ask whether sensitivity is use: take tokens out.

    Each token before the last is removed, replaced by another of its kind, and masked in attention.
    How far the last representation, the answer and the next token move is ranked beside what was
    measured and predicted of the token.
    """
    from ostools import measure

    names = ("bos", "chat", "system", "thinking")
    common = {name: options.pop(name) for name in names if name in options}
    common |= {"max_memory": max_memory, "mitigation": mitigation}
    profiles: list[Sensitivity | Bounds] = [
        measure.sensitivity(
            model, prompt, linearisations=linearisations, position=position, **common
        )
    ]
    if variants:
        sums = measure.bounds(model, prompt, variants=variants, position=position, **common)
        profiles.append(sums)
    return measure.faithfulness(model, profiles, mitigation=mitigation, **options)


def collapse(
    model: TransformerBridge,
    task: CollapseTask | Task | str | None = None,
    *,
    lengths: Iterable[int] = range(1, 257),
    prompt: str | Prompt | None = None,
    item: str | None = None,
    items: Literal["text", "ids"] = "text",
    dtypes: Sequence[str] = ("float32", "bfloat16", "float16"),
    **options: Any,
) -> Collapse:
    """Measure representational collapse (Theorem 4.2).

    Distance between the last-token representations of a sequence and of the same with its last
    token repeated.

    Args:
        item: what is repeated after --prompt, such as " and" (the space belongs to it); without it
            the last token of the text.
        items: how items are put into a prompt: as text, or each by its own token (ids), whatever
            the tokenizer merges.
    """
    from ostools import measure

    return measure.collapse(
        model, _pairs_of(task, prompt, item, items), lengths=lengths, dtypes=dtypes, **options
    )


def _pairs_of(
    task: CollapseTask | Task | str | None,
    prompt: Any,
    item: str | None,
    items: Literal["text", "ids"],
) -> CollapseTask | Task:
    """The task of that name, or the pairs of a text or of ids, whose end is repeated.

    Raises `InputError` for options that exclude each other.
    """
    from ostools import tasks

    is_text = isinstance(prompt, str)
    if item is not None and not is_text:
        raise InputError("--item is what --prompt repeats: give --prompt too")
    if prompt is None:
        spec = task or "figure-5a"
        if isinstance(spec, str) and items == "ids" and ":items=" not in spec:
            spec = f"{spec}:items=ids"
        return tasks.pairs_or_task(spec) if isinstance(spec, str) else spec
    if task is not None:
        option = "--prompt" if is_text else "--ids"
        raise InputError(f"--task and {option} exclude each other: leave one out")
    if not is_text:
        return tasks.RepeatedIds(prompt, name="prompt")
    # Without an item the text's own last token is repeated, which is done on ids.
    return tasks.RepeatTask("prompt", prompt, item, items if item else "ids")


def pairs_memory(
    model: Unloaded,
    pos: int | None = None,
    *,
    task: str | None = None,
    prompt: Prompts | None = None,
    item: str | None = None,
    items: Literal["text", "ids"] = "text",
    layers: Sequence[int] | str | None = None,
    **arguments: Any,
) -> int:
    """Bytes of the pairs that `collapse` compares."""
    from ostools import measure

    pairs = _pairs_of(task, None if prompt is None else prompt.values[0], item, items)
    return measure.bytes_of(measure.collapse, model, task=pairs, layers=layers, **arguments)
