"""The questions of the page in the order of measuring, and how each is asked and stored."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import pandas as pd
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools import mitigations, tasks
from ostools.measure.answers.evaluate import task_answers
from ostools.measure.answers.result import COLUMNS, Evaluation
from ostools.measure.task_prompt import CHAT, elicit
from ostools.results import Provenance
from scripts.behaviour import states
from scripts.behaviour.store import answers, path_of

TWELVE = tuple(range(12))
CORE = (3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 20, 24, 32, 48, 64, 96, 128)
REST = tuple(n for n in (*range(2, 33), *range(36, 65, 4), 80, 112) if n not in CORE)
SHOWN = (3, 9, 12, 20, 48, 128)
"""Lengths of which the page has a row."""
COPIED = (3, 8, 32, 128)
ONES, COMMAS, BITS, FAIR = (
    "count-ones",
    "count-ones:separator_every=1",
    "count-ones-bernoulli",
    "count-ones-bernoulli:p=0.5",
)
DIGITS, DRAWN = "copy-last:uniform=true", "copy-last:uniform=true,base=2"
MITIGATIONS = {
    "separator-1": "separator:every=1",
    "separator-3": "separator:every=3",
    "hint": "hint",
    "repeat-prompt": "repeat-prompt",
    "window": "sliding-window:window=64,sinks=4",
    "sharper": "attention-temperature:factor=1.2",
    "partition": "partition",
}
BATCH = 12
"""Prompts that go through together; a step of one prompt reads as many weights."""


@dataclass(frozen=True)
class Asked:
    """Questions of one cell. `lengths` None: the two at which the cell `base` has most nearly half
    of its answers right.
    """

    task: str
    lengths: tuple[int, ...] | None
    seeds: tuple[int, ...] = (0,)
    mitigation: str | None = None
    base: str = ""

    def measure(self, model: TransformerBridge, name: str) -> None:
        """Ask and store; without the probability of the right line, which would double the cost."""
        form, acting = tasks.task(self.task), mitigations.optional(self.mitigation)
        lengths = middle(answers(self.base)) if self.lengths is None else self.lengths
        prompts = [
            elicit(model, form, n, CHAT, seed=seed, mitigation=acting)
            for n in lengths
            for seed in self.seeds
        ]
        rows, how = task_answers(model, prompts, acting, batch_size=BATCH, probability=False)
        names = {
            "task": tasks.label(form),
            "mitigation": mitigations.label(acting),
            "elicitation": CHAT,
        }
        how |= {"lengths": list(lengths), "seeds": list(self.seeds), "trained_length": None}
        provenance = Provenance.collect(model, measurement="evaluate", **names, **how)
        frame: Any = pd.DataFrame(rows).assign(**names, mode=str(getattr(form, "mode", "none")))
        frame = frame[list(COLUMNS)].astype(COLUMNS)
        Evaluation(frame, provenance).save(path_of(name))


def middle(base: Evaluation) -> tuple[int, ...]:
    """The two lengths at which the share of right answers is nearest to one half, the shorter where
    two are as near.
    """
    rows: Any = base.summary
    nearest = sorted(zip((rows["accuracy"] - 0.5).abs(), rows["length"], strict=True))[:2]
    return tuple(sorted(int(length) for _, length in nearest))


def mitigated(task: str, base: str, names: Sequence[str]) -> dict[str, Asked]:
    return {f"{base}-{name}": Asked(task, None, TWELVE, MITIGATIONS[name], base) for name in names}


COPIES = {
    "copy-last": Asked("copy-last", COPIED),
    "copy-first": Asked("copy-first", COPIED),
    "copy-last-hint": Asked("copy-last:hint=true", COPIED),
    "copy-last-commas": Asked("copy-last:separator_every=1", COPIED),
    "copy-last-commas-3": Asked("copy-last:separator_every=3", COPIED),
    "copy-last-interleaved": Asked("copy-last:interleave=true", COPIED),
    "copy-first-interleaved": Asked("copy-first:interleave=true", COPIED),
    "digits": Asked(DIGITS, (4, 6, 8, 16, 32), TWELVE),
    "digits-first": Asked("copy-first:uniform=true", (8, 32), TWELVE),
    "binary": Asked(DRAWN, (8, 32), TWELVE),
}
COUNTS = {
    "ones": Asked(ONES, CORE),
    "commas": Asked(COMMAS, CORE),
    "bits": Asked(BITS, (4, 8, 10, 12, 16, 32, 64), TWELVE),
}
STATES = {
    "ones-rest": Asked(ONES, REST),
    "commas-rest": Asked(COMMAS, REST),
    "ones-states": partial(states.measure, asked=("ones", "ones-rest"), exact=(*CORE, *REST)),
    "commas-states": partial(states.measure, asked=("commas", "commas-rest"), exact=(*CORE, *REST)),
    "bits-states": partial(
        states.measure, asked=("bits",), exact=(8, 10, 12, 32), exact_seeds=TWELVE
    ),
    "ones-probe": partial(states.probe, kept=("ones-states",), is_random=False),
    "commas-probe": partial(states.probe, kept=("commas-states",), is_random=False),
}
MORE = {
    "sum": Asked("sum-ones", (3, 5, 8, 10, 12, 16, 20, 24, 32, 48, 64, 128)),
    "fair-bits": Asked(FAIR, (8, 12, 16, 32), TWELVE),
    "word": Asked("count-word", (4, 8, 16, 32), TWELVE),
}
REASONED = {
    f"bits-{mode}": Asked(f"{BITS}:mode={mode}", (12,), TWELVE)
    for mode in ("answer-only", "cot-zero-shot", "cot-few-shot")
}
LONGER = {
    "bits-partition-longer": Asked(BITS, (16, 32), TWELVE, MITIGATIONS["partition"]),
    "digits-repeat-prompt-longer": Asked(DIGITS, (16, 32), TWELVE, MITIGATIONS["repeat-prompt"]),
}
"""Asked after the others had been looked at: not of the protocol."""
CELLS: dict[str, Any] = {
    **COUNTS,
    **COPIES,
    **STATES,
    **MORE,
    **mitigated(
        BITS,
        "bits",
        ("separator-1", "partition", "separator-3", "repeat-prompt", "sharper", "window", "hint"),
    ),
    **mitigated(DIGITS, "digits", ("separator-1", "hint", "repeat-prompt", "separator-3")),
    "fair-bits-states": partial(states.measure, asked=("fair-bits",)),
    "bits-probe": partial(states.probe, kept=("bits-states", "fair-bits-states"), is_random=True),
    **REASONED,
    "threes": Asked(
        "count-ones:separator_every=3", (3, 5, 8, 9, 10, 12, 16, 20, 24, 32, 48, 64, 128)
    ),
    **LONGER,
    "random-weights": partial(states.measure_random, asked=("bits", "fair-bits")),
}
"""In the order of measuring, the most important first."""


def measure(model: TransformerBridge, directory: Path, minutes: float) -> None:
    """What is not stored yet, until so many minutes of CPU are used."""
    for name, cell in CELLS.items():
        if path_of(name).is_file():
            continue
        if time.process_time() > 60 * minutes:
            print(f"{name}: left out, {minutes:g} minutes are over", flush=True)
            continue
        start, wall = time.process_time(), time.perf_counter()
        try:
            if isinstance(cell, Asked):
                cell.measure(model, name)
            else:
                cast(Callable[..., None], cell)(model, name=name, directory=directory)
        except (ost.InputError, mitigations.MitigationError, FileNotFoundError) as error:
            print(
                f"{name}: left out: {error}", flush=True
            )  # what it needs is not measured, or not there
            continue
        print(
            f"{name}: {time.process_time() - start:.0f} s of CPU, {time.perf_counter() - wall:.0f} s",
            flush=True,
        )
