"""`ostools chain-of-thought`: how sensitive an answer is to prompt and reasoning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostools.cli.kit import output
from ostools.cli.kit.manners import MANNERS
from ostools.cli.kit.options import Chat, Device, Dtype, Model, Out, Seed, System, Task, Thinking
from ostools.cli.kit.steps import at_work, check, give

if TYPE_CHECKING:
    from ostools.experiments import ChainOfThought
    from ostools.runs.forecast import Unloaded


def chain_of_thought(
    task: Task = "count-ones:mode=cot-few-shot",
    length: Annotated[int, typer.Option(metavar="N", min=1, help="How many items.")] = 12,
    seed: Seed = 0,
    reasoning: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Reasoning without the answer line; '' for none. Default: what the model writes."
        ),
    ] = None,
    linearisation: Annotated[str, typer.Option(metavar="NAME", help="Of the sensitivity: full, frozen, ...")] = "full",
    method: Annotated[str, typer.Option(metavar="NAME", help="auto, exact, sketch or estimate.")] = "auto",
    max_new_tokens: Annotated[
        int, typer.Option(metavar="N", min=1, help="Longest reasoning and answer of the model's own.")
    ] = 256,
    chat: Chat = None,
    system: System = None,
    thinking: Thinking = False,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
) -> None:
    """Measure how sensitive the answer is to each part of prompt and reasoning (Theorem B.5).

    The norms of d y_n / d v_i after a chain of thought, n the token before the answer; summed over the items of the sequence,
    the other words, few-shot examples, each line of the reasoning, and the begun answer line.

    \b
    Example:
      ostools chain-of-thought --task count-ones:mode=cot-zero-shot --length 8 --reasoning "11111 and 111" --out chain.png
    """
    from ostools import experiments, tasks
    from ostools.cli.kit import largest
    from ostools.ground.names import checked_names
    from ostools.measure.jacobian.linearisations import LINEARISATIONS

    check(out)
    form, names = tasks.task(task), checked_names("linearisation", linearisation, LINEARISATIONS)

    wrapped: dict[str, Any] = {"chat": chat, "system": system, "thinking": thinking}

    def memory(on: Unloaded) -> int:
        pos = on.longest(form, [length], **wrapped).tokens + max_new_tokens
        answered = largest.answers(on, form, [length], **wrapped, max_new_tokens=max_new_tokens)
        return max(answered, largest.sensitivity(on, pos, names, method=method))

    with at_work("differentiating", model, device, dtype, memory) as (loaded, progress):
        result = experiments.chain_of_thought(
            loaded,
            form,
            length,
            seed=seed,
            reasoning=reasoning,
            linearisations=names,
            method=method,
            max_new_tokens=max_new_tokens,
            max_memory=MANNERS.max_memory,
            chat=chat,
            system=system,
            thinking=thinking,
            progress=progress,
        )
    give(result, out, _show)


def _show(result: ChainOfThought) -> None:
    parameters = result.provenance.parameters
    columns = ["tokens", "total", "share", "mean"]
    summary: Any = result.summary
    rows = summary[summary["norm"] == "operator"][["part", *columns]].itertuples(index=False, name=None)
    title = f"Operator norms of d y_n / d v_i, {parameters['task']}, {parameters['length']} items"
    output.print_table(title, ["part", "tokens", "sum", "share", "mean per token"], rows)
    lines: Any = result.lines
    lines = lines[lines["norm"] == "operator"]
    if len(lines):
        shown = lines.assign(text=lines["text"].str.slice(0, 60))[["text", "line", *columns]].itertuples(
            index=False, name=None
        )
        output.print_table(
            "The reasoning, line by line", ["text", "line", "tokens", "sum", "share", "mean per token"], shown
        )
    output.print_text(
        [
            "",
            f"Reasoning and begun answer line: {parameters['reasoning_source']}.",
            f"Next token {parameters['answer_token']!r}, the right one {parameters['right_token']!r} "
            f"(probability {parameters['right_token_probability']:.3g}).",
        ]
    )
