"""Train an embedded model again: `python -m studies.training --recipe embedded-short --out DIR`.

Makes the tokenizer and the weights from the seed, the generated prompts and the pinned text; rounds the weights to the
format that they are stored in; measures what the rounded model can do; and writes the directory that `load_model` reads.
Needs the packages of `requirements.lock` and no network. A signal leaves the last checkpoint: `--resume`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from ostools.ground.errors import InputError
from ostools.ground.names import checked_name
from ostools.ground.progress import bar, tell
from ostools.ground.signals import ended_by_signals
from studies.training.card import make_card, render_card
from studies.training.corpus import Corpus, load_corpus
from studies.training.examples import pack_text
from studies.training.loop import CHECKPOINT, Run, resume, start, train
from studies.training.recipe import RECIPES, Recipe
from studies.training.tokenizer import save_tokenizer, train_tokenizer

LOG_EVERY = 100


def run_training(name: str, recipe: Recipe, corpus: Corpus, directory: Path, *, resumed: bool) -> None:
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
    with bar("training") as progress:

        def report(run: Run) -> None:
            tell(progress, run.step, recipe.steps)
            if run.step % LOG_EVERY == 0:
                print(
                    f"step {run.step} of {recipe.steps}, {run.seconds / 60:.1f} minutes, {run.losses[-1]}", flush=True
                )

        train(run, tokenizer, text, directory, on_step=report)
    write_model(name, run, corpus, tokenizer, directory)
    (directory / CHECKPOINT).unlink()


def write_model(name: str, run: Run, corpus: Corpus, tokenizer: Tokenizer, directory: Path) -> None:
    """Round the weights, measure the rounded model, and write weights, tokenizer, card.json and MODEL_CARD.md."""
    recipe = run.recipe
    model: Any = run.model.eval()  # pyright takes a model's `to` for a call of its own
    stored = getattr(torch, recipe.stored)
    model.to(stored).to(torch.float32)
    card = make_card(name, run, corpus, tokenizer)
    save_tokenizer(tokenizer, directory, recipe.context_length)
    AutoTokenizer.from_pretrained(directory)  # what users will load must load
    model.to(stored).save_pretrained(directory)
    (directory / "card.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    (directory / "MODEL_CARD.md").write_text(render_card(card), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m studies.training", description="Train an embedded model.")
    parser.add_argument(
        "--out", type=Path, required=True, help="directory for the model and, meanwhile, the checkpoint"
    )
    parser.add_argument("--recipe", default="embedded", help=f"one of {', '.join(RECIPES)} (default embedded)")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    options = parser.parse_args(arguments)
    try:
        recipe = RECIPES[checked_name("recipe", options.recipe, RECIPES)]
        torch.set_num_threads(1)
        ended_by_signals(
            lambda _: run_training(options.recipe, recipe, load_corpus(), options.out, resumed=options.resume)
        )
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
