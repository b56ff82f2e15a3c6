"""Train an embedded model again: `python -m studies.training --recipe embedded-short --out DIR`.

Makes the tokenizer and the weights from the seed, the generated prompts and the pinned text; rounds
the weights to the format that they are stored in; measures what the rounded model can do; and
writes the directory that `load_model` reads. Needs the packages of `requirements.lock`, no network,
and half an hour to 80 minutes of one core.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from ostools.ground.errors import InputError, checked_name
from ostools.ground.progress import tell, watched
from studies.training.card import make_card, render_card
from studies.training.corpus import Corpus, load_corpus, save_tokenizer, train_tokenizer
from studies.training.examples import pack_text
from studies.training.loop import Run, start, train
from studies.training.recipe import RECIPES, Recipe

LOG_EVERY = 100


def run_training(name: str, recipe: Recipe, corpus: Corpus, directory: Path) -> None:
    """Train by the recipe, then write the finished model to `directory`; its card calls it `name`."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(corpus.train)
    run = start(recipe)
    with watched("training") as progress:

        def report(run: Run) -> None:
            tell(progress, run.step, recipe.steps)
            if run.step % LOG_EVERY == 0:
                print(
                    f"step {run.step} of {recipe.steps}, {run.seconds / 60:.1f} minutes, {run.losses[-1]}",
                    flush=True,
                )

        train(run, tokenizer, pack_text(corpus.train, tokenizer), report)
    write_model(name, run, corpus, tokenizer, directory)


def write_model(name: str, run: Run, corpus: Corpus, tokenizer: Tokenizer, directory: Path) -> None:
    """Round the weights, measure the rounded model, and write weights, tokenizer, card.json and
    MODEL_CARD.md.
    """
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
    parser = argparse.ArgumentParser(
        prog="python -m studies.training", description="Train an embedded model."
    )
    parser.add_argument("--out", type=Path, required=True, help="directory for the model")
    parser.add_argument(
        "--recipe", default="embedded", help=f"one of {', '.join(RECIPES)} (default embedded)"
    )
    options = parser.parse_args(arguments)
    try:
        name = checked_name("recipe", options.recipe, RECIPES)
        torch.set_num_threads(1)
        run_training(name, RECIPES[name], load_corpus(), options.out)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
