"""The model card: `card.json` holds what was done and measured, `MODEL_CARD.md` is rendered from it and
from nothing else."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from ostools.training.corpus import PACKAGES, Corpus
from ostools.training.evaluate import Accuracy
from ostools.training.loop import Run


def make_card(run: Run, corpus: Corpus, tokenizer_sha256: str, bits: float, rows: Iterable[Accuracy]) -> dict[str, Any]:
    """Everything the card says, as plain JSON values. It names no host and no path."""
    _, task_loss, text_loss = run.losses[-1]
    versions = {name: importlib.metadata.version(name) for name in ("tokenizers", "torch", "transformers")}
    versions["torch"] = versions["torch"].partition("+")[0]
    return {
        "architecture": "GemmaForCausalLM",
        "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
        "recipe": asdict(run.recipe),
        "trained_lengths": run.recipe.trained_lengths(),
        "task_shares": dict(run.recipe.shares),
        "text": {
            "source": "docstrings of pinned packages",
            "packages": dict(PACKAGES),
            "sha256": corpus.sha256,
            "bytes": corpus.n_bytes,
            "paragraphs": len(corpus.paragraphs),
            "held_out_paragraphs": corpus.n_held_out,
        },
        "tokenizer_sha256": tokenizer_sha256,
        "machine": {
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "threads_used": 1,
            "accelerator": None,
        },
        "training_minutes": round(run.seconds / 60, 1),
        "tokens_seen": run.tokens,
        "versions": {"python": platform.python_version(), **versions},
        "final_loss": {"prompts_nats": round(task_loss, 5), "text_nats_per_token": round(text_loss, 5)},
        "held_out_bits_per_byte": round(bits, 4),
        "accuracy": [asdict(row) for row in rows],
    }


def render_card(card: Mapping[str, Any]) -> str:
    """The card as Markdown, with one table of accuracies inside the trained lengths and one beyond them."""
    return "\n".join([*_head(card), *_data(card), *_accuracies(card), *_limits()]) + "\n"


def _head(card: Mapping[str, Any]) -> list[str]:
    recipe, machine, text = card["recipe"], card["machine"], card["text"]
    return [
        "# The embedded model",
        "",
        "Written by `python -m ostools.training.train` from `card.json`; not edited by hand.",
        "",
        f"A `{card['architecture']}` with {card['parameters']:,} parameters in float32: {recipe['n_layers']} layers, "
        f"d_model {recipe['d_model']}, {recipe['n_heads']} query heads and one key/value head of {recipe['d_head']}, "
        f"gated MLP of {recipe['d_mlp']}, tied embeddings, context {recipe['context_length']}. It was trained from "
        "random weights on the prompts of the paper (arXiv 2406.04267, Appendix C.1 and Figure 5) and on plain text. "
        "It is a specimen to measure on, not a useful language model.",
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
        f"| held-out text | {card['held_out_bits_per_byte']} bits per byte |",
        f"| versions | {', '.join(f'{name} {version}' for name, version in card['versions'].items())} |",
        f"| text | {text['bytes']:,} bytes, sha256 `{text['sha256']}` |",
        f"| tokenizer | sha256 `{card['tokenizer_sha256']}` |",
        "",
        "The same seed, versions and machine give the same weights, resumed or not; another processor may round otherwise, "
        "so equality to the bit across machines is not promised.",
        "",
    ]


def _data(card: Mapping[str, Any]) -> list[str]:
    text = card["text"]
    packages = ", ".join(f"{name} {version}" for name, version in text["packages"].items())
    total = sum(card["task_shares"].values())
    rows = [
        f"| {task} | {longest} | {card['task_shares'][task] / total:.0%} |"
        for task, longest in card["trained_lengths"].items()
    ]
    return [
        "## Data",
        "",
        f"Plain text: {text['paragraphs']:,} paragraphs of prose from the docstrings of {packages} (all under BSD "
        f"licences), {text['held_out_paragraphs']:,} of them held out; {card['recipe']['repeat_share']:.0%} of the "
        f"blocks of {card['recipe']['text_length']} tokens say their first half twice.",
        "",
        "Prompts are generated: half of those for one digit carry the paper's hint, a third of those on digits a comma "
        "after every third digit, a tenth of those for copying and for ones interleaved zeros and ones, half of those with "
        "slips of the paper's pen have them mended (tidy). The loss counts the answer fully, the paper's own words lightly, "
        "and the sequence not at all.",
        "",
        "| task | longest trained sequence (items) | share of prompts |",
        "|---|---|---|",
        *rows,
        "",
    ]


def _accuracies(card: Mapping[str, Any]) -> list[str]:
    lines = [
        "## Accuracy",
        "",
        "Share of prompts whose whole answer line is exactly right under greedy decoding, by the length of the sequence in "
        "items. Failures beyond the trained lengths say little: a length never trained is not over-squashing.",
        "",
    ]
    for title, within in (("Inside the trained lengths", True), ("Beyond the trained lengths", False)):
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
        found = [shares.get((label, low), math.nan) for low, _ in bands]
        lines.append(f"| {label} | " + " | ".join("" if math.isnan(x) else f"{x:.0%}" for x in found) + " |")
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
        "`copy-last` and `copy-first` is always a zero: only the uniform rows tell whether the model looks. Where the "
        "paper's sequence is the same for every seed, a row rests on as many prompts as the band has lengths (at most 32).",
    ]
