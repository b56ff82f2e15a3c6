"""Train the embedded model again: `python -m ostools.training.train --out DIR`.

Makes the tokenizer and the weights from the seed, the generated prompts and the pinned text; measures what
the model can do; and writes the directory that `load_model` reads. Needs the packages of
`requirements.lock` and no network.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

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

from ostools.ground.errors import InputError
from ostools.ground.whole_numbers import whole_number
from ostools.training.card import make_card, render_card
from ostools.training.corpus import Corpus, load_corpus
from ostools.training.evaluate import accuracy_table, bits_per_byte
from ostools.training.examples import pack_text
from ostools.training.loop import CHECKPOINT, Run, resume, start, train
from ostools.training.recipe import Recipe
from ostools.training.tokenizer import save_tokenizer, train_tokenizer

RECIPE = Recipe()
LOG_EVERY = 100


def run_training(recipe: Recipe, corpus: Corpus, directory: Path, *, resumed: bool) -> Run:
    """Train by the recipe (or go on from the checkpoint in `directory`), then write the finished model there.

    Raises InputError when `resumed` and the checkpoint is missing or of another recipe, or when not
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
    write_model(run, corpus, tokenizer, tokenizer_sha256, directory)
    (directory / CHECKPOINT).unlink()
    return run


def _losses(run: Run) -> str:
    return f"loss {run.losses[-1][1]:.3f} (text {run.losses[-1][2]:.2f})" if run.losses else "training"


def write_model(run: Run, corpus: Corpus, tokenizer: Tokenizer, tokenizer_sha256: str, directory: Path) -> None:
    """Measure the model and write weights, tokenizer, card.json and MODEL_CARD.md."""
    model = run.model.eval()
    save_tokenizer(tokenizer, directory, run.recipe.context_length)
    AutoTokenizer.from_pretrained(directory)  # what users will load must load
    model.save_pretrained(directory)
    rows = accuracy_table(model, tokenizer, run.recipe.trained_lengths())
    bits = bits_per_byte(model, corpus.held_out, tokenizer)
    card = make_card(run, corpus, tokenizer_sha256, bits, rows)
    (directory / "card.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    (directory / "MODEL_CARD.md").write_text(render_card(card), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ostools.training.train", description="Train the embedded model.")
    parser.add_argument(
        "--out", type=Path, required=True, help="directory for the model and, meanwhile, the checkpoint"
    )
    parser.add_argument("--steps", type=int, default=RECIPE.steps, help=f"steps to make (default {RECIPE.steps})")
    parser.add_argument(
        "--seed", type=int, default=RECIPE.seed, help=f"seed of weights and data (default {RECIPE.seed})"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    try:
        recipe = replace(RECIPE, steps=whole_number("--steps", given.steps, 1), seed=given.seed)
        run_training(recipe, load_corpus(), given.out, resumed=given.resume)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
