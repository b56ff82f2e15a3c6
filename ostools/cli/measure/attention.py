"""`ostools attention`: of one run, or of two held against each other."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostools.cli.kit import output
from ostools.cli.kit.chat import Turn
from ostools.cli.kit.options import Device, Dtype, InChat, Model, Out, Seed, System, Thinking
from ostools.cli.kit.prompts import Ids, chosen
from ostools.cli.kit.steps import at_work, check, give, tell_written
from ostools.ground.errors import InputError

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

    from ostools.measure import Attention, AttentionDifference
    from ostools.runs.forecast import Unloaded

SHOWN = 10


def attention(
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="The text to measure on; or --task.")] = None,
    ids: Ids = None,
    task: Annotated[
        str | None,
        typer.Option(metavar="NAME[:OPTIONS]", help="Such as copy-last, with --length; ostools tasks lists them."),
    ] = None,
    length: Annotated[int | None, typer.Option(metavar="N", help="Items of the task's sequence.")] = None,
    seed: Seed = 0,
    mitigation: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:OPTIONS]", help="Compare: without it, and with it. ostools mitigations lists them."
        ),
    ] = None,
    against_prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="Compare: with this text.")] = None,
    against_model: Annotated[str | None, typer.Option(metavar="NAME", help="Compare: with this model.")] = None,
    corresponding: Annotated[
        bool,
        typer.Option(
            "--corresponding", help="Compare the tokens with which both texts begin, and with which both end."
        ),
    ] = False,
    chat: InChat = False,
    system: System = None,
    thinking: Thinking = False,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
) -> None:
    """Show what the last token attends to in every head, or how two runs differ in that.

    One of --mitigation, --against-prompt and --against-model makes it a comparison: side by side on one colour scale, and the
    difference at the tokens known to be the same. An .html file also has the whole pattern of every head, to click through.

    \b
    Example:
      ostools attention --prompt "Can you copy the following number?1111" --out attention.html
      ostools attention --task copy-last --length 12 --mitigation separator:every=3 --out compared.png
    """
    from mitigations import mitigation as named
    from ostools import measure, tasks
    from ostools.measure.passes.memory import patterns_bytes

    check(out)
    words = chosen(prompt, ids)
    if (words is None) == (task is None):
        raise InputError("expected --prompt or --ids, or --task with --length")
    if (task is None) != (length is None):
        raise InputError("--task and --length go together: expected both, found one")
    if task is not None:
        tasks.task(task)
    against = {"--mitigation": mitigation, "--against-prompt": against_prompt, "--against-model": against_model}
    given = [name for name, value in against.items() if value is not None]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} exclude each other: compare one thing at a time")
    if corresponding and not given:
        raise InputError(f"--corresponding goes with one of {', '.join(against)}: expected a comparison, found one run")
    if against_prompt == "":
        raise InputError("--against-prompt: expected text, found nothing; give at least one character")
    if mitigation is not None:
        named(mitigation)
    turn = Turn(chat, system, thinking, ids)
    if chat and task is not None:
        raise InputError(
            "--chat: a task is asked in the chat template where there is one; expected --prompt beside --chat"
        )

    def asked(on: TransformerBridge) -> dict[str, Any]:
        tokens = None if words is None else turn.prompt(on, words)
        return {"prompt": tokens, "task": task, "length": length, "seed": seed}

    def memory(on: Unloaded) -> int:
        read = turn.of(on)
        pos = read.longest(tasks.task(task or "copy-last"), [length or 1]).tokens if words is None else read.pos(words)
        return patterns_bytes(on.shape, pos)

    with at_work("reading the patterns", model, device, dtype, memory, counted=False) as (loaded, _):
        first, second = measure.attention(loaded, **asked(loaded)), None
        if mitigation is not None:
            second = measure.attention(loaded, **asked(loaded), mitigation=mitigation)
        elif against_prompt is not None:
            second = measure.attention(loaded, turn.prompt(loaded, against_prompt))
    if against_model is not None:
        with at_work("reading the patterns", against_model, device, dtype, memory, counted=False) as (loaded, _):
            second = measure.attention(loaded, **asked(loaded))
    if out is not None and out.suffix.lower() == ".html":
        tell_written(first.view(second).save(out))
        return
    compare = partial(measure.attention_difference, corresponding=corresponding)
    give(first if second is None else compare(first, second), out, _show)


def _show(result: Attention | AttentionDifference) -> None:
    from ostools.measure import AttentionDifference
    from ostools.reporting.charts.attention.cells import attention_findings, difference_findings
    from ostools.reporting.look.theme import display_token

    frame: Any = result.frame
    compared = isinstance(result, AttentionDifference)
    column, place = ("difference", "second_position") if compared else ("weight", "position")
    columns = ["layer.head", "token", "position", *(["first", "second", "difference"] if compared else ["weight"])]
    greatest = frame.reindex(frame[column].abs().sort_values(ascending=False, kind="stable").index).head(SHOWN)
    rows = [
        [
            f"{row['layer']}.{row['head']}",
            display_token(row["token"]),
            row[place],
            *(float(row[name]) for name in columns[3:]),
        ]
        for row in greatest.to_dict(orient="records")
    ]
    words = (
        f"{result.labels[0]} against {result.labels[1]}: the greatest differences"
        if compared
        else "The greatest weights"
    )
    output.print_table(f"{words} of the last token's attention", columns, rows, left=2)
    output.print_text(["", *(difference_findings(result) if compared else attention_findings(result))])
