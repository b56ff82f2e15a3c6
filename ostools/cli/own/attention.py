"""`ostools attention difference`: the last token's attention of two runs, held against each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostools.cli.checks import attention as check_attention
from ostools.cli.checks import check_names, check_task
from ostools.cli.commands import COMMANDS
from ostools.cli.global_options import GLOBALS
from ostools.cli.memory.work import memory_of
from ostools.cli.output import tell_written
from ostools.cli.prompts import Prompts
from ostools.cli.running import EMBEDDED, at_work, give, on_model
from ostools.ground.errors import InputError

if TYPE_CHECKING:
    from ostools.models import Prompt

_DOING = "reading the patterns"


def difference(
    *,
    prompt: Prompt | None = None,
    task: str | None = None,
    length: int | None = None,
    seed: int | None = None,
    mitigation: str | None = None,
    against_prompt: str | None = None,
    against_model: str | None = None,
    corresponding: bool = False,
    model: str | None = None,
) -> None:
    """Compare what the last token attends to in two runs, head by head and token by token.

    One of --mitigation, --against-prompt and --against-model says what the second run is. Tokens
    are compared where it is known that they are the same. An .html file has both runs side by side,
    with the whole pattern of every head, to click through.

    Args:
        against_prompt: the second run is of this text.
        against_model: the second run is of this model.
        corresponding: compare the tokens with which both texts begin, and with which both end.
    """
    from ostools import measure

    names = ("prompt", "task", "length", "seed")
    values = (prompt, task, length, seed)
    run = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    check_attention(run)
    check_task(run)
    check_names({**run, "mitigation": mitigation})
    against = {
        "--mitigation": mitigation,
        "--against-prompt": against_prompt,
        "--against-model": against_model,
    }
    given = [option for option, value in against.items() if value is not None]
    if len(given) != 1:
        reason = "exclude each other" if given else "say what the second run is"
        options = " and ".join(given or against)
        raise InputError(f"{options} {reason}: expected one of them, found {len(given)}")
    if against_prompt == "":
        raise InputError("--against-prompt: expected text, found nothing; give a character")
    memory = memory_of(COMMANDS["attention",], run)
    with at_work(_DOING, model or EMBEDDED, memory, counted=False) as (loaded, _):
        arguments: dict[str, Any] = {key: on_model(loaded, part) for key, part in run.items()}
        first = second = measure.attention(loaded, **arguments)
        if mitigation is not None:
            second = measure.attention(loaded, **arguments, mitigation=mitigation)
        elif against_prompt is not None:
            wrapped = prompt.wrapped if isinstance(prompt, Prompts) else None
            other = Prompts((against_prompt,), wrapped)
            second = measure.attention(loaded, other.one(loaded, against_prompt))
    if against_model is not None:
        with at_work(_DOING, against_model, memory, counted=False) as (loaded, _):
            arguments = {key: on_model(loaded, part) for key, part in run.items()}
            second = measure.attention(loaded, **arguments)
    if GLOBALS.out is not None and GLOBALS.out.suffix.lower() == ".html":
        # Side by side, also where nothing can be subtracted.
        tell_written(first.view(second).save(GLOBALS.out))
        return
    give(measure.attention_difference(first, second, corresponding=corresponding))
