"""What every command does first and last: refuse early, load the model, write the file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import ostools as ost
from ostools.commands import output
from ostools.commands.manners import MANNERS
from ostools.results import Result, checked_output

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


def check(out: Path | None, prompt: str | None = None) -> None:
    """What can be refused before a model is loaded."""
    if out is not None:
        checked_output(out)
    if prompt == "":
        raise ost.InputError("--prompt: expected text, found nothing; give at least one character")


def load(model: str, device: str, dtype: str) -> TransformerBridge:
    import torch

    from ostools.models.shape import one_is_enough

    with output.progress("loading the model"):
        loaded = ost.load_model(model, dtype=dtype, device=device)
    if one_is_enough(loaded):
        torch.set_num_threads(1)
    return loaded


def saved(result: Result, out: Path | None) -> bool:
    """Write the result to the file asked for, and as JSON if asked for; whether either was."""
    written = None if out is None else result.save(out)
    if MANNERS.json:
        output.print_json(result.as_json())
    elif written is not None:
        told_written(written)
    return MANNERS.json or out is not None


def told_written(path: Path) -> None:
    """Say what was written, unless nothing is to be said."""
    if MANNERS.json:
        output.print_json({"written": str(path)})
    elif not MANNERS.quiet:
        output.print_text([f"wrote {path}"])
