"""The tables of docs/findings/embedded-models.md: `python -m scripts.embedded [TABLE ...]` measures the three embedded models.

It writes each table between its two marks in the page, and leaves the words around them alone: read those again where a figure
has changed. Some of the figures are of each model's card; the others are measured, one model after the other, in float32 unless
a column says otherwise. About 25 minutes of one core, and 3 GB.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools.models.files.sources import EMBEDDED_DIRECTORIES, EMBEDDED_MODELS

PAGE = Path(__file__).parents[1] / "docs" / "findings" / "embedded-models.md"
EVERY = range(1, 257)
FAR = (16, 64, 256, 512, 1024, 2048, 4096)
SEEDS = range(8)
ANSWERED = ("copy-first", "copy-last", "sum-ones", "count-ones", "count-ones-bernoulli")
"""Of the copies, those of uniformly drawn digits."""
HELPED = ("copy-first:uniform=true", "copy-last:uniform=true")
HELP = ("hint", "separator:every=3")
QUESTIONED = (4, 8, 16, 24, 32, 48, 64)
COUNTED = range(1, 97)


def main(wanted: Sequence[str]) -> None:
    """The tables of these names; all without any. Models are loaded for tables that are measured."""
    if unknown := set(wanted) - {*OF_CARDS, *MEASURED}:
        raise SystemExit(f"expected tables out of {', '.join((*OF_CARDS, *MEASURED))}, found {', '.join(unknown)}")
    chosen = list(wanted or (*OF_CARDS, *MEASURED))
    cards = {name: json.loads((EMBEDDED_DIRECTORIES[name] / "card.json").read_text()) for name in EMBEDDED_MODELS}
    for mark in filter(OF_CARDS.__contains__, chosen):
        put(mark, list(OF_CARDS[mark](cards)))
    if measured := list(filter(MEASURED.__contains__, chosen)):
        models = {name: ost.load_model(name, device="cpu") for name in EMBEDDED_MODELS}
        for mark in measured:
            put(mark, list(MEASURED[mark](models)))


def put(mark: str, lines: Sequence[str]) -> None:
    """The table between its marks. Raises where the page has no such marks."""
    text = PAGE.read_text(encoding="utf-8")
    begin, end = f"<!-- table: {mark} -->\n", "<!-- end -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"{PAGE.name}: expected the line {begin.strip()!r} and after it {end!r}, found none")
    body = begin + "\n" + "\n".join(lines) + "\n\n" + end
    PAGE.write_text(pattern.sub(lambda _: body, text), encoding="utf-8")
    print("\n".join(lines), end="\n\n", flush=True)


def header(*names: str) -> list[str]:
    return ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]


def row(*cells: Any) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def made(cards: Mapping[str, Any]) -> Iterator[str]:
    """What each model is, of its card."""
    yield from header(
        "model", "parameters", "layers", "steps", "tokens seen", "text among them", "longest task", "bits per byte"
    )
    for name, card in cards.items():
        recipe = card["recipe"]
        text = recipe["text_tokens"] / (recipe["text_tokens"] + recipe["task_tokens"])
        windows = "" if recipe["window"] is None else f", windows of {recipe['window']} in all but one"
        yield row(
            f"`{name}`",
            f"{card['parameters']:,}",
            f"{recipe['n_layers']}{windows}",
            f"{recipe['steps']:,}",
            f"{card['tokens_seen']:,}",
            f"{text:.0%}",
            f"{max(card['trained_lengths'].values())} items",
            f"{card['held_out_bits_per_byte']:.2f}",
        )


def answers(cards: Mapping[str, Any]) -> Iterator[str]:
    """Right answers by length, of each card; its bands are those of its own trained lengths."""
    bands = [(1, 8), (9, 16), (17, 32), (33, 48), (49, 64), (65, 96), (97, 128), (129, 192), (193, 256)]
    yield from header("task", "model", *(f"{low}-{high}" for low, high in bands))
    plain = ("interleave", "hint", "tidy")
    for task in ANSWERED:
        uniform = task.startswith("copy-")
        for name, card in cards.items():
            found = {
                (one["length_from"], one["length_to"]): one["accuracy"]
                for one in card["accuracy"]
                if one["task"] == task
                and one["uniform"] == uniform
                and not any(one[other] for other in plain)
                and not one["separator_every"]
            }
            label = task + (" (uniform)" if uniform else "")
            yield row(label, f"`{name}`", *(_share(found, band) for band in bands))


def _share(found: Mapping[tuple[int, int], float], band: tuple[int, int]) -> str:
    return f"{found[band]:.0%}" if band in found else ""


def collapse(models: Mapping[str, TransformerBridge]) -> Iterator[str]:
    """Of n ones and n + 1 at y: over which lengths each precision hides them, to 256."""
    yield from header(
        "model",
        "dtype",
        "below the noise of y - y* from n =",
        "same top token from n =",
    )
    for name, model in models.items():
        found = ost.collapse(model, "figure-5a", lengths=EVERY, dtypes=["float32", "bfloat16"])
        where = {(dtype, site): verdict.where for (_, dtype, site, _), verdict in found.verdicts_over_seeds().items()}
        for dtype in ("float32", "bfloat16"):
            yield row(f"`{name}`", dtype, where[dtype, "y"], where[dtype, "top-token"])


def far(models: Mapping[str, TransformerBridge]) -> Iterator[str]:
    """The distance at y over the noise of its difference, at lengths far beyond training."""
    yield from header("model", "of y, L2", *(f"n = {length:,}" for length in FAR))
    for name, model in models.items():
        table: Any = ost.collapse(model, "figure-5a", lengths=FAR, dtypes=["bfloat16"]).frame
        at_y = table[(table["site"] == "y") & (table["norm"] == "l2") & (table["per"] == "vector")]
        here = at_y[at_y["dtype"] == "bfloat16"].set_index("length")
        for label, column in (
            ("distance in float64", "float64_distance"),
            ("bfloat16's noise of y", "noise"),
            ("bfloat16's noise of y - y*", "pair_noise"),
        ):
            yield row(f"`{name}`", label, *(f"{here.loc[length, column]:.2g}" for length in FAR))


def effects(models: Mapping[str, TransformerBridge]) -> Iterator[str]:
    """What the hint and a comma after every third digit do to the answers to the same questions."""
    yield from header(
        "task", "model", "mitigation", "right without", "right with", "difference, points", "verdict on answers"
    )
    for task in HELPED:
        for name, model in models.items():
            asked: dict[str, Any] = {"mitigations": HELP, "lengths": QUESTIONED, "seeds": SEEDS}
            found = ost.study(model, task, **asked, measures=["answers", "log_probability", "collapse"], dtypes=[])
            verdicts: Any = found.verdicts.set_index("mitigation")["answers"]
            changed: Any = found.effects[found.effects["quantity"] == "correct"]
            for one in changed.to_dict(orient="records"):
                points = f"{100 * one['effect']:.0f} [{100 * one['low']:.0f}, {100 * one['high']:.0f}]"
                shares = (f"{one[side]:.0%}" for side in ("baseline", "value"))
                yield row(task, f"`{name}`", one["mitigation"], *shares, points, verdicts[one["mitigation"]])


def favourites(models: Mapping[str, TransformerBridge]) -> Iterator[str]:
    """Which numbers stand in wrong answers to counting ones."""
    yield from header("model", f"right of {len(COUNTED)}", "first wrong at", "most frequent wrong answers (times said)")
    for name, model in models.items():
        table: Any = ost.evaluate(model, "count-ones", lengths=COUNTED).frame
        wrong = table[~table["correct"].fillna(False).astype(bool)]
        numbers = wrong["answer"].str.extract(r"(\d+)\D*$", expand=False).fillna("no number")
        said = numbers.value_counts().head(5)
        often = ", ".join(f"{answer} ({times})" for answer, times in said.items())
        yield row(f"`{name}`", len(table) - len(wrong), wrong["length"].min(), often)


OF_CARDS = {"made": made, "answers": answers}
MEASURED = {"collapse": collapse, "far": far, "help": effects, "favourites": favourites}

if __name__ == "__main__":
    main(sys.argv[1:])
