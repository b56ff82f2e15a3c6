"""docs/findings/patching.md: which part of a real model carries an answer, by activation patching
and attention knockout.

    python -m scripts.patching [--models gemma-3-270m] [--page-only]

Each cell (a model, a pair of prompts) is stored in artefacts/patching as it is measured, and is not
measured again. The tables of the page are written between their marks, and the words around them
are left alone. Gemma and SmolLM2 take some ten minutes of one core and 3 GB; Qwen eight minutes of
two cores and 15 GB.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

import ostools as ost
from benchmarks.scale import write_page
from ostools.ground.lens import TransformerBridge
from ostools.results import write_atomically
from scripts.embedded import grouped, header, row

SMOL, GEMMA, QWEN = "smollm2-135m-instruct", "gemma-3-270m", "qwen2.5-coder-1.5b-instruct"
ROOT = Path(__file__).parents[1]
STORE, PAGE = ROOT / "artefacts" / "patching", ROOT / "docs" / "findings" / "patching.md"
PICTURE = PAGE.with_name("patching.png")
CAPITALS = "capital of Germany or France"
TEXTS = ("The capital of Germany is the city of", "The capital of France is the city of")
COUNT = "count-ones-bernoulli:tidy=true"
BESIDE = tuple(f"copy-beside:side={side}" for side in ("left", "right"))
RETRIEVE = "retrieve-at-position"
GAPS = (
    (COUNT, 4),
    (COUNT, 6),
    (COUNT, 8),
    ("copy-first", 11),
    ("copy-last", 11),
    *((name, 5) for name in BESIDE),
    (RETRIEVE, 3),
)
"""Tasks and numbers of items whose clean and corrupt runs are compared; what is drawn, with three
seeds.
"""
SEEDS = 3
CARRIED = {
    SMOL: ((CAPITALS, 0, 0), (RETRIEVE, 3, 1)),
    GEMMA: ((CAPITALS, 0, 0), ("copy-first", 11, 0), (RETRIEVE, 3, 0), (BESIDE[0], 5, 0)),
    QWEN: (
        (CAPITALS, 0, 0),
        (COUNT, 4, 0),
        (COUNT, 8, 0),
        ("copy-last", 11, 0),
        ("copy-first", 11, 0),
        (BESIDE[1], 5, 0),
        (RETRIEVE, 3, 0),
    ),
}
"""Pairs of which both runs have their own answer: name, items, seed."""
WINDOW = 3
LARGE = 28 * 1536
"""Layers times width from which on first order is left out: float32 weights of 6 GB, as much again
for gradients."""
Cell = dict[str, Any]


def pair_of(name: str, items: int, seed: int) -> tuple[Any, ...]:
    """What `ost.patch` takes after the model."""
    return (
        TEXTS
        if name == CAPITALS
        else tuple(ost.tasks.questions(name, lengths=[items], seeds=[seed]))
    )


def patched(model: TransformerBridge, pair: tuple[Any, ...], **options: Any) -> Any:
    logit = {"logit": (" Berlin", " Paris")} if pair == TEXTS else {}
    return ost.patch(model, *pair, **logit, **options, progress=False)


def gap(model: TransformerBridge, name: str, items: int, seed: int) -> Cell:
    """The two runs' logit differences, the two answers, and where the prompts differ; {} and the
    reason where it is refused.
    """
    try:
        result = patched(
            model, pair_of(name, items, seed), layers=[0], positions=[0], first_order=False
        )
    except ost.InputError as error:
        return {"refused": str(error)}
    ids, parameters = result.provenance.token_ids, result.provenance.parameters
    values = result.frame.query("quantity == 'logit_difference'").iloc[0]
    differ = [
        place
        for place, pair in enumerate(zip(ids, parameters["corrupt_ids"], strict=True))
        if len(set(pair)) > 1
    ]
    numbers = {"clean": float(values["clean"]), "corrupt": float(values["corrupt"])}
    return numbers | {"answers": parameters["logit"], "differ": differ, "tokens": len(ids)}


def carried(model: TransformerBridge, name: str, items: int, seed: int) -> Cell:
    """Of every layer the share of the gap that the tokens that differ, those after them, and the
    last one carry together; what knocking out the last token's edges to the first of these takes;
    and the verdict on first order, where gradients fit beside the model."""
    pair, known = pair_of(name, items, seed), gap(model, name, items, seed)
    small = int(model.cfg.n_layers * model.cfg.d_model) < LARGE
    last = known["tokens"] - 1
    between = [place for place in range(known["differ"][0], last) if place not in known["differ"]]
    groups = [known["differ"], between, [last]]
    residual = patched(model, pair, positions=groups, first_order=small)
    edges = patched(
        model, pair, what="edges", window=WINDOW, positions=[known["differ"]], first_order=False
    )
    rows = residual.frame.query("quantity == 'logit_difference'")
    shares = {
        way: group.pivot(index="layer", columns="positions", values="share")[
            list(group["positions"].unique())
        ]
        for way, group in rows.groupby("direction")
    }
    cut = edges.frame.query("quantity == 'logit_difference'")
    verdicts = dict.fromkeys(shares, "not measured")
    if small:
        agreement = residual.agreement.query("quantity == 'logit_difference'")
        verdicts = agreement.set_index("direction")["words"].to_dict()
    return known | {
        "shares": {way: table.to_numpy().tolist() for way, table in shares.items()},
        "knockout": dict(zip(cut["layer"].tolist(), cut["share"].tolist(), strict=True)),
        "first_order": verdicts,
    }


def stored(model: str, cell: str) -> Cell | None:
    path = STORE / model / f"{cell}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def keep(model: str, cell: str, values: Cell) -> None:
    path = STORE / model / f"{cell}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda part: part.write_text(json.dumps(values)))


def named(kind: str, name: str, items: int, seed: int) -> str:
    return f"{kind} {name.replace(':', ' ')} {items} {seed}"


def gap_cases() -> list[tuple[str, int, int]]:
    """Task, items and seed of every gap."""
    return [
        (task, items, seed)
        for task, items in GAPS
        for seed in range(SEEDS if ost.tasks.task(task).random else 1)
    ]


def measure(name: str) -> None:
    """What is not stored yet of one model."""
    model = None
    cases = [("gap", gap, case) for case in gap_cases()] + [
        ("carried", carried, case) for case in CARRIED.get(name, ())
    ]
    for kind, work, case in cases:
        if stored(name, named(kind, *case)) is None:
            model = model or ost.load_model(name, dtype="float32", device="cpu")
            keep(name, named(kind, *case), work(model, *case))
    if name == SMOL and not PICTURE.is_file():
        model = model or ost.load_model(name, dtype="float32", device="cpu")
        patched(model, TEXTS).plot().save(PICTURE)
        picture = Image.open(PICTURE).convert("RGB")
        picture.resize((picture.width // 2, picture.height // 2), Image.Resampling.LANCZOS).save(
            PICTURE, optimize=True
        )


def gap_table() -> Iterator[str]:
    """A row a model and task: of each seed the two logit differences."""
    yield from header(
        "model",
        "task",
        "items",
        "logit difference, clean → corrupt",
        "each its own",
    )
    for name in (SMOL, GEMMA, QWEN):
        tasks: dict[tuple[str, int], list[Cell]] = {}
        for task, items, seed in gap_cases():
            cell = stored(name, named("gap", task, items, seed))
            if cell and "clean" in cell:
                tasks.setdefault((task, items), []).append(cell)
        for (task, items), cells in tasks.items():
            values = ", ".join(f"{cell['clean']:.2f} → {cell['corrupt']:.2f}" for cell in cells)
            yield row(
                name,
                f"`{task}`",
                items,
                values,
                f"{sum(cell['clean'] > 0 > cell['corrupt'] for cell in cells)} of {len(cells)}",
            )


def carried_table() -> Iterator[str]:
    """A row a model, pair and direction: in which layers each group of tokens carries at least half
    of the gap.
    """
    yield from header(
        "model", "pair", "direction", "at the tokens that differ", "at those after them", "at the last token",
        f"greatest knockout of {WINDOW} layers (from layer)", "first order is",
    )  # fmt: skip
    for name, cases in CARRIED.items():
        for task, items, seed in cases:
            cell = stored(name, named("carried", task, items, seed))
            for direction, shares in (cell or {"shares": {}})["shares"].items():
                ranges = [half([layer[group] for layer in shares]) for group in range(3)]
                layer, share = (
                    max(cell["knockout"].items(), key=lambda entry: abs(entry[1]))
                    if cell
                    else ("", 0.0)
                )
                cut = f"{share:.0%} ({layer})" if direction == "noising" else ""
                pair = f"{task}" if task == CAPITALS else f"`{task}`, {items} items"
                yield row(
                    name,
                    pair,
                    direction,
                    *ranges,
                    cut,
                    cell["first_order"][direction].removesuffix(" here").replace(" here:", ",")
                    if cell
                    else "",
                )


def half(shares: Sequence[float]) -> str:
    """The layers at which a share is at least a half: "0 to 23", or "none"."""
    layers = [layer for layer, share in enumerate(shares) if share >= 0.5]
    if not layers:
        return f"at most {max(shares):.0%}"
    return f"{layers[0]} to {layers[-1]}" + (
        "" if len(layers) == layers[-1] - layers[0] + 1 else f" ({len(layers)} of them)"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=[SMOL, GEMMA, QWEN])
    parser.add_argument("--page-only", action="store_true")
    options = parser.parse_args(arguments)
    if not options.page_only:
        for name in options.models:
            measure(name)
    tables = {"gaps": gap_table(), "carried": carried_table()}
    write_page(PAGE, **{name: "\n".join(grouped(lines)) for name, lines in tables.items()})


if __name__ == "__main__":
    main()
