"""docs/findings/real-models.md: each headline of this tool, measured on real models over prompts of
four kinds.

    python -m scripts.real_models [--models gemma-3-270m smollm2-135m-instruct] [--only attention/]
    [--page-only]

Each cell (a model, a question, a prompt) is stored in artefacts/real-models as it is measured, and
is not measured again: a run that was cut off goes on where it stopped. The page is written from the
stored cells, with the date and the weights' hashes; what it says of a model of which no cell of a
section is stored here stays as it is. About an hour and a half on one core for each small model;
Qwen, which is asked less, is measured where it is named.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools.measure.profiles.position_effect import PASSAGES
from ostools.models.tokens import frame as special_tokens
from ostools.models.tokens import text_ids
from ostools.results import write_atomically
from scripts.real_models_page import page

SMALL = ("gemma-3-270m", "smollm2-135m-instruct")
LARGE = "qwen2.5-coder-1.5b-instruct"
"""Loaded in bfloat16, and asked less: the shortest prompts, few cotangents, no twin of random
weights, no norms of MLPs.
"""
LENGTHS = (32, 48, 64, 96, 128)
"""Tokens of the five prompts of each kind."""
ROOT = Path(__file__).parents[1]
STORE, PAGE = ROOT / "artefacts" / "real-models", ROOT / "docs" / "findings" / "real-models.md"
LINEARISATIONS = ("full", "frozen")
REFERENCE_COTANGENTS, LARGE_COTANGENTS, REFERENCE_SEED = 64, 16, 1000
"""The reference: its own error is measured on the shortest prompts, which are measured exactly too.
"""
SKETCHES = (2, 4, 8, 16)
FORMS = ("theorem-5.1", "theorem-b5", "proof", "local")
MOST_HOPS = 4
TASKS = ("copy-last:uniform=true", "count-ones-bernoulli")
REPEATED = (1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128)

Cell = dict[str, Any]


@dataclass(frozen=True)
class RealPrompt:
    """One of the twenty: its kind, its number of tokens, and the prompt."""

    kind: str
    tokens: int
    prompt: ost.Prompt

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.tokens}"


WINDOWED_TOKENS = 8
WINDOWS = (1, 2, 4, 8, 16)
"""Of `windowed(k)`, beside the depth. The norms cost minutes a prompt: so the first tokens of the
shortest prompts.
"""


def prompts(model: TransformerBridge) -> list[RealPrompt]:
    """The passages, each cut to its number of tokens; of a large model the shortest of each kind."""
    before, _ = special_tokens(model.tokenizer)
    chosen = []
    for place, passage in enumerate(PASSAGES):
        length = LENGTHS[place % len(LENGTHS)]
        if is_large(model) and length > min(LENGTHS):
            continue
        ids = [*before, *text_ids(model.tokenizer, passage.text)][:length]
        assert len(ids) == length, f"passage {place} has {len(ids)} tokens"
        chosen.append(RealPrompt(passage.kind, length, ost.Prompt.from_ids(model, ids)))
    return chosen


def is_large(model: TransformerBridge) -> bool:
    """Whether a prompt costs minutes: what is asked of `LARGE`."""
    return int(model.cfg.d_model) > 1024


def norms(result: Any, linearisation: str) -> np.ndarray:
    """Frobenius norms over the tokens."""
    rows = result.frame[result.frame["linearisation"] == linearisation]
    return rows["frobenius_norm"].to_numpy(dtype=float)


def agreement(values: np.ndarray, reference: np.ndarray) -> Cell:
    """Spearman's rank correlation over the tokens, and the median log10 of the ratio of sizes."""
    with np.errstate(divide="ignore"):
        ratio = np.log10(values) - np.log10(reference)
    return {
        "spearman": float(np.asarray(spearmanr(values, reference))[0]),
        "log10_size": float(np.median(ratio)),
    }


def sensitivities(model: TransformerBridge, real: RealPrompt) -> Cell:
    """The reference profile; sketches of few cotangents, the paper's forms and attention against
    it.
    """
    names = list(LINEARISATIONS)
    reference = _reference(model, real.prompt)
    cell: Cell = {name: norms(reference, name).tolist() for name in names}
    known = {name: np.array(cell[name]) for name in names}
    cell["sketch"] = {}
    for count in () if is_large(model) else SKETCHES:
        sketch = _sketch(model, real.prompt, count)
        cell["sketch"][str(count)] = {
            name: agreement(norms(sketch, name), known[name]) for name in names
        }
        if count == 8:
            cell["covered"] = {name: _covered(sketch, name, known[name]) for name in names}
    cell["frozen_for_full"] = agreement(known["frozen"], known["full"])
    forms = ("theorem-5.1",) if is_large(model) else FORMS
    paths = ost.bounds(model, real.prompt, variants=list(forms), mlp_norm="product").frame
    cell["forms"] = {
        form: {
            name: agreement(paths.loc[paths["variant"] == form, "value"].to_numpy(), known[name])
            for name in names
        }
        for form in forms
    }
    cell["certificate"] = {
        name: dict(reference.provenance.parameters["runs"][name]) for name in names
    }
    return cell


def baselines(model: TransformerBridge, real: RealPrompt, reference: Cell) -> Cell:
    """Attention baselines against the reference profile of the same prompt."""
    frame = ost.measure.attention_baselines(model, real.prompt).frame
    return {
        str(name): {
            which: agreement(rows["value"].to_numpy(), np.array(reference[which]))
            for which in LINEARISATIONS
        }
        for name, rows in frame.groupby("baseline", sort=False)
    }


def exact(model: TransformerBridge, real: RealPrompt) -> Cell:
    """How far the reference is from the exact norms."""
    names = list(LINEARISATIONS)
    reference = _reference(model, real.prompt)
    whole = ost.sensitivity(model, real.prompt, linearisations=names, method="exact")
    return {
        "reference_against_exact": {
            name: agreement(norms(reference, name), norms(whole, name)) for name in names
        },
        "exact": {name: norms(whole, name).tolist() for name in names},
    }


def hops(models: Mapping[str, TransformerBridge], real: RealPrompt) -> Cell:
    """Shares of attention hops, and how far parts of different hops cancel; of the model and of its
    untrained twin.
    """
    cell: Cell = {}
    for source, model in models.items():
        result = ost.measure.hops(
            model, real.prompt, most=MOST_HOPS, cotangents=4 if is_large(model) else 8
        )
        cancels: Any = result.cancellation
        cell[source] = {
            "summary": _rows(result.summary),
            "cancellation": float(
                cancels[cancels["position"] < cancels["position"].max()]["cancellation"].median()
            ),
        }
    return cell


def windowed(model: TransformerBridge, real: RealPrompt) -> Cell:
    """Looseness of the certified bounds against the exact frozen operator norm, and the CPU seconds
    of each.
    """
    prompt = ost.Prompt.from_ids(model, real.prompt.ids[:WINDOWED_TOKENS].tolist())
    whole = ost.sensitivity(model, prompt, linearisations="frozen", method="exact").frame
    known = whole["operator_norm"].to_numpy(dtype=float)
    cell: Cell = {}
    for form in ("local", *(f"windowed({k})" for k in (*WINDOWS, model.cfg.n_layers))):
        start = time.process_time()
        values = ost.bounds(model, prompt, variants=form).frame["value"].to_numpy(dtype=float)
        cell[form] = {"seconds": time.process_time() - start, **agreement(values, known)}
    return cell


def carried(model: TransformerBridge, real: RealPrompt) -> Cell:
    """How far towards other tokens the derivative carries; and the certificate of a sketch of 8
    cotangents.
    """
    result = ost.measure.linear_range(model, real.prompt)
    sketch = _sketch(model, real.prompt, 8)
    rows = sketch.frame.assign(
        half=lambda row: (row.frobenius_upper - row.frobenius_lower) / (2 * row.frobenius_norm)
    )
    widest = rows.groupby("linearisation")["half"].max()
    runs = sketch.provenance.parameters["runs"]
    certificate = {
        name: {"within": run["certificate"]["within"], "widest": float(widest[name])}
        for name, run in runs.items()
    }
    return {
        "tokens": _rows(result.frame[["linear_range", "error"]]),
        "spearman": result.spearman,
        "certificate": certificate,
    }


def use(model: TransformerBridge, real: RealPrompt) -> Cell:
    """Whether sensitivity is use: each token left out once, and what that does to the answer."""
    result = ost.measure.faithfulness(model, _reference(model, real.prompt), ways="removed")
    return {"correlations": _rows(result.correlations)}


def _reference(model: TransformerBridge, prompt: ost.Prompt) -> Any:
    count = LARGE_COTANGENTS if is_large(model) else REFERENCE_COTANGENTS
    how: dict[str, Any] = {"method": "sketch", "cotangents": count, "seed": REFERENCE_SEED}
    key = (id(model), *prompt.ids.tolist())
    if key not in _references:
        _references.clear()
        _references[key] = ost.sensitivity(
            model, prompt, linearisations=list(LINEARISATIONS), **how
        )
    return _references[key]


_references: dict[tuple[int, ...], Any] = {}
"""The last one: a prompt's questions come one after the other."""


def _sketch(model: TransformerBridge, prompt: ost.Prompt, count: int) -> Any:
    names = list(LINEARISATIONS)
    return ost.sensitivity(model, prompt, linearisations=names, method="sketch", cotangents=count)


def _covered(sketch: Any, name: str, known: np.ndarray) -> float:
    """In what share of the tokens the 95% interval holds the reference."""
    rows = sketch.frame[sketch.frame["linearisation"] == name]
    lower, upper = (rows[f"frobenius_{end}"].to_numpy(dtype=float) for end in ("lower", "upper"))
    return float(np.mean((lower <= known) & (known <= upper)))


def repeated(model: TransformerBridge, real: RealPrompt) -> Cell:
    """Collapse where the prompt's last token is repeated, in bfloat16."""
    result = ost.collapse(model, real.prompt, lengths=REPEATED, dtypes=["bfloat16"])
    return {"curves": _rows(result.frame), "ranges": _ranges(result)}


def _rows(table: Any) -> list[Cell]:
    return json.loads(table.to_json(orient="records"))


def _ranges(result: Any) -> list[Cell]:
    return _rows(result.hidden_ranges())


def figure_5(model: TransformerBridge, task: str) -> Cell:
    """The paper's pair of prompts, every length up to 520: past Gemma 3's sliding window."""
    lengths = range(1, 521) if task == "figure-5a" else range(1, 257)
    result = ost.collapse(model, task, lengths=lengths, dtypes=["float32", "bfloat16"])
    return {"ranges": _ranges(result)}


def position(model: TransformerBridge) -> Cell:
    """Thirds of natural passages with token identity taken out, the untrained model beside."""
    options: dict[str, Any] = (
        {"passages": 6, "cotangents": 4, "untrained": False} if is_large(model) else {}
    )
    result = ost.measure.position_effect(model, tokens=48, method="sketch", **options)
    return {"contrasts": _rows(result.contrasts), "shape": result.verdict}


def answers(model: TransformerBridge, task: str) -> Cell:
    """Right answers and their log probability, asked by the default of the model's kind."""
    result = ost.evaluate(model, task, lengths=(4, 8, 16, 32), seeds=range(5))
    return {"rows": _rows(result.frame)}


def probes(model: TransformerBridge) -> Cell:
    """Whether the count can be read off y, beside the architecture with random weights."""
    result = ost.probe(
        model,
        "count-ones-bernoulli",
        lengths=(4, 6, 8, 12, 16, 24, 32),
        seeds=range(12),
    )
    return {"rows": _rows(result.frame)}


def cells(model: TransformerBridge, folder: Path) -> Iterator[tuple[str, Callable[[], Cell]]]:
    """Every question of one model, the dear ones last; `folder`: where its cells are stored."""
    every = sorted(prompts(model), key=lambda real: real.tokens)
    yield "position", lambda: position(model)
    for real in every:
        yield f"sensitivity/{real.name}", lambda real=real: sensitivities(model, real)
        yield (
            f"attention/{real.name}",
            lambda real=real: baselines(model, real, _stored(folder, f"sensitivity/{real.name}")),
        )
        yield f"use/{real.name}", lambda real=real: use(model, real)
    if is_large(model):
        for real in every:
            yield f"hops/{real.name}", lambda real=real: hops({"trained": model}, real)
        return
    yield "figure-5/figure-5a", lambda: figure_5(model, "figure-5a")
    for task in TASKS:
        yield f"answers/{task}", lambda task=task: answers(model, task)
    for real in every:
        if real.tokens == min(LENGTHS):
            yield f"exact/{real.name}", lambda real=real: exact(model, real)
    for task in ("figure-5b", "figure-5c", "figure-5d"):
        yield f"figure-5/{task}", lambda task=task: figure_5(model, task)
    yield "probes", lambda: probes(model)
    twins = {"trained": model, "untrained": ost.models.untrained_model(model)}
    for real in every:
        yield f"hops/{real.name}", lambda real=real: hops(twins, real)
    for real in every:
        if real.tokens == min(LENGTHS):
            yield f"windowed/{real.name}", lambda real=real: windowed(model, real)
    for real in every:
        if real.tokens == min(LENGTHS):
            yield f"range/{real.name}", lambda real=real: carried(model, real)
    for real in every:
        yield f"repeated/{real.name}", lambda real=real: repeated(model, real)


def _file(folder: Path, cell: str) -> Path:
    return folder / f"{cell.replace('/', '--')}.json"


def _stored(folder: Path, cell: str) -> Cell:
    return json.loads(_file(folder, cell).read_text(encoding="utf-8"))


def measure(name: str, only: tuple[str, ...]) -> None:
    """What is not stored yet of one model, of the cells whose names begin with one of `only`."""
    folder = STORE / name
    model = ost.load_model(name, dtype="bfloat16" if name == LARGE else "float32")
    described = ost.models.describe(model)
    for cell, work in cells(model, folder):
        target = _file(folder, cell)
        if target.exists() or not cell.startswith(only):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        print(f"{datetime.now(UTC):%H:%M:%S} {name} {cell}", flush=True)
        try:
            values = work()
        except ost.InputError as error:
            values = {"refused": str(error)}
        values |= {
            "weights": described.weight_hash,
            "model": described.name,
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
        }
        write_atomically(target, lambda part, values=values: part.write_text(json.dumps(values)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(SMALL))
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="START", help="cells whose names begin so"
    )
    parser.add_argument("--page-only", action="store_true")
    options = parser.parse_args()
    if not options.page_only:
        for name in options.models:
            measure(name, tuple(options.only))
    written = page(STORE, (*SMALL, LARGE), PAGE.read_text(encoding="utf-8"))
    write_atomically(PAGE, lambda part: part.write_text(written, encoding="utf-8"))


if __name__ == "__main__":
    main()
