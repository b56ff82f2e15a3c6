"""`ostools behaviour`: what a model answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostools.cli.kit import output
from ostools.cli.kit.hosted import Answers, Endpoint, answered, refuse_with_answers
from ostools.cli.kit.manners import MANNERS
from ostools.cli.kit.options import (
    Chat,
    Device,
    Dtype,
    Elicit,
    Lengths64,
    Out,
    Seeds,
    System,
    Task,
    Thinking,
    parse_lengths,
)
from ostools.cli.kit.steps import at_work, check, give
from ostools.cli.measure.prompts import with_mode

if TYPE_CHECKING:
    from ostools.measure import Behaviour
    from ostools.runs.forecast import Unloaded


def behaviour(
    task: Task = "count-ones",
    mode: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="none, answer-only, cot-zero-shot or cot-few-shot, where the task has it."),
    ] = None,
    lengths: Lengths64 = "1:64",
    mitigation: Annotated[
        str | None,
        typer.Option(metavar="NAME[:OPTIONS]", help="Such as separator:every=3; ostools mitigations lists them."),
    ] = None,
    seed: Seeds = None,
    temperature: Annotated[float, typer.Option(metavar="T", help="0: the most likely token at every step.")] = 0.0,
    samples: Annotated[int, typer.Option(metavar="N", help="Answers to each prompt, at a temperature.")] = 1,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="Where an answer is cut; else 48 tokens after the longest right answer."),
    ] = None,
    elicitation: Elicit = None,
    chat: Chat = None,
    system: System = None,
    thinking: Thinking = False,
    probability: Annotated[
        bool, typer.Option("--probability/--no-probability", help="How likely the right line was, too.")
    ] = True,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A directory, a hub id, or a hosted model's name. Default: 'embedded'."),
    ] = None,
    answers: Answers = None,
    endpoint: Endpoint = None,
    out: Out = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
) -> None:
    """Ask a model a task at every length: what is right, how far off the rest is, how likely the right answer was.

    The answer in the last answer line is compared with the right one. Where prompts or answers were drawn there are Wilson
    intervals. Texts that hold something else, and those that were cut off before an answer, are counted apart; what a text
    asserts in whatever words is counted beside. A base model is asked after worked examples (--elicitation). A hosted model
    is asked the same questions: `ostools prompts` writes them, --answers reads what it said, and with --endpoint its server
    is asked.

    \b
    Example:
      ostools behaviour --task count-ones --lengths 1:64 --mitigation separator:every=3 --out behaviour.png
      ostools behaviour --task copy-last --endpoint http://localhost:8000/v1 --model NAME --answers answers.jsonl
    """
    from mitigations import mitigation as named
    from ostools import measure, tasks
    from ostools.cli.kit import largest

    check(out)
    wanted = parse_lengths(lengths)
    form = tasks.task(with_mode(task, mode))
    given = None if mitigation is None else named(mitigation)
    seeds = tuple(seed or (0,))
    here = {
        "--temperature": temperature or None,
        "--samples": None if samples == 1 else samples,
        "--elicitation": elicitation,
        "--chat/--no-chat": chat,
        "--system": system,
        "--thinking": thinking or None,
        "--no-probability": None if probability else True,
        "--device": None if device == "auto" else device,
        **MANNERS.of_model,
        "--dtype": None if dtype == "float32" else dtype,
        "--max-new-tokens": max_new_tokens if endpoint is None else None,
    }
    refuse_with_answers(answers, endpoint, here)
    if answers is not None:
        asked = tasks.questions(form, lengths=wanted, seeds=seeds, mitigation=given)
        give(measure.hosted_behaviour(answered(asked, answers, endpoint, model, max_new_tokens)), out, _show)
        return

    def memory(on: Unloaded) -> int:
        return largest.answers(
            on,
            form,
            wanted,
            each=len(seeds) * samples,
            mitigation=given,
            elicitation=elicitation,
            chat=chat,
            system=system,
            thinking=thinking,
            max_new_tokens=max_new_tokens,
        )

    with at_work("asking", model or "embedded", device, dtype, memory) as (loaded, progress):
        result = measure.behaviour(
            loaded,
            form,
            lengths=wanted,
            seeds=seeds,
            mitigation=given,
            elicitation=elicitation,
            chat=chat,
            system=system,
            thinking=thinking,
            temperature=temperature,
            samples=samples,
            max_new_tokens=max_new_tokens,
            probability=probability,
            progress=progress,
        )
    give(result, out, _show)


def _show(result: Behaviour) -> None:
    from ostools.reporting.findings.behaviour import behaviour_findings, unread_texts

    summary: Any = result.summary
    shown, part = output.some_of(summary["length"])
    frame: Any = result.frame
    under = frame["mitigation"].iloc[0]
    acting = "" if under == "none" else f" under {under}"
    title = f"Answers to {frame['task'].iloc[0]}, {frame['elicitation'].iloc[0]}{acting}{part}"
    names = ["n", "right", "of", "share", "95% from", "to", "something else", "cut off", "unanswered"]
    names += ["right by content", "asserted", "mean error", "mean log p", "p(right line)", "acted"]
    columns = [
        "length",
        "right",
        "asked",
        "accuracy",
        "wilson_low",
        "wilson_high",
        "something_else",
        "cut_off",
        "unanswered",
    ]
    columns += ["content_right", "content_read", "mean_absolute_error", "log_probability", "probability", "active"]
    # What there is nothing of has no column: an interval, an error, a probability, a mitigation.
    kept = [
        (name, column)
        for name, column in zip(names, columns, strict=True)
        if summary[column].notna().any()
        and (column != "active" or under != "none")
        and (column != "unanswered" or summary[column].any())
    ]
    rows = summary[summary["length"].isin(shown)][[column for _, column in kept]].itertuples(index=False, name=None)
    output.print_table(title, [name for name, _ in kept], rows)
    output.print_text(["", *behaviour_findings(result), *unread_texts(result)])
