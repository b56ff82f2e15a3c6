"""Everything that decides the trained weights, in one frozen value: the recipe is what a checkpoint
and the card name. The three embedded models are three recipes, `RECIPES`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from transformers import Gemma3TextConfig, GemmaConfig

from ostools.ground.errors import InputError, checked_name
from ostools.tasks.appendix_c import NAMES
from studies.training.corpus import BOS_ID, EOS_ID, PAD_ID, VOCABULARY_SIZE

_LONGEST: dict[str, int] = {
    "copy-last": 256,
    "copy-first": 256,
    "copy": 256,
    "sum-ones": 128,
    "count-ones": 128,
    "count-ones-bernoulli": 128,
    "count-ones-figure-5": 128,
    "count-word": 64,
}

_SHARES: dict[str, float] = {
    "copy-last": 1.0,
    "copy-first": 1.0,
    "copy": 1.0,
    "sum-ones": 1.5,
    "count-ones": 1.5,
    "count-ones-bernoulli": 2.0,
    "count-ones-figure-5": 1.5,
    "count-word": 1.0,
}

ARCHITECTURES = ("gemma", "gemma3")
LENGTH_LAWS = ("broad", "falling")
FORMATS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Recipe:
    """One training run. Lengths are in tokens unless they say items.

    longest: the longest sequence, in items, on which each task is trained once the curriculum is
        through.
    shares: how often each task is drawn, relative to the others.
    length_law: how a number of items is drawn. "broad": half uniform, half log-uniform. "falling":
        n with probability proportional to exp(-n / `length_scale`), the way language models see
        lengths; the scale is read by it alone.
    architecture: "gemma", or "gemma3", in which all layers but `full_layers` see the last `window`
        tokens alone.
    stored: the number format of the weights on disk; they are rounded to it before anything is
        measured.
    curriculum_steps: 0 is no curriculum.

    The length curriculum raises the longest sequence geometrically from `first_length` items to
    each task's own limit (`longest`) over the first `curriculum_steps`. The rate rises over
    `warmup_steps`, stays, and falls linearly to zero over the last `decay_steps`: until then, a
    longer run is the same run.

    Raises `InputError` for an unknown name, and a window that the architecture does not have or
    needs.
    """

    seed: int = 0
    steps: int = 5700
    task_tokens: int = 1600
    text_tokens: int = 772
    text_length: int = 193
    repeat_share: float = 0.5
    steps_per_group: int = 8
    learning_rate: float = 1.5e-3
    weight_decay: float = 0.05
    gradient_clip: float = 1.0
    warmup_steps: int = 50
    decay_steps: int = 1750
    curriculum_steps: int = 2500
    first_length: int = 8
    text_loss_weight: float = 0.15
    template_weight: float = 0.02
    line_weight: float = 0.1
    n_layers: int = 4
    d_model: int = 128
    n_heads: int = 4
    d_head: int = 32
    d_mlp: int = 512
    context_length: int = 8192
    longest: Mapping[str, int] = field(default_factory=lambda: dict(_LONGEST))
    shares: Mapping[str, float] = field(default_factory=lambda: dict(_SHARES))
    length_law: str = "broad"
    length_scale: float = 12.0
    architecture: str = "gemma"
    window: int | None = None
    full_layers: tuple[int, ...] = ()
    stored: str = "float32"

    def __post_init__(self) -> None:
        checked_name("architecture", self.architecture, ARCHITECTURES)
        checked_name("length_law", self.length_law, LENGTH_LAWS)
        checked_name("number format", self.stored, FORMATS)
        if self.longest.keys() != self.shares.keys() or not self.longest.keys() <= set(NAMES):
            raise InputError(
                f"longest, shares: expected the same tasks out of {', '.join(NAMES)}, found {', '.join(self.longest)} and "
                f"{', '.join(self.shares)}"
            )
        if (self.architecture == "gemma3") != (self.window is not None):
            raise InputError(
                f"window: expected one for the architecture 'gemma3' and none for 'gemma', found {self.window} for "
                f"{self.architecture!r}"
            )

    def model_config(self) -> GemmaConfig | Gemma3TextConfig:
        """The architecture: Gemma or Gemma 3 with multi-query attention and tied embeddings."""
        rope = {"rope_type": "default", "rope_theta": 10000.0}
        shared: dict[str, Any] = {
            "vocab_size": VOCABULARY_SIZE,
            "hidden_size": self.d_model,
            "intermediate_size": self.d_mlp,
            "num_hidden_layers": self.n_layers,
            "num_attention_heads": self.n_heads,
            "num_key_value_heads": 1,
            "head_dim": self.d_head,
            "max_position_embeddings": self.context_length,
            "tie_word_embeddings": True,
            "pad_token_id": PAD_ID,
            "eos_token_id": EOS_ID,
            "bos_token_id": BOS_ID,
            "dtype": "float32",
        }
        if self.architecture == "gemma":
            return GemmaConfig(hidden_act="gelu_pytorch_tanh", rope_parameters=rope, **shared)
        kinds = [
            "full_attention" if i in self.full_layers else "sliding_attention"
            for i in range(self.n_layers)
        ]
        return Gemma3TextConfig(
            hidden_activation="gelu_pytorch_tanh",
            query_pre_attn_scalar=self.d_head,
            sliding_window=self.window,
            layer_types=kinds,
            rope_parameters={"full_attention": rope, "sliding_attention": rope},
            **shared,
        )

    def schedule_at(self, step: int) -> float:
        """The share of the learning rate that a step uses (0 is the first step)."""
        warm = (step + 1) / self.warmup_steps
        falling = (self.steps - step) / self.decay_steps
        return min(warm, falling, 1.0)

    def longest_at(self, step: int, limit: int) -> int:
        """The longest sequence, in items, that the curriculum allows at a step for a task with this
        limit.
        """
        progress = min(1.0, step / self.curriculum_steps) if self.curriculum_steps else 1.0
        first = min(self.first_length, limit)
        return round(first * (limit / first) ** progress)

    def share_up_to(self, length: int, longest: int) -> float:
        """The share of a task's sequences that have at most so many items, of at most `longest`,
        without a curriculum.
        """
        n = min(length, longest)
        if self.length_law == "falling":
            return math.expm1(-n / self.length_scale) / math.expm1(-longest / self.length_scale)
        return (n / longest + math.log(n + 1) / math.log(longest + 1)) / 2

    def trained_lengths(self) -> dict[str, int]:
        """The longest sequence, in items, on which each task was trained when the run ended."""
        return {
            task: self.longest_at(self.steps - 1, limit) for task, limit in self.longest.items()
        }


_MOSTLY_TEXT = Recipe(
    steps=2150,
    task_tokens=720,
    text_tokens=1158,
    text_loss_weight=0.5,
    learning_rate=1.2e-3,
    warmup_steps=100,
    decay_steps=500,
    curriculum_steps=0,
    longest=dict.fromkeys(_LONGEST, 96),
    length_law="falling",
    d_model=192,
    n_heads=6,
    d_mlp=768,
    stored="bfloat16",
)

_COPIES = {"copy-last": 2.0, "copy-first": 2.0, "copy": 2.0}

RECIPES: dict[str, Recipe] = {
    "embedded": Recipe(),
    "embedded-short": replace(
        _MOSTLY_TEXT,
        steps=5700,
        decay_steps=1750,
        task_tokens=960,
        text_tokens=965,
        shares=_SHARES | _COPIES,
    ),
    "embedded-windowed": replace(
        _MOSTLY_TEXT,
        steps=2600,
        decay_steps=800,
        learning_rate=1.5e-3,
        architecture="gemma3",
        n_layers=6,
        d_model=128,
        n_heads=4,
        d_mlp=256,
        window=16,
        full_layers=(5,),
    ),
}
"""The recipe of each embedded model, under the name that `load_model` knows it by."""
