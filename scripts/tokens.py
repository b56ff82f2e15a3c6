"""docs/findings/tokens.md: what three real models do to all tokens of a text, by distance, layer and precision.

    python -m scripts.tokens [MODEL ...] [--page-only]

Every text of every model is stored in artefacts/tokens as it is measured: a run that was cut off goes on where it stopped. The
page says what is measured so far. Some seven minutes on one core for each small model, as many for the large one, of which
fewer texts are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ostools as ost
from ostools.measure.profiles.position_effect import PASSAGES

ROOT = Path(__file__).parents[1]
STORE = ROOT / "artefacts" / "tokens"
PAGE = ROOT / "docs" / "findings" / "tokens.md"
KINDS = ("facts", "story")


@dataclass(frozen=True)
class Plan:
    """What is measured of a model: texts, their tokens, queries and cotangents of a text, and whether an
    untrained twin is measured too."""

    texts: int = 6
    tokens: int = 64
    queries: int = 4
    cotangents: int = 3
    untrained: bool = True


PLANS = {
    "gemma-3-270m": Plan(),
    "smollm2-135m-instruct": Plan(),
    "qwen2.5-coder-1.5b-instruct": Plan(3, 48, 2, 2, untrained=False),
}
STATES = 128
"""Tokens of the text whose states are compared, and of its sensitivity layer by layer."""


def texts(model: Any, count: int, tokens: int) -> list[Any]:
    """The beginnings of the project's own passages, which no model was trained on."""
    chosen = [passage.text for passage in PASSAGES if passage.kind in KINDS][:count]
    encoded = [ost.encode(model, text) for text in chosen]
    return [ost.Prompt.from_ids(model, prompt.ids[:tokens]) for prompt in encoded]


def steps(name: str, plan: Plan) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """What is measured of a model, each with the name that it is stored by."""
    options: dict[str, Any] = {"queries": plan.queries, "cotangents": plan.cotangents}
    yield (
        "states",
        lambda model: ost.token_homogenization(model, texts(model, 1, STATES)[0], untrained=plan.untrained),
    )
    for number in range(plan.texts):
        yield (
            f"distance-{number}",
            lambda model, number=number: ost.influence_by_distance(
                model, texts(model, plan.texts, plan.tokens)[number], controls="shuffled", **options
            ),
        )
    if plan.untrained:
        yield (
            "distance-untrained",
            lambda model: ost.influence_by_distance(
                ost.untrained_model(model, "initialised"), texts(model, plan.texts, plan.tokens), **options
            ),
        )
    yield (
        "sensitivity",
        lambda model: ost.sensitivity(
            model, texts(model, 1, STATES)[0], linearisations=["full"], layers="all", method="sketch", cotangents=4
        ),
    )


def measure(name: str) -> None:
    """Measure and store what is not stored yet of one model."""
    folder = STORE / name
    folder.mkdir(parents=True, exist_ok=True)
    missing = [(step, run) for step, run in steps(name, PLANS[name]) if not (folder / f"{step}.parquet").exists()]
    if missing:
        model = ost.load_model(name, dtype="float32")
        for step, run in missing:
            run(model).save(folder / f"{step}.parquet")
            print(name, step, flush=True)
