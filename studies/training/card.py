"""The model card: `card.json` holds what was done and measured, `MODEL_CARD.md` is rendered from it
and from nothing else."""

from __future__ import annotations

import hashlib
import importlib.metadata
import math
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tokenizers import Tokenizer

from studies.training.corpus import PACKAGES, Corpus
from studies.training.evaluate import accuracy_table, bits_per_byte, validation_loss
from studies.training.loop import Run
from studies.training.recipe import Recipe

MIXTURES = {
    "embedded-short": "Three mixtures were tried with 2,150 steps each. Then the second of them was trained with 5,700 steps, "
    "which made this model. The weights are those of its last step. It is better than the three on the same held-out "
    "text (theirs is 1.7222, 1.6899 and 1.6858 bits per byte), and on fresh prompts of its own mixture (theirs is "
    "0.399, 0.285 and 0.292 nats). The first mixture had 62% text, and drew each copying task half as often as this "
    "one, relative to the other tasks. The third had shorter tasks (a length scale of 6 in place of 12).",
    "embedded-windowed": "One mixture was tried, which is the first one of embedded-short. The weights are those of its last "
    "step.",
}
"""Sentences of a model's card on the mixtures that were tried for it."""

PURPOSES = {
    "embedded": "It was trained on every length up to a limit. A wrong answer up to there is not due to a length that "
    "training left out.",
    "embedded-short": "It was trained the way language models are: half on text, and half on tasks, most of which are short.",
    "embedded-windowed": "It was trained as embedded-short was, but has the shape of Gemma 3: most of its layers see a "
    "window of tokens.",
}


def make_card(name: str, run: Run, corpus: Corpus, tokenizer: Tokenizer) -> dict[str, Any]:
    """Everything the card says, as plain JSON values, measured on the run's model as it is. It
    names no host and no path.
    """
    recipe, model = run.recipe, run.model
    _, task_loss, text_loss = run.losses[-1]
    versions = {
        name: importlib.metadata.version(name) for name in ("tokenizers", "torch", "transformers")
    }
    versions["torch"] = versions["torch"].partition("+")[0]
    return {
        "name": name,
        "architecture": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "recipe": asdict(recipe),
        "trained_lengths": recipe.trained_lengths(),
        "text": {
            "source": "docstrings of pinned packages",
            "packages": dict(PACKAGES),
            "sha256": corpus.sha256,
            "bytes": corpus.n_bytes,
            "paragraphs": len(corpus.paragraphs),
            "held_out_paragraphs": corpus.n_held_out,
        },
        "tokenizer_sha256": hashlib.sha256(tokenizer.to_str().encode()).hexdigest(),
        "machine": {
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "threads_used": 1,
            "accelerator": None,
        },
        "training_minutes": round(run.seconds / 60, 1),
        "tokens_seen": run.tokens,
        "versions": {"python": platform.python_version(), **versions},
        "final_loss": {
            "prompts_nats": round(task_loss, 5),
            "text_nats_per_token": round(text_loss, 5),
        },
        "validation_prompts_nats": round(validation_loss(recipe, model, tokenizer), 5),
        "held_out_bits_per_byte": round(bits_per_byte(model, corpus.held_out, tokenizer), 4),
        "accuracy": [
            asdict(row) for row in accuracy_table(model, tokenizer, recipe.trained_lengths())
        ],
    }


def render_card(card: Mapping[str, Any]) -> str:
    """The card as Markdown, with one table of accuracies inside the trained lengths and one beyond
    them.
    """
    return "\n".join([*_head(card), *_data(card), *_accuracies(card), *_limits()]) + "\n"


def _head(card: Mapping[str, Any]) -> list[str]:
    recipe, machine, text = card["recipe"], card["machine"], card["text"]
    layers = f"{recipe['n_layers']} layers"
    if recipe["window"] is not None:
        full = ", ".join(str(layer) for layer in recipe["full_layers"])
        layers += f" (windows of {recipe['window']} tokens in all but layer {full}, counted from 0)"
    return [
        f"# {card['name']}",
        "",
        f"Written by `python -m studies.training --recipe {card['name']}` from `card.json`. It is not edited by hand.",
        "",
        f"A `{card['architecture']}` with {card['parameters']:,} parameters, stored in {recipe['stored']}: {layers}, "
        f"d_model {recipe['d_model']}, {recipe['n_heads']} query heads and one key/value head of {recipe['d_head']}, "
        f"gated MLP of {recipe['d_mlp']}, tied embeddings, context {recipe['context_length']}. It was trained from "
        "random weights on the prompts of the paper (arXiv 2406.04267, Appendix C.1 and Figure 5) and on plain text. "
        f"{PURPOSES[card['name']]} It is a specimen to measure on, not a useful language model.",
        "",
        "| | |",
        "|---|---|",
        f"| steps, seed | {recipe['steps']:,}, {recipe['seed']} |",
        f"| tokens seen | {card['tokens_seen']:,} |",
        f"| time | {card['training_minutes']} minutes, {machine['threads_used']} thread of a {machine['cores']}-core "
        f"{machine['processor']} machine, {machine['accelerator'] or 'no accelerator'} |",
        f"| optimiser | AdamW, rate {recipe['learning_rate']}, weight decay {recipe['weight_decay']} |",
        f"| loss at the end | {card['final_loss']['prompts_nats']} nats on prompts (weighted), "
        f"{card['final_loss']['text_nats_per_token']} nats a token on text (with its repeats) |",
        f"| fresh prompts of the same mixture | {card['validation_prompts_nats']} nats (weighted) |",
        f"| held-out text | {card['held_out_bits_per_byte']} bits per byte |",
        f"| versions | {', '.join(f'{name} {version}' for name, version in card['versions'].items())} |",
        f"| text | {text['bytes']:,} bytes, sha256 `{text['sha256']}` |",
        f"| tokenizer | sha256 `{card['tokenizer_sha256']}` |",
        "",
        "The same seed, versions and machine give the same weights. Another processor may "
        "round differently, so equality to the bit is not promised across machines.",
        "",
    ]


def _data(card: Mapping[str, Any]) -> list[str]:
    text, recipe = card["text"], card["recipe"]
    packages = ", ".join(f"{name} {version}" for name, version in text["packages"].items())
    total = sum(recipe["shares"].values())
    rows = [
        f"| {task} | {longest} | {recipe['shares'][task] / total:.0%} |"
        for task, longest in card["trained_lengths"].items()
    ]
    share = recipe["text_tokens"] / (recipe["text_tokens"] + recipe["task_tokens"])
    mixtures = MIXTURES.get(card["name"])
    return [
        "## Data",
        "",
        f"Plain text, about {share:.0%} of the tokens: {text['paragraphs']:,} paragraphs of prose from the docstrings of "
        f"{packages} (all under BSD licences), {text['held_out_paragraphs']:,} of them held out. "
        f"Of the blocks of {recipe['text_length']} tokens, {recipe['repeat_share']:.0%} say their first half twice.",
        "",
        "Prompts are generated. Half of those that ask for one digit carry the paper's hint. A third of those on "
        "digits have a comma after every third digit. A tenth of those for copying and of count-ones have zeros and "
        "ones in turn. Where the paper's text has a slip of the pen, half of the prompts have it mended (tidy). In the "
        "loss the answer counts fully, the paper's own words count lightly, and the sequence does not count. Text "
        f"counts {recipe['text_loss_weight']:g} times as much as prompts.",
        "",
        *_lengths(card),
        *([mixtures, ""] if mixtures else []),
        "| task | longest trained sequence (items) | share of prompts |",
        "|---|---|---|",
        *rows,
        "",
    ]


def _lengths(card: Mapping[str, Any]) -> list[str]:
    """Spread of the lengths of the training sequences, one sentence for each longest length."""
    recipe = Recipe(**{**card["recipe"], "full_layers": tuple(card["recipe"]["full_layers"])})
    law = {
        "broad": "half of the lengths are drawn evenly, and half evenly in their logarithm",
        "falling": f"a length n is drawn with probability proportional to exp(-n / {recipe.length_scale:g})",
    }[recipe.length_law]
    lines = [f"Lengths, in items: {law}."]
    for longest in dict.fromkeys(card["trained_lengths"].values()):
        shares = [recipe.share_up_to(length, longest) for length in (10, 20)]
        beyond = 1 - recipe.share_up_to(60, longest)
        lines.append(
            f"Of the tasks to {longest} items, {shares[0]:.0%} of the sequences have at most 10 items, {shares[1]:.0%} at "
            f"most 20, and {beyond:.1%} more than 60."
        )
    if recipe.curriculum_steps:
        lines.append(
            f"The longest length grows to these limits over the first {recipe.curriculum_steps:,} steps. The shares are those "
            "of the steps after."
        )
    return [" ".join(lines), ""]


def _accuracies(card: Mapping[str, Any]) -> list[str]:
    lines = [
        "## Accuracy",
        "",
        "The tables show the share of prompts whose whole answer line is exactly right under greedy decoding, by the length of "
        "the sequence in items. Failures beyond the trained lengths say little: at a length that was never trained, they are "
        "not evidence of over-squashing.",
        "",
    ]
    for title, within in (
        ("Inside the trained lengths", True),
        ("Beyond the trained lengths", False),
    ):
        lines += [
            f"### {title}",
            "",
            *_table([r for r in card["accuracy"] if r["within_training"] is within]),
            "",
        ]
    return lines


def _table(rows: list[dict[str, Any]]) -> list[str]:
    bands = sorted({(row["length_from"], row["length_to"]) for row in rows})
    shares = {(_label(row), row["length_from"]): row["accuracy"] for row in rows}
    labels = dict.fromkeys(_label(row) for row in rows)
    lines = [
        "| task | " + " | ".join(f"{low}-{high}" for low, high in bands) + " |",
        "|---" * (len(bands) + 1) + "|",
    ]
    for label in labels:
        row = [shares.get((label, low), math.nan) for low, _ in bands]
        lines.append(
            f"| {label} | " + " | ".join("" if math.isnan(x) else f"{x:.0%}" for x in row) + " |"
        )
    return lines


def _label(row: Mapping[str, Any]) -> str:
    options = [name for name in ("uniform", "interleave", "hint", "tidy") if row[name]]
    if row["separator_every"]:
        options.append(f"comma every {row['separator_every']}")
    return row["task"] + (f" ({', '.join(options)})" if options else "")


def _limits() -> list[str]:
    return [
        "## How to read this",
        "",
        "`uniform` draws the digits uniformly. Without it the sequence is the paper's own, in which the answer to "
        "`copy-last` and `copy-first` is always a zero. Only the uniform rows show whether the model reads the "
        "sequence. Where the paper's sequence is the same for every seed, a row rests on as many prompts as the band "
        "has lengths (at most 32).",
    ]
