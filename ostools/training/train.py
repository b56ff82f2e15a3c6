"""Train an embedded model again: `python -m ostools.training.train --recipe embedded-short --out DIR`.

Makes the tokenizer and the weights from the seed, the generated prompts and the pinned text; rounds the weights to the
format that they are stored in; measures what the rounded model can do; and writes the directory that `load_model` reads.
Needs the packages of `requirements.lock` and no network. A signal, or a full disk, leaves the last checkpoint: `--resume`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from ostools.ground.errors import InputError, in_words
from ostools.ground.names import checked_name
from ostools.ground.signals import ended_by_signals
from ostools.ground.whole_numbers import whole_number
from ostools.training.card import make_card, render_card
from ostools.training.corpus import Corpus, load_corpus
from ostools.training.examples import pack_text
from ostools.training.loop import CHECKPOINT, Run, resume, start, train
from ostools.training.recipe import RECIPES, Recipe
from ostools.training.tokenizer import save_tokenizer, train_tokenizer
from ostools.training.written import replaced

LOG_EVERY = 100


def run_training(name: str, recipe: Recipe, corpus: Corpus, directory: Path, *, resumed: bool) -> Run:
    """Train by the recipe (or go on from the checkpoint in `directory`), then write the finished model there.

    The card calls it `name`. Raises InputError when `resumed` and the checkpoint is missing or of another recipe, or when not
    `resumed` and there is one.
    """
    if not resumed and (directory / CHECKPOINT).exists():
        raise InputError(f"{str(directory)!r} holds the checkpoint of an unfinished run: --resume it, or delete it")
    tokenizer = train_tokenizer(corpus.train)
    tokenizer_sha256 = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()
    fingerprint = f"{corpus.sha256} {tokenizer_sha256}"
    run = resume(recipe, fingerprint, directory) if resumed else start(recipe, fingerprint)
    text = pack_text(corpus.train, tokenizer)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as bar:
        shown = bar.add_task("training", total=recipe.steps, completed=run.step)

        def report(run: Run) -> None:
            bar.update(shown, completed=run.step, description=_losses(run))
            if not bar.console.is_terminal and run.step % LOG_EVERY == 0:  # a log file shows no bar
                bar.console.print(f"step {run.step} of {recipe.steps}, {run.seconds / 60:.1f} minutes, {_losses(run)}")

        train(run, tokenizer, text, directory, on_step=report)
    write_model(name, run, corpus, tokenizer, directory)
    (directory / CHECKPOINT).unlink()
    return run


def _losses(run: Run) -> str:
    return f"loss {run.losses[-1][1]:.3f} (text {run.losses[-1][2]:.2f})" if run.losses else "training"


def write_model(name: str, run: Run, corpus: Corpus, tokenizer: Tokenizer, directory: Path) -> None:
    """Round the weights, measure the rounded model, and write weights, tokenizer, card.json and MODEL_CARD.md."""
    recipe = run.recipe
    model: Any = run.model.eval()  # pyright takes a model's `to` for a call of its own
    stored = getattr(torch, recipe.stored)
    model.to(stored).to(torch.float32)
    card = make_card(name, run, corpus, tokenizer)
    with _told_where_the_disk_is_full(directory):
        save_tokenizer(tokenizer, directory, recipe.context_length)
        AutoTokenizer.from_pretrained(directory)  # what users will load must load
        model.to(stored).save_pretrained(directory)
    replaced(directory / "card.json", lambda file: file.write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8"))
    replaced(directory / "MODEL_CARD.md", lambda file: file.write_text(render_card(card), encoding="utf-8"))


@contextmanager
def _told_where_the_disk_is_full(directory: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # safetensors and tokenizers raise classes of their own
        raise InputError(
            f"could not write the model to {str(directory)!r} ({in_words(error)}): its checkpoint is still there; make "
            "room, and go on with --resume"
        ) from None


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ostools.training.train", description="Train an embedded model.")
    parser.add_argument(
        "--out", type=Path, required=True, help="directory for the model and, meanwhile, the checkpoint"
    )
    parser.add_argument("--recipe", default="embedded", help=f"one of {', '.join(RECIPES)} (default embedded)")
    parser.add_argument("--steps", type=int, help="steps to make (default: the recipe's)")
    parser.add_argument("--seed", type=int, help="seed of weights and data (default: the recipe's)")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    given = parser.parse_args(arguments)
    try:
        recipe = RECIPES[checked_name("recipe", given.recipe, RECIPES)]
        steps = recipe.steps if given.steps is None else whole_number("--steps", given.steps, 1)
        seed = recipe.seed if given.seed is None else whole_number("--seed", given.seed)
        recipe = replace(recipe, steps=steps, seed=seed)
        ended_by_signals(lambda _: _trained(given.recipe, recipe, given.out, given.resume))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _trained(name: str, recipe: Recipe, directory: Path, resumed: bool) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        run_training(name, recipe, load_corpus(), directory, resumed=resumed)
    finally:
        torch.set_num_threads(threads)


if __name__ == "__main__":
    sys.exit(main())
