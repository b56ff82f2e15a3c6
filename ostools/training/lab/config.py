"""What decides the weights of a laboratory model, in one frozen value that its checkpoint names."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ostools.ground.errors import InputError, shown, unknown_name
from ostools.ground.files.reading import JSON_LIMIT, read_text
from ostools.ground.names import checked_name, checked_names
from ostools.ground.whole_numbers import whole_number, whole_numbers
from ostools.theory.positions import ENCODINGS
from ostools.training.lab.precision import DTYPES
from ostools.training.lab.prompts import TASKS

CONFIG = "lab.json"
_FROM = {"n_layers": 1, "d_model": 2, "n_heads": 1, "d_mlp": 1, "longest": 1, "context": 8, "seed": 0, "steps": 1}
_FROM |= {"sinks": 0, "batch": 1, "warmup_steps": 1, "decay_steps": 1}
NORMS = ("pre", "post")
_POSITIVE = ("rope_base", "learning_rate", "gradient_clip")


@dataclass(frozen=True)
class LabConfig:
    """One model of the laboratory: its shape, what it is trained on, and how long.

    positions: a name of `ostools.theory.positions.ENCODINGS`; `rope_base` is read by "rope" alone.
    norm: "pre" (RMS norm of what attention and MLP read, as in Qwen 2), or "post" (RMS norm of the sum after each of them, as
        in the original Transformer: v <- norm(v + f(v)); the last norm before the logits is there in both). In "post" the
        hooks of ln1 and ln2 are at these norms, so `hook_resid_mid`, which is the input of ln2, is the sum after the MLP.
    window: how many keys a query sees, itself included, in the layers `window_layers` ("all", or their numbers); None: all.
    sinks: how many of the first tokens, BOS among them, every query sees beside its window, as in StreamingLLM.
    longest: items of the longest training sequence; a length n is drawn with probability proportional to
        n^(-`length_power`).
    tasks: names of `TASKS`, drawn equally often. context: tokens of the longest prompt that the model takes.
    dtype: the arithmetic of training, "float32" or "bfloat16" (with float32 master weights: `precision.logits_in`).
    steps of `batch` prompts each. The rate rises over `warmup_steps`, stays, and falls linearly to 0 over `decay_steps`.

    Raises `InputError` for an unknown name, a number out of range, heads that do not divide the width, and a layer that the
    model does not have.
    """

    positions: str = "rope"
    rope_base: float = 10_000.0
    norm: str = "pre"
    n_layers: int = 4
    d_model: int = 64
    n_heads: int = 4
    d_mlp: int = 192
    window: int | None = None
    window_layers: str | tuple[int, ...] = "all"
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
        for name, least in _FROM.items():
            whole_number(name, getattr(self, name), least)
        for name in (*_POSITIVE, "length_power", "weight_decay"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
                raise InputError(f"{name}: expected a number of at least 0, found {shown(value)}")
            if name in _POSITIVE and value == 0:
                raise InputError(f"{name}: expected a positive number, found 0")
        object.__setattr__(self, "tasks", checked_names("task", self.tasks, TASKS))
        if self.d_model % (2 * self.n_heads):
            raise InputError(
                f"n_heads: expected heads of an even width (d_model = {self.d_model}), found {self.n_heads} of them"
            )
        if self.longest + 8 > self.context:
            raise InputError(
                f"context: expected at least longest + 8 = {self.longest + 8} tokens, found {self.context}"
            )
        self._check_window()

    def _check_window(self) -> None:
        if self.window is not None:
            whole_number("window", self.window, 1)
        if self.sinks and (self.window is None or self.window_layers != "all"):
            raise InputError(
                f"sinks: expected a window in every layer for tokens that stay visible beside it, found {self.sinks} sinks, a "
                f"window of {self.window} and window_layers {self.window_layers!r}: set a window, or leave sinks out"
            )
        layers: Any = self.window_layers
        if layers == "all":
            return
        if isinstance(layers, str):
            raise unknown_name("window_layers", layers, ("all",))
        numbers = tuple(sorted(whole_numbers("window_layers", layers)))
        if self.window is None or numbers[-1] >= self.n_layers:
            raise InputError(
                f"window_layers: expected layers out of 0..{self.n_layers - 1} and a window for them, found {numbers} "
                f"and a window of {self.window}"
            )
        object.__setattr__(self, "window_layers", numbers)

    @property
    def windowed(self) -> tuple[bool, ...]:
        """Of each layer, whether it has the window."""
        chosen = range(self.n_layers) if isinstance(self.window_layers, str) else self.window_layers
        return tuple(self.window is not None and layer in chosen for layer in range(self.n_layers))

    @property
    def encoding(self) -> str:
        """The positions by one name, as the laboratory of random weights calls them: "rope-10000"."""
        return f"rope-{self.rope_base:.10g}" if self.positions == "rope" else self.positions

    @property
    def name(self) -> str:
        """The cell of the grid, for folders and tables."""
        window = "" if self.window is None else f"-window-{self.window}"
        window += "" if isinstance(self.window_layers, str) else "-in-" + "-".join(map(str, self.window_layers))
        others = f"-sinks-{self.sinks}" if self.sinks else ""
        others += "" if self.norm == "pre" else f"-{self.norm}-norm"
        others += "" if self.dtype == "float32" else f"-{self.dtype}"
        return f"{self.encoding}-layers-{self.n_layers}{window}{others}-seed-{self.seed}"

    def schedule_at(self, step: int) -> float:
        """The share of the learning rate that a step uses (0 is the first step)."""
        return min((step + 1) / self.warmup_steps, (self.steps - step) / self.decay_steps, 1.0)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"


def config_of(settings: Mapping[str, Any], where: str = "the configuration") -> LabConfig:
    """A config out of names and values, as JSON or a command line has them. Raises `InputError` for an unknown name."""
    known = [field.name for field in dataclasses.fields(LabConfig)]
    for name in settings:
        if name not in known:
            raise unknown_name(f"setting of {where}", name, known)
    listed: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()
    }
    return LabConfig(**listed)


def read_config(directory: Path) -> LabConfig:
    """The config of a laboratory model's directory. Raises `InputError` where there is none."""
    path = directory / CONFIG
    try:
        settings = json.loads(read_text(path, JSON_LIMIT))
    except (OSError, ValueError) as error:
        raise InputError(f"expected a laboratory model in {str(directory)!r}, with its {CONFIG}: {error}") from None
    if not isinstance(settings, dict):
        raise InputError(f"expected settings in {str(path)!r}, found {shown(settings)}")
    return config_of(settings, str(path))
