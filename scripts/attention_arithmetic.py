"""docs/findings/attention-arithmetic.md: what rounding attention's scores to 16 bits does to three
real models.

    python -m scripts.attention_arithmetic [--models gemma-3-270m] [--page-only]

Each cell (a model, a question) is stored in artefacts/attention-arithmetic as it is measured, and
is not measured again. The tables of the page are written between their marks, and the words around
them are left alone. Qwen in float32 takes 7 GB; the others 4 GB. Some 20 minutes of one core.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoModelForCausalLM

import ostools as ost
from benchmarks.scale import write_page
from ostools.measure.answers.prefilled import prefilled_prompts
from ostools.measure.collapse.verdicts import is_hidden
from ostools.models import view_in
from ostools.models.files.sources import locate
from ostools.results import write_atomically
from scripts.embedded import grouped, header, row

QWEN = "qwen2.5-coder-1.5b-instruct"
SMALL = ("gemma-3-270m", "smollm2-135m-instruct")
MODELS = (*SMALL, QWEN)
ROOT = Path(__file__).parents[1]
STORE, PAGE = (
    ROOT / "artefacts" / "attention-arithmetic",
    ROOT / "docs" / "findings" / "attention-arithmetic.md",
)
TASK, ONES = "count-ones", (8, 16, 32, 64, 128)
PAIRS, LENGTHS = "figure-5a", range(1, 521)
EAGER, WIDE = "bfloat16-eager", "bfloat16"

Cell = dict[str, Any]
States = list[tuple[Tensor, int]]
"""Of each prompt: y of the last token, and the most likely next token."""


def own_states(
    model: TransformerBridge, prompts: Sequence[Tensor]
) -> tuple[States, list[list[float]]]:
    """By this package; and of each prompt, in every layer the largest absolute score of a query and
    a key that it sees.
    """
    y, names = (
        "ln_final.hook_out",
        [f"blocks.{layer}.attn.hook_attn_scores" for layer in range(model.cfg.n_layers)],
    )
    states, largest = [], []
    for ids in prompts:
        logits, cache = model.run_with_cache(ids[None], names_filter=[y, *names])
        states.append((cache[y][0, -1].double(), int(logits[0, -1].argmax())))
        seen = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
        scores = [cache[name][0][:, seen].abs() for name in names]
        largest.append(
            [float(part[part < torch.finfo(part.dtype).max / 2].max()) for part in scores]
        )
    return states, largest


def plain_states(module: Any, prompts: Sequence[Tensor]) -> States:
    """By transformers alone."""
    found = []
    for ids in prompts:
        y = module.model(ids[None], use_cache=False).last_hidden_state[0, -1]
        found.append((y.double(), int(module.lm_head(y).argmax())))
    return found


def by_transformers(folder: Path, prompts: Sequence[Tensor]) -> dict[str, States]:
    """Eager, sdpa and float32, all of the weights in bfloat16."""
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    found = {}
    for name in ("eager", "sdpa"):
        module.set_attn_implementation(name)
        found[name] = plain_states(module, prompts)
    del module
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for weight in module.parameters():
        weight.copy_(weight.bfloat16())
    return found | {"float32": plain_states(module, prompts)}


@torch.no_grad()
def noise(name: str, source: str | None = None) -> Cell:
    """Of each prompt: how far each arithmetic moves y from that of float32 with the same weights,
    and the next token in it.

    `source`: where the model lies, if not under its name.
    """
    model = ost.load_model(source or name, dtype="bfloat16", device="cpu")
    prompts = [
        torch.tensor(prompt.ids)
        for prompt in prefilled_prompts(model, ost.tasks.task(TASK), ONES, [0])
    ]
    exact, scores = own_states(view_in(model, torch.float32), prompts)
    eager, _ = own_states(view_in(model, torch.bfloat16, eager=True), prompts)
    own, word = (
        {"float32": exact, WIDE: own_states(model, prompts)[0], EAGER: eager},
        model.tokenizer.decode,
    )
    del model
    plain = by_transformers(locate(source or name, None).directory, prompts)
    rows = []
    for at, ones in enumerate(ONES):
        parts = {"own": {key: states[at] for key, states in own.items()}}
        parts["plain"] = {key: states[at] for key, states in plain.items()}
        cell: Cell = {"ones": ones, "tokens": len(prompts[at]), "scores": scores[at]}
        for route, states in parts.items():
            y = states["float32"][0]
            cell[route] = {
                key: {"noise": float((x - y).norm()), "next": word([token])}
                for key, (x, token) in states.items()
            }
        cell["norm"] = float(parts["own"]["float32"][0].norm())
        cell["routes_apart"] = float(
            (parts["own"]["float32"][0] - parts["plain"]["float32"][0]).norm()
        )
        rows.append(cell)
    return {"rows": rows}


def hidden(name: str) -> Cell:
    """Where each arithmetic hides n ones from n + 1 at y; at how many lengths it alone does; its
    median noise of the pair.
    """
    return hidden_in(
        ost.collapse(
            ost.load_model(name, dtype="float32"), PAIRS, lengths=LENGTHS, dtypes=[EAGER, WIDE]
        )
    )


def hidden_in(result: ost.measure.Collapse) -> Cell:
    """The same of a measured result."""
    verdicts: Any = result.verdicts().query("site == 'y'").set_index("dtype")
    at_y: Any = result.frame.query("site == 'y' and norm == 'l2' and per == 'vector'")
    hides = at_y.assign(hides=is_hidden(at_y["float64_distance"], at_y["pair_noise"], at_y["mean"]))
    hides = hides.pivot_table(index="length", columns="dtype", values="hides", aggfunc="all")
    medians = at_y.groupby("dtype")["pair_noise"].median()
    rows = []
    for dtype, other in ((EAGER, WIDE), (WIDE, EAGER)):
        row = {"dtype": dtype, "noise": float(medians[dtype]), "hidden": int(hides[dtype].sum())}
        row["alone"] = int((hides[dtype] & ~hides[other]).sum())
        rows.append(row | {"status": verdicts.loc[dtype, "status"]})
    return {"rows": rows}


CELLS: dict[str, tuple[Sequence[str], Callable[[str], Cell]]] = {
    "noise": (MODELS, noise),
    "hidden": (SMALL, hidden),
}


def stored(name: str, cell: str) -> list[Cell]:
    """The rows of a cell; none where it is not measured."""
    path = STORE / name / f"{cell}.json"
    return json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []


def measure(name: str) -> None:
    """What is not stored yet of one model."""
    for cell, (models, work) in CELLS.items():
        if name in models and not stored(name, cell):
            keep(name, cell, work(name))


def keep(name: str, cell: str, values: Cell) -> None:
    path = STORE / name / f"{cell}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda part: part.write_text(json.dumps(values)))


def noise_table() -> Iterator[str]:
    """A row a model and a number of ones."""
    yield from header(
        "model",
        "ones",
        "norm of y",
        "noise, `bfloat16-eager`",
        "noise, `bfloat16`",
        "transformers, sdpa",
        "next token: float32, `bfloat16`, `bfloat16-eager`, sdpa",
        "largest score (layer)",
    )
    for name in MODELS:
        for cell in stored(name, "noise"):
            own, plain = cell["own"], cell["plain"]
            parts = (own[EAGER], own[WIDE], plain["sdpa"])
            said = [
                json.dumps(part["next"])
                for part in (own["float32"], own[WIDE], own[EAGER], plain["sdpa"])
            ]
            layer = max(range(len(cell["scores"])), key=cell["scores"].__getitem__)
            noises = [f"{part['noise']:.3g}" for part in parts]
            largest = f"{cell['scores'][layer]:,.0f} ({layer})"
            yield row(name, cell["ones"], f"{cell['norm']:.0f}", *noises, ", ".join(said), largest)


def hidden_table() -> Iterator[str]:
    """A row a model and an arithmetic."""
    hides = f"hidden, of {len(LENGTHS)} lengths"
    yield from header(
        "model", "arithmetic", "median noise of y - y*", hides, "by this one alone", "where"
    )
    for name in SMALL:
        for cell in stored(name, "hidden"):
            yield row(
                name,
                f"`{cell['dtype']}`",
                f"{cell['noise']:.3g}",
                cell["hidden"],
                cell["alone"],
                re.split(r" \(|, ", cell["status"])[0],
            )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--page-only", action="store_true")
    options = parser.parse_args(arguments)
    if not options.page_only:
        for name in options.models:
            measure(name)
    tables = {"noise": noise_table(), "hidden": hidden_table()}
    write_page(PAGE, **{name: "\n".join(grouped(lines)) for name, lines in tables.items()})


if __name__ == "__main__":
    main()
