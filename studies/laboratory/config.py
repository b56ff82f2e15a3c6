"""Settings of a trained laboratory model, in one frozen value that its directory names, and the
grid of all models.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ostools.ground.arguments import whole_number
from ostools.ground.errors import InputError, checked_name, checked_names
from ostools.theory.positions import ENCODINGS
from studies.laboratory.prompts import TASKS

CONFIG = "lab.json"
NORMS = ("pre", "post")
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class LabConfig:
    """One model of the laboratory: its shape, what it is trained on, and how long.

    positions: a name of `ostools.theory.positions.ENCODINGS`; `rope_base` is read by "rope" alone.
    norm: "pre" (RMS norm of what attention and MLP read, as in Qwen 2), or "post" (RMS norm of the
        sum after each of them, as in the original Transformer: v <- norm(v + f(v)); the last norm
        before the logits is there in both). In "post" the hooks of ln1 and ln2 are at these norms,
        so `hook_resid_mid`, which is the input of ln2, is the sum after the MLP.
    window: how many keys a query sees, itself included, in every layer; None: all.
    sinks: how many of the first tokens, BOS among them, every query sees beside its window, as in
        StreamingLLM.
    longest: items of the longest training sequence; a length n is drawn with probability
        proportional to n^(-`length_power`).
    tasks: names of `TASKS`, drawn equally often. context: tokens of the longest prompt that the
        model takes.
    dtype: the arithmetic of training, "float32" or "bfloat16" (with float32 master weights:
    `training.logits_in`). steps of `batch` prompts each. The rate rises over `warmup_steps`, stays,
    and falls linearly to 0 over `decay_steps`.

    Raises `InputError` for an unknown name, heads of an odd width, sinks without a window, and a
    context that is too short.
    """

    positions: str = "rope"
    rope_base: float = 10_000.0
    norm: str = "pre"
    n_layers: int = 4
    d_model: int = 64
    n_heads: int = 4
    d_mlp: int = 192
    window: int | None = None
    sinks: int = 0
    longest: int = 32
    length_power: float = 0.5
    tasks: tuple[str, ...] = TASKS
    context: int = 512
    dtype: str = "float32"
    seed: int = 0
    steps: int = 2000
    batch: int = 32
    learning_rate: float = 3e-3
    weight_decay: float = 0.02
    gradient_clip: float = 1.0
    warmup_steps: int = 100
    decay_steps: int = 800

    def __post_init__(self) -> None:
        checked_name("positions", self.positions, ENCODINGS)
        checked_name("norm", self.norm, NORMS)
        checked_name("dtype", self.dtype, DTYPES)
        object.__setattr__(self, "tasks", checked_names("task", self.tasks, TASKS))
        if self.window is not None:
            whole_number("window", self.window, 1)
        elif self.sinks:
            raise InputError(
                f"sinks: expected a window beside which tokens stay visible, found none: {self.sinks} sinks"
            )
        if self.d_model % (2 * self.n_heads):
            raise InputError(
                f"n_heads: expected heads of an even width (d_model = {self.d_model}), found {self.n_heads} of them"
            )
        if self.longest + 8 > self.context:
            raise InputError(
                f"context: expected at least longest + 8 = {self.longest + 8} tokens, found {self.context}"
            )

    @property
    def encoding(self) -> str:
        """The positions by one name, as the laboratory of random weights calls them: "rope-10000"."""
        return f"rope-{self.rope_base:.10g}" if self.positions == "rope" else self.positions

    @property
    def name(self) -> str:
        """The cell of the grid, for folders and tables."""
        window = "" if self.window is None else f"-window-{self.window}"
        changes = f"-sinks-{self.sinks}" if self.sinks else ""
        changes += "" if self.norm == "pre" else f"-{self.norm}-norm"
        changes += "" if self.dtype == "float32" else f"-{self.dtype}"
        return f"{self.encoding}-layers-{self.n_layers}{window}{changes}-seed-{self.seed}"

    def schedule_at(self, step: int) -> float:
        """The share of the learning rate that a step uses (0 is the first step)."""
        return min((step + 1) / self.warmup_steps, (self.steps - step) / self.decay_steps, 1.0)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"


def read_config(directory: Path) -> LabConfig:
    """The config of a laboratory model's directory. Raises `InputError` where there is none."""
    try:
        settings = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
        return LabConfig(**{**settings, "tasks": tuple(settings["tasks"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"expected a laboratory model in {str(directory)!r}, with its {CONFIG}: {error}"
        ) from None


SEEDS = (0, 1, 2)
BASE = LabConfig()
POSITIONS: tuple[dict[str, Any], ...] = (
    {"positions": "none"},
    {"positions": "learned"},
    {"positions": "sinusoidal"},
    {"positions": "alibi"},
    {"positions": "rope"},
    {"positions": "rope", "rope_base": 100.0},
)
WINDOWS = (4, 8, 16, 32, 64)
DEPTHS = (1, 2, 8, 16)
"""Beside the 4 layers of `BASE`; the deepest last, as it takes longest."""

CHANGES: tuple[dict[str, Any], ...] = (
    {"dtype": "bfloat16"},
    {"positions": "none", "dtype": "bfloat16"},
    {"norm": "post"},
    {"window": 16, "sinks": 1},
)
"""One change of the training or of the block each, of cells that are there without it."""


def grid() -> list[LabConfig]:
    """All cells, each once, the most telling first: positions, windows, depth, other changes;
    within each, seed by seed.
    """
    changes = [
        *((seed, settings) for seed in SEEDS for settings in POSITIONS),
        *((seed, {"window": window}) for seed in SEEDS for window in WINDOWS),
        *((seed, {"n_layers": depth}) for depth in DEPTHS for seed in SEEDS),
        *((seed, settings) for seed in SEEDS for settings in CHANGES),
    ]
    return list(dict.fromkeys(replace(BASE, **settings, seed=seed) for seed, settings in changes))
