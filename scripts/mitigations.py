"""docs/findings/mitigations.md, the part under "Results": what mitigations do on two real models, by the protocol above it.

    python -m scripts.mitigations [--models gemma-3-270m smollm2-135m-instruct] [--page-only]

Each cell (a model and a task) is stored in artefacts/mitigations as it is measured, and is not measured again: a run that was
cut off goes on where it stopped. 20 minutes of one core.
"""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ostools as ost
from mitigations import Hint, Mitigation, MitigationError, Separator, SlidingWindow, label
from mitigations import mitigation as parsed
from mitigations.window import own_windows
from ostools.ground.errors import InputError
from ostools.results import write_atomically

MODELS = ("gemma-3-270m", "smollm2-135m-instruct")
ROOT = Path(__file__).parents[1]
STORE, PAGE = ROOT / "artefacts" / "mitigations", ROOT / "docs" / "findings" / "mitigations.md"
COUNT, RETRIEVE, ONES = "count-ones-bernoulli", "retrieve-at-position", "figure-5a"
ONES_LENGTHS = (32, 64, 96, 128, 160)
WINDOW, FACTOR = 32, 1.25
STUDIES = (("gemma-3-270m", COUNT), ("smollm2-135m-instruct", COUNT), ("gemma-3-270m", RETRIEVE))
LEVEL = 1 - 0.05 / len(STUDIES)
"""Of one study: all verdicts of all three hold together at 95%."""
SENSITIVITY_LENGTHS = 4
RETRIEVAL_HINT = "*Hint* Find the key first, then read the value behind it, check carefully"

Cell = dict[str, Any]


def arms(model: Any, task: str) -> dict[str, Mitigation | str]:
    """The five mitigations by the names that the page gives them."""
    own = tuple(own_windows(model))
    records = task == RETRIEVE
    return {
        "separator": Separator(3, "\n") if records else Separator(),
        "hint": Hint(RETRIEVAL_HINT) if records else Hint(),
        "repeated question": "repeat-prompt",
        f"temperature, scores ×{FACTOR}": f"attention-temperature:factor={FACTOR}",
        f"window of {WINDOW}, some layers": SlidingWindow(WINDOW, own or "alternate"),
    }


def effects(model: Any, task: str) -> Cell:
    """One study: effects of all five, each with the interval that its verdict is read from."""
    named, counts = arms(model, task), task == COUNT
    study = ost.study(
        model,
        task,
        mitigations=list(named.values()),
        lengths=range(4, 52, 4) if counts else range(2, 26, 2),
        seeds=[100],
        dtypes=(),
        level=LEVEL,
        sensitivity_lengths=SENSITIVITY_LENGTHS if counts else 0,
    )
    names = {label(parsed(arm)): name for name, arm in named.items()}
    tables = {"effects": study.effects, "verdicts": study.verdicts}
    return {
        name: json.loads(table.assign(mitigation=table["mitigation"].map(names)).to_json(orient="records"))
        for name, table in tables.items()
    }


def hidden(model: Any) -> Cell:
    """Distance of n and n + 1 ones, and bfloat16's rounding noise of the pair."""
    found: Cell = {}
    for name, arm in {"none": None, **arms(model, ONES)}.items():
        try:
            result = ost.collapse(model, ONES, lengths=ONES_LENGTHS, dtypes=["bfloat16"], mitigation=arm)
        except (InputError, MitigationError) as error:
            found[name] = {"refused": str(error)}
            continue
        at_y: Any = result.measured().query("site == 'y' and per == 'vector' and norm == 'l2' and dtype == 'bfloat16'")
        found[name] = {column: at_y[column].tolist() for column in ("length", "float64_distance", "pair_noise")}
    return found


def measure(name: str) -> None:
    """What is not stored yet of one model."""
    model: Any = None
    for cell in (ONES, COUNT, RETRIEVE):
        target = STORE / name / f"{cell}.json"
        if target.exists() or (cell != ONES and (name, cell) not in STUDIES):
            continue
        model = model or ost.load_model(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        print(f"{datetime.now(UTC):%H:%M:%S} {name} {cell}", flush=True)
        values = hidden(model) if cell == ONES else effects(model, cell)
        values |= {"date": f"{datetime.now(UTC):%Y-%m-%d}", "weights": ost.models.describe(model).weight_hash}
        write_atomically(target, lambda part, values=values: part.write_text(json.dumps(values)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--page-only", action="store_true")
    options = parser.parse_args()
    for name in [] if options.page_only else options.models:
        measure(name)


if __name__ == "__main__":
    main()
