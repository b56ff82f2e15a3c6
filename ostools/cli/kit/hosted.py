"""What the commands have in common that ask a model elsewhere: read its answers, or ask it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostools.cli.kit import output
from ostools.ground.errors import InputError

if TYPE_CHECKING:
    from ostools.measure import Hosted
    from ostools.tasks import Question

Answers = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="A hosted model's answers, as JSON Lines with id and text; instead of a model here."
    ),
]
Endpoint = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="An OpenAI-compatible server that is asked for what --answers lacks; key in OPENAI_API_KEY."
    ),
]


def refuse_with_answers(answers: Path | None, endpoint: str | None, given: Mapping[str, Any]) -> None:
    """What only a model here has: options with a value that is not the default."""
    if answers is None:
        if endpoint is not None:
            raise InputError("--endpoint: expected --answers FILE too, where the answers are kept as they come")
        return
    for name, value in given.items():
        if value is not None:
            raise InputError(f"{name} is of a model that is loaded here: leave it out with --answers")


def answered(
    asked: Sequence[Question],
    answers: Path,
    endpoint: str | None,
    model: str | None,
    max_tokens: int | None,
) -> Hosted:
    """The answers of the file, once the server has given what the file lacks."""
    from ostools.measure import ask_endpoint, read_answers

    if endpoint is None:
        return read_answers(answers, asked, model=model)
    if model is None:
        raise InputError("--endpoint: expected --model NAME too, the model's name there")
    with output.progress("asking") as progress:
        return ask_endpoint(endpoint, model, asked, answers, max_tokens=max_tokens, progress=progress)
