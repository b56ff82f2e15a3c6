"""docs/findings/mitigations.md, the part under "Tables": what mitigations do on two real models, by
the protocol above it.

    python -m scripts.mitigations [--models gemma-3-270m smollm2-135m-instruct] [--page-only]

Each cell (a model and a task) is stored in artefacts/mitigations as it is measured, and is not
measured again: a run that was cut off goes on where it stopped. 20 minutes of one core.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from math import nan
from pathlib import Path
from typing import Any

import ostools as ost
from ostools.ground.errors import InputError
from ostools.measure.study.verdicts import ABOUT, NO_EFFECT, UNDECIDED, in_words
from ostools.mitigations import Hint, Mitigation, MitigationError, Separator, SlidingWindow, label
from ostools.mitigations import mitigation as parsed
from ostools.mitigations.passes import own_windows
from ostools.results import write_atomically
from scripts.embedded import grouped
from scripts.real_models_page import table

MODELS = ("gemma-3-270m", "smollm2-135m-instruct")
TABLES = "### Tables\n\n"
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
        measures=ABOUT if counts else ("answers", "log_probability", "collapse"),
        dtypes=(),
        level=LEVEL,
        position="prompt-end",  # where the page's numbers were measured
        sensitivity_lengths=SENSITIVITY_LENGTHS,
    )
    names = {label(parsed(arm)): name for name, arm in named.items()}
    tables: dict[str, Any] = {"effects": study.effects, "verdicts": study.verdicts}
    return {
        name: json.loads(
            frame.assign(mitigation=frame["mitigation"].map(names)).to_json(orient="records")
        )
        for name, frame in tables.items()
    }


def hidden(model: Any) -> Cell:
    """Distance of n and n + 1 ones, and bfloat16's rounding noise of the pair."""
    found: Cell = {}
    for name, arm in {"none": None, **arms(model, ONES)}.items():
        try:
            result = ost.collapse(
                model, ONES, lengths=ONES_LENGTHS, dtypes=["bfloat16"], mitigation=arm
            )
        except (InputError, MitigationError) as error:
            found[name] = {"refused": str(error)}
            continue
        at_y: Any = result.measured().query(
            "site == 'y' and per == 'vector' and norm == 'l2' and dtype == 'bfloat16'"
        )
        found[name] = {
            column: at_y[column].tolist() for column in ("length", "float64_distance", "pair_noise")
        }
    return found


def measure(name: str) -> None:
    """What is not stored yet of one model."""
    model: Any = None
    for cell in (COUNT, RETRIEVE, ONES):
        target = STORE / name / f"{cell}.json"
        if target.exists() or (cell != ONES and (name, cell) not in STUDIES):
            continue
        model = model or ost.load_model(name, dtype="float32")
        target.parent.mkdir(parents=True, exist_ok=True)
        print(f"{datetime.now(UTC):%H:%M:%S} {name} {cell}", flush=True)
        values = hidden(model) if cell == ONES else effects(model, cell)
        values |= {
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "weights": ost.models.describe(model).weight_hash,
        }
        write_atomically(target, lambda part, values=values: part.write_text(json.dumps(values)))


def effect_words(row: Cell, verdict: str) -> str:
    """An effect with the interval that its verdict is read from, and the verdict where there is
    one.
    """
    words = in_words(row, "verdict_low", "verdict_high")
    if row["quantity"] == "correct":
        change = f"{row['baseline']:.0%} → {row['value']:.0%}"
        # Where none is right without it, or all are, the change says all.
        words = change if row["baseline"] in (0, 1) else f"{change}: {words}"
    return words if verdict in (NO_EFFECT, UNDECIDED) else f"**{verdict}**: {words}"


def study_rows(name: str, task: str) -> list[list[str]]:
    """A row a mitigation: what it does to answers, log p, distance and sensitivity."""
    stored = json.loads((STORE / name / f"{task}.json").read_text(encoding="utf-8"))
    verdicts = {row["mitigation"]: row for row in stored["verdicts"]}
    rows = []
    for mitigation, verdict in verdicts.items():
        judged = {
            row["about"]: row
            for row in stored["effects"]
            if row["mitigation"] == mitigation and row["about"]
        }
        for row in judged.values():  # JSON has no NaN
            row |= {key: nan for key, value in row.items() if value is None}
        cells = [
            effect_words(judged[about], verdict[about]) if about in judged else "–"
            for about in ABOUT
        ]
        rows.append([f"{name}, `{task}`", mitigation, *cells])
    return rows


def hidden_rows(name: str) -> list[list[str]]:
    """A row a mitigation of the forward pass: distance over bfloat16's noise at each number of
    ones.
    """
    stored = json.loads((STORE / name / f"{ONES}.json").read_text(encoding="utf-8"))
    arms = {
        arm: row for arm, row in stored.items() if isinstance(row, dict) and "refused" not in row
    }
    return [
        [
            name,
            arm,
            *(
                f"{d:.2f} / {noise:.2f}"
                for d, noise in zip(row["float64_distance"], row["pair_noise"], strict=True)
            ),
        ]
        for arm, row in arms.items()
    ]


def _grouped_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(grouped(table(columns, rows).splitlines())) + "\n"


def write_results() -> None:
    """The tables of what is stored, in the place of those that stand under "Tables"."""
    studies = [
        row
        for name, task in STUDIES
        if (STORE / name / f"{task}.json").exists()
        for row in study_rows(name, task)
    ]
    ones = [
        row
        for name in MODELS
        if (STORE / name / f"{ONES}.json").exists()
        for row in hidden_rows(name)
    ]
    columns = [
        "model and task",
        "mitigation",
        "right answers",
        "log p",
        "distance",
        "sensitivity (estimated)",
    ]
    text = "" if not studies else _grouped_table(columns, studies) + "\n"
    text += "Distance of n and n + 1 ones / bfloat16's rounding noise of the pair, at n ones:\n\n"
    text += _grouped_table(["model", "mitigation", *map(str, ONES_LENGTHS)], ones)
    head, _, _ = PAGE.read_text(encoding="utf-8").partition(TABLES)
    write_atomically(PAGE, lambda part: part.write_text(head + TABLES + text, encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--page-only", action="store_true")
    options = parser.parse_args()
    for name in [] if options.page_only else options.models:
        measure(name)
    write_results()


if __name__ == "__main__":
    main()
